"""What a verdict says is true of the kernel at hand, and is said once."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from small_calls import ROWS, X, called, copy, one

from pallas_debug.verdict import verify
from pallas_debug.verdict.suppressions import Suppression

F32, I32 = jnp.float32, jnp.int32


# Index maps under x64.


def test_an_index_map_of_jax_is_not_said_to_be_the_users() -> None:
    with jax.enable_x64(True):
        finding = one(called(grid=(2,)), X, engines="static,compile")
        assert finding.kind == "X64IndexMap"
        assert finding.message == (
            "no index map is given for x_ref and o_ref, and that which jax creates returns int64 "
            "zeros"
        )
        assert finding.engines == ("static", "compile")
        spec = pl.BlockSpec((16, 128), lambda i: (jnp.int32(0), jnp.int32(0)))
        half = one(called(grid=(2,), in_specs=[spec]), X, engines="static,compile")
        assert half.message.startswith(
            "no index map is given for o_ref, and that which jax creates"
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

    found = verify(both, X, targets="v5e", engines="machine")
    assert len({o.digest for o in found.outcomes if o.kernel}) == 2
    assert len({o.digest for o in found.outcomes if o.status == "found"}) == 1
    (wrong,) = {o.digest for o in found.outcomes if o.status == "found"}
    (finding,) = found.findings
    label = f"rows-{wrong[:8]}"
    assert finding.digest == wrong
    assert f"UninitializedRead in kernel `{label}`" in str(found)
    suppression = Suppression(kind="UninitializedRead", reason="", kernel=label)
    assert suppression.fits(finding)
    assert not suppression.fits(dataclasses.replace(finding, digest="0" * 64))


def test_a_kernel_for_a_gpu_is_judged_where_it_can_run() -> None:
    from jax.experimental.pallas import triton

    kernel = called(compiler_params=triton.CompilerParams(num_warps=4))
    verdict = verify(kernel, X, targets="v5e")
    assert (verdict.findings, verdict.gaps) == ((), ())
    assert verdict.ok
    assert {o.column: o.status for o in verdict.outcomes if o.kernel} == {
        "static": "skipped", "v5e": "skipped", "machine": "ok",
    }  # fmt: skip
    assert "not asked: copy static, copy v5e: it is a kernel for a GPU (Triton)" in str(verdict)
    assert not verify(kernel, X, targets="v5e", engines="compile").ok  # it was requested


def test_a_kernel_that_the_machine_refuses_is_told_of_jax_s_modes() -> None:
    rows = pl.BlockSpec((pl.BoundedSlice(8), 128), lambda i: (pl.ds(0, 8), i))
    call = called(grid=(1,), in_specs=[rows], out_specs=rows)
    verdict = verify(call, X, targets="v5e", engines="static,machine")
    assert verdict.findings == ()
    (outcome,) = verdict.unjudged  # the engine was named
    assert outcome.engine == "machine"
    assert str(outcome.reason).startswith("operand `x_ref` has a block dimension of kind Bounded")
    assert 'may run it: --pallas-interpret=hlo|tpu, pallas_debug.interpret("hlo")' in str(verdict)


# Each fault once.


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
    assert "and written back without a store at grid point (0,)" in finding.message


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
RAN = "machine"


@pytest.mark.slow
def test_a_block_size_that_jax_believes_to_be_whole_tiles() -> None:
    x = jnp.ones((32, 128))
    verdict = verify(copied_in_blocks, x, STARTS, jnp.array([8, 12, 8]), engines=RAN)
    if jax.__version_info__ >= (0, 12):
        assert verdict.findings == ()
        return
    gap, hint = verdict.findings
    assert (gap.kind, gap.engines) == ("OutputNotWritten", ("machine",))
    assert gap.consequences == ()  # nothing follows from what is not there
    assert (hint.kind, set(hint.engines)) == ("FalseHint", {"machine"})
    assert str(hint.source.text).startswith("pltpu.emit_pipeline(")
    assert hint.message == "a block of 12 rows or columns is not a multiple of 8"


@pytest.mark.slow
@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="since jax 0.12")
def test_a_slice_that_is_rounded_past_the_end() -> None:
    starts, sizes = jnp.array([0, 8, 26]), jnp.array([8, 16, 6])
    found, *_ = verify(copied_in_blocks, jnp.ones((32, 128)), starts, sizes, engines=RAN).findings
    assert found.kind == "OutOfBoundsRead"
    assert found.cause == (
        "`emit_pipeline` rounds sizes up to whole tiles, this one to 8; it begins at 26 (from "
        "starts_ref[2], which is 26)"
    )
    assert found.advice == "begin each slice at a tile boundary, or pad the array"


# Names.
