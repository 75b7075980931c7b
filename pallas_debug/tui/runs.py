"""Findings and prints of runs, as a list that leads to kernels and lines. Imports no textual.

Records are read one by one, in a worker, and there may be thousands; of what they hold the first
`KEPT` findings and prints are kept, and all are counted.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from pallas_debug.model import Finding, PrintRecord, RunRecord, SourceLine
from pallas_debug.store.layout import RUNS, clean
from pallas_debug.tui.model import Browser, Entry, kernel_name
from pallas_debug.tui.pace import Pace

KEPT = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """A finding or a print of a run.

    Attributes:
      entry: the kernel, where the directory has it.
      other: the other side of a finding that has two.
      place: grid point and loop iteration, as they are written.
    """

    kind: Literal["finding", "print"]
    run: str
    test: str
    kernel: str
    entry: Entry | None
    source: SourceLine | None
    place: str
    text: str
    other: SourceLine | None = None

    @property
    def line(self) -> str:
        """`rows.py:12`; empty where it is not known."""
        return f"{PurePath(self.source.file).name}:{self.source.line}" if self.source else ""

    @property
    def searched(self) -> str:
        """What a filter looks at."""
        parts = (self.kind, self.test, self.kernel, self.line, self.place, self.text)
        return " ".join(parts).lower()


class Runs:
    """What the runs recorded in the directories of a browser left.

    Attributes:
      results: findings first in each run; the first of all that there are.
      count: how many there are.
      records: how many tests and scripts were read.
      tests: for each kernel's folder the tests and scripts that used it.
      flags: for each kernel's folder how many findings there are on it.
      whole: whether all are read.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self.forget()

    def forget(self) -> None:
        """Read them again when they are asked for."""
        self.results: list[Result] = []
        self.count = 0
        self.records = 0
        self.tests: dict[str, set[str]] = {}
        self.flags: dict[str, int] = {}
        self.whole = False
        self._stamp = self._times()

    def stale(self) -> bool:
        """Whether there are others than when reading began."""
        return self._times() != self._stamp

    def _times(self) -> list[int]:
        """When the folder of each run changed last."""
        times = []
        for root in self._browser.roots:
            with contextlib.suppress(OSError), os.scandir(root / RUNS) as folders:
                times += sorted(folder.stat().st_mtime_ns for folder in folders)
        return times

    def read(self, stopped: Callable[[], bool]) -> None:
        """Read all records, in slices, until told to stop. For a worker."""
        pace = Pace()
        for dump in range(len(self._browser.roots)):
            for record in self._browser.runs(dump):
                if stopped():
                    return
                self._add(dump, record)
                pace.rest()
        self.whole = True

    def _add(self, dump: int, record: RunRecord) -> None:
        self.records += 1
        for folder in record.kernels:
            self.tests.setdefault(folder, set()).add(record.name)
        results: list[Finding | PrintRecord] = [*record.findings, *record.prints]
        for found in results:
            entry = self._entry(dump, record, found.kernel)
            if isinstance(found, Finding) and entry is not None:
                self.flags[entry.name] = self.flags.get(entry.name, 0) + found.count
            self.count += 1
            if len(self.results) < KEPT:
                self.results.append(_result(record, found, entry))

    def _entry(self, dump: int, record: RunRecord, kernel: str) -> Entry | None:
        """The kernel by its name: one that the run used, or else the only one of that name."""
        name = clean(kernel)
        used = [folder for folder in record.kernels if kernel_name(folder) == name]
        for folder in used:
            if found := self._browser.named(dump, folder):
                return found[0]
        found = self._browser.named(dump, name)
        return found[0] if len(found) == 1 else None

    def matching(self, text: str) -> list[Result]:
        """The results that have every one of these words somewhere."""
        words = text.lower().split()
        if not words:
            return self.results
        return [r for r in self.results if _has(r.searched, words)]


def _has(text: str, words: Collection[str]) -> bool:
    return all(word in text for word in words)


def _result(record: RunRecord, found: Finding | PrintRecord, entry: Entry | None) -> Result:
    is_finding = isinstance(found, Finding)
    place = str(found.grid_point) if found.grid_point else ""
    if found.loop:
        place = f"{place} loop {found.loop}".strip()
    text = f"{found.kind}: {found.message}" if isinstance(found, Finding) else found.text
    return Result(
        kind="finding" if is_finding else "print",
        run=record.run,
        test=record.name,
        kernel=found.kernel,
        entry=entry,
        source=found.source,
        place=place,
        text=text.replace("\n", " "),
        other=found.other if isinstance(found, Finding) else None,
    )
