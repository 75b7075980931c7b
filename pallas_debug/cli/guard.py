"""Top-level error handling: exceptions become a message on standard error and an exit code.

A command never ends in a traceback, whatever a dump contains. An unexpected exception is our bug:
it is reported as an internal error, with a traceback only if `PALLAS_TRACEBACK` is set.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from typing import NoReturn

import click

from pallas_debug import interrupts, tracebacks
from pallas_debug.cli import output
from pallas_debug.cli.exits import Exit
from pallas_debug.errors import InternalError, PallasDebugError, ProgramFailed, UsageError

TRACEBACK = tracebacks.KEEP

_KEEP_RESULTS = ("dump", "sweep")
"""Commands that leave finished compilations behind."""

_TERMINATION_GRACE = 5.0
"""Seconds after SIGTERM until the process ends wherever it is, as while XLA runs a program."""

_MAX_MESSAGE = 500
"""Maximum number of characters of an internal error, which quotes an unexpected exception."""


def guarded(command: click.Command) -> NoReturn:
    """Run a command as the console script does."""
    before = sys.stdout
    terminated: list[None] = []

    def terminate() -> None:
        """Have the main thread restore the terminal and delete temporary files, as on ctrl+c."""
        terminated.append(None)
        interrupts.press()
        time.sleep(_TERMINATION_GRACE)
        os._exit(Exit.TERMINATED)

    try:
        with interrupts.listening(ends=_end, terminates=terminate):
            code = command.main(standalone_mode=False, prog_name="pallas-debug")
    except UsageError as error:
        output.message(str(error))
        code = Exit.USAGE
    except ProgramFailed as error:
        output.message(str(error))
        code = Exit.FAILED
    except PallasDebugError as error:
        output.message(str(error))
        code = Exit.CANNOT_RUN
    except click.ClickException as error:
        _show(error)
        code = Exit.USAGE if isinstance(error, click.UsageError) else Exit.CANNOT_RUN
    except (KeyboardInterrupt, click.Abort):
        output.message(_stopped())
        code = Exit.INTERRUPTED
    except BrokenPipeError:  # `pallas-debug show … | head`
        code = _reader_went_away()
    except SystemExit:
        if sys.stdout is before:
            raise
        code = _reader_went_away()  # click catches it first, replaces stdout, and exits with 1
    except Exception as error:  # noqa: BLE001 - the last guard of the command line
        # An extension module in whose initialisation ctrl+c falls raises an ImportError.
        is_stopped = isinstance(error, ImportError) and interrupts.is_pressed()
        output.message(_stopped() if is_stopped else _unexpected(error))
        code = Exit.INTERRUPTED if is_stopped else Exit.CANNOT_RUN
    if code == Exit.INTERRUPTED:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # at exit, a second one needs no traceback
        code = Exit.TERMINATED if terminated else code
    sys.exit(code if isinstance(code, int) else Exit.OK)


def _stopped() -> str:
    keeps = sys.argv[1:2] and sys.argv[1] in _KEEP_RESULTS
    return f"stopped{'; finished compilations are in the dump directory' if keeps else ''}"


def _end() -> NoReturn:
    """End the process from another thread, because the main thread is inside XLA."""
    try:
        output.message(_stopped())
        sys.stderr.flush()
    finally:
        os._exit(Exit.INTERRUPTED)


def _reader_went_away() -> Exit:
    """Discard the rest of the output, which Python would otherwise flush at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Exit.OK


def _show(error: click.ClickException) -> None:
    """Print the error as `error.show` does, but with unsafe characters escaped."""
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        del error.possibilities[1:]  # the closest comes first; click sorts several by name
    shown = io.StringIO()
    error.show(shown)
    click.echo(output.visible(shown.getvalue()), nl=False, err=True)


def _unexpected(error: Exception) -> str:
    """Return the message for an exception that no command handled."""
    if tracebacks.of_ours():
        import traceback

        return "".join(traceback.format_exception(error)).rstrip("\n")
    from pallas_debug.guards import problem_of  # no command that succeeds needs it

    problem = problem_of(error, "summary", "running the command")
    if not isinstance(problem, InternalError):  # the disk is full, or the memory
        return str(problem)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename is not None else ""
        return (
            f"{where}{error.strerror or error}. If the file or directory is there and readable, "
            f"please report it; {TRACEBACK}=1 prints the traceback."
        )
    text = str(problem)[:_MAX_MESSAGE]
    return f"{text} {TRACEBACK}=1 prints the traceback, to attach to the report."
