"""Loops whose bodies did not run, and so were not checked."""

from __future__ import annotations

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.loops import LoopChunk
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.threads import Thread
from pallas_debug.model import SourceLine


class IdleLoops(MachineObserver):
    """Records, by line, which of the loops reached by a run iterate.

    Attributes:
      skipped: loops whose condition was false from the start at least once.
      ran: loops that iterated at least once.
    """

    follows_loops = False

    def __init__(self) -> None:
        self.skipped: set[SourceLine] = set()
        self.ran: set[SourceLine] = set()

    def skips(self, thread: Thread, step: ir.WhileLoop) -> None:
        if step.site.line is not None:
            self.skipped.add(step.site.line)

    def iterates(self, thread: Thread, step: ir.MachineStep, iteration: int) -> None:
        if iteration == 0 and step.site.line is not None:
            self.ran.add(step.site.line)

    def runs_chunk(self, thread: Thread, step: ir.Loop, chunk: LoopChunk) -> None:
        if step.site.line is not None:
            self.ran.add(step.site.line)
