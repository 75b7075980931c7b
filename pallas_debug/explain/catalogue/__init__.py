"""The catalogue of explanations, one module per topic."""

from __future__ import annotations

from pallas_debug.explain.catalogue import (
    checks,
    crash,
    environment,
    general,
    layout,
    lowering,
    memory,
    misuse,
    running,
    tiling,
    values,
)
from pallas_debug.model import Explanation

TOPICS: dict[str, tuple[Explanation, ...]] = {
    "Memory": memory.ENTRIES,
    "Blocks and tiles": tiling.ENTRIES,
    "Shapes and layouts": layout.ENTRIES,
    "Lowering": lowering.ENTRIES,
    "Calls": misuse.ENTRIES,
    "Running": running.ENTRIES,
    "Values": values.ENTRIES,
    "Checks, prints, interpret modes": checks.ENTRIES,
    "Environment": environment.ENTRIES,
    "Crashes": crash.ENTRIES,
    "Other errors": general.ENTRIES,
}

CATALOGUE: tuple[Explanation, ...] = tuple(e for entries in TOPICS.values() for e in entries)
