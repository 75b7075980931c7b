"""Wording of two runs of a kernel with different results."""

from __future__ import annotations

from collections.abc import Sequence

from pallas_debug.findings.faults import Fault, Judge
from pallas_debug.findings.sighting import Sighting
from pallas_debug.model import Finding

_RUNS = {"checks": "with checks", "machine": "on the kernel machine", "tpu interpret": "for races"}


def engines_disagree(
    seen: Sighting, *, engines: Sequence[Judge], element: str, values: Sequence[object]
) -> Finding:
    """Report two runs of a function with different results.

    Args:
      engines: engines that ran it.
      element: an element that differs.
      values: value of that element in each run.
    """
    (one, other), (first, second) = (_RUNS[engine] for engine in engines), values
    return seen.with_values({"element": element, one: str(first), other: str(second)}).found(
        Fault.ENGINES_DISAGREE,
        f"the interpreted runs {one} and {other} give different results: {element} is {first} in "
        f"one and {second} in the other",
        "the kernel depends on something that no engine guarantees: the order of its grid "
        "points, what a buffer holds before it is written, or when a copy arrives",
        "look for outputs that are read, or revisited after another block, and for copies without "
        "a wait",
    )
