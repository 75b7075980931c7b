"""`pallas-debug step`: step through a kernel, forwards and backwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from pallas_debug import followup
from pallas_debug.cli import options as shared
from pallas_debug.cli import output, programs
from pallas_debug.cli.exits import Exit
from pallas_debug.errors import ProgramFailed
from pallas_debug.installed import require_jax


@dataclass(frozen=True, kw_only=True)
class StepOptions(shared.CallOptions):
    kernel: str | None = shared.option(
        "-k", "--kernel", help="Name of the kernel; by default the first that is called."
    )
    call: int = shared.option(
        "-c",
        "--call",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Number of the kernel's call.",
    )
    post_mortem: bool = shared.option(
        "-x",
        "--post-mortem",
        help="Run the sanitizer first, and open at its first finding, or where the run stopped.",
    )
    reference: str | None = shared.option(
        "--reference",
        metavar="MODULE:FUNCTION",
        help="The reference with which `verify` compares, for the command to run next.",
        hidden=True,
    )
    plain: bool = shared.option(
        "--plain",
        help="Use a plain prompt instead of the terminal UI; the default without a terminal.",
    )


def run(options: StepOptions) -> int:
    """Step through a kernel of WHAT, line by line, forwards and backwards.

    \b
    pallas-debug step package.module:function --arg 'bf16[1,2,512,128]' --arg causal=True
    pallas-debug step pallas_debug_kernels:flash_attention
    pallas-debug step SCRIPT.py [ARGS]…
    pallas-debug step tests/test_rows.py::test_sum

    WHAT is run once, to find the arrays with which it calls the kernel. That call then runs on the
    kernel machine, one line at a time. Without a terminal, commands are read from standard input;
    `help` lists them.
    """
    from pallas_debug.screen import open_session

    require_jax("`step`")
    from pallas_debug import stepper

    called, made_up = _called(options)
    with programs.running(options.what):
        captured = stepper.capture(
            called, kernel=options.kernel, call=options.call, post_mortem=options.post_mortem
        )
    notes = (*captured.notes, *made_up)
    open_session(captured.session, notes, plain=options.plain or None)
    words = [*shared.compared(options.reference), *options.words()]
    output.follow(followup.after_step(words, options.test))
    return Exit.OK


command = shared.make("step", StepOptions, run)


def _called(options: StepOptions) -> tuple[Callable[[], Any], tuple[str, ...]]:
    """Return a call of the program that finds the kernel's arrays, and notes on made-up ones."""
    from pallas_debug import stepper

    what = options.what
    named = programs.function_of(options)
    if named is None:

        def execute() -> None:
            error = programs.execute(what, options.rest, module=options.module)
            if isinstance(error, SystemExit):
                raise ProgramFailed(programs.exited(what, error))
            if error is not None:
                raise error

        return execute, ()
    function, args, kwargs = programs.function_call(named, options, values=True)
    return stepper.call_of(function, args, kwargs)
