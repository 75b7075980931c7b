"""Lines of a test that call kernels.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterable
from pathlib import Path

from pallas_debug.findings.collector import Key, key
from pallas_debug.model import Finding, SourceLine


class Callers:
    """Lines of a test's file that led to findings.

    Args:
      path: the test's file.
    """

    def __init__(self, path: Path) -> None:
        self._file = str(path)
        self._of: dict[Key, SourceLine] = {}

    def note(self, kernel: str, findings: Iterable[Finding]) -> None:
        """Record the line that is calling a kernel as the caller of its new findings.

        Called in the thread that calls the kernel.
        """
        new = [f for f in findings if f.kernel == kernel and key(f) not in self._of]
        line = self._calling() if new else None
        if line is not None:
            self._of |= {key(finding): line for finding in new}

    def of(self, finding: Finding) -> SourceLine | None:
        """Return the line of the test that called the kernel; None if unknown."""
        return self._of.get(key(finding))

    def _calling(self) -> SourceLine | None:
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self._file:
            frame = frame.f_back  # type: ignore[assignment]
        if frame is None:
            return None
        text = linecache.getline(self._file, frame.f_lineno).strip() or None
        return SourceLine(
            file=self._file, line=frame.f_lineno, function=frame.f_code.co_name, text=text
        )
