"""The `pallas-debug` command, a file per subcommand.

`--help` imports neither jax nor textual: a command's file is imported when the command is run, and
imports what it needs when it needs it. Standard output is data, standard error is talk.
"""

from __future__ import annotations

from typing import Any


def main() -> None:
    """The console script."""
    from pallas_debug.cli.group import cli
    from pallas_debug.cli.guard import guarded

    guarded(cli)


def __getattr__(name: str) -> Any:
    if name == "cli":
        from pallas_debug.cli.group import cli

        return cli
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
