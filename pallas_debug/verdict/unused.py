"""Outputs of kernels that nothing uses, and so need not be written."""

from __future__ import annotations

from collections.abc import Sequence

from pallas_debug import guards
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.walk.dataflow import unused
from pallas_debug.errors import PallasDebugError
from pallas_debug.findings.faults import Fault
from pallas_debug.model import Target
from pallas_debug.verdict.engines import Call, Seen


def without_unused(
    seen: Sequence[Seen],
    call: Call,
    captures: Sequence[Capture],
    target: Target,
    problems: list[str],
) -> list[Seen]:
    """Leave out unwritten outputs of which the function uses nothing, and say so in a note.

    Args:
      problems: gets a sentence if that could not be determined; then all outputs count as used.
    """
    unwritten = {
        (f.kernel, f.operand)
        for one in seen
        for f in one.findings
        if f.kind is Fault.OUTPUT_NOT_WRITTEN
    }
    if not unwritten:
        return list(seen)
    found: dict[str, frozenset[int]] = {}
    failed: list[PallasDebugError] = []
    with guards.guarded("engine", "looking for outputs that nothing uses", failed.append):
        found = unused.unused_outputs(call.function, call.args, call.kwargs, target)
    problems += map(str, failed)
    idle: dict[tuple[str, str | None], bool] = {}
    for captured in captures:
        numbers = found.get(captured.kernel.digest, frozenset())
        for n, operand in enumerate(captured.kernel.of_kind("output")):
            key = captured.kernel.name, operand.name
            idle[key] = idle.get(key, True) and n in numbers
    names = {key for key in unwritten if idle.get(key)}
    notes = tuple(
        f"kernel `{kernel}` does not write all of {operand}: nothing uses that output"
        for kernel, operand in sorted(names, key=str)
    )
    return [*(one.without_unwritten(names) for one in seen), Seen(notes=notes)]
