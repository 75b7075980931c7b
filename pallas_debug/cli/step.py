"""`pallas-debug step`: step through a kernel, forwards and backwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from pallas_debug.cli import options as shared
from pallas_debug.cli import output, programs
from pallas_debug.cli.exits import Exit
from pallas_debug.errors import PallasDebugError, ProgramFailed, UsageError
from pallas_debug.guards import problem_of
from pallas_debug.installed import require_jax
from pallas_debug.render import typed


@dataclass(frozen=True, kw_only=True)
class StepOptions(shared.CallOptions):
    kernel: str | None
    call: int
    post_mortem: bool
    plain: bool
    record: Path | None
    lines: tuple[int, ...]
    points: tuple[str, ...]
    limit: int


@shared.args
@shared.inputs
@shared.spec
@shared.module
@click.option("-k", "--kernel", help="Name of the kernel; by default the first that is called.")
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
    help="Run the sanitizer first, and open at its first finding, or where the run stopped.",
)
@click.option(
    "--plain",
    is_flag=True,
    help="Use a plain prompt instead of the terminal UI; the default without a terminal.",
)
@click.option(
    "--record",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Record the run in this folder instead; `step FOLDER` opens it, even without jax.",
)
@click.option(
    "--line",
    "lines",
    type=click.IntRange(min=1),
    multiple=True,
    help="With --record: save only values at this line; can be repeated.",
)
@click.option(
    "--point",
    "points",
    multiple=True,
    metavar="I,J,…",
    help="With --record: save only values at this grid point; can be repeated.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="With --record: maximum size of the recording, in MiB.",
)
@shared.what
def run(options: StepOptions) -> int:
    """Step through a kernel of WHAT, line by line, forwards and backwards.

    \b
    pallas-debug step package.module:function --arg 'bf16[1,2,512,128]' --arg causal=True
    pallas-debug step pallas_debug_kernels:flash_attention
    pallas-debug step SCRIPT.py [ARGS]…
    pallas-debug step RECORDING

    WHAT is run once, to find the arrays with which it calls the kernel. That call then runs on the
    kernel machine, one line at a time. Without a terminal, commands are read from standard input;
    `help` lists them.
    """
    from pallas_debug.screen import open_session
    from pallas_debug.stepping import recording

    plain = options.plain or None
    if recording.is_recording(Path(options.what)):
        from pallas_debug.stepping.session import StepSession

        opened = recording.read(Path(options.what))
        open_session(StepSession(opened), plain=plain, post_mortem=options.post_mortem)
        return Exit.OK
    if Path(options.what).is_dir():
        raise UsageError(
            f"{options.what} is a directory without {recording.FILE}: if it is a recording, copy "
            "all of it; otherwise name a Python file, `-m` and a module, or package.module:function"
        )
    require_jax("`step`")
    if options.record is None and (options.lines or options.points):
        name = "--line" if options.lines else "--point"
        raise UsageError(f"{name} chooses what --record saves: pass --record FOLDER as well")
    from pallas_debug import stepper

    points = [_point(text) for text in options.points]
    function, called, made_up = _called(options)
    try:
        with programs.running(options.what, function):
            captured = stepper.capture(
                called,
                kernel=options.kernel,
                call=options.call,
                post_mortem=options.post_mortem,
            )
    except PallasDebugError:
        raise
    except Exception as error:
        raise problem_of(error, "engine", f"stepping through {options.what}") from error
    if options.record is None:
        open_session(captured.session, (*captured.notes, *made_up), plain=plain)
        return Exit.OK
    made = stepper.record_session(
        captured.session,
        options.record,
        lines=options.lines,
        points=points,
        max_bytes=options.limit << 20,
    )
    output.message(
        f"recorded {len(made.stops):,} places of {made.kernel}; to open them: "
        f"pallas-debug step {typed(options.record)}"
    )
    return Exit.OK


command = shared.make("step", StepOptions, run)


def _point(text: str) -> tuple[int, ...]:
    numbers = text.strip("() ").split(",")
    try:
        return tuple(int(number) for number in numbers if number.strip())
    except ValueError:
        raise UsageError(f"--point takes numbers such as 0,1, not {text!r}") from None


def _called(
    options: StepOptions,
) -> tuple[Callable[..., Any] | None, Callable[[], Any], tuple[str, ...]]:
    """Return the program to run to find the kernel's arrays, and notes on made-up arrays.

    Returns:
      The function, or None for a script; a call of it; the notes.
    """
    from pallas_debug import stepper

    what = options.what
    named = None if options.module else programs.named_function(what)
    if named is None:
        programs.refuse_arguments(options)
        programs.check_exists(what, module=options.module)

        def execute() -> None:
            error = programs.execute(what, options.rest, module=options.module)
            if isinstance(error, SystemExit):
                raise ProgramFailed(programs.exited(what, error))
            if error is not None:
                raise error

        return None, execute, ()
    programs.refuse_words(what, options.rest)
    function, args, kwargs = programs.function_call(named, options, values=True)
    return (function, *stepper.call_of(function, args, kwargs))
