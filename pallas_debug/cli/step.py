"""`pallas-debug step`: step through a kernel, forwards and backwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from pallas_debug.cli import options as shared
from pallas_debug.cli import programs
from pallas_debug.cli.exits import Exit
from pallas_debug.errors import PallasDebugError, UsageError
from pallas_debug.guards import problem_of


@dataclass(frozen=True, kw_only=True)
class StepOptions(shared.CallOptions):
    kernel: str | None
    call: int
    post_mortem: bool
    plain: bool


@shared.args
@shared.inputs
@shared.spec
@shared.module
@click.option("-k", "--kernel", help="Name of the kernel; the first that is called by default.")
@click.option(
    "-c",
    "--call",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of the kernel's call.",
)
@click.option(
    "-x",
    "--post-mortem",
    is_flag=True,
    help="Run to the end first, and open where the run stopped, if it could not go on.",
)
@click.option(
    "--plain",
    is_flag=True,
    help="A plain prompt instead of the terminal UI; the default without a terminal.",
)
@shared.what
def run(options: StepOptions) -> int:
    """Step through a kernel of WHAT, line by line, forwards and backwards.

    \b
    pallas-debug step package.module:function --arg 'bf16[1,2,512,128]' --arg causal=True
    pallas-debug step pallas_debug_kernels:flash_attention
    pallas-debug step SCRIPT.py [ARGS]…

    WHAT is run once, to find the arrays with which it calls the kernel. That call is then run in
    the kernel machine, one line at a time. Without a terminal, commands are read from standard
    input; `help` lists them.
    """
    from pallas_debug import stepper

    try:
        called = _called(options)
        captured = stepper.capture(called, kernel=options.kernel, call=options.call)
    except PallasDebugError:
        raise
    except Exception as error:
        raise problem_of(error, "engine", f"stepping through {options.what}") from error
    stepper.open_session(
        captured.session,
        captured.notes,
        plain=options.plain or None,
        post_mortem=options.post_mortem,
    )
    return Exit.OK


command = shared.make("step", StepOptions, run, needs_jax=True)


def _called(options: StepOptions) -> Callable[[], Any]:
    """What is run to find the kernel's arrays."""
    what = options.what
    named = None if options.module else programs.named_function(what)
    if named is None:
        programs.refuse_arguments(options)
        programs.check_exists(what, module=options.module)

        def execute() -> None:
            error = programs.execute(what, options.rest, module=options.module)
            if isinstance(error, Exception):
                raise error

        return execute
    if options.rest:
        raise UsageError(
            f"{what} is a function, and takes no arguments behind it: {options.rest[0]!r}"
        )
    function = programs.import_function(*named)
    args, kwargs = programs.function_arguments(function, options, values=True)
    programs.check_call(what, function, args, kwargs)
    return lambda: function(*args, **kwargs)
