"""`pallas-debug reproduce`: a dumped kernel as one script that needs only jax."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pallas_debug.cli import options as shared
from pallas_debug.cli import output
from pallas_debug.cli.exits import Exit
from pallas_debug.cli.where import kernel_at
from pallas_debug.errors import CannotRunError, UsageError
from pallas_debug.installed import require_jax
from pallas_debug.render import one_line, typed

if TYPE_CHECKING:
    from pallas_debug.model import Failure
    from pallas_debug.reproduce.recorded import Recorded


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions:
    where: Path
    kernel: str | None
    target: str | None
    to: Path | None
    is_run: bool
    shrink: bool
    trust: bool
    timeout: float


@click.argument("where", type=shared.PLACE)
@shared.kernel
@click.option(
    "-t",
    "--target",
    help="The chip; by default the dump's, or the first one for which the kernel failed.",
)
@click.option(
    "-o",
    "--to",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write; standard output by default.",
)
@click.option(
    "--run", "is_run", is_flag=True, help="Run the script, and compare its outcome with the dump."
)
@click.option(
    "--shrink", is_flag=True, help="Make the kernel smaller as long as it fails in the same way."
)
@click.option(
    "--trust",
    is_flag=True,
    help="Run a dump that you did not make on this machine, without asking.",
)
@click.option(
    "--timeout",
    type=shared.SECONDS,
    default=120.0,
    show_default=True,
    help="Time limit for --run and --shrink, in seconds.",
)
def run(options: ReproduceOptions) -> int:
    """Write a script that reproduces a dumped kernel's failure, or shows that it compiles.

    \b
    pallas-debug reproduce dumps/flash_attention-1c9f3a2b -o reproduce.py
    pallas-debug reproduce dumps -k cumsum_rows --run
    pallas-debug reproduce dumps -k cumsum_rows --shrink -o small.py

    WHERE is a dump directory, a kernel's or a target's folder in it, or a copy of these. The script
    needs only jax, plus libtpu to compile, but neither pallas-debug nor the program that the kernel
    came from. --run and --shrink ask first if you did not make the dump on this machine.
    """
    from pallas_debug.reproduce import recorded, script

    stored, of_folder = kernel_at(options.where, options.kernel)
    found = recorded.read(stored, options.target or of_folder)
    text = script.script_of(found)
    if options.shrink and found.failure is None:
        raise UsageError(
            f"{found.kernel.name} did not fail for {found.target.name}: there is nothing to shrink"
        )
    if options.is_run or options.shrink:
        require_jax("`reproduce --run`" if options.is_run else "`reproduce --shrink`")
        _ask(found, is_trusted=options.trust)
    if options.shrink:
        text = _shrunk(found, options.timeout)
    if found.program is None:
        output.message(f"the script compiles the kernel's StableHLO: {found.why_no_program}")
    left_out = script.left_out(found)
    if left_out is not None:
        output.message(left_out)
    _write(text, options.to)
    return _run(found, text, options.timeout) if options.is_run else Exit.OK


command = shared.make("reproduce", ReproduceOptions, run)


def _named(found: Recorded) -> str:
    return one_line(f"{found.kernel.name} for {found.target.name}")


def _ask(found: Recorded, *, is_trusted: bool) -> None:
    """Ask the user before running code that someone else may have written.

    Raises:
      CannotRunError: the user declines, or there is no terminal to ask on.
    """
    if found.is_ours or is_trusted:
        return
    what = _named(found)
    where = "was not made by you on this machine, or was changed since"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise CannotRunError(
            f"{what} is not run: its dump {where}. Write the script without --run and --shrink, "
            "read it, then pass --trust to run it in a confined process"
        )
    output.message(f"the dump of {what} {where}; its origin is unknown.")
    if not click.confirm("Run its kernel in a confined process?", default=False, err=True):
        raise CannotRunError(f"{what} is not run: you declined")


def _write(text: str, to: Path | None) -> None:
    if to is None:
        sys.stdout.write(text)
        return
    from pallas_debug.store.disk import write_whole

    try:
        write_whole(to, text.encode())
    except OSError as error:
        raise output.unwritable(to, error) from error
    output.message(f"wrote {one_line(to)}; next: python {typed(to)}")


def _run(found: Recorded, text: str, timeout: float) -> int:
    from pallas_debug.reproduce import run

    shown = run.run(text, timeout=timeout)
    where = _named(found)
    if shown.is_as(found.failure):
        what = "the same failure" if found.failure else "it compiles, as recorded"
        again = shown.failure
        at = f", at {again.stage}: {again.headline}" if again else ""
        output.message(f"{where}: {what}{at}")
        return Exit.OK
    output.message(f"{where}: not the same")
    output.message(f"  recorded: {_described(found.failure)}")
    output.message(f"  now:      {_described(shown.failure)}")
    output.message(
        "  Do the installed versions of jax and libtpu differ from those in the script's header?"
    )
    return Exit.FAILED


def _described(failure: Failure | None) -> str:
    return f"{failure.stage}: {failure.headline}" if failure else "it compiles"


def _shrunk(found: Recorded, timeout: float) -> str:
    from pallas_debug.reproduce.shrinking.search import shrunk

    return shrunk(found, seconds=timeout, report=output.message)
