"""What the list of kernels says of each, and what it can be filtered by. Imports no textual.

A row is small, and kept for every kernel that was looked at: the documents behind it are not.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from pallas_debug.store import StoredCompilation, StoredKernel

OK, FAILED, UNKNOWN = "✓", "✗", "?"
"""A kernel compiled for a target; it did not; what became of it cannot be read."""

Wanted = Literal["ok", "failed", "unread"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A kernel in one line.

    Attributes:
      targets: each with its mark.
      grid: `4×2`; empty where there is none, or it is not known.
      failing: the stage and pass of the first target that failed.
      problem: whether a document of it cannot be read.
    """

    name: str
    targets: tuple[tuple[str, str], ...]
    grid: str = ""
    failing: str = ""
    problem: bool = False

    @property
    def mark(self) -> str:
        """The worst of its targets."""
        marks = {mark for _, mark in self.targets}
        if FAILED in marks:
            return FAILED
        return UNKNOWN if self.problem or UNKNOWN in marks or not marks else OK

    @property
    def failed(self) -> bool:
        return self.mark == FAILED

    def status(self) -> Wanted:
        statuses: dict[str, Wanted] = {OK: "ok", FAILED: "failed", UNKNOWN: "unread"}
        return statuses[self.mark]


def row_of(stored: StoredKernel) -> Row:
    """The row of a kernel as the dump has it."""
    grid = stored.kernel.grid if stored.kernel else ()
    sizes = ["?" if size is None else str(size) for size in grid]
    return Row(
        name=stored.name,
        targets=tuple((c.target, _mark(c)) for c in stored.compilations),
        grid="×".join(sizes),
        failing=next(filter(None, map(_failing, stored.compilations)), ""),
        problem=stored.problem is not None,
    )


def _mark(stored: StoredCompilation) -> str:
    if stored.compilation is None:
        return UNKNOWN
    return OK if stored.compilation.ok else FAILED


def _failing(stored: StoredCompilation) -> str:
    """`compile infer-vector-layout`: where it failed, if it did."""
    compilation = stored.compilation
    failure = compilation.failure if compilation else None
    if compilation is None or failure is None:
        return ""
    failed = next((p.name for p in compilation.passes if p.failed), failure.last_pass)
    return f"{failure.stage} {failed}" if failed else failure.stage


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which kernels are wanted: those that have all of it.

    Attributes:
      text: as it was typed.
      words: parts of the kernel's name, in lower case.
      target: part of a target's name.
      status: what became of it for a target that is meant.
      test: part of the name of a test or script that used it.
    """

    text: str = ""
    words: tuple[str, ...] = field(default=())
    target: str | None = None
    status: str | None = None
    test: str | None = None

    @classmethod
    def of(cls, text: str) -> Filter:
        """`soft target:v5e status:failed test:grad`; what is no such pair is a part of the name."""
        pairs: dict[str, str] = {}
        words = []
        for word in text.lower().split():
            key, colon, value = word.partition(":")
            if colon and key in ("target", "status", "test"):
                if value:
                    pairs[key] = value
            else:
                words.append(word)
        return cls(text=text.strip(), words=tuple(words), **pairs)

    @property
    def reads(self) -> bool:
        """Whether a kernel's documents must be read to tell."""
        return self.target is not None or self.status is not None

    def takes_name(self, name: str) -> bool:
        low = name.lower()
        return all(word in low for word in self.words)

    def takes_row(self, row: Row) -> bool:
        """Whether a target is as it is wanted, or the kernel where none is named."""
        if not self.reads:
            return True
        statuses = [
            {OK: "ok", FAILED: "failed", UNKNOWN: "unread"}[mark]
            for name, mark in row.targets
            if self.target is None or self.target in name.lower()
        ]
        if self.status is None:
            return bool(statuses)
        if not row.targets and self.target is None:
            statuses = [row.status()]
        return any(status.startswith(self.status) for status in statuses)

    def takes_tests(self, tests: Collection[str]) -> bool:
        return self.test is None or any(self.test in test.lower() for test in tests)
