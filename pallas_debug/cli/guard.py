"""From exceptions to sentences on standard error and an exit code."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import click

from pallas_debug.cli.exits import Exit
from pallas_debug.errors import PallasDebugError, UsageError


def guarded(command: click.Command) -> NoReturn:
    """Run a command as the console script does."""
    try:
        code = command.main(standalone_mode=False, prog_name="pallas-debug")
    except UsageError as error:
        _say(str(error))
        code = Exit.USAGE
    except PallasDebugError as error:
        _say(str(error))
        code = Exit.CANNOT_RUN
    except click.UsageError as error:
        error.show()
        code = Exit.USAGE
    except click.ClickException as error:
        error.show()
        code = Exit.CANNOT_RUN
    except (KeyboardInterrupt, click.Abort):
        _say("stopped; what was finished is in the dump directory")
        code = Exit.INTERRUPTED
    except BrokenPipeError:  # `pallas-debug show … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = Exit.OK
    sys.exit(code if isinstance(code, int) else Exit.OK)


def _say(text: str) -> None:
    sys.stderr.write(f"pallas-debug: {text}\n")
