"""What a verdict says is true of the kernel at hand, and is said once."""

from __future__ import annotations

import importlib
import logging
import sys
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from small_calls import ROWS, X, called, copy, one

import pallas_debug
from pallas_debug import render
from pallas_debug.errors import InterpretModeError
from pallas_debug.session import Options, Session
from pallas_debug.verdict import Request, verify, verify_program

F32, I32 = jnp.float32, jnp.int32


# Index maps under x64.


def test_an_index_map_of_jax_is_no_fault_where_the_compiler_sees_none() -> None:
    hbm = pl.BlockSpec(memory_space=pl.ANY)
    with jax.enable_x64(True):
        assert verify(called(), X, targets="v5e", engines="static,compile").ok
        moved = called(pltpu.sync_copy, grid=(2,), in_specs=[hbm], out_specs=hbm)
        assert verify(moved, X, targets="v5e", engines="static,compile").ok


def test_an_index_map_of_jax_is_not_said_to_be_the_users() -> None:
    with jax.enable_x64(True):
        finding = one(called(grid=(2,)), X, engines="static,compile")
        assert finding.kind == "X64IndexMap"
        assert finding.message == (
            "x_ref and o_ref have no index map, and those that jax creates return int64; the "
            "TPU's index maps return int32"
        )
        assert finding.engines == ("static", "compile")
        spec = pl.BlockSpec((16, 128), lambda i: (jnp.int32(0), jnp.int32(0)))
        half = one(called(grid=(2,), in_specs=[spec]), X, engines="static,compile")
        assert half.message.startswith(
            "o_ref has no index map, and the one that jax creates returns"
        )


# Programs that are not judged, or only in part.


def test_a_kernel_that_had_too_little_time_is_not_said_to_be_wrong() -> None:
    found = verify(called(), X, targets="v5e", engines="compile", timeout=1e-4)
    (outcome,) = found.unjudged
    assert found.findings == ()
    assert str(outcome.reason).startswith("the compiler was stopped after 0.0001 s, ")
    assert ": copy was not judged. Allow more time with --timeout" in str(outcome.reason)


def on_host(x: Any) -> Any:
    return np.asarray(x) + 1


@pytest.mark.parametrize(
    "call_back",
    [
        lambda x: jax.debug.print("{}", x[0, 0]) or x,
        lambda x: jax.debug.print("{}", x[0, 0], ordered=True) or x,
        lambda x: jax.pure_callback(on_host, x, x),
        lambda x: io_callback(on_host, x, x, ordered=True),
    ],
    ids=["print", "ordered print", "pure", "ordered"],
)
def test_callbacks_of_the_program_are_no_fault(call_back: Any) -> None:
    """Though jax lowers none for a TPU that is absent; kernels before and after them are found."""

    def function(x: Any) -> Any:
        return called()(call_back(called(lambda x_ref, o_ref: copy(x_ref, o_ref))(x)))

    found = verify(function, X, targets="v5e", engines="static,machine")
    assert (found.findings, found.unjudged, found.problems) == ((), (), ())
    assert len(found.kernels) == 2


def test_a_finding_is_of_one_of_two_kernels_of_a_name() -> None:
    """Also in the engines that know a kernel by its name."""

    def reads(x_ref: Any, o_ref: Any, s_ref: Any) -> None:
        o_ref[...] = x_ref[...] + s_ref[...]

    def both(x: Any) -> Any:
        faulty = called(reads, name="rows", scratch_shapes=[pltpu.VMEM(x.shape, x.dtype)])
        return faulty(called(name="rows")(x))

    found = verify(both, X, targets="v5e", engines="checks,machine")
    assert len({o.digest for o in found.outcomes if o.kernel}) == 2
    assert len({o.digest for o in found.outcomes if o.status == "found"}) == 1
    assert {o.engine for o in found.outcomes if o.status == "ok"} >= {"checks", "machine"}


def test_a_kernel_for_a_gpu_is_judged_where_it_can_run() -> None:
    from jax.experimental.pallas import triton

    kernel = called(compiler_params=triton.CompilerParams(num_warps=4))
    verdict = verify(kernel, X, targets="v5e", engines="static,compile,checks,machine,races")
    assert verdict.findings == ()
    assert not verdict.ok
    assert {o.engine for o in verdict.outcomes if o.status == "ok"} == {
        "trace", "checks", "machine",
    }  # fmt: skip
    assert {gap.engine: gap.reason for gap in verdict.gaps} == {
        "static": "it is a kernel for a GPU (Triton)",
        "v5e": "copy is a kernel for a GPU (Triton). Kernels are compiled for TPUs here",
        "races": "kernel `copy` is for a GPU (Triton), but TPU interpret mode runs kernels as a "
        "TPU does",
    }


def test_a_kernel_over_a_mesh_of_a_gpu_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mesh names Mosaic GPU; it has no compiler parameters."""
    absl = types.ModuleType("absl")  # a mock: Mosaic GPU needs it, and jax does not install it
    absl.logging = logging  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "absl", absl)
    from jax.experimental.pallas import mosaic_gpu

    function = mosaic_gpu.kernel(copy, out_type=X)
    verdict = verify(function, X, targets="v5e", engines="static,compile,checks,machine")
    assert verdict.findings == ()
    assert not verdict.ok
    reasons = {gap.engine: gap.reason for gap in verdict.gaps}
    assert reasons["static"] == "it is a kernel for a GPU (Mosaic GPU)"
    assert reasons["v5e"] == (
        "copy is a kernel for a GPU (Mosaic GPU). Kernels are compiled for TPUs here"
    )


@pytest.mark.parametrize(
    "backend,way_out",
    [
        ("tpu", "Run it on a TPU"),
        ("triton", "Run it on a GPU"),
        ("mosaic_gpu", "Run it on a GPU"),
    ],
)
def test_a_program_that_stops_where_nothing_interprets_its_kernel(
    backend: str, way_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not judged; that is no fault of the kernel."""
    absl = types.ModuleType("absl")  # a mock, as above
    absl.logging = logging  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "absl", absl)
    module = importlib.import_module(f"jax.experimental.pallas.{backend}")
    rows = pl.BlockSpec((pl.BoundedSlice(8), 128), lambda i: (pl.ds(0, 8), i))
    call = pl.pallas_call(
        copy, out_shape=X, grid=(1,), in_specs=[rows], out_specs=rows,
        compiler_params=module.CompilerParams(),
    )  # fmt: skip

    def run() -> BaseException | None:
        try:
            jax.block_until_ready(jax.jit(call)(np.ones(X.shape, X.dtype)))
        except Exception as error:  # noqa: BLE001 - as the command does
            return error
        return None

    verdict = verify_program(run, "script", Request(engines="checks,machine"))
    assert verdict.findings == ()
    assert not verdict.ok
    (problem,) = verdict.problems
    assert problem.startswith(f"what the program runs after {render.relative(Path(__file__))}:")
    mode = "GPU" if backend == "mosaic_gpu" else "HLO"
    assert f"kernel `copy` cannot be interpreted: {mode} interpret mode" in problem
    assert problem.endswith(way_out)


@pytest.mark.parametrize(
    "backend,mode,message",
    [
        (
            "triton",
            "tpu,detect_races",
            "kernel `copy` is for a GPU (Triton), but TPU interpret mode runs kernels as a TPU "
            "does. Run it in interpret mode `hlo` (--pallas-interpret=hlo, "
            'pallas_debug.interpret("hlo")), or on a GPU',
        ),
        (
            "mosaic_gpu",
            "tpu",
            "kernel `copy` is for a GPU (Mosaic GPU), but TPU interpret mode runs kernels as a TPU "
            "does. Run it in interpret mode `gpu` (--pallas-interpret=gpu, "
            'pallas_debug.interpret("gpu")), or on a GPU',
        ),
    ],
)
def test_a_kernel_for_a_gpu_is_refused_by_the_mode_for_tpus(
    backend: str, mode: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    absl = types.ModuleType("absl")  # a mock, as above
    absl.logging = logging  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "absl", absl)
    module = importlib.import_module(f"jax.experimental.pallas.{backend}")
    x = np.ones(X.shape, X.dtype)
    call = called(compiler_params=module.CompilerParams())
    with pytest.raises(InterpretModeError) as caught, Session(Options(interpret=mode)) as session:
        call(x)
    assert str(caught.value) == message
    assert session.observer.findings == ()
    with pallas_debug.interpret("hlo"):
        np.testing.assert_array_equal(call(x), x)


def test_arithmetic_of_8_bit_integers_is_known() -> None:
    def add(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + x_ref[...]

    x = jax.ShapeDtypeStruct((32, 128), jnp.int8)
    finding = one(called(add), x, engines="compile")
    assert finding.kind == "UnsupportedDtype"
    assert finding.source is not None
    assert finding.source.text == "o_ref[...] = x_ref[...] + x_ref[...]"
    assert finding.advice is not None
    assert finding.advice.startswith("cast to int32, compute, and cast the result back")


# Each fault once.


@pytest.mark.slow
def test_scratch_carried_along_a_parallel_axis() -> None:
    def running(x_ref: Any, o_ref: Any, acc_ref: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += x_ref[...]
        o_ref[...] = acc_ref[...]

    call = called(
        running,
        grid=(2,),
        in_specs=[ROWS],
        out_specs=ROWS,
        scratch_shapes=[pltpu.VMEM((8, 128), F32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )
    finding = one(call, X, engines="static,checks,races")
    assert finding.kind == "UninitializedRead"
    assert [f.kind for f in finding.consequences] == ["EnginesDisagree"]
    assert finding.advice is not None
    assert finding.advice.endswith('make grid dimension 0 "arbitrary" in dimension_semantics')


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [F32, I32])
def test_a_part_of_an_output_that_is_never_written(dtype: Any) -> None:
    def rows(x_ref: Any, o_ref: Any) -> None:
        o_ref[0:1, :] = x_ref[0:1, :]
        o_ref[9:10, :] = x_ref[9:10, :]

    x = jax.ShapeDtypeStruct((16, 128), dtype)
    finding = one(called(rows), x, engines="static,checks,races")
    assert (finding.kind, finding.engines) == ("OutputNotWritten", ("checks", "static"))
    assert finding.message.startswith("o_ref[1:9, 0:128] and o_ref[10:16, 0:128] are never written")


@pytest.mark.slow
def test_a_race_that_both_engines_see() -> None:
    def early(x_ref: Any, o_ref: Any, tile_ref: Any, sem: Any) -> None:
        copy = pltpu.make_async_copy(x_ref, tile_ref, sem)
        copy.start()
        o_ref[...] = tile_ref[...]
        copy.wait()

    hbm = pl.BlockSpec(memory_space=pl.ANY)
    scratch = [pltpu.VMEM((16, 128), F32), pltpu.SemaphoreType.DMA]
    call = called(early, in_specs=[hbm], scratch_shapes=scratch)
    finding = one(call, X, engines="static,checks,races")
    assert (finding.kind, finding.engines) == ("DataRace", ("static", "tpu interpret"))
    assert finding.values["other semaphore"] == "sem"


def test_a_side_of_a_race_without_a_store_has_no_line_of_one() -> None:
    def last(x_ref: Any, o_ref: Any) -> None:
        @pl.when(pl.program_id(0) == 1)
        def _() -> None:
            o_ref[...] = x_ref[...]

    call = called(
        last,
        grid=(2,),
        in_specs=[ROWS],
        out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)),
        out_shape=jax.ShapeDtypeStruct((8, 128), F32),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )
    finding = one(call, X, engines="machine")
    assert (finding.kind, finding.other) == ("DataRace", None)
    assert "and written back without a store at grid point (0,) on the other" in finding.message


@pytest.mark.slow
def test_an_output_that_serves_as_scratch_is_no_race() -> None:
    def summed(x_ref: Any, o_ref: Any, tmp_ref: Any) -> None:
        tmp_ref[...] = x_ref[...] * 2
        o_ref[...] = tmp_ref[...] + 1

    first = pl.BlockSpec((8, 128), lambda i: (0, 0))
    call = called(
        summed,
        out_shape=(X, jax.ShapeDtypeStruct((8, 128), F32)),
        grid=(2,),
        in_specs=[ROWS],
        out_specs=(ROWS, first),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )
    verdict = verify(call, X, targets="v5e", engines="static,races")
    assert verdict.findings == ()
    (static,) = (o for o in verdict.outcomes if o.engine == "static" and o.kernel)
    assert tuple(gap.reason for gap in static.gaps) == (
        "what tmp_ref holds at the end: each parallel step uses it as scratch, and the last one to "
        "run leaves its values",
    )


@pytest.mark.slow
def test_a_check_that_fails_is_seen_by_each_engine_in_its_kernel() -> None:
    def checked(x_ref: Any, o_ref: Any) -> None:
        pl.debug_check(pl.program_id(0) < 1, "too far")
        o_ref[...] = x_ref[...]

    call = called(checked, grid=(2,), in_specs=[ROWS], out_specs=ROWS)
    verdict = verify(call, X, targets="v5e", engines="static,checks,races")
    (finding,) = verdict.findings
    assert (finding.message, finding.cause) == ("too far", "1 < 1 is false")
    assert finding.engines == ("checks", "static")
    assert verdict.unjudged == ()  # the kernel is the same one each time it is traced
    assert verdict.notes == ()
    (note,) = verify(call, X, targets="v5e", engines="static").notes  # which runs no check
    assert note.startswith("known issue debug-check-ignored of the installed jax, in tpu interpret")


# Blocks of dynamic sizes.


def copied_in_blocks(x: Any, starts: Any, sizes: Any) -> Any:
    def kernel(starts_ref: Any, sizes_ref: Any, x_hbm: Any, o_hbm: Any) -> None:
        def body(x_ref: Any, o_ref: Any) -> None:
            o_ref[...] = x_ref[...]

        block = pl.BlockSpec(
            (pl.BoundedSlice(16), 128), lambda i: (pl.ds(starts_ref[i], sizes_ref[i]), 0)
        )
        pltpu.emit_pipeline(body, grid=(3,), in_specs=[block], out_specs=block)(x_hbm, o_hbm)

    smem, hbm = pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(kernel, in_specs=[smem, smem, hbm], out_specs=hbm, out_shape=x)(
        starts, sizes, x
    )


STARTS = jnp.array([0, 8, 24])
RAN = "checks,machine"


@pytest.mark.slow
def test_the_rest_of_a_window_is_not_read_for_a_result() -> None:
    x = jnp.ones((32, 128))
    verdict = verify(copied_in_blocks, x, STARTS, jnp.array([8, 16, 8]), engines=RAN)
    assert verdict.findings == ()


@pytest.mark.slow
def test_a_block_size_that_jax_believes_to_be_whole_tiles() -> None:
    x = jnp.ones((32, 128))
    verdict = verify(copied_in_blocks, x, STARTS, jnp.array([8, 12, 8]), engines=RAN)
    if jax.__version_info__ >= (0, 12):
        assert verdict.findings == ()
        return
    gap, hint = verdict.findings
    assert (gap.kind, gap.engines) == ("OutputNotWritten", ("machine",))
    assert gap.cause == "the copies to o_hbm do not reach it"
    assert (hint.kind, set(hint.engines)) == ("FalseHint", {"checks", "machine"})
    assert hint.source is not None
    assert str(hint.source.text).startswith("pltpu.emit_pipeline(")
    assert hint.message == "a block of 12 rows or columns is not a multiple of 8"
    assert hint.cause == (
        "jax's pipeline tells the compiler that the sizes of a pl.BoundedSlice are multiples of 8, "
        "the tiling of the array in HBM"
    )
    assert hint.advice == (
        "let the index map return slices whose sizes are multiples of 8; jax rounds up only "
        "slices that reach past the array's end, jax 0.12 all of them"
    )


@pytest.mark.slow
def test_the_checks_alone_do_not_claim_that_a_result_is_wrong() -> None:
    x = jnp.ones((32, 128))
    verdict = verify(copied_in_blocks, x, STARTS, jnp.array([8, 16, 8]), engines="checks")
    assert verdict.findings == ()


@pytest.mark.slow
@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="since jax 0.12")
def test_a_slice_that_is_rounded_past_the_end() -> None:
    starts, sizes = jnp.array([0, 8, 26]), jnp.array([8, 16, 6])
    found, *_ = verify(copied_in_blocks, jnp.ones((32, 128)), starts, sizes, engines=RAN).findings
    assert found.kind == "OutOfBoundsRead"
    assert found.cause == (
        "`emit_pipeline` rounds the size of a slice up to whole tiles and assumes that the slice "
        "begins at a tile; this one begins at 26 (from starts_ref[2], which is 26), and its size "
        "is rounded to 8"
    )
    assert found.advice == "begin each slice at a tile boundary, or pad the array"
