"""How commands print: tables on a terminal, plain lines elsewhere, JSON on request."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click


def print_json(value: Any) -> None:
    """Data on standard output, as JSON that a person can read too."""
    click.echo(json_text(value))


def json_text(value: Any) -> bytes:
    """Data as JSON that a person can read too."""
    import msgspec

    encoded = msgspec.json.encode(msgspec.to_builtins(value, enc_hook=str))
    return msgspec.json.format(encoded, indent=2)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on a terminal; without one, tab-separated lines that `cut` and `awk` can read."""
    if not sys.stdout.isatty():
        for row in rows:
            click.echo("\t".join(_one_line(cell) for cell in row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_one_line(cell), style=_style(cell)) for cell in row))
    Console(highlight=False).print(table)


def visible(text: str) -> str:
    """Text whose control characters are shown and not obeyed, but for newlines and tabs."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


def colored() -> bool:
    """Whether standard output takes colours: a terminal that has some, and nobody who minds."""
    dumb = os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not dumb and not os.environ.get("NO_COLOR")


def say(text: str) -> None:
    """Talk, on standard error."""
    click.echo(f"pallas-debug: {visible(text)}", err=True)


@contextlib.contextmanager
def progress(total: Callable[[], int], pending: Callable[[], int]) -> Iterator[Callable[[], None]]:
    """A line that counts compilations on a terminal; nothing elsewhere. Yields its ticker."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("compiling"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task("compiling", total=None)

    def tick() -> None:
        if not bar.live.is_started:
            bar.start()
        bar.update(task, total=total(), completed=total() - pending())

    try:
        yield tick
    finally:
        bar.stop()


def _one_line(cell: str) -> str:
    return visible(cell).replace("\n", " ").replace("\t", " ")


def _style(cell: str) -> str:
    if cell.startswith("failed"):
        return "red"
    return "green" if cell == "ok" or cell.startswith("ok,") else ""
