"""List of steps: a kernel's stages and passes, and how each changed its operations."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from textual import work
from textual.cache import LRUCache
from textual.timer import Timer
from textual.worker import get_current_worker

from pallas_debug.errors import PallasDebugError
from pallas_debug.ir.operations import Module
from pallas_debug.tui.model import DEBOUNCE, Throttle
from pallas_debug.tui.model.browser import Browser, Entry, KernelStep, TextPlace
from pallas_debug.tui.model.drawn import bar
from pallas_debug.tui.model.kernels import FAILED
from pallas_debug.tui.widgets.cells import Cells
from pallas_debug.tui.widgets.lists import ListPane, aligned

TICK = 0.2
"""Seconds between progress reports."""

CACHED = 400
"""Maximum number of texts whose operation counts are cached."""

MAX_BYTES = 16_000_000
"""Maximum size in bytes of a text whose operations are counted."""

READABLE = 24
"""Number of cells of a name that suffice to distinguish most passes."""

GREW_MOST = "▲"
"""Mark of the pass that added the most operations."""

_MARK = 2
_BARS = 3, 8
"""Widths in cells of the bar of a change, where there is little room and where there is more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OperationChange:
    """Change in the number of operations by a pass.

    Attributes:
      operations: number of operations after the pass.
      added, removed: number of operations added and removed, counted by name; both 0 if only
        operands or attributes changed; None if there is no previous text.
    """

    operations: int
    added: int | None = None
    removed: int | None = None

    @property
    def net(self) -> int:
        """Number of operations by which the pass made the kernel grow."""
        return (self.added or 0) - (self.removed or 0)

    @property
    def label(self) -> str:
        """Label such as `+882`, `±22` if as many were removed, or `~` if none was."""
        if self.added is None:
            return ""
        if not self.added and not self.removed:
            return "~"
        number = abs(self.net) or self.added
        short = f"{number:,}" if number < 10_000 else f"{number / 1000:,.0f}k"
        return f"{'+' if self.net > 0 else '-' if self.net < 0 else '±'}{short}"


def operation_change(before: Counter[str] | None, after: Counter[str]) -> OperationChange:
    """Compare the operations counted before and after a pass."""
    if before is None:
        return OperationChange(operations=after.total())
    return OperationChange(
        operations=after.total(),
        added=(after - before).total(),
        removed=(before - after).total(),
    )


class StepPane(ListPane):
    """Pane with a kernel's stages and passes. Passes without changes are dimmed.

    Each pass shows by how many operations the kernel grew, as a number and a bar, and as far as
    there is room the total of operations, the size of the text, and the time taken.
    """

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.steps: list[KernelStep] = []
        self.changes: dict[str, OperationChange] = {}
        """Known changes, by label."""
        self._timer: Timer | None = None
        self._counts: LRUCache[tuple[Path, int, int], Counter[str]] = LRUCache(CACHED)
        """Operations of files, by path, modification time and size."""

    @property
    def count(self) -> int:
        return len(self.steps)

    @property
    def current(self) -> KernelStep | None:
        return self.steps[self.cursor] if self.steps else None

    def show(self, steps: list[KernelStep], at: KernelStep | None) -> None:
        """Show steps, with the cursor on the one most like `at`."""
        self.steps = steps
        self.changes = {}
        labels, names = ([getattr(step, part) for step in steps] for part in ("label", "name"))
        keep = 0
        if at is not None and at.label in labels:
            keep = labels.index(at.label)
        elif at is not None and at.name in names:
            keep = names.index(at.name)
        self.changed(keep=keep)

    def select(self, label: str) -> None:
        """Move the cursor to a step, without a message: the caller shows the step."""
        at = (n for n, step in enumerate(self.steps) if step.label == label)
        self.changed(keep=next(at, None))

    def next_changed(self, direction: int) -> None:
        """Move the cursor to the next or previous step with changes."""
        steps = range(self.cursor + direction, self.count if direction > 0 else -1, direction)
        found = next((i for i in steps if self.steps[i].changed), None)
        if found is not None:
            self.cursor = found

    @property
    def grew_most(self) -> KernelStep | None:
        """Pass that added the most operations, as far as they are counted."""
        grown = {label: change.net for label, change in self.changes.items() if change.net > 0}
        most = max(grown, key=grown.__getitem__, default=None)
        return next((step for step in self.steps if step.label == most), None)

    # Operation counts.

    def count_changes(self, browser: Browser, entry: Entry, target: str | None) -> None:
        """Count the operations of all steps in the background, after `DEBOUNCE`."""
        self.workers.cancel_group(self, "changes")
        if self._timer is not None:
            self._timer.stop()
        steps = self.steps
        places = [TextPlace(entry=entry, target=target, step=step) for step in steps]
        self._timer = self.set_timer(DEBOUNCE, partial(self._count, browser, places, steps))

    @work(thread=True, exclusive=True, group="changes")
    def _count(self, browser: Browser, places: list[TextPlace], steps: list[KernelStep]) -> None:
        worker, throttle = get_current_worker(), Throttle()
        before: Counter[str] | None = None
        made: dict[str, OperationChange] = {}
        reported = time.monotonic()
        for place in places:
            step = place.step
            if not step.changed or not step.of_kernel or step.stage == "source":
                continue
            counts = self._counted(browser, place)
            if worker.is_cancelled:
                return
            if counts is not None:
                made[step.label] = operation_change(before if step.pass_ else None, counts)
            before = counts if step.pass_ else None
            if time.monotonic() - reported > TICK:
                reported = time.monotonic()
                self.call_later(self._set_changes, steps, dict(made))
            throttle.rest()
        self.call_later(self._set_changes, steps, made)

    def _counted(self, browser: Browser, place: TextPlace) -> Counter[str] | None:
        """Count the operations of a text; None if it is too large or cannot be read."""
        try:
            file = browser.file(place)
            status = file.path.stat()
            stamp = file.path, status.st_mtime_ns, status.st_size
            if stamp not in self._counts and status.st_size <= MAX_BYTES:
                self._counts[stamp] = Module.of(file.text()).counts
        except (OSError, ValueError, PallasDebugError):
            return None
        return self._counts.get(stamp)

    def _set_changes(self, steps: list[KernelStep], made: dict[str, OperationChange]) -> None:
        if steps is self.steps:
            self.changes = made
            self.refresh()

    # Drawing.

    def cells(self, line: int) -> Cells:
        step = self.steps[line]
        known = self.changes.get(step.label)
        failed = "bold text-error" if step.failed else ""
        marked = ("  ", "")
        if step.failed:
            marked = (f"{FAILED} ", failed)
        elif step == self.grew_most:
            marked = (f"{GREW_MOST} ", "bold text-accent")
        name = (step.label, failed or ("" if step.changed else "text-muted"))
        operations = f"{known.operations:,} ops" if known else ""
        digits = max((len(change.label) for change in self.changes.values()), default=0)
        room = self.columns - _MARK - READABLE - digits
        width = _BARS[room > _BARS[1] + 12]
        if step.pass_ is None and room < width + 14:  # the total takes the place of the change
            total = f"{operations:>{digits + 1 + width}}"
            return aligned([marked, name], [(total, "text-muted")], self.columns)
        net = known.net if known else 0
        style = "text-success" if net > 0 else "text-error" if net else "text-muted"
        label = known.label if known else "" if step.changed else "="
        made = step.pass_
        size = f"{made.size:,} B" if made else ""
        time = "" if made is None or made.seconds is None else f"{made.seconds * 1000:,.1f} ms"
        columns = [(f"{label:>{digits}}", style), (self._bar(net, width), style)]
        columns += [(f"{text:>11}", "text-muted") for text in (operations, size, time)]
        # Of the columns after the bar, those that leave names readable: the same in all rows.
        while len(columns) > 2 and sum(len(text) + 1 for text, _ in columns) > room + digits:
            columns.pop()
        return aligned([marked, name], columns, self.columns)

    def _bar(self, net: int, width: int) -> str:
        """Return a bar as long as a change, compared with the largest one."""
        largest = max((abs(change.net) for change in self.changes.values()), default=0)
        return bar(abs(net) / largest if largest else 0.0, width)
