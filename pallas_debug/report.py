"""What happened, in a few lines for a person. Pure text from `model.py`; no engine, no terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pallas_debug.model import Compilation, Dump, Failure


def plural(count: int, noun: str) -> str:
    """`1 kernel`, `2 kernels`, `2 passes`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}{'es' if noun.endswith('s') else 's'}"


def relative(path: Path) -> str:
    """A path as one would type it here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def headline(failure: Failure, limit: int = 160) -> str:
    """A failure in one line: the Python line where there is one, then the compiler's words."""
    words = failure.headline
    if len(words) > limit:
        words = words[: limit - 1] + "…"
    return f"{failure.source}: {words}" if failure.source else words


def status(compilation: Compilation) -> str:
    """`ok, 14 of 22 passes changed something`, or why not."""
    if compilation.failure is not None:
        return f"failed ({compilation.failure.stage}): {headline(compilation.failure)}"
    changed = len(compilation.changed_passes)
    cached = ", cached" if compilation.cached else ""
    return f"ok, {changed} of {plural(len(compilation.passes), 'pass')} changed something{cached}"


def summary(dumps: Sequence[Dump], root: Path | None) -> list[str]:
    """What a run dumped: a line for each failure, the counts, and the next command."""
    compilations = [(dump, c) for dump in dumps for c in dump.compilations]
    failed = [(dump, c) for dump, c in compilations if not c.ok]
    lines = [f"{dump.name} {c.target}: {status(c)}" for dump, c in failed]
    targets = list(dict.fromkeys(c.target for _, c in compilations))
    cached = sum(c.cached for _, c in compilations)
    counts = [plural(len(dumps), "kernel")]
    if targets:
        counts.append(f"for {', '.join(targets)}")
    if root is not None:
        counts.append(f"in {relative(root)}")
    notes = []
    if cached:
        notes.append(f"{cached} of {plural(len(compilations), 'compilation')} cached")
    if failed:
        notes.append(f"{len(failed)} failed")
    lines.append(" ".join(counts) + (f" ({'; '.join(notes)})" if notes else ""))
    if root is not None and dumps:
        lines.append(f"next: {next_command(dumps, root)}")
    return lines


def next_command(dumps: Sequence[Dump], root: Path) -> str:
    """What to type next: the first failure's error where there is one, else the list."""
    for dump in dumps:
        for compilation in dump.compilations:
            if not compilation.ok:
                folder = relative(dump.folder)
                return f"pallas-debug show {folder} error -t {compilation.target}"
    return f"pallas-debug ls {relative(root)}"
