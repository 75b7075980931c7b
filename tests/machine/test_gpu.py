"""Kernels of Pallas's Triton back end on the kernel machine: masks, atomic updates, races."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from called import called
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt
from machine_runs import passed, ran

from pallas_debug.bridge.programs import triton as triton_rules
from pallas_debug.errors import MachineError
from pallas_debug.machine import run
from pallas_debug.machine.sanitizer import areas
from pallas_debug.model import Finding

Kernel = Callable[..., Any]

BLOCK = 8
X = np.arange(32, dtype=np.float32)
RAGGED = X[:20]
NUMBERS = np.array([3, 1, 3, 0, 2, 2, 2, 3] * 2, np.int32)
SUM = jax.ShapeDtypeStruct((1,), jnp.float32)


def on_gpu(out: Any = None, steps: int = 4, **options: Any) -> Callable[[Kernel], Kernel]:
    """Decorate a kernel that takes all arrays whole."""
    params = plt.CompilerParams(num_warps=1)
    return called(out, like=0, grid=(steps,), compiler_params=params, **options)


def sanitized(function: Kernel, *args: Any) -> tuple[Finding, ...]:
    """All findings of the sanitizer."""
    decoded, arrays = passed(function, args)
    return run.run(decoded, arrays, observers=areas.observers(decoded, arrays)).findings


def one(function: Kernel, *args: Any) -> Finding:
    (finding,) = sanitized(function, *args)
    return finding


def part() -> Any:
    return pl.ds(pl.program_id(0) * BLOCK, BLOCK)


def inside(size: int) -> jax.Array:
    return pl.program_id(0) * BLOCK + jnp.arange(BLOCK) < size


# Masks


def doubled(mask: Callable[[int], jax.Array] | None, steps: int = 3, **load: Any) -> Kernel:
    @on_gpu(steps=steps)
    def kernel(x_ref: jax.Ref, o_ref: jax.Ref) -> None:
        chosen = {} if mask is None else {"mask": mask(x_ref.size)}
        value = plt.load(x_ref.at[part()], **chosen, **load)
        plt.store(o_ref.at[part()], 2 * value, **chosen)

    return kernel


@pytest.mark.parametrize(
    "mask,index,cause",
    [
        (None, "x_ref[16:24]", "the index comes from line "),
        (
            lambda size: pl.program_id(0) * BLOCK + jnp.arange(BLOCK) <= size,
            "x_ref[16:21]",
            "the mask is true for elements outside dimension 0, which has size 20",
        ),
        (
            lambda size: jnp.arange(BLOCK) < size,
            "x_ref[16:24]",
            "the mask is true for elements outside dimension 0, which has size 20",
        ),
    ],
    ids=["none", "off by one", "without the offset"],
)
def test_a_mask_that_lets_elements_outside_the_array_through(
    mask: Any, index: str, cause: str
) -> None:
    finding = one(doubled(mask), RAGGED)
    assert (finding.kind, finding.index) == ("OutOfBoundsRead", index)
    assert "past the end of dimension 0 of float32[20] in GMEM" in finding.message
    assert str(finding.cause).startswith(cause)
    if mask is not None:
        advice = "let the mask be false for these elements, as in `index < 20`, or pad the array"
        assert finding.advice == advice


def test_a_grid_that_is_too_short_for_a_masked_store() -> None:
    finding = one(doubled(inside, steps=2, other=0.0), RAGGED)
    assert finding.kind == "OutputNotWritten"
    assert "nothing writes o_ref[16:20]" in finding.message


@pytest.mark.slow
def test_a_mask_of_elements_that_are_no_slice() -> None:
    @on_gpu()
    def kernel(x_ref: jax.Ref, o_ref: jax.Ref) -> None:
        is_even = jnp.arange(BLOCK) % 2 == 0
        rest = plt.load(x_ref.at[part()], mask=~is_even, other=-1.0)
        plt.store(o_ref.at[part()], rest)
        plt.store(o_ref.at[part()], -rest, mask=is_even)

    np.testing.assert_array_equal(ran(kernel, X), np.where(np.arange(32) % 2, X, 1))
    assert not sanitized(kernel, X)


def summed(other: float | None) -> Kernel:
    @on_gpu(jax.ShapeDtypeStruct((3,), jnp.float32), steps=3)
    def kernel(x_ref: jax.Ref, o_ref: jax.Ref) -> None:
        values = plt.load(x_ref.at[part()], mask=inside(x_ref.size), other=other)
        o_ref[pl.program_id(0)] = jnp.sum(values)

    return kernel


def test_undefined_elements_of_a_load_that_reach_a_result() -> None:
    assert sanitized(summed(0.0), RAGGED) == ()
    finding = one(summed(None), RAGGED)
    assert finding.kind == "UninitializedRead"
    assert finding.message == (
        "4 of the 8 elements that are loaded from x_ref are undefined, and reach a result"
    )
    assert finding.cause == (
        "a load under a mask without `other` leaves the rest of its result undefined"
    )
    assert finding.advice == (
        "pass `other`, such as `other=0.0` for a sum or `other=-jnp.inf` for a maximum"
    )


# Blocks


def blocked(masked: bool = False) -> Kernel:
    @on_gpu(steps=3, block=pl.BlockSpec((BLOCK,), lambda i: (i,)))
    def kernel(x_ref: jax.Ref, o_ref: jax.Ref) -> None:
        if masked:
            value = plt.load(x_ref, mask=inside(RAGGED.size), other=0.0)
            plt.store(o_ref, 2 * value, mask=inside(RAGGED.size))
        else:
            o_ref[...] = 2 * x_ref[...]

    return kernel


def test_a_last_block_that_reaches_past_its_array() -> None:
    assert sanitized(blocked(), X[:24]) == ()
    assert sanitized(blocked(masked=True), RAGGED) == ()
    if triton_rules.masks_blocks():
        np.testing.assert_array_equal(ran(blocked(), RAGGED), 2 * RAGGED)
        assert sanitized(blocked(), RAGGED) == ()
        return
    finding = one(blocked(), RAGGED)
    assert (finding.kind, finding.index) == ("OutOfBoundsRead", "x_ref[16:24]")
    assert finding.cause == (
        "the block reaches past the end of its array, and jax before 0.12 does not mask that"
    )
    assert finding.advice == (
        "mask the access, as in `plt.load(x_ref, mask=index < 20, other=0)`, or pad the array"
    )


# Races


add = on_gpu(SUM, input_output_aliases={1: 0})
"""A kernel that adds to an array of one element, its second argument."""

ZERO = np.zeros(1, np.float32)


@add
def adds(x_ref: jax.Ref, z_ref: jax.Ref, o_ref: jax.Ref) -> None:
    plt.atomic_add(o_ref, (pl.ds(0, 1),), jnp.sum(x_ref[part()])[None])


atomically = inspect.unwrap(adds)


@add
def adds_plainly(x_ref: jax.Ref, z_ref: jax.Ref, o_ref: jax.Ref) -> None:
    o_ref[...] += jnp.sum(x_ref[part()])[None]


@add
def adds_and_reads(x_ref: jax.Ref, z_ref: jax.Ref, o_ref: jax.Ref) -> None:
    atomically(x_ref, z_ref, o_ref)
    x_ref[part()] = x_ref[part()] / o_ref[0]


@add
def resets_and_adds(x_ref: jax.Ref, z_ref: jax.Ref, o_ref: jax.Ref) -> None:
    @pl.when(pl.program_id(0) == 0)
    def _reset() -> None:
        o_ref[...] = jnp.zeros(1)

    atomically(x_ref, z_ref, o_ref)


@pytest.mark.parametrize("kernel", [adds_plainly, adds_and_reads, resets_and_adds])
def test_plain_accesses_of_shared_elements_race(kernel: Kernel) -> None:
    finding = one(kernel, X, ZERO)
    assert (finding.kind, finding.operand) == ("DataRace", "o_ref")
    assert finding.witness.shape == "float32[1] in GMEM"
    assert finding.cause == (
        "the grid points of a kernel run at the same time on a GPU, in any order"
    )
    assert finding.advice == (
        "give each grid point its own elements, or make all accesses atomic (plt.atomic_add)"
    )


def test_an_atomic_sum_without_an_initial_value() -> None:
    @on_gpu(SUM)
    def kernel(x_ref: jax.Ref, o_ref: jax.Ref) -> None:
        atomically(x_ref, x_ref, o_ref)

    finding = one(kernel, X)
    assert (finding.kind, finding.operand) == ("UninitializedRead", "o_ref")


def test_a_lock_orders_accesses() -> None:
    lock, total = np.zeros((), np.int32), np.zeros(BLOCK, np.float32)

    @on_gpu((lock, total), input_output_aliases={1: 0, 2: 1})
    def kernel(x_ref: Any, l_ref: Any, z_ref: Any, lock_ref: Any, o_ref: Any) -> None:
        jax.lax.while_loop(lambda _: plt.atomic_cas(lock_ref, 0, 1) == 1, lambda a: a, 0)
        o_ref[...] += x_ref[part()]
        plt.atomic_xchg(lock_ref, (), 0)

    def function(x: jax.Array) -> Any:
        return kernel(x, lock, total)

    assert sanitized(function, X) == ()
    np.testing.assert_array_equal(ran(function, X)[1], X.reshape(4, 8).sum(0))


@pytest.mark.slow
def test_the_last_grid_point_may_read_what_the_others_wrote() -> None:
    count = np.zeros(1, np.int32)
    parts = jax.ShapeDtypeStruct((4,), jnp.float32)

    @on_gpu((count, parts, SUM), input_output_aliases={1: 0})
    def kernel(x_ref: Any, c_ref: Any, count_ref: Any, part_ref: Any, o_ref: Any) -> None:
        part_ref[pl.program_id(0)] = jnp.sum(x_ref[part()])

        @pl.when(plt.atomic_add(count_ref, (0,), 1) == 3)
        def _last() -> None:
            o_ref[0] = jnp.sum(part_ref[...])

    assert sanitized(kernel, X, count) == ()
    assert ran(kernel, X, count)[2].tolist() == [X.sum()]


# Operations


@pytest.mark.parametrize(
    "update, start, expected",
    [
        (plt.atomic_max, -1, 3),
        (plt.atomic_min, -1, -1),
        (plt.atomic_or, -1, -1),
        (plt.atomic_and, 0, 0),
        (plt.atomic_xor, -1, ~3),
        (plt.atomic_xchg, -1, 3),
    ],
)
def test_atomic_updates(update: Any, start: int, expected: int) -> None:
    @on_gpu(jax.ShapeDtypeStruct((1,), jnp.int32), steps=2, input_output_aliases={1: 0})
    def kernel(x_ref: jax.Ref, z_ref: jax.Ref, o_ref: jax.Ref) -> None:
        number = jnp.max(x_ref[part()])
        update(o_ref, (0,), number, mask=pl.program_id(0) == 1)

    assert ran(kernel, NUMBERS, np.array([start], np.int32)).tolist() == [expected]


def test_an_approximate_hyperbolic_tangent_and_other_assembly() -> None:
    @on_gpu()
    def tanh(x_ref: jax.Ref, o_ref: jax.Ref) -> None:
        plt.debug_barrier()
        o_ref[part()] = plt.max_contiguous(plt.approx_tanh(x_ref[part()]), [8])

    np.testing.assert_allclose(ran(tanh, X), np.tanh(X), rtol=1e-6)

    @on_gpu()
    def assembly(x_ref: jax.Ref, o_ref: jax.Ref) -> None:
        (o_ref[part()],) = plt.elementwise_inline_asm(
            "ex2.approx.f32 $0, $1;", args=[x_ref[part()]], constraints="=f,f", pack=1,
            result_shape_dtypes=[jax.ShapeDtypeStruct((BLOCK,), jnp.float32)],
        )  # fmt: skip

    with pytest.raises(MachineError, match=r"inline assembly, `ex2\.approx\.f32 \$0, \$1;`"):
        passed(assembly, (X,))


def test_a_kernel_without_parameters_is_for_a_gpu_if_it_is_atomic() -> None:
    kernel = called(SUM, grid=(4,), input_output_aliases={1: 0})(atomically)
    decoded, _ = passed(kernel, (X, ZERO))
    assert decoded.is_gpu
    assert sanitized(kernel, X, ZERO) == ()
