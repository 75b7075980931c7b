"""`pallas_debug.check`: where it finds faults, on the machine and by code inserted into kernels."""

from __future__ import annotations

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
from jax.experimental.pallas import triton as plgpu

import pallas_debug
from pallas_debug.bridge.instrument.instrument import instrument
from pallas_debug.errors import KernelFault
from pallas_debug.model import Finding

both = pytest.mark.parametrize("mode", MODES)

# Transformations.


@pytest.mark.slow
@both
def test_jit(mode: str) -> None:
    (finding,), out = checked(jax.jit(logs), X, mode=mode)
    assert (finding.kind, finding.kernel) == ("NanProduced", "logs")
    assert (finding.grid_point, finding.loop) == ((0,), ())
    assert finding.engines == ("machine" if mode == "machine" else "checks",)
    assert finding.digest
    np.testing.assert_allclose(out, logs(X), rtol=1e-6)


@pytest.mark.slow
@both
def test_vmap_puts_the_batch_index_first(mode: str) -> None:
    batch = jnp.stack([X + 1e6, X, X])
    assert one(jax.vmap(logs), batch, mode=mode).grid_point == (1, 0)


@pytest.mark.slow
@both
def test_in_a_scan_and_a_cond_of_the_program(mode: str) -> None:
    def scanned(x: jax.Array) -> jax.Array:
        return lax.scan(lambda carry, _: (logs(carry) * 0 + carry, None), x, None, length=3)[0]

    assert one(scanned, X, mode=mode).kind == "NanProduced"

    def branching(x: jax.Array, yes: jax.Array) -> jax.Array:
        return lax.cond(yes, logs, lambda y: y, x)

    assert one(jax.jit(branching), X, jnp.bool_(True), mode=mode).kernel == "logs"


@both
def test_under_shard_map(mode: str) -> None:
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
    assert one(jax.jit(mapped), X, mode=mode).count == 2


@pytest.mark.slow
def test_under_x64() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        first = jnp.int64(3) * pl.program_id(0).astype(jnp.int64) + 5

        def body(n: Any, total: Any) -> Any:
            return total + x_ref[pl.ds(n + first, 1), :]

        o_ref[...] = lax.fori_loop(0, 10, body, jnp.zeros((1, 128), F32))

    with jax.enable_x64(True):
        finding = one(lambda x: call(kernel, x, shape=(1, 128), grid=(2,)), X, mode="off")
    assert (finding.grid_point, finding.count) == ((1,), 2)


# Where in a kernel.


def fails_in(body: Callable[[Any], Any], mode: str) -> Finding:
    """What is found in a kernel that runs `body` on its input, at a grid of 4."""

    def kernel(x_ref: Any, o_ref: Any) -> None:
        value = body(x_ref)
        o_ref[...] = x_ref[...] + (0 if value is None else value)

    return one(lambda x: call(kernel, x, grid=(4,)), X, mode=mode)


@pytest.mark.slow
@both
def test_branches_and_order(mode: str) -> None:
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
    failed = sorted((f.grid_point, f.message, f.count) for f in found)
    expected = [
        ((0,), "in front", 1),
        ((1,), "behind", 1),
        ((3,), "inside: 1", 2),
    ]
    assert failed == (expected[:1] if mode == "off" else expected)  # the first alone is recorded


@pytest.mark.slow
@pytest.mark.parametrize("where", ["before", "inside", "behind"])
def test_of_the_regions_of_a_kernel_the_first_to_fail_is_recorded(where: str) -> None:
    def body(x_ref: Any) -> None:
        def step(n: Any, _: Any) -> None:
            checkify.debug_check((n < 1) | (where == "behind"), "inside")

        checkify.debug_check((x_ref[0, 0] < 0) | (where != "before"), "before")
        lax.fori_loop(0, 3, step, None)
        checkify.debug_check(x_ref[0, 0] < 0, "behind")

    assert fails_in(body, "off").message == where


LOOPS: dict[str, Callable[[Any, Any], Any]] = {
    "traced": lambda n, body: lax.fori_loop(0, n, body, 0),
    "while": lambda n, body: lax.while_loop(
        lambda c: c[0] < n, lambda c: (c[0] + 1, body(*c)), (jnp.int32(0), 0)
    )[1],
    "reverse": lambda n, body: lax.scan(
        lambda c, i: (body(i, c), None), 0, jnp.arange(6), reverse=True
    )[0],
}


@both
@pytest.mark.parametrize("name", LOOPS)
def test_loops(name: str, mode: str) -> None:
    def body(x_ref: Any) -> None:
        def step(i: Any, carry: Any) -> Any:
            checkify.debug_check(i < 4, "at {i}", i=i)
            return carry

        LOOPS[name](6 + (x_ref[0, 0] * 0).astype(jnp.int32), step)

    finding = fails_in(body, mode)
    iteration, index = (0, 5) if name == "reverse" else (4, 4)
    assert (finding.message, finding.loop) == (f"at {index}", (iteration,) * (mode != "off"))
    assert (finding.grid_point, finding.count) == ((0,), 8)


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
def test_an_access_out_of_bounds_stops_the_machine_and_is_recorded_by_inserted_checks() -> None:
    for mode in MODES:
        assert not checked(prefetched, X, jnp.array([0, 4, 8, 12]), errors="all", mode=mode)[0]
    table = jnp.array([0, 4, -1, 13])
    with pytest.raises(KernelFault, match=r"OutOfBoundsRead in kernel `kernel`, grid point \(2,\)"):
        checked(prefetched, X, table)
    finding = one(prefetched, X, table, mode="off")
    assert (finding.kind, finding.operand) == ("OutOfBoundsRead", "x_ref")
    assert (finding.grid_point, finding.count) == ((2,), 2)
    assert finding.index == "x_ref[-1:3, 0:128]"


def test_a_block_out_of_bounds() -> None:
    blocks = pl.BlockSpec((4, 128), lambda i: (i + 2, 0))
    finding = one(
        lambda x: call(_log_less_one, x + 1, grid=(4,), in_specs=[blocks], out_specs=ROWS),
        X,
        errors="index",
        mode="off",
    )
    assert (finding.kind, finding.operand) == ("BlockOutOfBounds", "x_ref")
    assert (finding.grid_point, finding.count) == ((2,), 2)


def test_inserted_checks_leave_accesses_alone_whose_mask_they_cannot_see() -> None:
    def scale_tail(x_ref: Any, o_ref: Any) -> None:
        columns = pl.ds(32 + pl.program_id(0) * 64, 64)
        mask = (columns.start + jnp.arange(64) < 64)[None, :]
        value = plgpu.load(x_ref.at[:, columns], mask=mask, other=0.0)
        plgpu.store(x_ref.at[:, columns], value * 2, mask=mask)

    called = pl.pallas_call(
        scale_tail,
        grid=(1,),
        out_shape=jax.ShapeDtypeStruct((16, 64), F32),
        input_output_aliases={0: 0},
        compiler_params=plgpu.CompilerParams(num_warps=4),
    )
    (equation,) = jax.make_jaxpr(called)(X[:, :64]).eqns
    made = instrument(equation.params, ("index",))
    assert made is None or "read" not in {site.operation for site in made.layout.sites}


@pytest.mark.slow
@both
def test_dynamic_and_empty_grids(mode: str) -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.sqrt(x_ref[pl.ds(pl.program_id(0), 1), :] - 500)

    dynamic = jax.jit(lambda n, x: call(kernel, x, shape=(1, 128), grid=(n,)))
    assert one(dynamic, 3, X, mode=mode).kind == "NanProduced"
    check = pallas_debug.check
    for function, args in (
        (dynamic, (0, X)),
        (lambda x: call(_log_less_one, x, grid=(0,)), (X,)),
    ):
        report, _ = check(function, "nan", interpret=mode)(*args)
        assert report.findings == ()
        assert ["its body did not run" in gap for gap in report.not_checked] == [True]


@pytest.mark.parametrize("semantics", [("parallel", "arbitrary"), ("arbitrary", "parallel")])
def test_parallel_dimensions(semantics: tuple[str, ...]) -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        i, j = pl.program_id(0), pl.program_id(1)
        checkify.debug_check(i * 4 + j < 9, "{i} {j}", i=i, j=j)
        o_ref[...] = x_ref[...]

    params = pltpu.CompilerParams(dimension_semantics=semantics)
    finding = one(lambda x: call(kernel, x, grid=(4, 4), compiler_params=params), X, mode="off")
    assert (finding.grid_point, finding.count, finding.message) == ((2, 1), 7, "2 1")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2"])
def test_narrow_floats(dtype: str) -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        zero = x_ref[...] - x_ref[...]
        o_ref[...] = (zero.astype(F32) / zero.astype(F32)).astype(dtype)

    shape = jax.ShapeDtypeStruct((16, 128), jnp.dtype(dtype))
    finding = one(lambda x: call(kernel, x, shape=shape), X.astype(dtype), mode="off")
    assert finding.kind == "NanProduced"


# What inserted checks record: scalars.


@pytest.mark.slow
@pytest.mark.parametrize(
    "errors, kind, message",
    [
        (
            "hint",
            "FalseHint",
            "12 is not a multiple of 8, although pl.multiple_of claims it is",
        ),
        ("nan", "NanProduced", "`sqrt` produced a NaN from -8; result float32[]"),
        ("div", "DivisionByZero", "integer division of 12 by zero; divisor int32[]"),
    ],
)
def test_scalars_are_recorded(errors: str, kind: str, message: str) -> None:
    def kernel(n_ref: Any, x_ref: Any, o_ref: Any) -> None:
        n = n_ref[0]
        scale = jnp.sqrt(pl.multiple_of(n, 8).astype(F32) - 20)
        o_ref[...] = x_ref[...] * scale + lax.div(n, n - 12).astype(F32)

    smem = pl.BlockSpec(memory_space=pltpu.SMEM)
    found, _ = checked(
        lambda n: call(kernel, n, X, in_specs=[smem, pl.BlockSpec()]),
        jnp.array([12]),
        mode="off",
        errors=errors,
    )
    assert [(f.kind, f.message) for f in found] == [(kind, message)]
