"""`pallas-debug browse`: the terminal UI over a dump directory."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from pallas_debug.cli.exits import Exit
from pallas_debug.errors import CannotRunError


@click.command("browse")
@click.argument("directory", type=click.Path(path_type=Path), default=Path("dumps"))
def command(directory: Path) -> int:
    """Browse the kernels of DIRECTORY (dumps) in the terminal.

    DIRECTORY is a dump directory, a kernel's folder in one, or a directory of raw dumps. `?` lists
    the keys.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CannotRunError(
            "browse needs a terminal. Without one: `pallas-debug ls` lists kernels and passes, "
            "`pallas-debug show` prints one."
        )
    from pallas_debug.tui.app import BrowseApp
    from pallas_debug.tui.model import Browser

    BrowseApp(Browser(directory)).run()
    return Exit.OK
