"""Progress of the kernels that a program runs on the machine, and a budget for their time.

A run that the budget ends is judged as far as it went: findings of what happened are facts.
Anything that takes the rest of the grid to decide is left open, so that a part of a run never
accuses a kernel of what it may still do.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.loops import LoopChunk
from pallas_debug.errors import OutOfBudget
from pallas_debug.machine.machine import Stopped
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.threads import Thread
from pallas_debug.render import one_line

Array = np.ndarray[Any, Any]


class BudgetEnded(Stopped):
    """The budget ended before the run did."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PartialRun:
    """A run that the budget ended after some of its grid points.

    Attributes:
      call: number of the kernel's call in the program, from 1.
      done, points: number of grid points that ran to their end, and of all.
    """

    kernel: str
    digest: str = ""
    call: int = 1
    done: int
    points: int

    @property
    def left_out(self) -> str:
        """What was not judged of the kernel's run."""
        of_call = f" of call {self.call}" if self.call > 1 else ""
        return (
            f"{self.points - self.done:,} of {self.points:,} grid points{of_call}, and reads of "
            "memory that nothing has written: the budget ended"
        )


@dataclass(eq=False)
class Pace:
    """Progress of a program's kernels, which another thread may read, and the time they may take.

    Attributes:
      budget: seconds since `began` after which kernels are stopped; None for no limit.
      kernel: name of the kernel that runs; empty if none does.
      done, points: number of its grid points that have begun, and of all; 0 if it has no grid.
      calls: number of calls of each kernel, by digest.
      partial: the first kernel's run that the budget ended.
    """

    budget: float | None = None
    began: float = field(default_factory=time.monotonic)
    kernel: str = ""
    done: int = 0
    points: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    partial: PartialRun | None = None
    _since: float = 0.0

    @property
    def left(self) -> float:
        """Seconds of the budget that are left."""
        end = math.inf if self.budget is None else self.began + self.budget
        return max(end - time.monotonic(), 0.0)

    def begins(self, kernel: str, digest: str) -> None:
        """Note a kernel that is about to run."""
        self.calls[digest] += 1
        self.kernel, self.done, self.points = kernel, 0, 0
        self._since = time.monotonic()

    def ends(self) -> None:
        """Note that the kernel does not run any more."""
        self.kernel = ""

    def ended(self, run: PartialRun) -> OutOfBudget:
        """Keep the first run that the budget ended; return the exception that ends its program."""
        if self.partial is None:
            self.partial = replace(run, call=self.calls[run.digest])
        return OutOfBudget(self.why)

    @property
    def why(self) -> str:
        """Why anything after the partial run is not judged."""
        where = "" if self.partial is None else f" in kernel `{self.partial.kernel}`"
        return f"the budget of {self.budget:g} s ended{where}"

    def at(self, thread: Thread) -> None:
        """Note that a grid point begins."""
        self.done, self.points = position(thread), math.prod(thread.grid)

    def __str__(self) -> str:
        """`kernel `x`, grid point 97 of 512, about 40 s left`; empty if no kernel runs."""
        if not self.kernel:
            return ""
        text = f"kernel `{one_line(self.kernel)}`"
        if self.points > 1:
            text += f", grid point {self.done + 1:,} of {self.points:,}"
        rest = math.inf
        if self.done:
            rest = (time.monotonic() - self._since) / self.done * (self.points - self.done)
        left = min(rest, self.left)
        return text if math.isinf(left) else f"{text}, about {left:,.0f} s left"


def position(thread: Thread) -> int:
    """Number of grid points before the one that a thread is at."""
    if not thread.grid or len(thread.point) != len(thread.grid):
        return 0
    return int(np.ravel_multi_index(thread.point, thread.grid))


class ProgressObserver(MachineObserver):
    """Notes the grid points of a run."""

    follows_loops = False

    def __init__(self, pace: Pace) -> None:
        self._pace = pace

    def point_begins(self, thread: Thread) -> None:
        self._pace.at(thread)


class BudgetObserver(MachineObserver):
    """Ends a run when the budget does.

    A run on one core ends between two grid points. One on several cores, and one whose first grid
    point takes too long, ends at once.
    """

    follows_loops = False

    def __init__(self, pace: Pace, *, has_order: bool) -> None:
        self._pace = pace
        self._has_order = has_order

    def point_begins(self, thread: Thread) -> None:
        if not self._pace.left:
            raise BudgetEnded("out of time", thread)

    def _looks(self, thread: Thread) -> None:
        """End the run within a grid point, after a step that may be one of many."""
        if not self._pace.left and not (self._has_order and position(thread)):
            raise BudgetEnded("out of time", thread)

    def iterates(self, thread: Thread, step: ir.MachineStep, iteration: int) -> None:
        self._looks(thread)

    def runs_chunk(self, thread: Thread, step: ir.Loop, chunk: LoopChunk) -> None:
        self._looks(thread)

    def index_map_iterates(self, thread: Thread, step: ir.MachineStep, iteration: int) -> None:
        self._looks(thread)

    def loads(self, thread: Thread, step: ir.MachineStep, region: Any, value: Any) -> None:
        self._looks(thread)

    def stores(self, thread: Thread, step: ir.MachineStep, region: Any, value: Any) -> None:
        self._looks(thread)
