"""Interpret mode `machine`: kernels of user programs, run by the machine in a callback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from called import called
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from machine_runs import decoded, ran

import pallas_debug
from pallas_debug.errors import MachineError, UsageError
from pallas_debug.machine.machine import Machine
from pallas_debug.session import Options, Session

VMEM = pl.BlockSpec(memory_space=pltpu.VMEM)
ROWS = pl.BlockSpec((8, 128), lambda i, *_: (i, 0))


def affine(x: jax.Array) -> jax.Array:
    """Twice x, plus 1, by rows of 8."""

    @called(block=ROWS, grid=(x.shape[0] // 8,))
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2 + 1

    return body(x)


@pytest.mark.parametrize("given", [0, 2])
def test_a_call_with_another_number_of_arrays_is_refused(given: int) -> None:
    x = np.ones((16, 128), np.float32)
    message = f"kernel `body` takes 1 array, but {given} were given"
    with pytest.raises(MachineError, match=message):
        Machine(decoded(affine, [x]), [[x] * given])


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float16", "int32", "int8", "int4", "uint8", "float8_e5m2"]
)
def test_dtypes_and_several_kernels_in_one_program(dtype: str) -> None:
    x = jnp.arange(16 * 128).reshape(16, 128).astype(dtype)
    one, two = ran(jax.jit(lambda x: (affine(x), affine(affine(x)))), x)
    assert one.dtype == x.dtype
    np.testing.assert_array_equal(one, x * 2 + 1)
    np.testing.assert_array_equal(two, (x * 2 + 1) * 2 + 1)


@pytest.mark.slow
def test_large_arrays_between_kernels_do_not_wait_for_each_other() -> None:
    """Both the program and the kernels use all threads that XLA has."""

    @called(block=VMEM)
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.dot(x_ref[...], x_ref[...].T)[:, :1024]

    @jax.jit
    def f(x: jax.Array) -> jax.Array:
        for _ in range(3):
            x = body(x) @ jnp.eye(1024)
        return x

    out = ran(f, jnp.eye(1024))
    np.testing.assert_array_equal(out, jnp.eye(1024))


@pytest.mark.slow
def test_it_runs_what_was_jitted_before_and_code_that_says_interpret() -> None:
    x = jnp.ones((8, 128))

    @called(jax.ShapeDtypeStruct((8, 128), "int32"), interpret=True)
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = pltpu.prng_random_bits((8, 128))

    assert len(np.unique(ran(body, x))) > 1000
    g = jax.jit(affine)
    with pallas_debug.interpret("hlo"):
        g(x)
    with Session(Options(interpret="machine", chip="v5e")) as session:
        jax.block_until_ready(g(x))
    assert session.launched == {kernel.digest for kernel in session.kernels} != set()


# Faults and refusals


def stopped(function: Callable[..., Any], *args: Any) -> tuple[pallas_debug.Finding, str]:
    """The finding at which a kernel is stopped, and the error that its program gets."""
    with pytest.raises(Exception) as error, Session(Options(interpret="machine")) as session:
        jax.block_until_ready(function(*args))
    (finding,) = session.observer.findings
    assert finding.message in str(error.value)
    assert finding.engines == ("machine",)
    return finding, str(error.value)


def table_call(body: Any, index_map: Any = lambda i, t: (i, 0)) -> Any:
    """A kernel of a table and float32[16, 128], whose output has blocks of 8 rows."""
    kernel = called(
        prefetch=1,
        grid=(2,),
        in_specs=[pl.BlockSpec((8, 128), index_map)],
        out_specs=ROWS,
    )(body)
    return lambda table: kernel(table, jnp.ones((16, 128)))


@pytest.mark.slow
def test_a_read_outside_a_table_whose_value_is_discarded() -> None:
    """Kernels read tables speculatively; only the sanitizer reports it."""

    def body(t_ref: Any, x_ref: Any, o_ref: Any) -> None:
        i = pl.program_id(0)
        before = jnp.where(i > 0, t_ref[i - 1], 0)
        o_ref[...] = x_ref[...] + before.astype(jnp.float32)

    call, table = table_call(body), jnp.array([4, 7])
    out = ran(jax.jit(call), table)
    np.testing.assert_array_equal(out[::8, 0], [1, 5])
    report, out = pallas_debug.check(call, sanitize=True)(table)
    np.testing.assert_array_equal(out[::8, 0], [1, 5])
    (finding,) = report.findings
    assert (str(finding.kind), finding.grid_point) == ("OutOfBoundsRead", (0,))
    assert finding.message == (
        "t_ref[-1] begins 1 before the start of dimension 0 of int32[2] in SMEM; no result depends "
        "on the value"
    )


def test_a_flag_outside_a_table_is_used_although_another_set_one_does_the_same() -> None:
    def body(t_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]

        @pl.when(t_ref[pl.program_id(0) + 1] != 0)
        def _() -> None:
            o_ref[...] += 1

    finding, _ = stopped(table_call(body), jnp.array([0, 1]))
    assert (str(finding.kind), finding.grid_point) == ("OutOfBoundsRead", (1,))
    assert "depends" not in finding.message


@pytest.mark.parametrize("sizes, kind", [((8, 7), "OutOfBoundsWrite"), ((0, 8), "OutOfBoundsRead")])
def test_a_copy_between_slices_of_different_sizes(sizes: tuple[int, int], kind: str) -> None:
    hbm = pl.BlockSpec(memory_space=pl.ANY)

    @called(prefetch=1, block=hbm, scratch_shapes=[pltpu.SemaphoreType.DMA])
    def body(t_ref: Any, x_ref: Any, o_ref: Any, sem: Any) -> None:
        slices = x_ref.at[pl.ds(0, t_ref[0])], o_ref.at[pl.ds(0, t_ref[1])]
        copy = pltpu.make_async_copy(*slices, sem)
        copy.start()
        copy.wait()

    finding, _ = stopped(body, jnp.array(sizes), jnp.ones((8, 128)))
    assert str(finding.kind) == kind
    assert finding.message == (
        f"the copy of x_ref[0:{sizes[0]}, 0:128] to o_ref[0:{sizes[1]}, 0:128] copies {sizes[0]} "
        f"along dimension 0, but its destination has {sizes[1]}"
    )
    assert finding.cause == (
        f"the two slices have different sizes: they come from t_ref[0], which is {sizes[0]}, and "
        f"from t_ref[1], which is {sizes[1]}"
    )


def test_an_index_map_that_reads_past_the_end_of_its_table() -> None:
    def body(t_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]

    finding, _ = stopped(table_call(body, lambda i, t: (t[i], 0)), jnp.array([0]))
    assert str(finding.kind) == "OutOfBoundsRead"
    assert finding.message == (
        "the index map of x_ref reads t_ref at index 1 of dimension 0, which has size 1"
    )


def test_a_copy_that_writes_out_of_bounds() -> None:
    scratch = [pltpu.VMEM((16, 128), "float32"), pltpu.SemaphoreType.DMA]

    @called(block=VMEM, scratch_shapes=scratch)
    def copying(x_ref: Any, o_ref: Any, scratch: Any, sem: Any) -> None:
        start = jnp.max(x_ref[...]).astype(jnp.int32) * 12
        pltpu.make_async_copy(x_ref, scratch.at[pl.ds(start, 8)], sem).start()

    finding, _ = stopped(copying, jnp.ones((8, 128)))
    assert str(finding.kind) == "OutOfBoundsWrite"
    assert finding.message == (
        "scratch[12:20, 0:128] reaches 4 past the end of dimension 0 of float32[16, 128] in VMEM, "
        "in the copy of x_ref to scratch"
    )


def test_a_kernel_that_it_cannot_run_is_refused_with_a_way_out() -> None:
    rows = pl.BlockSpec((pl.BoundedSlice(8), 128), lambda i: (pl.ds(i * 8, 8), 0))

    @called(grid=(2,), block=rows)
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]

    with pytest.raises(MachineError) as error:
        ran(body, jnp.ones((16, 128)))
    assert str(error.value) == (
        "operand `x_ref` has a block dimension of kind BoundedSlice. One of jax's interpreters "
        'may run it: --pallas-interpret=hlo|tpu, pallas_debug.interpret("hlo")'
    )


# Asking for the sanitizer


@pytest.mark.slow
def test_where_the_sanitizer_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    @called(
        grid=(2,),
        in_specs=[pl.BlockSpec((16, 128), lambda i: (0, 0))],
        out_specs=ROWS,
    )
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[pl.ds(pl.program_id(0) * 8 + 4, 8)]

    x = jnp.ones((16, 128))
    for wrapped in (
        pallas_debug.check(body, sanitize=True),
        pallas_debug.interpret("machine", sanitize=True)(body),
        pallas_debug.interpret("machine,sanitize")(body),
    ):
        with pytest.raises(Exception, match=r"x_ref\[12:20, 0:128\] reaches 4 past the end"):
            jax.block_until_ready(wrapped(x))
    report, out = pallas_debug.check(jax.jit(affine), sanitize=True)(x)
    assert report.ok, str(report)
    np.testing.assert_array_equal(out, x * 2 + 1)
    with pytest.raises(UsageError) as error:
        pallas_debug.check(body, sanitize=True, interpret="hlo")
    assert str(error.value) == (
        "sanitize=True runs kernels on the kernel machine, and interpret='hlo' in another mode: "
        "pass one of them"
    )
    with pytest.raises(
        UsageError, match=r"'machine' has no parameter 'sanitise' .did you mean 'sani"
    ):
        pallas_debug.interpret("machine,sanitise")


def test_arrays_too_large_for_shadow_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pallas_debug.defaults.MAX_SHADOW_BYTES", 1 << 12)
    report, out = pallas_debug.check(lambda x: affine(x) + 9, sanitize=True)(jnp.ones((24, 128)))
    np.testing.assert_array_equal(out, jnp.full((24, 128), 12))
    (message,) = report.not_checked
    assert "kernel `body` has 6,144 elements (`x_ref`: float32[24, 128])" in message
    assert "KiB of shadow memory; its limit is 4 KiB" in message
    assert "Sanitize it on smaller arrays with the same blocks" in message


@pytest.mark.slow
def test_prints_callbacks_and_checks_are_those_of_other_modes() -> None:
    values: list[float] = []

    @called(grid=(2,), block=ROWS)
    def body(x_ref: Any, o_ref: Any) -> None:
        def step(j: Any, carry: Any) -> Any:
            pl.debug_print("j = {}", j)
            return carry

        jax.lax.fori_loop(0, 2, step, 0)
        jax.debug.callback(lambda value: values.append(float(value)), x_ref[0, 0])
        pl.debug_check(x_ref[0, 0] < 1, "small")
        o_ref[...] = jnp.log(x_ref[...])

    x = jnp.arange(16 * 128.0).reshape(16, 128) - 5
    with Session(Options(interpret="machine", prints=True)) as session:
        jax.block_until_ready(body(x))
    assert [(r.text, r.grid_point, r.loop) for r in session.observer.records][2:] == [
        ("j = 0", (1,), (0,)),
        ("j = 1", (1,), (1,)),
    ]
    assert values == [-5.0, 1019.0]
    report, _ = pallas_debug.check(body)(x)
    found = {(str(finding.kind), finding.grid_point) for finding in report.findings}
    assert found == {("CheckFailed", (1,)), ("NanProduced", (0,))}
    assert {finding.engines for finding in report.findings} == {("machine",)}
    assert not report.not_checked
