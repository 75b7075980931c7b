"""Plain-text rendering of summaries, findings and prints; no engine, no terminal."""

from __future__ import annotations

import functools
import itertools
import os
import re
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pallas_debug.findings.facts import line_text, loop
from pallas_debug.findings.faults import NO_KERNEL

if TYPE_CHECKING:  # importing them takes a tenth of `pallas-debug --help`
    from pallas_debug.model import (
        Compilation,
        Dump,
        Failure,
        Finding,
        Gap,
        Hint,
        Link,
        MissingFile,
        PrintRecord,
        SourceLine,
    )

JUDGED = {"capture": "captured", "checks": "checked", "machine": "judged by the sanitizer"}
"""What each engine does with a kernel, for messages that it was not done."""

OWN_ADVICE = ("timeout", "setup")
"""Stages whose failure messages are ours and already contain the advice."""

REAL_INPUTS = (
    "--arg lengths=@lengths.npy, --arg 'i32[2]=[512,100]', --inputs package.module:function, or "
    "arrays in Python"
)
"""Ways to give values to arguments that are given only by shape."""

MAX_LINES = 6
"""Maximum number of lines of a finding, unless its details are asked for."""

MAX_COLUMNS = 98
"""Columns of a cause or advice from which its further clauses are left out."""

MAX_HEADLINE = 160
"""Maximum number of characters of a failure in one line, without its place."""


def plural(count: int, noun: str) -> str:
    """Format a count and noun: `1 kernel`, `2 passes`, `65,536 elements`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun}{'es' if noun.endswith('s') else 's'}"


def visible(text: str, keep: str = "\n\t") -> str:
    """Escape every character that a terminal may interpret or hide, except those in `keep`.

    Escapes all characters that Python considers unprintable: 7-bit and 8-bit controls, direction
    marks, zero-width characters, lone surrogates, spaces other than U+0020.
    """
    if text.isprintable():
        return text
    return text.translate(_table(keep))


def aligned(rows: Sequence[Sequence[str]], numbers: Collection[int] = ()) -> list[str]:
    """Format rows of cells as lines with columns; those in `numbers` are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if n in numbers else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def one_line(name: str | os.PathLike[str]) -> str:
    """Escape a name or path for quoting in a message, including newlines and tabs."""
    return visible(name if isinstance(name, str) else str(name), keep="")


def typed(name: str | os.PathLike[str]) -> str:
    """Quote a path or script for a shell, in a command that users copy from a message.

    One that starts with a dash would be taken for an option, so it is written as `./-name`.
    """
    text = one_line(name)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


class _Table(dict[int, str]):
    """Translation table, filled lazily as characters occur."""

    def __init__(self, keep: str) -> None:
        super().__init__()
        self._keep = keep

    def __missing__(self, code: int) -> str:
        c = chr(code)
        found = self[code] = c if c.isprintable() or c in self._keep else repr(c)[1:-1]
        return found


@functools.cache
def _table(keep: str) -> _Table:
    return _Table(keep)


def relative(path: Path) -> str:
    """Return a path relative to the working directory, if it is below it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def below(file: str) -> str:
    """Return `src/rows.py` for a file below the working directory, otherwise the path unchanged.

    For output formats that refer to files of a repository: with slashes.
    """
    try:
        return Path(file).resolve().relative_to(Path.cwd()).as_posix()
    except (ValueError, OSError):
        return file


def headline(failure: Failure) -> str:
    """Summarise a failure in one line: the Python line if known, then the message's first line."""
    line = failure.headline
    if len(line) > MAX_HEADLINE:
        line = line[: MAX_HEADLINE - 1] + "…"
    source = failure.source
    return f"{relative(Path(source.file))}:{source.line}: {line}" if source else line


def status(compilation: Compilation) -> str:
    """`ok, 14 of 22 passes changed something`, or why it failed."""
    if compilation.failure is not None:
        return f"failed ({compilation.failure.stage}): {headline(compilation.failure)}"
    changed = len(compilation.changed_passes)
    cached = ", cached" if compilation.cached else ""
    return f"ok, {changed} of {plural(len(compilation.passes), 'pass')} changed something{cached}"


def summary(dumps: Sequence[Dump], root: str | Path | None) -> list[str]:
    """Failures with their explanations, and counts.

    Args:
      root: the dump directory, or its URL.
    """
    where = relative(root.absolute()) if isinstance(root, Path) else root
    compilations = [(dump, c) for dump in dumps for c in dump.compilations]
    failed = [(dump, c) for dump, c in compilations if not c.ok]
    lines = _failed_lines(failed)
    lines += dict.fromkeys(f"{dump.name}: {note}" for dump, c in compilations for note in c.notes)
    lines += [
        f"{dump.name} {c.target}: {line}" for dump, c in compilations for line in missing_lines(c)
    ]
    targets = list(dict.fromkeys(c.target for _, c in compilations))
    cached = sum(c.cached for _, c in compilations)
    counts = [plural(len(dumps), "kernel")]
    if targets:
        counts.append(f"for {', '.join(targets)}")
    if where is not None:
        counts.append(f"in {where}")
    notes = []
    if cached:
        notes.append(f"{cached} of {plural(len(compilations), 'compilation')} cached")
    if failed:
        notes.append(f"{len(failed)} failed")
    lines.append(" ".join(counts) + (f" ({'; '.join(notes)})" if notes else ""))
    return lines


def why_missing(missing: MissingFile) -> str:
    """Explain why a compilation lacks a file of a requested stage."""
    flag, message = missing.flag or "a flag", one_line(missing.message)
    return {
        "aborted": f"the compiler died with {flag}, and compiled without it: {message}",
        "refused": f"this libtpu refuses {flag}: {message}",
        "timeout": f"{message}; it was compiled without {flag}",
        "unwritten": "the compiler wrote no such file",
    }[missing.cause]


def missing_lines(compilation: Compilation) -> list[str]:
    """Return a line for each missing file; files with the same reason share a line."""
    files: dict[str, list[str]] = {}
    for missing in compilation.missing:
        files.setdefault(why_missing(missing), []).append(one_line(missing.file))
    return [f"no {', '.join(names)}: {reason}" for reason, names in files.items()]


def _failed_lines(failed: Sequence[tuple[Dump, Compilation]]) -> list[str]:
    """Return a line per failure; consecutive failures with the same explanation share it."""
    lines: list[str] = []
    before: list[str] = []
    for dump, compilation in failed:
        lines.append(f"{dump.name} {compilation.target}: {status(compilation)}")
        explained = explanation(compilation.failure)
        if explained == before:
            del lines[-1 - len(explained) : -1]
        before = explained
        lines += explained
    return lines


def explanation(failure: Failure | None) -> list[str]:
    """Brief explanation of a failure, indented; empty if the message already says what to do."""
    if failure is None or failure.explanation is None or failure.stage in OWN_ADVICE:
        return []
    return [f"  {line}" for line in failure.explanation.brief()]


def finding_text(finding: Finding, *, verbose: bool = False) -> str:
    """A finding as text: its title, then its lines, of which there are at most `MAX_LINES`.

    Args:
      verbose: whether to add the details: what the compiler printed, the writers behind a wrong
        value, all that follows, and the engines that found it.
    """
    return "\n  ".join([_finding_header(finding), *finding_lines(finding, verbose=verbose)])


def finding_lines(finding: Finding, *, verbose: bool = False) -> list[str]:
    """Line, fact, other side, what follows, cause and advice of a finding, each in a line."""
    source = [] if finding.source is None else [quoted(finding.source)]
    other = None if finding.chain else finding.other  # the writers of a value are its sides
    fact, *details = finding.message.splitlines() or [""]
    if other is not None and details:
        there, *details = details
        lines = [": ".join([fact, *source]), f"{there}: {quoted(other)}"]
    else:
        lines = [*source, fact, *([f"other side: {quoted(other)}"] if other is not None else [])]
    whys = [("cause", finding.cause), ("try", finding.advice)]
    why = [
        f"{name}: {text if verbose else first_clauses(text, MAX_COLUMNS - len(name))}"
        for name, text in whys
        if text
    ]
    if finding.only_if:
        why.append(f"a fault only if {finding.only_if}, which is unknown: it does not count")
    if finding.made_up:
        names = " and ".join(finding.made_up)
        why.append(f"rests on made-up values of {names}: pass real ones, by --arg or --inputs")
    followed = [f"consequence: {text}" for text in consequence_texts(finding)]
    if verbose:
        seen = [f"seen by: {_engines(finding)}"] if finding.engines else []
        return [*lines, *details, *_writers(finding.chain), *followed, *why, *seen]
    return [*lines, *followed[: max(MAX_LINES - 1 - len(lines) - len(why), 0)], *why]


def first_clauses(text: str, columns: int) -> str:
    """Return the clauses at the beginning of a text that fit, at least the first one."""
    clauses = re.split(r"(?:;|\.) (?=\S)", text)
    ends = itertools.accumulate(len(clause) + 2 for clause in clauses)
    fitting = [end - 2 for end in ends if end - 2 <= columns - 2]
    end = fitting[-1] if fitting else len(clauses[0])
    return text if end >= len(text) else f"{text[:end]}; …"


def _engines(finding: Finding) -> str:
    targets = f"compile for {', '.join(finding.targets)}" if finding.targets else "compile"
    return ", ".join(targets if name == "compile" else name for name in finding.engines)


def _writers(chain: Sequence[Link]) -> list[str]:
    """The writers behind a wrong value, newest first, a line each."""
    lines = []
    for link in chain:
        at = "" if link.source is None else f"{line_text(link.source)} "
        since = "" if link.since is None else f"{link.since} to "
        at += "" if link.grid_point is None else f"at {since}{link.grid_point}"
        lines.append(f"writer: {at}{loop(link.loop)} {link.action}")
    return lines


def hint_text(hint: Hint) -> str:
    """A hint in one line: `rows.py:12: acc_ref … (hint: carried)`."""
    where = (
        [] if hint.source is None else [f"{relative(Path(hint.source.file))}:{hint.source.line}:"]
    )
    is_named = hint.grid_point is None or str(hint.grid_point) in hint.message
    point = [f"at grid point {hint.grid_point}"] if hint.grid_point and not is_named else []
    return " ".join([*where, hint.message, *point, f"(hint: {hint.kind})"])


def _finding_header(finding: Finding) -> str:
    parts = [titled(finding)]
    parts += [
        f"{unit} {finding.values[unit]}"
        for unit in ("device", "core")
        if finding.values.get(unit, "0") != "0"
    ]
    if finding.grid_point:  # () for a kernel without a grid
        parts.append(f"grid point {finding.grid_point}")
    if finding.loop:
        parts.append(f"loop iteration {finding.loop}")
    if finding.count > 1:
        parts.append(f"{finding.count} times")
    return ", ".join(parts)


def titled(finding: Finding) -> str:
    """Title of a finding: its kind, and its kernel if it belongs to one."""
    kind = str(finding.kind)
    return kind if finding.kernel == NO_KERNEL else f"{kind} in kernel `{finding.kernel}`"


def gap_title(gap: Gap) -> str:
    """`kernel `rows` was not checked`, or was `checked only in part`."""
    if not gap.engine:  # something failed, but it is unknown which judgement that affects
        return gap.reason.partition(": ")[0]
    kernel = f"kernel `{gap.kernel}` was" if gap.kernel else "kernels were"
    done = JUDGED.get(gap.engine, f"judged ({gap.engine})")
    return f"{kernel} {done} only in part" if gap.is_partial else f"{kernel} not {done}"


def gap_text(gap: Gap) -> str:
    """A gap as text: the kernel, the reason, and what the absence of findings means."""
    if not gap.engine:
        return gap.reason
    end = "" if gap.reason.endswith(("?", ".")) else "."
    where = "in the rest" if gap.is_partial else "in it" if gap.kernel else "in them"
    message = f"{gap_title(gap)}: {gap.reason}{end}"
    return f"{message} The absence of findings {where} proves nothing."


def consequence_texts(finding: Finding) -> list[str]:
    """A finding's consequences, each with its kind, and its line if it is another one."""
    texts = []
    for consequence in finding.consequences:
        at, source = "", consequence.source
        if source is not None and consequence.witness.line != finding.witness.line:
            at = f" at {relative(Path(source.file))}:{source.line}"
        texts.append(f"{consequence.kind}{at}: {consequence.message.partition(chr(10))[0]}")
    return texts


def quoted(source: SourceLine) -> str:
    """`rows.py:12   o_ref[...] = x_ref[...]`, without the text if it is unknown."""
    where = f"{relative(Path(source.file))}:{source.line}"
    return f"{where}   {source.text.strip()}" if source.text else where


def print_text(record: PrintRecord) -> str:
    """Format a print: `rows.py:12 grid point (0, 1), loop iteration (3,): x = 2.5`."""
    where = []
    if record.source is not None:
        where.append(line_text(record.source))
    if record.grid_point:
        where.append(f"grid point {record.grid_point}")
    place = " ".join(where) or f"kernel {record.kernel}"
    if record.loop:
        place += f", loop iteration {record.loop}"
    return f"{place}: {record.text}"
