"""Command output: tables on a terminal, plain lines elsewhere, JSON on request."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO, TypeVar

import click

from pallas_debug.cli.exits import Exit
from pallas_debug.errors import CannotRunError, PallasDebugError
from pallas_debug.followup import LABEL
from pallas_debug.render import aligned, one_line
from pallas_debug.render import visible as visible

T = TypeVar("T")
R = TypeVar("R")

_UNSAFE = re.compile(
    "[\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff"
    "\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
"""Characters that are valid in a JSON string, but that a terminal may interpret or hide."""

PALETTE: dict[str, dict[str, Any]] = {
    "ok": {"fg": "green"},
    "found": {"fg": "red", "bold": True},
    "unsure": {"fg": "yellow"},
    "remedy": {"fg": "green", "bold": True},
    "cost": {"fg": "yellow", "bold": True},
    "next": {"fg": "cyan", "bold": True},
    "place": {"fg": "magenta"},
}
"""Colours by role; all that commands print in colour uses these."""

LABELS = {
    "ok": "ok",
    "failed": "found",
    "found": "found",
    "FOUND": "found",
    "unknown": "unsure",
    "warning": "unsure",
    "hint": "unsure",
    "cause:": "unsure",
    "try:": "remedy",
    "next:": "next",
}
"""Roles of the words that lines and cells of tables begin with."""

_LABEL = re.compile(
    rf"(?m)(^ *|: |  )({'|'.join(map(re.escape, LABELS))}|[A-Z]\w+(?= in kernel `))(?!\w)"
)

MIN_WRAPPED = 40
"""Minimum width of a terminal for which lines are wrapped."""

SCHEMA = 1
"""Version of the JSON output of all commands; `docs/generator/documents.py` has its fields.

It is incremented when a field is removed, renamed or changes its type or meaning, but not for a new
field.
"""


def unwritable(path: Path, error: OSError) -> CannotRunError:
    """Error for a file, named by an option, that cannot be written."""
    cause = error.strerror or type(error).__name__
    return CannotRunError(f"{one_line(path)} cannot be written: {cause}. Name another file.")


def write_file(path: Path, data: bytes) -> None:
    """Write a file that an option names."""
    from pallas_debug.store.disk import write_whole

    try:
        write_whole(path, data)
    except OSError as error:
        raise unwritable(path, error) from error


def print_json(command: str, fields: Mapping[str, Any]) -> None:
    """Print the JSON document of a command on standard output, with its schema first."""
    click.echo(json_text({"schema": f"pallas-debug/{command}/{SCHEMA}", **fields}))


def json_text(value: Any) -> bytes:
    """Return data as indented JSON.

    Control characters, direction marks, zero-width characters and lone surrogates are escaped as
    `\\uXXXX`, so that the output is safe on a terminal and parses to the original.
    """
    import msgspec

    # Not msgspec.json: it rejects lone surrogates, which occur in names that are not UTF-8.
    plain = msgspec.to_builtins(value, enc_hook=str)
    text = json.dumps(plain, ensure_ascii=False, indent=2)
    return _UNSAFE.sub(lambda match: json.dumps(match[0])[1:-1], text).encode()


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[int] = ()
) -> None:
    """Print a table on a terminal, and tab-separated lines elsewhere, for `cut` and `awk`."""
    if not sys.stdout.isatty():
        for row in rows:
            click.echo("\t".join(_one_line(cell) for cell in row))
        return
    head, *lines = aligned([columns, *([_one_line(cell) for cell in row] for row in rows)], right)
    click.echo(click.style(head, bold=True) if colored() else head)
    for line in lines:
        click.echo(painted(line))


def echo(text: str, *, newline: bool = True) -> None:
    """Write text to standard output: escaped on a terminal, unchanged for a pipe or a file."""
    click.echo(visible(text) if sys.stdout.isatty() else text, nl=newline)


def terminal_width() -> int:
    """Columns of the terminal; 0 if standard output is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def echo_wrapped(text: str, indent: int) -> None:
    """Write a line; on a terminal, wrap it at spaces and indent the continuation lines.

    In a pipe it stays one line, for `grep`.
    """
    width = terminal_width()
    if len(text) <= width or width < MIN_WRAPPED:
        echo(text)
        return
    start = len(text) - len(text.lstrip())
    parts = textwrap.wrap(
        text[start:],
        width,
        initial_indent=text[:start],
        subsequent_indent=" " * min(indent, width - MIN_WRAPPED // 2),
        break_long_words=False,
        break_on_hyphens=False,
    )
    for part in parts:
        echo(part)


def colored(stream: TextIO | None = None) -> bool:
    """Return whether to colour a stream: on a capable terminal, unless `NO_COLOR` is set."""
    dumb = os.environ.get("TERM") == "dumb"
    return (stream or sys.stdout).isatty() and not dumb and not os.environ.get("NO_COLOR")


def styled(role: str, text: str, stream: TextIO | None = None) -> str:
    """Return text in the colour of its role, one of `PALETTE`, if the stream takes colours.

    A colour says nothing that the text does not say.
    """
    return click.style(text, **PALETTE[role]) if colored(stream) else text


def painted(text: str, stream: TextIO | None = None) -> str:
    """Return text with the labels of its lines in colour: verdicts, kinds of findings, remedies."""
    if not colored(stream):
        return text

    def label(found: re.Match[str]) -> str:
        return found[1] + click.style(found[2], **PALETTE[LABELS.get(found[2], "found")])

    return _LABEL.sub(label, text)


def message(text: str) -> None:
    """Print a message to standard error."""
    click.echo(f"pallas-debug: {painted(visible(text), sys.stderr)}", err=True)


def attempted(items: Sequence[T], do: Callable[[T], R]) -> tuple[list[R], Exit]:
    """Do something with each item; errors are printed, unless there is only one item."""
    done, code = list[R](), Exit.OK
    for item in items:
        try:
            done.append(do(item))
        except PallasDebugError as error:
            if len(items) == 1:
                raise
            message(str(error))
            code = Exit.CANNOT_RUN
    return done, code


def has_terminal() -> bool:
    """Return whether a program that fills the terminal, such as `browse`, could run here."""
    # Textual draws on standard error.
    return all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


def follow(command: str | None, *, as_json: bool = False) -> None:
    """Print the command to run next as the last line, on standard error.

    There is no such line for None, and after JSON.
    """
    if command is not None and not as_json:
        click.echo(painted(f"{LABEL}{visible(command)}", sys.stderr), err=True)


QUIET = 5.0
"""Seconds before a command says what it does, if standard error is not a terminal."""

BETWEEN = 10.0
"""Seconds between such lines."""


@contextlib.contextmanager
def status(text: Callable[[], str]) -> Iterator[None]:
    """Show on standard error what the block does: on a terminal a line that changes, else lines."""
    is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    shown, ended = _status_line(text) if is_terminal else None, threading.Event()

    def watch() -> None:
        wait, begun = QUIET, time.monotonic()
        while not ended.wait(wait):
            if doing := text():
                message(f"{time.monotonic() - begun:,.0f} s: {doing}")
            wait = BETWEEN

    if shown is None:
        threading.Thread(target=watch, name="pallas-debug status", daemon=True).start()
    try:
        with shown or contextlib.nullcontext():
            yield
    finally:
        ended.set()


def _status_line(text: Callable[[], str]) -> contextlib.AbstractContextManager[Any]:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    begun = time.monotonic()

    def line() -> Text:
        whole = f"{time.monotonic() - begun:,.0f} s: {visible(text())}"
        return Text(whole, style="dim", no_wrap=True, overflow="ellipsis")

    # What the program prints goes where it would go without the line.
    return Live(
        get_renderable=line,
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
    )


def _one_line(cell: str) -> str:
    return visible(cell).replace("\n", " ").replace("\t", " ")
