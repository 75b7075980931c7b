"""`pallas-debug explain`: explanations of messages, error codes, logs and dumps."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import click

from pallas_debug.cli import options as shared
from pallas_debug.cli import output, where
from pallas_debug.cli.exits import Exit
from pallas_debug.errors import CannotRunError, DumpFormatError, UsageError
from pallas_debug.render import one_line

if TYPE_CHECKING:
    from pallas_debug.explain import Occurrence, Scan
    from pallas_debug.findings.faults import Fault
    from pallas_debug.model import Explanation

_NAME = re.compile(r"[Ee]\d{4}|[a-z0-9]+(?:-[a-z0-9]+)+")
_KIND = re.compile(r"(?:[A-Z][a-z]+){2,}")
_URL = re.compile(r"\w[\w+.-]*://\S+$")
_PATH = re.compile(r"\S*/\S*|\S+\.(?:log|txt|out|err)")
_LINE = 1 << 20
"""Maximum number of characters read from a line; the rest is skipped."""

MAX_LOG = 1 << 30
"""Maximum number of characters in a log."""


@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    what: tuple[str, ...]
    as_list: bool
    as_json: bool


@click.argument("what", nargs=-1)
@click.option("-l", "--list", "as_list", is_flag=True, help="List the entries of the catalogue.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def run(options: ExplainOptions) -> int:
    """Explain errors of Pallas kernels, and what to do about them.

    \b
    WHAT is any number of
      a file        a log or traceback; `-` is standard input
      a directory   dumps: explains every compilation that failed
      a code        XLA's error code: E1001
      an id         an entry listed by --list: scoped-vmem-overflow
      a finding     its kind: UninitializedRead
      a message     in quotes

    The exit code is 1 if nothing was recognised.
    """
    if options.as_list:
        return _list(as_json=options.as_json)
    if not options.what or not all(item.strip() for item in options.what):
        raise UsageError(
            "say what to explain: a file, a directory of dumps, `-`, a code such as E1001, an id "
            "or a message; --list lists the entries"
        )
    answers = [_answer(item) for item in options.what]
    if options.as_json:
        rows = [answer.document(what) for answer, what in zip(answers, options.what, strict=True)]
        output.print_json("explain", {"answers": rows, "entries": []})
    else:
        output.echo("\n\n".join(output.visible(answer.text) for answer in answers))
    return Exit.OK if all(answer.is_known for answer in answers) else Exit.FAILED


command = shared.make("explain", ExplainOptions, run)


class _Answer(NamedTuple):
    """Output for one argument.

    Attributes:
      errors: what was found, for JSON.
      more: fields of the JSON document that only some arguments have.
    """

    text: str
    errors: Sequence[dict[str, Any]] = ()
    more: Mapping[str, Any] = {}
    is_known: bool = True

    def document(self, what: str) -> dict[str, Any]:
        """Return the JSON of the answer, with every field."""
        empty: dict[str, Any] = {"lines": None, "others": None}
        return {"what": what, "known": self.is_known, "errors": self.errors, **empty, **self.more}


def _answer(what: str) -> _Answer:
    from pallas_debug import explain
    from pallas_debug.findings import faults

    if what == "-":
        return _of_log(
            "standard input", _lines(io.TextIOWrapper(sys.stdin.buffer, errors="replace"))
        )
    if _URL.match(what):
        return _of_dumps(what)
    path = Path(what)
    if os.path.lexists(path):  # False if `what` is not a path, whatever its length
        return _of_dumps(what) if path.is_dir() else _of_file(path)
    if _NAME.fullmatch(what) or what in {known.id for known in explain.entries()}:
        found = explain.entry(what)
        return _Answer(found.text(), [_error(found)])
    if _PATH.fullmatch(what):
        raise UsageError(f"no such file or directory: {what}")
    fault = faults.named(what)
    if fault is not None:
        return _of_kind(fault, explain.of_kind(fault))
    explanation = explain.explain(what)
    if explanation is not None:
        message = _error(explanation, kernel=explain.kernel_name(what), text=what)
        return _Answer(explanation.text(), [message])
    return _Answer(_unknown(what), [_error(None, text=what)], is_known=False)


def _of_kind(fault: Fault, known: Sequence[Explanation]) -> _Answer:
    if known:
        messages = [_error(explanation, text=str(fault)) for explanation in known]
        return _Answer("\n\n".join(explanation.text() for explanation in known), messages)
    lines = [
        f"{fault}: {fault.summary}",
        "  its cause depends on the message: pass the message in quotes",
    ]
    return _Answer("\n".join(lines), [_error(None, text=str(fault))])


def _of_file(path: Path) -> _Answer:
    from pallas_debug.store.files import open_named

    try:
        # Process substitution, `<(command)`, is allowed; opening any other pipe would block.
        is_stream = path.is_relative_to("/dev/fd") or path.is_relative_to("/proc/self/fd")
        fd = os.open(path, os.O_RDONLY) if is_stream else open_named(path)
        with os.fdopen(fd, errors="replace") as file:
            return _of_log(str(path), _lines(file))
    except OSError as error:
        raise CannotRunError(f"cannot read {one_line(path)}: {error.strerror}") from error


def _lines(file: IO[str]) -> Iterator[str]:
    """Yield the lines of a file, each truncated to `_LINE` characters."""
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


def _of_log(name: str, lines: Iterable[str]) -> _Answer:
    from pallas_debug import explain

    scan = explain.read(lines)
    parts = [_occurrence(occurrence) for occurrence in scan.occurrences]
    parts.append(_counts(name, scan))
    return _Answer(
        "\n\n".join(parts),
        [_occurrence_json(o) for o in scan.occurrences],
        {"lines": scan.lines, "others": scan.others},
        is_known=any(o.explanation for o in scan.occurrences),
    )


def _occurrence(occurrence: Occurrence) -> str:
    lines = "line " if len(occurrence.lines) == 1 else "lines "
    lines += ", ".join(str(number) for number in occurrence.lines)
    if occurrence.count > len(occurrence.lines):
        lines += ", …"
    parts = [lines]
    if occurrence.kernel:
        parts.append(f"kernel {occurrence.kernel}")
    if occurrence.count > 1:
        parts.append(f"{occurrence.count} times")
    if occurrence.workers:
        parts.append(f"from {', '.join(occurrence.workers)}")
    known = occurrence.explanation
    return f"{'; '.join(parts)}\n{known.text() if known else _unknown(occurrence.text)}"


def _counts(name: str, scan: Scan) -> str:
    from pallas_debug.render import plural

    words = [f"{name}: {plural(scan.lines, 'line')}"]
    words.append(f"{plural(sum(o.count for o in scan.occurrences), 'error')} of kernels")
    if scan.others:
        words.append(f"{plural(scan.others, 'error')} unrelated to kernels, ignored")
    if scan.dropped:
        words.append(f"{scan.dropped} more errors that differ are not shown")
    return ", ".join(words)


def _unknown(text: str) -> str:
    from pallas_debug.errors import meant
    from pallas_debug.explain import WHAT_TO_ATTACH
    from pallas_debug.findings.faults import Fault

    headline = next((line.strip() for line in text.splitlines() if line.strip()), "")
    near = meant(text, map(str, Fault)) if _KIND.fullmatch(text) else ""
    lines = [f"unknown: {headline[:200]}{near}", "  no entry of the catalogue recognises this"]
    lines.append("  to report it, attach:")
    return "\n".join([*lines, *(f"    {item}" for item in WHAT_TO_ATTACH)])


def _of_dumps(place: str) -> _Answer:
    """Explain every failed compilation, grouping the targets with the same failure."""
    from pallas_debug import explain
    from pallas_debug.render import plural

    parts, data, known = [], [], True
    problems: list[str | None] = []
    named = where.place_at(place)
    directory, kernels = Path(place), named.kernels()
    if not kernels:
        return _Answer(where.no_kernels(named.root), is_known=False)
    for stored in kernels:
        by_text: dict[str, list[str]] = {}
        for compilation in named.compilations(stored):
            failure = compilation.compilation.failure if compilation.compilation else None
            if failure is None:
                continue
            explanation = explain.of_failure(failure, stored.kernel)
            known = known and explanation is not None
            text = explanation.text() if explanation else _unknown(failure.message)
            by_text.setdefault(text, []).append(compilation.target)
            more = {"folder": stored.name, "target": compilation.target, "failure": failure}
            kernel = stored.kernel.name if stored.kernel else None
            data.append(_error(explanation, kernel=kernel, text=failure.message, **more))
        problems += [stored.problem, *(c.problem for c in stored.compilations)]
        name = one_line(stored.name)
        parts += [f"{name} {', '.join(t)}\n{text}" for text, t in by_text.items()]
    unread = [problem for problem in problems if problem]
    for problem in unread:
        output.message(problem)
    if not parts and unread:
        raise DumpFormatError(
            f"{one_line(directory)}: no failure was found, and {plural(len(unread), 'manifest')} "
            "cannot be read"
        )
    missing = [one_line(stored.name) for stored in kernels if not stored.compilations]
    if not parts and missing:
        others = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        return _Answer(
            f"{one_line(directory)}: no failure was found, and these kernels are not compiled for "
            f"any target: {', '.join(missing[:5])}{others}",
            is_known=len(missing) < len(kernels),
        )
    if not parts:
        return _Answer(f"{one_line(directory)}: every kernel compiled")
    return _Answer("\n\n".join(parts), data, is_known=known)


def _list(*, as_json: bool) -> int:
    from pallas_debug import explain

    entries = explain.entries()
    if as_json:
        listed = [_entry_json(entry) for entry in entries]
        output.print_json("explain", {"answers": [], "entries": listed})
    else:
        rows = [[entry.id, entry.code or "", entry.title] for entry in entries]
        output.print_table(["id", "code", "what happened"], rows)
    return Exit.OK


def _entry_json(entry: Explanation) -> dict[str, Any]:
    names = "code", "title", "cause", "advice", "versions", "targets", "kinds", "links"
    return {"entry": entry.id, **{name: getattr(entry, name) for name in names}}


def _error(explanation: Explanation | None, **more: Any) -> dict[str, Any]:
    """Return the JSON of an error, with every field; `entry` is None if it is unknown."""
    names = "entry", "code", "title", "cause", "advice", "versions"
    lists = "targets", "kinds", "links", "details", "at", "workers"
    others = "kernel", "folder", "target", "failure", "text"
    known = {} if explanation is None else _entry_json(explanation)
    details = () if explanation is None else explanation.details
    empty = {**dict.fromkeys(names), **dict.fromkeys(lists, ()), **dict.fromkeys(others)}
    return {**empty, "count": 1, **known, "details": details, **more}


def _occurrence_json(occurrence: Occurrence) -> dict[str, Any]:
    return _error(
        occurrence.explanation,
        kernel=occurrence.kernel,
        count=occurrence.count,
        at=list(occurrence.lines),
        workers=list(occurrence.workers),
        text=occurrence.text,
    )
