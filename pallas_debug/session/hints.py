"""Hints about a kernel that ran without the sanitizer and the static analysis."""

from __future__ import annotations

from dataclasses import replace

from pallas_debug.analysis import analyze
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.hosted.client import evaluating
from pallas_debug.bridge.programs.launch import launch
from pallas_debug.errors import MachineError
from pallas_debug.machine import run as machine_run
from pallas_debug.machine.host import KernelArrays
from pallas_debug.machine.sanitizer import areas
from pallas_debug.machine.shadow.memory import require_room
from pallas_debug.model import Hint

TIME_LIMIT = 5.0
"""Maximum seconds of the run for the hints of a kernel."""


def hints(captured: Capture, call: KernelArrays | None) -> list[Hint]:
    """Analyse a kernel, and run it once more with the sanitizer, if its last call is known.

    A run that does not come to its end gives no hints.
    """
    found = [*analyze(captured).hints]
    try:
        if call is not None:
            arrays, first = call
            known = launch(captured, opens=True)
            areas.require_cores(known)
            require_room(known)
            with evaluating(enable_x64=known.enable_x64):
                observers = areas.observers(known, arrays, first)
                done = machine_run.run(
                    known, arrays, first=first, observers=observers, stop_after=TIME_LIMIT
                )
            found += done.hints if done.stopped is None else ()
    except (MachineError, NotImplementedError, AssertionError):  # it is beyond the sanitizer
        pass
    return [replace(hint, digest=captured.kernel.digest) for hint in found]
