"""Help: commands by question, and options that fit a screen."""

from __future__ import annotations

import re
from typing import Any

import click
import pytest

from pallas_debug.cli.group import COMMANDS, GROUPS, cli

MAX_OPTIONS = 10


def rows(text: str) -> set[str]:
    """Long names of the options that a help text lists."""
    listed = text.rpartition("\nOptions:\n")[2]
    return set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", listed, re.MULTILINE))


def test_commands_are_listed_by_the_question_that_they_answer(commands: Any) -> None:
    asked, helped, none = commands(["--help"], ["help"], [])
    assert asked.stdout == helped.stdout == none.stderr
    assert (asked.returncode, helped.returncode, none.returncode, none.stdout) == (0, 0, 2, "")
    listed = [line.split()[0] for line in asked.stdout.splitlines() if line.startswith("  ")]
    assert listed[-len(COMMANDS) :] == [name for name in listed if name in COMMANDS]
    for question, names in GROUPS.items():
        section = asked.stdout.partition(f"\n{question}\n")[2].split("\n\n")[0].splitlines()
        assert [line.split() for line in section] == [
            [name, *summary.split()] for name, summary in names.items()
        ]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_commands_help_lists_few_options_and_help_all_every_one(name: str) -> None:
    context = click.Context(cli, info_name="pallas-debug")
    command = cli.get_command(context, name)
    assert command is not None
    of_command = click.Context(command, info_name=name, parent=context)
    shown = rows(command.get_help(of_command))
    every = {o.opts[-1] for o in command.params if isinstance(o, click.Option)}
    assert len(shown) <= MAX_OPTIONS
    assert shown - {"--help"} <= every
    if "--help-all" in shown:
        rare = every - shown
        assert rare
        whole = run(command, of_command)
        assert rows(whole) == every - {"--help-all"} | {"--help"}
        assert f"Show {len(rare)} more options" in command.get_help(of_command)
    else:
        assert shown - {"--help"} == every


def run(command: click.Command, context: click.Context) -> str:
    import io
    from contextlib import redirect_stdout

    with redirect_stdout(io.StringIO()) as output, pytest.raises(click.exceptions.Exit):
        command.make_context(context.info_name, ["--help-all"], parent=context.parent)
    return output.getvalue()


def test_help_of_a_command_is_its_help(commands: Any) -> None:
    of_ls, ls, unknown = commands(["help", "ls"], ["ls", "--help"], ["help", "lss"])
    assert (of_ls.returncode, of_ls.stdout) == (0, ls.stdout)
    assert unknown.returncode == 2
    assert "no such command: lss (did you mean 'ls'?)" in unknown.stderr
