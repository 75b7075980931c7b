"""`pallas-debug explain`: explanations of messages, error codes, logs and dumps."""

from __future__ import annotations

import io
import os
import re
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from pallas_debug import followup
from pallas_debug.cli import options as shared
from pallas_debug.cli import output, where
from pallas_debug.cli.exits import Exit
from pallas_debug.errors import CannotRunError, DumpFormatError, UsageError
from pallas_debug.render import aligned, one_line, plural

if TYPE_CHECKING:
    from pallas_debug.explain.logs import Occurrence, Scan
    from pallas_debug.findings.faults import Fault
    from pallas_debug.model import Explanation
    from pallas_debug.store import StoredCompilation, StoredKernel

_CODE = re.compile(r"[Ee]\d{4}")
_KIND = re.compile(r"(?:[A-Z][a-z]+){2,}")
_URL = re.compile(r"\w[\w+.-]*://\S+$")
_PATH = re.compile(r"\S*/\S*|\S+\.(?:log|txt|out|err)")
MAX_OTHERS = 9
"""Maximum number of other entries listed below the best for a fragment."""

MAX_SEARCHED = 500
"""Maximum number of characters of a message for which the nearest entries are searched."""


@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    what: tuple[str, ...] = shared.argument(nargs=-1)
    as_list: bool = shared.option("-l", "--list", help="List the entries of the catalogue.")
    as_json: bool = shared.option("--json", help="As JSON.")


def run(options: ExplainOptions) -> int:
    """Explain errors of Pallas kernels, and what to do about them.

    \b
    WHAT is any number of
      a file        a log or traceback; `-` is standard input, as is nothing in a pipe
      a directory   dumps: explains every compilation that failed; or a kernel's name in them
      a code        XLA's error code: E1001
      an id         an entry listed by --list: scoped-vmem-overflow
      a finding     its kind: UninitializedRead
      a message     in quotes, or words of one

    The exit code is 1 if nothing was recognised.
    """
    if options.as_list:
        return _list(as_json=options.as_json)
    what = options.what or (("-",) if _is_piped() else ())
    if not what or not all(item.strip() for item in what):
        raise UsageError(
            "say what to explain: a file, a directory of dumps, `-`, a code such as E1001, an id "
            "or a message; --list lists the entries"
        )
    answers = [_answer(item) for item in what]
    if options.as_json:
        rows = [answer.document(item) for answer, item in zip(answers, what, strict=True)]
        output.print_json("explain", {"answers": rows, "entries": []})
    else:
        texts = (output.painted(output.visible(answer.text)) for answer in answers)
        click.echo("\n\n".join(texts))
        output.follow(next((answer.next for answer in answers if answer.next), None))
    return Exit.OK if all(answer.is_known for answer in answers) else Exit.FAILED


def _is_piped() -> bool:
    """Return whether standard input is a pipe, a socket or a file."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:  # it is closed
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISREG(mode)


command = shared.make("explain", ExplainOptions, run)


class _Answer(NamedTuple):
    """Output for one argument.

    Attributes:
      errors: what was found, for JSON.
      more: fields of the JSON document that only some arguments have.
      next: the command to run next, if there is one.
    """

    text: str
    errors: Sequence[dict[str, Any]] = ()
    more: Mapping[str, Any] = {}
    is_known: bool = True
    next: str | None = None

    def document(self, what: str) -> dict[str, Any]:
        """Return the JSON of the answer, with every field."""
        counts = {"lines": None, "others": None, **self.more}
        return {"what": what, "known": self.is_known, "errors": self.errors, **counts}


def _answer(what: str) -> _Answer:
    from pallas_debug import explain
    from pallas_debug.explain.details import kernel_name
    from pallas_debug.findings import faults

    if what == "-":
        return _of_log("standard input", io.TextIOWrapper(sys.stdin.buffer, errors="replace"))
    if _URL.match(what):
        return _of_dumps(what)
    path = Path(what)
    if os.path.lexists(path):  # False if `what` is not a path, whatever its length
        return _of_dumps(what) if path.is_dir() else _of_file(path)
    if _CODE.fullmatch(what) or what in {known.id for known in explain.entries()}:
        found = explain.entry(what)
        return _Answer(found.text(), [_error(found)])
    if _is_kernel(path):
        return _of_dumps(what)
    if _PATH.fullmatch(what):
        raise UsageError(f"no such file or directory: {what}")
    fault = faults.named(what)
    if fault is not None:
        return _of_kind(fault, explain.of_kind(fault))
    explanation = explain.explain(what, in_context=True)  # who asks about a message has a kernel
    if explanation is not None:
        message = _error(explanation, kernel=kernel_name(what), text=what)
        return _Answer(explanation.text(), [message])
    return _of_fragment(what)


def _is_kernel(path: Path) -> bool:
    """Return whether a path is a dump directory and the beginning of a kernel's name in it."""
    from pallas_debug.store import open_dumps

    try:
        root, name = where.split_prefix(path)
    except (OSError, ValueError):  # it is a message: too long for a name, or with a null byte
        return False
    return name is not None and any(n.startswith(name) for n in open_dumps(root).names())


def _of_fragment(what: str) -> _Answer:
    from pallas_debug.explain import fragments

    found = fragments.containing(what)
    if not found:
        near = fragments.nearest(what)
        follow = followup.command("explain", near[0].id if near else "--list")
        return _Answer(_unknown(what), [_error(None, text=what)], is_known=False, next=follow)
    best, *others = found
    lines = [best.text()]
    if others:
        lines += ["", f"{len(others)} more with {what!r}:"]
        lines += _rows(others[:MAX_OTHERS])
        lines += ["  …"] if len(others) > MAX_OTHERS else []
    return _Answer("\n".join(lines), [_error(entry, text=what) for entry in found])


def _rows(entries: Sequence[Explanation]) -> list[str]:
    return aligned([[f"  {entry.id}", entry.title] for entry in entries])


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
    def opener(name: str, flags: int) -> int:
        # Without O_NONBLOCK, opening a FIFO waits for a program that writes to it.
        fd = os.open(name, flags | os.O_NONBLOCK)
        os.set_blocking(fd, True)
        return fd

    try:
        with open(path, errors="replace", opener=opener) as file:
            return _of_log(str(path), file)
    except OSError as error:
        raise CannotRunError(f"cannot read {one_line(path)}: {error.strerror}") from error


def _of_log(name: str, lines: Iterable[str]) -> _Answer:
    from pallas_debug.explain import logs

    scan = logs.read(lines)
    parts = [_occurrence(occurrence) for occurrence in scan.occurrences]
    parts.append(_counts(name, scan))
    return _Answer(
        "\n\n".join(parts),
        [
            _error(o.explanation, kernel=o.kernel, count=o.count, at=o.lines, text=o.text)
            for o in scan.occurrences
        ],
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
    known = occurrence.explanation
    return f"{'; '.join(parts)}\n{known.text() if known else _unknown(occurrence.text)}"


def _counts(name: str, scan: Scan) -> str:
    words = [f"{name}: {plural(scan.lines, 'line')}"]
    words.append(f"{plural(sum(o.count for o in scan.occurrences), 'error')} of kernels")
    if scan.others:
        words.append(f"{plural(scan.others, 'error')} unrelated to kernels, ignored")
    if scan.dropped:
        words.append(f"{scan.dropped} more errors that differ are not shown")
    return ", ".join(words)


def _unknown(text: str) -> str:
    from pallas_debug.errors import meant
    from pallas_debug.explain import WHAT_TO_ATTACH, fragments
    from pallas_debug.findings.faults import Fault

    headline = next((line.strip() for line in text.splitlines() if line.strip()), "")
    kind = meant(text, map(str, Fault)) if _KIND.fullmatch(text) else ""
    lines = [f"unknown: {headline[:200]}{kind}", "  no entry of the catalogue recognises this"]
    near = fragments.nearest(text[:MAX_SEARCHED])
    if near:
        lines[1:] = ["  no entry of the catalogue recognises this; the nearest are"]
        lines += [f"  {row}" for row in _rows(near)]
    lines.append("  to report it, attach:")
    return "\n".join([*lines, *(f"    {item}" for item in WHAT_TO_ATTACH)])


def _of_dumps(place: str) -> _Answer:
    """Explain every failed compilation, grouping the targets with the same failure."""
    from pallas_debug import explain

    named = where.place_at(place)
    directory, kernels = one_line(place), named.kernels()
    if not kernels:
        return _Answer(where.no_kernels(named.root), is_known=False)
    targets: dict[tuple[str, str], list[str]] = {}
    data, follow = list[dict[str, Any]](), None
    for stored in kernels:
        for compilation in named.compilations(stored):
            failure = compilation.compilation.failure if compilation.compilation else None
            if failure is None:
                continue
            explanation = explain.of_failure(failure, stored.kernel)
            text = explanation.text() if explanation else _unknown(failure.message)
            targets.setdefault((one_line(stored.name), text), []).append(compilation.target)
            kernel = stored.kernel.name if stored.kernel else None
            more = {"folder": stored.name, "target": compilation.target, "kernel": kernel}
            data.append(_error(explanation, text=failure.message, **more))
            follow = follow or _look_at(named, stored, compilation)
    every = [c for stored in kernels for c in stored.compilations]
    problems = [*(stored.problem for stored in kernels), *(c.problem for c in every)]
    unread = list(filter(None, problems))
    for problem in unread:
        output.message(problem)
    if data:
        parts = [f"{name} {', '.join(of)}\n{text}" for (name, text), of in targets.items()]
        known = all(error["explanation"] is not None for error in data)
        return _Answer("\n\n".join(parts), data, is_known=known, next=follow)
    if unread:
        raise DumpFormatError(
            f"{directory}: no failure was found, and {plural(len(unread), 'manifest')} cannot be "
            "read"
        )
    if not every:
        return _Answer(f"{directory}: no kernel is compiled for any target", is_known=False)
    follow = followup.command("report", named.root)
    return _Answer(f"{directory}: every kernel compiled", next=follow)


def _look_at(place: where.Place, stored: StoredKernel, compilation: StoredCompilation) -> str:
    """Command that shows a failure at its line."""
    at, target = place.path(stored.name), ("-t", compilation.target)
    if output.has_terminal():
        return followup.command("browse", at, *target)
    return followup.command("show", at, "error", *target)


def _list(*, as_json: bool) -> int:
    from pallas_debug import explain

    entries = explain.entries()
    if as_json:
        output.print_json("explain", {"answers": [], "entries": entries})
    else:
        rows = [[entry.id, entry.code or "", entry.title] for entry in entries]
        output.print_table(["id", "code", "what happened"], rows)
    return Exit.OK


def _error(explanation: Explanation | None, **more: Any) -> dict[str, Any]:
    """Return the JSON of an error, with every field; `explanation` is None if it is unknown."""
    empty = dict.fromkeys(("kernel", "folder", "target", "text"))
    return {"explanation": explanation, **empty, "count": 1, "at": (), **more}
