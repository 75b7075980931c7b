"""Click group that imports each command only when it runs."""

from __future__ import annotations

import importlib

import click

from pallas_debug._version import __version__

COMMANDS: dict[str, str] = {
    "dump": "Compile the kernels of a script, module or function for TPU targets.",
    "verify": "Report whether kernels work, on which chips, and if not, why.",
    "sweep": "Compile a grid of settings of a function, and rank them.",
    "step": "Step through a kernel, forwards and backwards.",
    "ls": "List dumped kernels, or the passes of one.",
    "show": "Print a stage or pass of a dumped kernel.",
    "browse": "Browse kernels and their passes in the terminal.",
    "diff": "Show what a pass changed, or what differs between two stages.",
    "grep": "Search all stages and passes of all kernels.",
    "source": "Show the source of a kernel with the operations that come from each line.",
    "report": "Write one HTML page about dumped kernels.",
    "timeline": "Show when a kernel computes, copies and waits; write a trace for Perfetto.",
    "stats": "Show what a kernel costs: bundles, cycles, units, spills, memory and traffic.",
    "explain": "Explain errors from a message, a log, a dump or a code.",
    "reproduce": "Write a script that reproduces a dumped kernel's failure.",
    "doctor": "Check what works on this machine; list targets and bundled kernels.",
}
"""Name and summary of each command; its file in this folder has the same name."""

SYNONYMS = {
    "cat": "show",
    "check": "verify",
    "compile": "dump",
    "debug": "step",
    "kernels": "doctor --kernels",
    "profile": "stats",
    "sanitize": "verify",
    "targets": "doctor --targets",
    "test": "verify",
}
"""Commands suggested for names that other tools, or our functions in Python, use for the same."""


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
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _meant(name: str) -> str:
    """Return a hint for an unknown command: a similar one, or how to dump what was named."""
    from pallas_debug.errors import meant

    if name.endswith(".py") or ".py:" in name:
        return f"; to compile its kernels: pallas-debug dump {name}"
    if name in SYNONYMS:
        return f" (did you mean {SYNONYMS[name]!r}?)"
    return meant(name, COMMANDS)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pallas-debug")
def cli() -> None:
    """See, check and understand Pallas TPU kernels, on any machine.

    Start with `pallas-debug doctor --demo`, or `pallas-debug dump SCRIPT.py`.
    """
