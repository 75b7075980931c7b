"""`pallas-debug explain`: what an error means, from a message, a log or a dump."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from pallas_debug.cli import options as shared
from pallas_debug.cli import output
from pallas_debug.cli.exits import Exit
from pallas_debug.errors import CannotRunError, DumpFormatError, UsageError
from pallas_debug.report import one_line

if TYPE_CHECKING:
    from pallas_debug.findings.explain import Explained, Occurrence, Scan
    from pallas_debug.model import Explanation

_NAME = re.compile(r"[Ee]\d{4}|[a-z0-9]+(?:-[a-z0-9]+)+")
_PATH = re.compile(r"\S*/\S*|\S+\.(?:log|txt|out|err)")
_LINE = 1 << 20
"""Characters of a line that are read at once; a file may be one line."""

MAX_LOG = 1 << 30
"""Maximum number of characters of a log."""


@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    what: tuple[str, ...]
    as_list: bool
    as_json: bool


@click.argument("what", nargs=-1)
@click.option("-l", "--list", "as_list", is_flag=True, help="List the entries of the catalogue.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def run(options: ExplainOptions) -> int:
    """Say what errors of Pallas kernels mean, and what to do.

    \b
    WHAT is any number of
      a file      a log, a traceback; `-` is standard input
      a directory of dumps: every compilation in it that failed
      a code      of XLA's: E1001
      an id       of an entry: scoped-vmem-overflow; --list has all
      a message   itself, in quotes; or a vector layout of a Mosaic dump

    The exit code is 1 where nothing was recognised.
    """
    if options.as_list:
        return _list(as_json=options.as_json)
    if not options.what:
        raise UsageError(
            "say what to explain: a file, a directory of dumps, `-`, a code such as E1001, an id "
            "or a message; --list lists the entries"
        )
    reports = [_report(item) for item in options.what]
    if options.as_json:
        output.print_json([report.as_json for report in reports])
    else:
        output.echo("\n\n".join(output.visible(report.text) for report in reports))
    return Exit.OK if all(report.is_known for report in reports) else Exit.FAILED


command = shared.make("explain", ExplainOptions, run)


class _Report:
    """What is said of one argument."""

    def __init__(self, text: str, as_json: Any, *, is_known: bool) -> None:
        self.text = text
        self.as_json = as_json
        self.is_known = is_known


def _report(what: str) -> _Report:
    from pallas_debug.findings import explain
    from pallas_debug.findings.explain import layouts

    if what == "-":
        return _of_log(
            "standard input", _lines(io.TextIOWrapper(sys.stdin.buffer, errors="replace"))
        )
    path = Path(what)
    if os.path.lexists(path):  # False for what is no path, however long
        return _of_dumps(path) if path.is_dir() else _of_file(path)
    if _NAME.fullmatch(what):
        found = explain.entry(what, (*_extra(), *explain.CATALOGUE))
        explained = explain.Explained(entry=found)
        return _Report(explained.text(), _entry_json(found), is_known=True)
    if _PATH.fullmatch(what):
        raise CannotRunError(f"no such file or directory: {what}")
    explained_ = explain.explain(what, extra=_extra())
    if explained_ is None and layouts.holds_layouts(what):
        lines = layouts.describe(what)
        return _Report("\n".join(lines), {"layouts": list(lines)}, is_known=True)
    if explained_ is None:
        return _Report(_unknown(what), {"message": what, "entry": None}, is_known=False)
    return _Report(explained_.text(), _explained_json(explained_), is_known=True)


def _of_file(path: Path) -> _Report:
    from pallas_debug.store.files import open_named

    try:
        # `<(command)` of a shell; opening any other pipe would block.
        is_stream = path.is_relative_to("/dev/fd") or path.is_relative_to("/proc/self/fd")
        fd = os.open(path, os.O_RDONLY) if is_stream else open_named(path)
        with os.fdopen(fd, errors="replace") as file:
            return _of_log(str(path), _lines(file))
    except OSError as error:
        raise CannotRunError(f"cannot read {one_line(path)}: {error.strerror}") from error


def _lines(file: IO[str]) -> Iterator[str]:
    """The lines of a file, of which none is held that is longer than a megabyte."""
    is_rest = False
    left = MAX_LOG
    while line := file.readline(_LINE):
        left -= len(line)
        if left < 0:
            raise CannotRunError(
                f"the log has more than {MAX_LOG:,} characters, which is more than `explain` "
                "reads: cut out the part around the error, for instance with `tail -n 100000`."
            )
        if not is_rest:
            yield line
        is_rest = not line.endswith("\n")


def _of_log(name: str, lines: Iterable[str]) -> _Report:
    from pallas_debug.findings import explain

    scan = explain.read(lines, _extra())
    parts = [_occurrence(occurrence) for occurrence in scan.occurrences]
    parts.append(_counts(name, scan))
    return _Report(
        "\n\n".join(parts),
        {
            "file": name,
            "lines": scan.lines,
            "others": scan.others,
            "occurrences": [_occurrence_json(o) for o in scan.occurrences],
        },
        is_known=any(o.explained for o in scan.occurrences),
    )


def _occurrence(occurrence: Occurrence) -> str:
    where = "line " if len(occurrence.lines) == 1 else "lines "
    where += ", ".join(str(number) for number in occurrence.lines)
    if occurrence.count > len(occurrence.lines):
        where += ", …"
    said = [where]
    if occurrence.kernel:
        said.append(f"kernel {occurrence.kernel}")
    if occurrence.count > 1:
        said.append(f"{occurrence.count} times")
    if occurrence.workers:
        said.append(f"from {', '.join(occurrence.workers)}")
    if occurrence.explained is None:
        return f"{'; '.join(said)}\n{_unknown(occurrence.text)}"
    return f"{'; '.join(said)}\n{occurrence.explained.text()}"


def _counts(name: str, scan: Scan) -> str:
    from pallas_debug.report import plural

    words = [f"{name}: {plural(scan.lines, 'line')}"]
    words.append(f"{plural(sum(o.count for o in scan.occurrences), 'error')} of kernels")
    if scan.others:
        words.append(f"{plural(scan.others, 'error')} of something else, left alone")
    if scan.dropped:
        words.append(f"{scan.dropped} more errors that differ are not shown")
    return ", ".join(words)


def _unknown(text: str) -> str:
    from pallas_debug.findings.explain import WHAT_TO_ATTACH

    headline = next((line.strip() for line in text.splitlines() if line.strip()), "")
    lines = [f"unknown: {headline[:200]}", "  no entry of the catalogue recognises this"]
    lines.append("  to report it, attach:")
    return "\n".join([*lines, *(f"    {item}" for item in WHAT_TO_ATTACH)])


def _of_dumps(directory: Path) -> _Report:
    """Every failed compilation, those of one kernel that fail alike together."""
    from pallas_debug.findings import explain
    from pallas_debug.report import plural
    from pallas_debug.store import open_dumps

    parts, data, known = [], [], True
    problems: list[str | None] = []
    for stored in open_dumps(directory).kernels():
        by_text: dict[str, list[str]] = {}
        for compilation in stored.compilations:
            failure = compilation.compilation.failure if compilation.compilation else None
            if failure is None:
                continue
            explained = explain.of_failure(failure, stored.kernel, _extra())
            known = known and explained is not None
            text = explained.text() if explained else _unknown(failure.message)
            by_text.setdefault(text, []).append(compilation.target)
            said = {"entry": None} if explained is None else _explained_json(explained)
            data.append(
                {"name": stored.name, "target": compilation.target, "failure": failure, **said}
            )
        problems += [stored.problem, *(c.problem for c in stored.compilations)]
        name = one_line(stored.name)
        parts += [f"{name} {', '.join(t)}\n{text}" for text, t in by_text.items()]
    unread = [problem for problem in problems if problem]
    for problem in unread:
        output.say(problem)
    if not parts and unread:
        raise DumpFormatError(
            f"{one_line(directory)}: no failure was found, and {plural(len(unread), 'manifest')} "
            "cannot be read"
        )
    if not parts:
        return _Report(f"{one_line(directory)}: every kernel compiled", [], is_known=True)
    return _Report("\n\n".join(parts), data, is_known=known)


def _list(*, as_json: bool) -> int:
    from pallas_debug.findings.explain import CATALOGUE

    entries: Sequence[Explanation] = (*_extra(), *CATALOGUE)
    if as_json:
        output.print_json([_entry_json(entry) for entry in entries])
    else:
        rows = [[entry.id, entry.code or "", entry.title] for entry in entries]
        output.print_table(["id", "code", "what happened"], rows)
    return Exit.OK


def _extra() -> tuple[Explanation, ...]:
    """The entries of plugins."""
    from pallas_debug.hooks import extra_explanations, plugin_manager

    return extra_explanations(plugin_manager())


def _entry_json(entry: Explanation) -> dict[str, Any]:
    return {
        "entry": entry.id,
        "code": entry.code,
        "title": entry.title,
        "cause": entry.cause,
        "advice": entry.advice,
        "versions": entry.versions,
        "targets": list(entry.targets),
        "kinds": list(entry.kinds),
        "links": list(entry.links),
    }


def _explained_json(explained: Explained) -> dict[str, Any]:
    return {
        **_entry_json(explained.entry),
        "kernel": explained.kernel,
        "details": list(explained.details),
    }


def _occurrence_json(occurrence: Occurrence) -> dict[str, Any]:
    said = (
        {"entry": None} if occurrence.explained is None else _explained_json(occurrence.explained)
    )
    return {
        **said,
        "kernel": occurrence.kernel,
        "count": occurrence.count,
        "at": list(occurrence.lines),
        "workers": list(occurrence.workers),
        "text": occurrence.text,
    }
