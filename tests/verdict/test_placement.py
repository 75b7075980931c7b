"""Where XLA puts operands that a kernel declares in HBM, for the function around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention_kernel

from pallas_debug.bridge import versions
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.hints import HintKind
from pallas_debug.verdict import Verdict, verify

X = jax.ShapeDtypeStruct((16, 256), jnp.float32)
HBM = pl.BlockSpec(memory_space=pltpu.HBM)


def _copy(x_ref: Any, o_ref: Any, sem: Any) -> None:
    pltpu.async_copy(x_ref, o_ref, sem).wait()


def copied(x: Any, out: Any = X) -> Any:
    scratch = [pltpu.SemaphoreType.DMA]
    return pl.pallas_call(
        _copy, out_shape=out, in_specs=[HBM], out_specs=HBM, scratch_shapes=scratch
    )(x)


def in_hbm(x: Any) -> Any:
    return pltpu.with_memory_space_constraint(x, pltpu.HBM)


def doubled(x: Any) -> Any:
    """The operand is computed by XLA, which chooses its memory."""
    return copied(x * 2)


def looped(x: Any) -> Any:
    return jax.lax.fori_loop(0, 4, lambda _, carried: copied(carried * 2) + 1, x)


RESULT_IN_HBM = pltpu.HBM(X.shape, X.dtype)


def judged(function: Callable[..., Any], targets: str = "v4,v5e") -> Verdict:
    return verify(function, X, engines="compile", targets=targets)


def placements(verdict: Verdict) -> list[str]:
    return [hint.message for hint in verdict.hints if hint.kind is HintKind.PLACEMENT]


@pytest.mark.parametrize("target, memory", [("v4", "CMEM"), ("v5e", "VMEM")])
def test_an_operand_that_xla_computes_is_placed_elsewhere(target: str, memory: str) -> None:
    """jax#39744."""
    verdict = judged(doubled, target)
    assert verdict.ok
    (hint,) = (hint for hint in verdict.hints if hint.kind is HintKind.PLACEMENT)
    assert (hint.kernel, hint.operand) == ("_copy", "x_ref")
    assert f"declared in HBM, but XLA puts it in {memory} on {target}" in hint.message
    assert "pltpu.with_memory_space_constraint(x, pltpu.HBM)" in hint.message


def test_results_and_loops_are_judged_too() -> None:
    found = placements(judged(looped, "v5e"))
    assert [message.split()[0] for message in found] == ["x_ref", "o_ref"]
    assert "out_shape" in found[1]


def test_it_is_a_finding_with_a_libtpu_that_copies_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mock of the version; libtpu 0.0.44 places the operand in the same way."""
    installed = {**versions.installed(), "libtpu": "0.0.44"}
    monkeypatch.setattr(versions, "installed", lambda: installed)
    verdict = judged(doubled)
    (finding,) = verdict.findings
    assert (finding.kind, finding.operand) == (Fault.MISPLACED_OPERAND, "x_ref")
    assert finding.targets == ("v4", "v5e")
    assert {(o.target, o.status) for o in verdict.outcomes if o.target} == {
        ("v4", "found"),
        ("v5e", "found"),
    }
    assert not placements(verdict)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: copied(x),
        lambda x: copied(in_hbm(x * 2)),
        lambda x: copied(in_hbm(x * 2), RESULT_IN_HBM) + 1,
    ],
    ids=["argument", "constrained", "constrained result"],
)
def test_nothing_is_said_of_operands_in_hbm(function: Callable[..., Any]) -> None:
    assert not placements(judged(function))


def test_nothing_is_said_of_jaxs_own_kernels() -> None:
    def attention(q: Any, k: Any, v: Any, lengths: Any, pages: Any) -> Any:
        call = paged_attention_kernel.paged_attention
        return call(q * 2, k * 2, v * 2, lengths, pages, pages_per_compute_block=4)

    def floats(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    def integers(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.int32)

    pages = floats(1, 8, 16, 128)
    args = (floats(2, 8, 128), pages, pages, integers(2), integers(2, 4))
    assert not placements(verify(attention, *args, engines="compile", targets="v5e"))


def test_a_function_that_does_not_compile_leaves_a_gap() -> None:
    def too_large(x: Any) -> Any:
        return copied(x) @ jnp.zeros((256, 1 << 32), jnp.float32)

    (outcome,) = (o for o in judged(too_large, "v5e").outcomes if o.target)
    assert outcome.status == "ok"
    (gap,) = outcome.gaps
    assert "the memory in which XLA puts the operands in HBM" in gap.reason
    assert "does not compile" in gap.reason
