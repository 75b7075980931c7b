"""`pallas-debug browse`: the terminal UI over dump directories."""

from __future__ import annotations

import gc
import glob
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from pallas_debug import defaults
from pallas_debug.cli import output
from pallas_debug.cli.exits import Exit
from pallas_debug.errors import CannotRunError, UsageError


@click.command("browse")
@click.argument("where", type=click.Path(path_type=Path), nargs=-1)
@click.option("-k", "--kernel", help="Open at this kernel.")
@click.option("-t", "--target", help="Open at this target.")
@click.option("-p", "--pass", "step", help="Open at this stage or pass, by number or name.")
@click.option("-n", "--line", type=click.IntRange(1), help="Open at this line of the text.")
@click.option("--theme", help="Colours; the palette lists the themes.")
@click.option(
    "--no-resume", is_flag=True, help="Do not open where one was, and do not remember it."
)
def command(
    where: tuple[Path, ...],
    kernel: str | None,
    target: str | None,
    step: str | None,
    line: int | None,
    theme: str | None,
    no_resume: bool,
) -> int:
    """Browse the kernels of WHERE (`dumps` unless given) in the terminal.

    WHERE is a dump directory, a kernel's or a target's folder in one, a directory of raw dumps, or
    a file of text. Of two, each kernel is compared with itself in the other. `?` lists the keys.
    """
    if len(where) > 2:
        listed = " ".join(map(str, where))
        raise UsageError(f"browse takes two directories at most, not {len(where)}: {listed}")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CannotRunError(_without_a_terminal(where))
    gc.disable()  # until the first screen: nothing of what is made for it goes again
    roots, of_path = _roots(where or (Path(defaults.DIRECTORY),))
    from pallas_debug.tui.ahead import Ahead

    ahead = Ahead()
    with ahead.showing(roots):
        from pallas_debug.tui.run import browse

        ended = browse(
            roots,
            kernel=kernel or of_path.get("kernel"),
            target=target or of_path.get("target"),
            step=step,
            line=line,
            theme=theme,
            resume=not no_resume,
            starts=ahead.hand_over,
        )
    if ended.said:
        output.say(ended.said)
    return Exit.FAILED if ended.failed else Exit.OK


def _without_a_terminal(where: Sequence[Path]) -> str:
    if len(where) == 2:
        a, b = where
        return (
            "browse needs a terminal. Without one: "
            f"`pallas-debug diff {a} --kernel KERNEL --against {b}` prints what differs."
        )
    if where and where[0].is_file():
        return f"browse needs a terminal. Without one: `cat {where[0]}` prints the file."
    return (
        "browse needs a terminal. Without one: `pallas-debug ls` lists kernels and passes, "
        "`pallas-debug show` prints one."
    )


def _roots(where: Sequence[Path]) -> tuple[list[Path], dict[str, str]]:
    """The directories, and the kernel or target that one path names.

    Raises:
      UsageError: a file is named beside a directory, or with another.
    """
    if len(where) == 2:
        for path in where:
            if path.is_file():
                raise UsageError(f"browse takes two directories, and {path} is a file")
        return list(where), {}
    from pallas_debug.store.files import is_there
    from pallas_debug.store.names import COMPILATION

    path = where[0]
    if is_there(path / COMPILATION):  # a target's folder
        whole = path.absolute()
        return [whole.parent], {"target": whole.name}
    if not is_there(path) and path.parent.is_dir() and path.name and _starts(path):
        return [path.parent], {"kernel": path.name}
    return [path], {}


def _starts(path: Path) -> bool:
    """Whether the path is one of kernels, but for the end of their names."""
    return any(found.is_dir() for found in path.parent.glob(f"{glob.escape(path.name)}*"))
