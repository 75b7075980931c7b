"""The `pallas-debug` command, one file per subcommand.

`--help` imports neither jax nor textual: a command's file is imported only to run the command, and
imports heavy dependencies lazily. Data goes to standard output, messages to standard error.
"""

from __future__ import annotations

import sys
from typing import Any


def main() -> None:
    """Entry point of the console script."""
    try:
        from pallas_debug.cli.group import cli
        from pallas_debug.cli.guard import guarded
    except KeyboardInterrupt:  # while modules were loaded
        sys.stderr.write("\npallas-debug: stopped\n")
        sys.exit(130)
    guarded(cli)


def __getattr__(name: str) -> Any:
    if name == "cli":
        from pallas_debug.cli.group import cli

        return cli
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
