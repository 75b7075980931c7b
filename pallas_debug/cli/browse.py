"""`pallas-debug browse`: the terminal UI over dump directories."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pallas_debug import defaults
from pallas_debug.cli import options as shared
from pallas_debug.cli import output
from pallas_debug.cli.exits import Exit
from pallas_debug.errors import CannotRunError, UsageError

if TYPE_CHECKING:
    from pallas_debug.cli.where import Place


@dataclass(frozen=True, kw_only=True)
class BrowseOptions:
    where: tuple[str | Path, ...] = shared.argument(type=shared.PLACE, nargs=-1)
    kernel: str | None = shared.option("-k", "--kernel", help="Open at this kernel.")
    target: str | None = shared.option("-t", "--target", help="Open at this target.")
    step: str | None = shared.option(
        "-p", "--pass", help="Open at this stage or pass, by number or name."
    )
    line: int | None = shared.option(
        "-n", "--line", type=click.IntRange(1), help="Open at this line of the text."
    )


def run(options: BrowseOptions) -> int:
    """Browse the kernels of WHERE (default: `dumps`) in the terminal.

    WHERE is a dump directory, the folder of a kernel or target in one, the start of a kernel's name
    in `dumps`, a directory of raw dumps, or a text file. With two directories, kernels can be
    compared between them. `?` lists the keys.
    """
    where = options.where
    if len(where) > 2:
        raise UsageError(f"browse takes two directories at most, not {len(where)}")
    is_dumb = os.environ.get("TERM") == "dumb"
    if is_dumb or not output.has_terminal():
        which = " other than TERM=dumb" if is_dumb else ""
        raise CannotRunError(
            f"browse needs a terminal{which}. Without one: `pallas-debug ls` lists kernels and "
            "passes, `show` prints one, `diff` compares, and `report` writes a page."
        )
    from pallas_debug.tui.app import browse  # importing Textual takes a while

    roots, place = _place(where or (Path(defaults.DIRECTORY),), options)
    is_left = browse(
        roots, kernel=place.kernel, target=place.target, step=options.step, line=options.line
    )
    return Exit.OK if is_left else Exit.CANNOT_RUN


command = shared.make("browse", BrowseOptions, run)


def _place(where: Sequence[str | Path], options: BrowseOptions) -> tuple[list[Path], Place]:
    """Return the directories, and the kernel and target to open at."""
    from pallas_debug.cli.where import Place, local, place_at
    from pallas_debug.store.files import is_file

    if len(where) == 1:
        place = place_at(where[0], options.kernel, options.target)
        return [place.root], place
    roots = [local(place) for place in where]
    for path in roots:
        if is_file(path):
            raise UsageError(f"browse takes two directories, and {path} is a file")
    return roots, Place(root=roots[0], kernel=options.kernel, target=options.target)
