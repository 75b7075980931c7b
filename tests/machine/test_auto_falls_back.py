"""Interpret mode `auto`, for kernels that jax's interpreters cannot trace: they run on the machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import pallas_debug
from pallas_debug.errors import InterpretModeError
from pallas_debug.session import Options, Session

pytestmark = [
    pytest.mark.filterwarnings("ignore:jax.experimental.pallas.core_map"),
    pytest.mark.filterwarnings("ignore:pltpu.create_tensorcore_mesh"),
]

X = np.arange(8 * 128, dtype=np.float32).reshape(8, 128)
HERE = __file__
DMA = pltpu.SemaphoreType.DMA


def ran(
    function: Callable[..., Any], *args: Any, chip: str = "v5e", **options: Any
) -> tuple[Any, list[str]]:
    """The result of a function, and what a session says of how its kernels run."""
    messages: list[str] = []
    asked = Options(interpret="auto", chip=chip, **options)
    with Session(asked, inform=messages.append) as session:
        result = jax.block_until_ready(jax.jit(function)(*args))
        session.wait_for_runs()
    assert not session.observer.findings
    assert not session.problems
    return result, messages


def on_cores(kernel: Callable[..., None], **options: Any) -> Callable[..., Any]:
    """Copy through a kernel on two TensorCores."""
    mesh = pltpu.create_tensorcore_mesh("core", num_cores=2)
    return pl.kernel(kernel, out_type=jax.typeof(X), mesh=mesh, **options)


def swaps_halves(x_hbm: Any, o_hbm: Any, mine: Any, theirs: Any, sent: Any, came: Any) -> None:
    """Each core hands its half of the rows to the other."""
    core = jax.lax.axis_index("core")
    rows, other = pl.ds(core * 4, 4), {"core": 1 - core}
    pltpu.sync_copy(x_hbm.at[rows], mine)
    barrier = pltpu.get_barrier_semaphore()
    pl.semaphore_signal(barrier, 1, device_id=other)  # the signal
    pl.semaphore_wait(barrier, 1)
    pltpu.async_remote_copy(mine, theirs, sent, came, device_id=other).wait()
    pltpu.sync_copy(theirs, o_hbm.at[rows])


def swapped(x: jax.Array) -> Any:
    half = pltpu.VMEM((4, 128), jnp.float32)
    call = on_cores(
        swaps_halves,
        scratch_types=[half, half, DMA, DMA],
        compiler_params=pltpu.CompilerParams(collective_id=0),
    )
    return call(x)


def test_cores_that_address_each_other() -> None:
    result, (message,) = ran(swapped, X)
    np.testing.assert_array_equal(result, np.concatenate([X[4:], X[:4]]))
    assert message.startswith(
        "kernel `swaps_halves` runs on the kernel machine: jax's interpreters have no axis of "
        f"cores ('core') in a `device_id` ({HERE}:"
    )
    assert message.endswith("# the signal)")


def test_named_tpu_interpret_mode_names_the_axis_of_cores() -> None:
    with pytest.raises(InterpretModeError) as caught, pallas_debug.interpret("tpu"):
        jax.block_until_ready(swapped(X))
    assert "no axis of cores ('core') in a `device_id`" in str(caught.value)
    assert "Run it in interpret mode `machine`" in str(caught.value)


def test_references_in_vmem() -> None:
    def f(x: jax.Array) -> Any:
        x_ref = jax.new_ref(x, memory_space=pltpu.VMEM)
        y_ref = jax.new_ref(jnp.zeros_like(x), memory_space=pltpu.VMEM)

        @pl.core_map(mesh=pltpu.create_tensorcore_mesh("core", num_cores=1))
        def doubles() -> None:
            y_ref[...] = x_ref[...] * 2

        return y_ref[...]

    result, message = ran(f, X)
    np.testing.assert_array_equal(result, X * 2)
    for sentence in message:  # jax 0.12 runs it in HLO interpret mode
        assert sentence.endswith(
            "runs on the kernel machine: TPU interpret mode fails to trace it "
            "(NotImplementedError: Unsupported memory space: vmem)"
        )


def test_semaphores_that_a_kernel_over_a_mesh_closes_over() -> None:
    def f(x: jax.Array) -> Any:
        x_ref, y_ref, sem = (
            jax.new_ref(x),
            jax.new_ref(jnp.zeros_like(x)),
            pl.empty_ref_like(DMA(())),
        )
        mesh = pltpu.create_tensorcore_mesh("core", num_cores=1)

        @pl.core_map(mesh=mesh)
        def starts() -> None:
            pltpu.make_async_copy(x_ref, y_ref, sem).start()

        @pl.core_map(mesh=mesh)
        def waits() -> None:
            pltpu.make_async_copy(x_ref, y_ref, sem).wait()

        return y_ref[...]

    result, message = ran(f, X)
    np.testing.assert_array_equal(result, X)
    assert len(message) == 2
    for sentence in message:
        assert "runs on the kernel machine: it takes or returns the semaphores " in sentence


@pytest.mark.parametrize("checks", [(), pytest.param(("nan",), marks=pytest.mark.slow)])
def test_a_pipeline_within_the_body_of_another(checks: Any) -> None:
    """HLO interpret mode fails in the middle of a function that it adds to the module."""

    def sums(x_hbm: Any, o_hbm: Any) -> None:
        def rows(o_ref: Any) -> None:
            i = pl.program_id(0)

            def adds(acc_ref: Any) -> None:
                def adds_block(x_ref: Any) -> None:
                    acc_ref[...] += jnp.sqrt(x_ref[...])

                acc_ref[...] = jnp.zeros_like(acc_ref)
                blocks = pl.BlockSpec((8, 128), lambda k: (2 * i + k, 0))
                pltpu.emit_pipeline(adds_block, grid=(2,), in_specs=[blocks])(x_hbm)
                o_ref[...] = acc_ref[...]

            pl.run_scoped(adds, pltpu.VMEM((8, 128), jnp.float32))

        blocks = pl.BlockSpec((8, 128), lambda i: (i, 0))
        pltpu.emit_pipeline(rows, grid=(2,), out_specs=[blocks])(o_hbm)

    hbm = pl.BlockSpec(memory_space=pl.ANY)
    call = pl.pallas_call(
        sums, out_shape=jax.ShapeDtypeStruct((16, 128), X.dtype), in_specs=[hbm], out_specs=hbm
    )
    x = np.concatenate([X] * 4) ** 2
    result, _ = ran(call, x, checks=checks)
    np.testing.assert_allclose(result, np.concatenate([X * 2] * 2), rtol=1e-5)


def test_a_grid_bound_in_an_array() -> None:
    def counts(o_ref: Any) -> None:
        o_ref[0] = pl.program_id(0)

    def f(bound: jax.Array) -> Any:
        last = jax.ShapeDtypeStruct((1,), jnp.int32)
        smem = pl.BlockSpec(memory_space=pltpu.SMEM)
        return pl.pallas_call(counts, out_shape=last, out_specs=smem, grid=(bound,))()

    result, message = ran(f, jnp.array([3]))
    assert result.tolist() == [2]
    for sentence in message:
        assert (
            "on the kernel machine: HLO interpret mode fails to trace it (TypeError: " in sentence
        )


@pytest.mark.slow
def test_verify_finds_faults_there() -> None:
    def root(x_hbm: Any, o_hbm: Any, x_ref: Any, o_ref: Any) -> None:
        core = jax.lax.axis_index("core")
        barrier = pltpu.get_barrier_semaphore()
        pl.semaphore_signal(barrier, 1, device_id={"core": 1 - core})
        pl.semaphore_wait(barrier, 1)
        pltpu.sync_copy(x_hbm.at[pl.ds(core * 4, 4)], x_ref)
        o_ref[...] = jnp.sqrt(x_ref[...] - 1)  # of -1
        pltpu.sync_copy(o_ref, o_hbm.at[pl.ds(core * 4, 4)])

    half = pltpu.VMEM((4, 128), jnp.float32)
    call = on_cores(
        root,
        scratch_types=[half, half],
        compiler_params=pltpu.CompilerParams(collective_id=0),
    )
    verdict = pallas_debug.verify(call, X, targets="v5p")
    (finding,) = verdict.findings
    assert str(finding.kind) == "NanProduced"
    assert finding.source is not None
    assert str(finding.source.text).endswith("# of -1")
    assert not any("InterpretError" in gap.reason for o in verdict.outcomes for gap in o.gaps)


def test_what_nothing_runs_is_refused_with_both_reasons() -> None:
    def copies(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]

    rows = pl.BlockSpec((pl.BoundedSlice(8), 128), lambda i: (pl.ds(0, 8), i))
    call = pl.pallas_call(
        copies, out_shape=jax.typeof(X), grid=(1,), in_specs=[rows], out_specs=rows
    )
    with (
        pytest.raises(InterpretModeError) as caught,
        Session(Options(interpret="auto")) as session,
    ):
        jax.jit(call)(X)
    text = str(caught.value)
    assert text.startswith(
        "kernel `copies` cannot be interpreted: HLO interpret mode fails to trace it (ValueError: "
    )
    assert text.endswith(
        "); on the kernel machine: operand `x_ref` has a block dimension of kind BoundedSlice. "
        "Run it on a TPU"
    )
    assert not session.observer.findings
    assert set(session.observer.refusals) == {"copies"}


def test_a_choice_of_slices() -> None:
    """Neither can jax print its jaxpr."""

    def picks(i_ref: Any, x_hbm: Any, o_ref: Any, sem: Any) -> None:
        halves = [x_hbm.at[:, pl.ds(column, 128)] for column in (0, 128)]
        chosen = pl.select_ref(i_ref[0], *halves)
        pltpu.async_copy(chosen.reshape(8, 128), o_ref, sem).wait()

    x = np.concatenate([X, -X], axis=1)
    smem, hbm = pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pl.ANY)
    call = pl.pallas_call(
        picks, out_shape=jax.typeof(X), in_specs=[smem, hbm], scratch_shapes=[DMA]
    )
    result, _ = ran(call, np.array([1], np.int32), x)
    np.testing.assert_array_equal(result, -X)


def test_sparse_cores() -> None:
    sc = pytest.importorskip("jax.experimental.pallas.tpu_sc")

    def f(x: jax.Array) -> Any:
        @pl.kernel(out_type=jax.typeof(x), mesh=sc.ScalarSubcoreMesh(axis_name="core", num_cores=2))
        def copies(x_hbm: Any, o_hbm: Any) -> None:
            @pl.when(jax.lax.axis_index("core") == 1)
            def _() -> None:
                pltpu.sync_copy(x_hbm, o_hbm)

        return copies(x)

    result, (message,) = ran(f, X, chip="v6e")
    np.testing.assert_array_equal(result, X)
    assert message == (
        "kernel `copies` runs on the kernel machine: it runs on a SparseCore, but jax's "
        "interpreters simulate a TensorCore"
    )
