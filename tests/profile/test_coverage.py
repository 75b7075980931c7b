"""Bundles of flash and splash attention are traced to Python lines, on every target."""

from __future__ import annotations

from pathlib import Path

import pytest
from pallas_debug_kernels.registry import operation

import pallas_debug
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
            coverage = found.profile.tracing.coverage(found.profile.schedule.listing)
            assert found.profile.schedule.is_matched
            assert coverage.bundles
            shares[target] = coverage.traced / coverage.bundles
    assert min(shares.values()) >= 0.95, shares
