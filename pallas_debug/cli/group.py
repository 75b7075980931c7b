"""Click group that imports each command only when it runs."""

from __future__ import annotations

import importlib

import click

from pallas_debug._version import __version__

GROUPS: dict[str, dict[str, str]] = {
    "Is it right?": {
        "verify": "Report whether kernels work, on which chips, and if not, why.",
        "step": "Step through a kernel, forwards and backwards.",
        "explain": "Explain errors from a message, a log, a dump or a code.",
        "reproduce": "Write a script that reproduces a dumped kernel's failure.",
    },
    "Is it fast?": {
        "stats": "Show what a kernel costs, where, and what would save cycles.",
        "timeline": "Show when a kernel computes, copies and waits.",
        "sweep": "Compile a grid of settings of a function, and rank them.",
    },
    "Look": {
        "dump": "Compile the kernels of a program, and keep every stage.",
        "browse": "Browse kernels and their passes in the terminal.",
        "report": "Write one HTML page about dumped kernels.",
        "ls": "List dumped kernels, or the passes of one.",
        "show": "Print a stage or pass of a dumped kernel.",
        "diff": "Show what a pass changed, or what differs between two stages.",
        "source": "Show what comes of each line of a kernel's source.",
        "grep": "Search all stages and passes of all kernels.",
    },
    "Set up": {
        "doctor": "Check what works on this machine; list targets and kernels.",
        "help": "Show what a command does, and its options.",
    },
}
"""Name and summary of each command, by the question that it answers."""

COMMANDS = {name: summary for group in GROUPS.values() for name, summary in group.items()}
"""Summaries of all commands; each has a file of its name in this folder."""


class LazyGroup(click.Group):
    """Group that imports a command only when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"pallas_debug.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and name not in COMMANDS:
            raise click.UsageError(f"no such command: {name}{_meant(name)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for question, commands in GROUPS.items():
            formatter.write(f"\n{question}\n")
            with formatter.indentation():
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])


def _meant(name: str) -> str:
    """Return a hint for an unknown command: a similar one, or how to dump what was named."""
    from pallas_debug.errors import meant

    if name.endswith(".py") or ".py:" in name:
        return f"; to compile its kernels: pallas-debug dump {name}"
    return meant(name, COMMANDS)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pallas-debug")
def cli() -> None:
    """See, check and understand Pallas TPU kernels, on any machine.

    Start with `pallas-debug verify SCRIPT.py`; `pallas-debug help COMMAND` shows its options.
    """
