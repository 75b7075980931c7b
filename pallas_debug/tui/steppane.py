"""The pane of steps: the stages and passes of a kernel, and what each did to it."""

from __future__ import annotations

import itertools
import time
from collections import Counter, OrderedDict
from pathlib import Path
from typing import ClassVar

from textual.reactive import reactive
from textual.timer import Timer
from textual.worker import get_current_worker

from pallas_debug.errors import PallasDebugError
from pallas_debug.tui.changes import Change, change, count_operations
from pallas_debug.tui.lineview import Cells
from pallas_debug.tui.listpane import ListPane, aligned, fitted
from pallas_debug.tui.model import Browser, Entry, Place, Step
from pallas_debug.tui.pace import SOON
from pallas_debug.tui.rows import FAILED

TICK = 0.2
"""Seconds between two times that counts are shown."""

KEPT = 400
"""Texts whose operations stay known."""

LARGEST = 64_000_000
"""Bytes of a text up to which its operations are counted."""

Stamp = tuple[Path, int, int]
"""A file as it is now: its path, time and size."""


class StepPane(ListPane):
    """The stages and passes of a kernel; those that changed nothing are dimmed, or hidden.

    Beside a pass stand, as far as there is room: the operations that it added and took away, how
    many there are then, the size of the text, and the time it took.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "steps--same",
        "steps--failed",
        "steps--size",
        "steps--change",
    }
    DEFAULT_CSS = """
    StepPane {
        & .steps--same { text-style: dim; }
        & .steps--size { text-style: dim; }
        & .steps--change { color: $text-accent; }
        & .steps--failed { color: $text-error; text-style: bold; }
    }
    """

    only_changed: reactive[bool] = reactive(False)

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.all_steps: list[Step] = []
        self.steps: list[Step] = []
        self.changes: dict[str, Change] = {}
        """By label, as far as they are known."""
        self._wanted = ""
        self._soon: Timer | None = None
        self._counts: OrderedDict[Stamp, Counter[str]] = OrderedDict()

    @property
    def count(self) -> int:
        return len(self.steps)

    @property
    def current(self) -> Step | None:
        return self.steps[self.cursor] if self.steps else None

    def show(self, steps: list[Step], at: Step | None) -> None:
        """Show these steps, with the cursor on the one that is most like `at`."""
        self.all_steps = steps
        self.changes = {}
        hidden = at is not None and not self._takes(at)
        if hidden and at is not None and at.failed:
            self._wanted = ""
        if at is not None and all(step.label != at.label for step in steps):
            at = next((step for step in steps if step.name == at.name), None)
        self._filter(at)

    def select(self, label: str) -> bool:
        """Put the cursor on a step, though it be hidden; whether there is such a one."""
        found = next((step for step in self.all_steps if label in (step.label, step.name)), None)
        if found is None:
            return False
        if not self._takes(found):
            self._wanted = ""
            self.set_reactive(StepPane.only_changed, False)
        self._filter(found)
        return True

    # What is shown.

    @property
    def filter_text(self) -> str:
        return self._wanted

    def filter(self, text: str) -> None:
        before = self.current
        self._wanted = text.strip().lower()
        self._filter(before)
        if self.current != before:
            self.post_message(self.Moved(self, self.cursor))

    def watch_only_changed(self) -> None:
        self._filter(self.current)

    def _takes(self, step: Step) -> bool:
        if not all(word in step.label.lower() for word in self._wanted.split()):
            return False
        return step.changed or step.failed or not self.only_changed

    def _filter(self, at: Step | None) -> None:
        self.steps = [step for step in self.all_steps if self._takes(step)]
        labels = [step.label for step in self.steps]
        keep = labels.index(at.label) if at is not None and at.label in labels else 0
        said = []
        if self._wanted or self.only_changed:
            said.append(f"{len(self.steps)}/{len(self.all_steps)}")
            said += [self._wanted] if self._wanted else []
            said += ["those that changed something"] if self.only_changed else []
        self.note = " ".join(said)
        self.changed(keep=keep)

    def next_changed(self, direction: int) -> None:
        """Put the cursor on the next step, or the previous one, that changed something."""
        steps = range(self.cursor + direction, self.count if direction > 0 else -1, direction)
        found = next((i for i in steps if self.steps[i].changed), None)
        if found is not None:
            self.cursor = found

    # What each pass did.

    def count_changes(self, browser: Browser, entry: Entry, target: str | None) -> None:
        """Count the operations of the steps that are shown, aside, once they are looked at."""
        self.workers.cancel_group(self, "changes")
        if self._soon is not None:
            self._soon.stop()
        places = [Place(entry=entry, target=target, step=step) for step in self.all_steps]
        self._soon = self.set_timer(SOON, lambda: self._start_counting(browser, places))

    def _start_counting(self, browser: Browser, places: list[Place]) -> None:
        steps = self.all_steps
        self.run_worker(
            lambda: self._count(browser, places, steps),
            thread=True,
            group="changes",
            exclusive=True,
        )

    def _count(self, browser: Browser, places: list[Place], steps: list[Step]) -> None:
        worker = get_current_worker()
        before: Counter[str] | None = None
        made: dict[str, Change] = {}
        told = time.monotonic()
        for place in places:
            step = place.step
            if not step.changed or not step.of_kernel or step.stage == "source":
                continue
            try:
                file = browser.file(place)
                status = file.path.stat()
                stamp = (file.path, status.st_mtime_ns, status.st_size)
                counts = self._counts.get(stamp)
                if counts is None:
                    if status.st_size > LARGEST:
                        before = None
                        continue
                    counts = count_operations(file.open, lambda: worker.is_cancelled)
            except (OSError, ValueError, PallasDebugError):
                before = None
                continue
            if counts is None:
                return
            self._counts[stamp] = counts
            while len(self._counts) > KEPT:
                self._counts.popitem(last=False)
            made[step.label] = change(before if step.pass_ is not None else None, counts)
            before = counts if step.pass_ is not None else None
            if time.monotonic() - told > TICK:
                told = time.monotonic()
                self.call_later(self._counted, steps, dict(made))
        self.call_later(self._counted, steps, made)

    def _counted(self, steps: list[Step], made: dict[str, Change]) -> None:
        if steps is self.all_steps:
            self.changes = made
            self.refresh()

    # Drawing.

    @property
    def _shown_columns(self) -> int:
        """How many columns stand behind the names, the same ones for all: at least the first."""
        ends = itertools.accumulate(width + 1 for width in _WIDTHS)
        return max(1, sum(_MARK + READABLE + end <= self.columns for end in ends))

    def cells(self, line: int) -> Cells:
        step = self.steps[line]
        if step.pass_ is None:
            known = self.changes.get(step.label)
            count = [(f"{known.operations:>7,} ops", "steps--size")] if known else []
            return aligned([("  ", ""), (step.label, "")], count, self.columns)
        if not step.changed:
            name = fitted(step.label, min(len(step.label), self.columns - 4))
            return [(f"  {name} =", "steps--same")]
        known = self.changes.get(step.label)
        change = known.label if known else ""
        if known and len(change) > self.columns - _MARK - 1 - min(len(step.label), READABLE):
            change = known.short
        columns = [
            (change, "steps--change"),
            (f"{known.operations:>6,} ops" if known else " " * 10, "steps--size"),
            (f"{step.pass_.size:>9,} B", "steps--size"),
            (_duration(step.pass_.seconds), "steps--size"),
        ][: self._shown_columns]
        mark = (f"{FAILED} ", "steps--failed") if step.failed else ("  ", "")
        label = (step.label, "steps--failed" if step.failed else "")
        return aligned([mark, label], columns, self.columns)


_MARK = 2
_WIDTHS = 9, 10, 11, 11
"""Cells of what a pass changed, in most of them, its operations, bytes and milliseconds."""

READABLE = 22
"""Cells of a name that tell most passes apart."""


def _duration(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:>8,.1f} ms"
