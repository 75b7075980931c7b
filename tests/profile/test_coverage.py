"""Bundles of flash and splash attention are traced to Python lines, on every target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pallas_debug_kernels.registry import operation

import pallas_debug
from pallas_debug.ir.bundles import Instruction
from pallas_debug.profile.tracing import Trace
from pallas_debug.profile.units import is_vector
from pallas_debug.store import open_dumps
from pallas_debug.store.profiles import read_profile

TARGETS = "v4,v5e,v5p,v6e,tpu7x"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, spec", [("flash_attention", "bf16_causal"), ("splash_attention", "f32_causal")]
)
def test_at_least_95_percent(name: str, spec: str, tmp_path: Path) -> None:
    attention = operation(name)
    chosen = attention.spec(spec)
    pallas_debug.dump(
        lambda *args: attention.function(*args, **chosen.kwargs),
        *chosen.args,
        targets=TARGETS,
        to=tmp_path,
    )
    shares = {}
    for kernel in open_dumps(tmp_path).kernels():
        for target in TARGETS.split(","):
            found = read_profile(kernel, kernel.target(target))
            assert found is not None
            schedule, traces = found.profile.schedule, found.profile.tracing.traces
            assert schedule.is_matched
            work = [
                any(trace.chain for trace in vector)
                for bundle, found_of in zip(schedule.bundles, traces, strict=True)
                if (vector := _of_vectors(bundle.instructions, found_of))
            ]
            shares[target] = sum(work) / len(work)
    assert min(shares.values()) >= 0.95, shares


def _of_vectors(instructions: Sequence[Instruction], traces: Sequence[Trace]) -> list[Trace]:
    """The lines of a bundle's vector and matrix instructions."""
    pairs = zip(instructions, traces, strict=True)
    return [trace for instruction, trace in pairs if is_vector(instruction.opcode)]
