"""`pallas-debug reproduce`: a kernel as one script that needs only jax."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pallas_debug import defaults, followup
from pallas_debug.cli import options as shared
from pallas_debug.cli import output, programs
from pallas_debug.cli.exits import Exit
from pallas_debug.cli.where import place_at
from pallas_debug.errors import UsageError
from pallas_debug.installed import require_jax
from pallas_debug.render import one_line, typed

if TYPE_CHECKING:
    from pallas_debug.reproduce.recorded import Recorded


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions(shared.FunctionOptions):
    kernel: str | None = shared.option("-k", "--kernel", help="The kernel, if there are several.")
    target: str | None = shared.option(
        "-t",
        "--target",
        help="The chip; by default the dump's, or the first one for which the kernel failed.",
    )
    to: Path | None = shared.option(
        "-o",
        "--to",
        type=shared.FILE,
        help="The file to write; standard output by default.",
    )
    shrink: bool = shared.option(
        "--shrink",
        help="Make the kernel of a function smaller as long as it fails in the same way.",
    )
    timeout: float = shared.timeout()


def run(options: ReproduceOptions) -> int:
    """Write a script that reproduces a kernel's failure, or shows that it compiles.

    \b
    pallas-debug reproduce dumps/flash_attention-1c9f3a2b -o reproduce.py
    pallas-debug reproduce package.module:function --arg 'f32[32,128]' --shrink -o small.py

    WHAT is a dump directory, a kernel's or a target's folder in it, or a function, which is traced
    with abstract arguments. The script needs only jax, plus libtpu to compile, but neither
    pallas-debug nor the program that the kernel came from. It is not run: read it first if the dump
    is not yours. --timeout also limits the search of --shrink.
    """
    function = programs.named_function(options.what)
    if function is None:
        text, found = _of_dump(options)
    else:
        require_jax("`reproduce` of a function")
        text, found = _of_function(*function, options)
    if found.program is None:
        output.message(f"the script compiles the kernel's StableHLO: {found.why_no_program}")
    if options.to is None:
        sys.stdout.write(text)
        words = [*options.words(), *([] if options.kernel is None else ["-k", options.kernel])]
        output.follow(followup.command("reproduce", *words, "-o", "reproduce.py"))
    else:
        output.write_file(options.to, text.encode())
        output.message(f"wrote {one_line(options.to)}")
        output.follow(f"python {typed(options.to)}")
    return Exit.OK


command = shared.make("reproduce", ReproduceOptions, run)


def _of_dump(options: ReproduceOptions) -> tuple[str, Recorded]:
    from pallas_debug.reproduce import recorded, script

    programs.refuse_arguments(options)
    if options.shrink:
        raise UsageError(
            f"--shrink is for package.module:function, and {options.what!r} is none: the search "
            "needs the kernel as the function calls it, not a dump"
        )
    place = place_at(options.what, options.kernel)
    found = recorded.read(place.only(), options.target or place.target)
    return script.script_of(found), found


def _of_function(module: str, name: str, options: ReproduceOptions) -> tuple[str, Recorded]:
    from pallas_debug.dumping import dump_function
    from pallas_debug.reproduce import recorded, script, shrink
    from pallas_debug.session import Options

    function, positional, keyword = programs.function_call((module, name), options)
    targets, seconds = (options.target or defaults.TARGET,), options.timeout
    with tempfile.TemporaryDirectory(prefix="pallas-debug-") as folder:
        given = Options(dumps=folder, targets=targets, interpret="off", timeout=seconds)
        with programs.running(options.what):
            dumped = dump_function(function, positional, keyword, given)
        stored = place_at(folder, options.kernel).only()
        found = recorded.read(stored, options.target)
        program, note = None, ""
        if options.shrink:
            assert stored.kernel is not None
            digest = stored.kernel.digest
            captured = next(c for c in dumped.captures if c.kernel.digest == digest)
            smallest = shrink.shrink(captured, found.target, seconds=seconds, report=output.message)
            program, note = smallest.program, smallest.note
        return script.script_of(found, program=program, note=note), found
