"""Grid points at which a kernel may have written a buffer, or at which a core may start."""

from __future__ import annotations

import numpy as np

from pallas_debug.analysis.subject import Subject, over_loops
from pallas_debug.bridge.walk.events import Event


def stores(subject: Subject, buffer: int, before: int | None = None) -> list[Event]:
    """Events that may write to a buffer, in program order."""
    return [
        event
        for event in subject.walked.events[:before]
        if event.what in ("write", "dma_start", "escape")
        and event.view is not None
        and event.view.buffer.number == buffer
    ]


def covered_by(subject: Subject, events: list[Event]) -> np.ndarray:
    """Grid points at which any of the events may happen."""
    rank = len(subject.grid.sizes)
    covered = np.zeros((1,) * rank, bool)
    for event in events:
        covered = covered | over_loops(event.where, rank)
    return covered


def slice_starts(subject: Subject) -> np.ndarray:
    """Grid points at which a core may start: step 0 of every sequential dimension."""
    sizes = subject.grid.sizes
    starts = np.ones((1,) * len(sizes), bool)
    for d, (size, is_parallel) in enumerate(zip(sizes, subject.grid.parallel, strict=True)):
        if is_parallel:
            continue
        steps = np.arange(size).reshape([-1 if i == d else 1 for i in range(len(sizes))])
        starts = starts & (steps == 0)
    return starts
