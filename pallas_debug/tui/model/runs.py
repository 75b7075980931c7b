"""Findings, hints, gaps and prints of runs, as a list that links to kernels and lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pallas_debug import render
from pallas_debug.findings.collector import Key, key
from pallas_debug.findings.facts import line_text
from pallas_debug.model import Finding, Gap, Hint, PrintRecord, RunRecord, SourceLine
from pallas_debug.store.layout import clean
from pallas_debug.tui.model import MAX_LISTED, Throttle
from pallas_debug.tui.model.browser import Browser, Entry, kernel_name

Result = Finding | Hint | Gap | PrintRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEvent:
    """Finding, hint, gap or print of a run.

    Attributes:
      entry: the kernel, if it is in the directory.
      place: grid point and loop iteration.
      found: the record itself.
    """

    kind: Literal["finding", "hint", "gap", "print"]
    test: str
    kernel: str
    entry: Entry | None
    source: SourceLine | None
    place: str
    text: str
    found: Result

    @property
    def lines(self) -> list[str]:
        """All that a finding or hint says, without its source line."""
        if isinstance(self.found, Hint):
            return [f"hint: {self.found.message}"]
        if not isinstance(self.found, Finding):
            return [self.text]
        quoted = render.quoted(self.source) if self.source is not None else ""
        lines = render.finding_text(self.found).splitlines()
        return [line.strip() for line in lines if line.strip() != quoted]

    @property
    def line(self) -> str:
        """Source line such as `rows.py:12`; empty if unknown."""
        return line_text(self.source) if self.source else ""

    @property
    def listed(self) -> str:
        """All of it but its place, in one line."""
        test = self.test.rpartition("::")[2]
        return "  ".join(
            filter(None, (f"{self.kind:<7} {self.kernel}", self.line, self.text, test))
        )


class Runs:
    """Results that tests and scripts recorded in the directories of a browser.

    Attributes:
      results: the first `MAX_LISTED` events; within a run, findings come first, then hints.
      count: number of findings, hints, gaps and prints.
      records: number of tests and scripts.
      whole: whether all records have been read.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self.results: list[RunEvent] = []
        self.count = 0
        self.records = 0
        self._found: dict[Entry, set[Key]] = {}
        self.whole = False

    def flags(self, entry: Entry) -> int:
        """Return the number of different findings of a kernel, of all tests and targets."""
        return len(self._found.get(entry, ()))

    @property
    def flagged(self) -> bool:
        """True if a kernel has findings."""
        return bool(self._found)

    def read(self, stopped: Callable[[], bool]) -> None:
        """Read all records until `stopped()`. Runs in a worker."""
        throttle = Throttle()
        for dump in range(len(self._browser.roots)):
            for record in self._browser.runs(dump):
                if stopped():
                    return
                self._add(dump, record)
                throttle.rest()
        self.whole = True

    def _add(self, dump: int, record: RunRecord) -> None:
        self.records += 1
        results: list[Result] = [
            *record.findings,
            *record.hints,
            *record.gaps,
            *record.prints,
        ]
        for found in results:
            digest = "" if isinstance(found, PrintRecord) else found.digest
            entry = self._entry(dump, record, found.kernel, digest)
            if isinstance(found, Finding) and entry is not None:
                self._found.setdefault(entry, set()).add(key(found))
            self.count += 1
            if len(self.results) < MAX_LISTED:
                self.results.append(_result(record, found, entry))

    def _entry(self, dump: int, record: RunRecord, kernel: str, digest: str) -> Entry | None:
        """Find a kernel by name: the run's own, or else the only kernel with that name."""
        name = clean(kernel)
        used = [folder for folder in record.kernels if kernel_name(folder) == name]
        used = [folder for folder in used if folder.endswith(f"-{digest[:8]}")] or used
        for folder in used:
            if found := self._browser.named(dump, folder):
                return found[0]
        found = self._browser.named(dump, name)
        return found[0] if len(found) == 1 else None

    def notes(self, entry: Entry) -> list[RunEvent]:
        """Return the findings and hints of a kernel that have a source line."""
        kinds = ("finding", "hint")
        return [r for r in self.results if r.entry == entry and r.source and r.kind in kinds]


_KINDS: dict[type, Literal["finding", "hint", "gap", "print"]] = {
    Finding: "finding",
    Hint: "hint",
    Gap: "gap",
    PrintRecord: "print",
}


def _result(record: RunRecord, found: Result, entry: Entry | None) -> RunEvent:
    if isinstance(found, Gap):
        how = "judged in part" if found.is_partial else "not judged"
        text = f"{how} by {found.engine}: {found.reason}"
    else:
        text = found.text if isinstance(found, PrintRecord) else f"{found.kind}: {found.message}"
    point, loop = (getattr(found, name, None) for name in ("grid_point", "loop"))
    return RunEvent(
        kind=_KINDS[type(found)],
        test=record.name,
        kernel=found.kernel,
        entry=entry,
        source=getattr(found, "source", None),
        found=found,
        place=" ".join(([str(point)] if point else []) + ([f"loop {loop}"] if loop else [])),
        text=text.replace("\n", " "),
    )
