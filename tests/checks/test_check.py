"""`pallas_debug.check`: supported transformations and kernels, and where a check failed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checked_calls import F32, MODES, ROWS, X, _log_less_one, call, checked, logs, one
from jax import lax
from jax.experimental import checkify
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import pallas_debug
from pallas_debug.model import Finding

# Transformations.


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "transform",
    [lambda f: f, jax.jit, lambda f: jax.jit(jax.jit(f))],
    ids=["plain", "jit", "nested"],
)
def test_jit(transform: Callable[..., Any], mode: str) -> None:
    finding = one(transform(logs), X, mode=mode)
    assert (finding.kind, finding.kernel) == ("NanProduced", "logs")
    assert (finding.grid_point, finding.count, finding.loop) == ((0,), 2, ())
    assert finding.engines == ("checks",)


@pytest.mark.slow
def test_the_values_are_those_of_the_unchecked_kernel() -> None:
    with pallas_debug.interpret("hlo"):
        plain = logs(X)
    _, out = checked(jax.jit(logs), X)
    np.testing.assert_array_equal(out, plain)


@pytest.mark.slow
def test_vmap_puts_the_batch_index_first() -> None:
    batch = jnp.stack([X + 1e6, X, X])
    assert one(jax.vmap(logs), batch).grid_point == (1, 0)
    assert one(jax.vmap(logs), batch).count == 4
    twice = jnp.stack([batch + 1e6, batch])
    assert one(jax.vmap(jax.vmap(logs)), twice).grid_point == (1, 1, 0)


@jax.custom_vjp
def root(x: jax.Array) -> jax.Array:
    def root_forward(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.sqrt(x_ref[...])

    return call(root_forward, x)


def _root_backward(x: jax.Array, g: jax.Array) -> tuple[jax.Array]:
    def root_backward(x_ref: Any, g_ref: Any, o_ref: Any) -> None:
        o_ref[...] = g_ref[...] * lax.rsqrt(x_ref[...] - 1)

    return (call(root_backward, x, g),)


root.defvjp(lambda x: (root(x), x), _root_backward)


@pytest.mark.slow
def test_the_kernel_of_a_gradient() -> None:
    finding = one(jax.grad(lambda x: root(x).sum()), X)
    assert (finding.kernel, finding.kind) == ("root_backward", "NanProduced")
    assert one(root, X - 1).kernel == "root_forward"


@pytest.mark.slow
def test_in_a_scan_and_a_cond_of_the_program() -> None:
    def scanned(x: jax.Array) -> jax.Array:
        return lax.scan(lambda carry, _: (logs(carry) * 0 + carry, None), x, None, length=3)[0]

    finding = one(scanned, X)
    assert finding.kind == "NanProduced"
    assert finding.count == 2  # later the NaN is made of NaN

    def branching(x: jax.Array, yes: jax.Array) -> jax.Array:
        return lax.cond(yes, logs, lambda y: y, x)

    report, _ = pallas_debug.check(jax.jit(branching), interpret="hlo")(X, jnp.bool_(False))
    assert report.findings == ()
    assert report.not_checked == (
        "kernel `logs` was not checked: it did not run to its end. "
        "Is it in a branch that was not taken? The absence of findings in it proves nothing.",
    )
    assert one(jax.jit(branching), X, jnp.bool_(True)).count == 2


@pytest.mark.slow
def test_under_shard_map() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("d",))
    spec = jax.sharding.PartitionSpec("d")

    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.sqrt(x_ref[...] - 1500)

    mapped = jax.shard_map(
        lambda x: call(kernel, x, shape=(8, 128)),
        mesh=mesh,
        in_specs=spec,
        out_specs=spec,
        check_vma=False,
    )
    assert one(jax.jit(mapped), X).count == 2
    assert one(mapped, X).count == 2


@pytest.mark.slow
def test_under_x64() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        first = jnp.int64(3) * pl.program_id(0).astype(jnp.int64) + 5

        def body(n: Any, total: Any) -> Any:
            return total + x_ref[pl.ds(n + first, 1), :]

        o_ref[...] = lax.fori_loop(0, 10, body, jnp.zeros((1, 128), F32))

    with jax.enable_x64(True):
        finding = one(lambda x: call(kernel, x, shape=(1, 128), grid=(2,)), X)
        wide = one(
            lambda x: call(_log_less_one, x, shape=jax.ShapeDtypeStruct((16, 128), jnp.float64)),
            X * 1.0,
        )
    assert (finding.grid_point, finding.loop, finding.count) == ((1,), (8,), 2)
    assert wide.kind == "NanProduced"


# Where in a kernel.


def fails_in(body: Callable[[Any], Any], **kwargs: Any) -> Finding:
    """What is found in a kernel that runs `body` on its input, at a grid of 4."""

    def kernel(x_ref: Any, o_ref: Any) -> None:
        value = body(x_ref)
        o_ref[...] = x_ref[...] + (0 if value is None else value)

    return one(lambda x: call(kernel, x, grid=(4,)), X, **kwargs)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_when(mode: str) -> None:
    def body(x_ref: Any) -> None:
        i = pl.program_id(0)

        @pl.when(i >= 2)
        def _() -> None:
            checkify.debug_check(i < 1, "too far: {i}", i=i)

    finding = fails_in(body, mode=mode)
    assert (finding.grid_point, finding.count) == ((2,), 2)
    assert finding.message == "too far: 2"


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_what_fails_in_front_of_a_branch_that_is_not_taken(mode: str) -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        i = pl.program_id(0)
        pl.debug_check(i != 0, "in front")

        @pl.when(i == 3)
        def _() -> None:
            def step(n: Any, _: Any) -> None:
                checkify.debug_check(n < 1, "inside: {n}", n=n)

            lax.fori_loop(0, 3, step, None)

        pl.debug_check(i != 1, "behind")
        o_ref[...] = x_ref[...]

    found, _ = checked(lambda x: call(kernel, x, grid=(4,)), X, mode=mode)
    assert [(f.message, f.grid_point, f.loop, f.count) for f in found] == [
        ("in front", (0,), (), 1),
        ("behind", (1,), (), 1),
        ("inside: 1", (3,), (1,), 2),
    ]


@pytest.mark.slow
def test_branches() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        i = pl.program_id(0)

        def bad() -> Any:
            return jnp.sqrt(x_ref[0, 0] - 1)

        def beyond(ref: Any) -> Any:
            return ref[i + 14, 0]

        chosen = lax.switch(i, [lambda: F32(0), lambda: F32(1), bad, lambda: F32(2)])
        last = lax.cond(i == 3, beyond, lambda ref: ref[0, 0], x_ref)
        o_ref[...] = x_ref[:4, :] + chosen + last

    whole = pl.BlockSpec((16, 128), lambda i: (0, 0))
    found, _ = checked(lambda x: call(kernel, x, grid=(4,), in_specs=[whole], out_specs=ROWS), X)
    assert [(f.kind, f.grid_point) for f in found] == [
        ("NanProduced", (2,)),
        ("OutOfBoundsRead", (3,)),
    ]
    assert found[1].values == {"index": "17", "dimension": "0", "position": "17", "bound": "16"}


LOOPS: dict[str, Callable[[Any, Any], Any]] = {
    "static": lambda n, body: lax.fori_loop(0, 6, body, 0),
    "traced": lambda n, body: lax.fori_loop(0, n, body, 0),
    "lower": lambda n, body: lax.fori_loop(2, n, body, 0),
    "unrolled": lambda n, body: lax.fori_loop(0, 6, body, 0, unroll=True),
    "while": lambda n, body: lax.while_loop(
        lambda c: c[0] < n, lambda c: (c[0] + 1, body(*c)), (jnp.int32(0), 0)
    )[1],
    "scan": lambda n, body: lax.scan(lambda c, i: (body(i, c), None), 0, jnp.arange(6))[0],
    "reverse": lambda n, body: lax.scan(
        lambda c, i: (body(i, c), None), 0, jnp.arange(6), reverse=True
    )[0],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LOOPS)
def test_loops(name: str) -> None:
    def body(x_ref: Any) -> None:
        def step(i: Any, carry: Any) -> Any:
            checkify.debug_check(i < 4, "at {i}", i=i)
            return carry

        LOOPS[name](6 + (x_ref[0, 0] * 0).astype(jnp.int32), step)

    finding = fails_in(body)
    iteration, index = {"lower": ((2,), 4), "reverse": ((0,), 5)}.get(name, ((4,), 4))
    assert finding.message == f"at {index}"
    assert finding.loop == iteration
    assert finding.grid_point == (0,)
    assert finding.count == 8


@pytest.mark.slow
def test_a_loop_without_a_counter() -> None:
    def body(x_ref: Any) -> None:
        def step(value: Any) -> Any:
            pl.debug_check(value > 2, "below")
            return value / 2

        lax.while_loop(lambda value: value > 1, step, F32(8))

    finding = fails_in(body)
    assert (finding.loop, finding.count) == ((), 4)


@pytest.mark.slow
def test_nested_loops() -> None:
    def body(x_ref: Any) -> None:
        def outer(i: Any, _: Any) -> None:
            def inner(j: Any, _: Any) -> None:
                checkify.debug_check(i + j < 4, "{i} {j}", i=i, j=j)

            lax.fori_loop(0, 4, inner, None)

        lax.fori_loop(0, 3, outer, None)

    finding = fails_in(body)
    assert (finding.loop, finding.count) == ((1, 3), 3 * 4)
    assert finding.message == "1 3"


@pytest.mark.slow
def test_of_five_loops_the_three_innermost_are_known() -> None:
    def body(x_ref: Any) -> None:
        def nest(depth: int, seen: Any) -> None:
            if depth:
                lax.fori_loop(0, 2, lambda i, _: nest(depth - 1, (*seen, i)), None)
            else:
                pl.debug_check(sum(seen) < 4, "all but one are 1")

        nest(5, ())

    assert fails_in(body).loop == (1, 1, 1)


@pytest.mark.slow
def test_the_condition_of_a_while_loop() -> None:
    def body(x_ref: Any) -> Any:
        def beyond(i: Any) -> Any:
            return (x_ref[i + 12, 0] >= 0) & (i < 6)

        return lax.while_loop(beyond, lambda i: i + 1, jnp.int32(0))

    finding = fails_in(body)
    past = {"index": "16", "dimension": "0", "position": "16", "bound": "16"}
    assert (finding.kind, finding.values, finding.loop) == ("OutOfBoundsRead", past, (4,))

    def at_the_end(x_ref: Any) -> Any:
        return lax.while_loop(lambda i: x_ref[i * 8, 0] < 1024, lambda i: i + 2, jnp.int32(0))

    finding = fails_in(at_the_end)
    assert (finding.values, finding.loop) == (past, ())


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_scoped_buffers(mode: str) -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        def body(tile: Any, number: Any) -> None:
            number[0] = 3
            o_ref[...] = tile[...] + x_ref[...]

        pl.run_scoped(body, tile=pltpu.VMEM((16, 128), F32), number=pltpu.SMEM((1,), jnp.int32))

    finding = one(lambda x: call(kernel, x), X, errors="uninitialized", mode=mode)
    assert (finding.kind, finding.operand) == ("UninitializedRead", "tile")


def updated_in_place(x: jax.Array, *, aliases: bool) -> jax.Array:
    """Adds one to a tile of an array in HBM, which has to be an input as well."""

    def kernel(x_ref: Any, o_ref: Any, tile_ref: Any, sem: Any) -> None:
        pltpu.sync_copy(o_ref, tile_ref)
        tile_ref[...] += 1
        pltpu.sync_copy(tile_ref, o_ref)

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    return call(
        kernel, x, in_specs=[anywhere], out_specs=anywhere,
        input_output_aliases={0: 0} if aliases else {},
        scratch_shapes=[pltpu.VMEM((16, 128), F32), pltpu.SemaphoreType.DMA],
    )  # fmt: skip


def test_what_a_copy_brings_was_not_written_either() -> None:
    assert not checked(functools.partial(updated_in_place, aliases=True), X, errors="all")[0]
    finding = one(functools.partial(updated_in_place, aliases=False), X, errors="uninitialized")
    assert (finding.kind, finding.operand) == ("UninitializedRead", "tile_ref")
    assert finding.cause == (
        "either it is filled by a copy of o_ref that starts before o_ref is written, or it is "
        "read where the copy does not reach"
    )


def prefetched(x: jax.Array, table: jax.Array) -> jax.Array:
    def kernel(table_ref: Any, x_ref: Any, o_ref: Any, acc_ref: Any) -> None:
        acc_ref[...] = x_ref[pl.ds(table_ref[pl.program_id(0)], 4), :]
        o_ref[...] = acc_ref[...]

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(4,),
        in_specs=[pl.BlockSpec((16, 128), lambda i, table: (0, 0))],
        out_specs=pl.BlockSpec((4, 128), lambda i, table: (i, 0)),
        scratch_shapes=[pltpu.VMEM((4, 128), F32)],
    )
    return call(kernel, table, x, grid_spec=spec)


@pytest.mark.slow
def test_scalar_prefetch_and_scratch() -> None:
    assert checked(prefetched, X, jnp.array([0, 4, 8, 12]), errors="all")[0] == ()
    finding = one(prefetched, X, jnp.array([0, 4, -1, 13]))
    assert (finding.operand, finding.grid_point, finding.count) == ("x_ref", (2,), 2)
    assert finding.values == {"index": "-1", "index from": "table_ref[2]"}
    batched = jax.vmap(prefetched, in_axes=(None, 0))
    tables = jnp.array([[0, 4, 8, 12], [0, 4, 8, 13]])
    # jax runs a kernel with a batch of prefetched scalars in a loop, once for each.
    assert one(batched, X, tables).grid_point == (3,)


@pytest.mark.slow
def test_dynamic_grids() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.sqrt(x_ref[pl.ds(pl.program_id(0), 1), :] - 500)

    dynamic = jax.jit(lambda n, x: call(kernel, x, shape=(1, 128), grid=(n,)))
    assert one(dynamic, 3, X).count == 3
    assert one(dynamic, 1, X).count == 1
    report, _ = pallas_debug.check(dynamic, interpret="hlo")(0, X)
    (finding,) = report.findings
    assert finding.kind == "OutputNotWritten"
    assert finding.cause == "the grid has no points, so the kernel's body did not run"
    assert ["its body did not run" in gap for gap in report.not_checked] == [True]


@pytest.mark.slow
def test_grids_that_are_empty_and_kernels_without_one() -> None:
    empty = pallas_debug.check(lambda x: call(_log_less_one, x, grid=(0,)), interpret="hlo")(X)[0]
    assert empty.findings == ()
    assert ["its body did not run" in gap for gap in empty.not_checked] == [True]
    assert one(lambda x: call(_log_less_one, x, grid=()), X).grid_point == ()
    assert one(lambda x: call(_log_less_one, x, grid=(1, 2)), X).grid_point == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "semantics",
    [
        ("parallel", "parallel"),
        ("parallel", "arbitrary"),
        ("arbitrary", "parallel"),
        ("arbitrary",) * 2,
    ],
)
def test_parallel_dimensions(semantics: tuple[str, ...]) -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        i, j = pl.program_id(0), pl.program_id(1)
        checkify.debug_check(i * 4 + j < 9, "{i} {j}", i=i, j=j)
        o_ref[...] = x_ref[...]

    finding = one(
        lambda x: call(
            kernel,
            x,
            grid=(4, 4),
            compiler_params=pltpu.CompilerParams(dimension_semantics=semantics),
        ),
        X,
    )
    assert (finding.grid_point, finding.count, finding.message) == ((2, 1), 7, "2 1")


@pytest.mark.slow
def test_several_outputs_and_aliases() -> None:
    def kernel(x_ref: Any, a_ref: Any, b_ref: Any) -> None:
        a_ref[...] = a_ref[...] + 1
        b_ref[...] = jnp.sqrt(x_ref[...] - 1) > 0

    shapes = [jax.ShapeDtypeStruct((16, 128), F32), jax.ShapeDtypeStruct((16, 128), jnp.bool_)]
    (finding,), (a, b) = checked(
        lambda x: call(kernel, x, shape=shapes, input_output_aliases={0: 0}), X
    )
    assert finding.kind == "NanProduced"
    np.testing.assert_array_equal(a, X + 1)
    assert b.dtype == jnp.bool_
    assert int(b.sum()) == 16 * 128 - 2


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_narrow_floats(dtype: str) -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        zero = x_ref[...] - x_ref[...]
        o_ref[...] = (zero.astype(F32) / zero.astype(F32)).astype(dtype)

    shape = jax.ShapeDtypeStruct((16, 128), jnp.dtype(dtype))
    assert one(lambda x: call(kernel, x, shape=shape), X.astype(dtype)).kind == "NanProduced"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32", "int32"])
def test_integers_of_all_kinds(dtype: str) -> None:
    def kernel(n_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = (
            x_ref[pl.ds(n_ref[0].astype(dtype), 8), :]
            + lax.div(n_ref[...], n_ref[...] - 12).astype(dtype).astype(F32).sum()
        )

    found, _ = checked(lambda n, x: call(kernel, n, x, shape=(8, 128)), jnp.array([12]), X)
    assert [f.kind for f in found] == ["OutOfBoundsRead", "DivisionByZero"]


# Order, choice, refusals.


@pytest.mark.slow
def test_what_fails_first_comes_first() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        i = pl.program_id(0)
        pl.debug_check(i < 2, "first in the program")

        def step(n: Any, _: Any) -> None:
            pl.debug_check(n < 2, "early in the loop, late in time")
            pl.debug_check(n < 1, "late in the loop, early in time")

        lax.fori_loop(0, 3, step, None)
        pl.debug_check(i < 1, "last in the program")
        o_ref[...] = x_ref[...]

    found, _ = checked(lambda x: call(kernel, x, grid=(3,)), X)
    assert [f.message for f in found] == [
        "late in the loop, early in time",
        "early in the loop, late in time",
        "last in the program",
        "first in the program",
    ]
