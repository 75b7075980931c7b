"""Pages on the commands, their options and exit codes, their JSON, and the keys of `browse`."""

from __future__ import annotations

import inspect
import re
import textwrap

import click

from generator.markdown import docstring, link_to, linked, page, table
from generator.objects import fields_table, reachable


def cli() -> str:
    """Commands and their options, read from click."""
    from pallas_debug.cli.group import COMMANDS
    from pallas_debug.cli.group import cli as group

    context = click.Context(group, info_name="pallas-debug")
    parts = [
        "Data goes to standard output, messages to standard error. Commands that print data "
        "accept `--json`. Tables are tab-separated if the output is not a terminal. "
        "See also the [exit codes](exit-codes.md).",
        table(
            ["command", "what it does"],
            [[f"[`{name}`](#{name})", text] for name, text in COMMANDS.items()],
        ),
    ]
    for name in COMMANDS:
        command = group.get_command(context, name)
        assert command is not None
        parts += _command(name, command, context)
    return page("Commands", "pallas_debug/cli/", parts)


def _command(name: str, command: click.Command, context: click.Context) -> list[str]:
    child = click.Context(command, info_name=name, parent=context)
    usage = " ".join(["pallas-debug", name, *command.collect_usage_pieces(child)])
    parts = [f"## {name}", f"```text\n{usage}\n```", *_click_help(command.help or "")]
    rows = []
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            value = "" if parameter.is_flag else f" {_value(parameter.type)}"
            names = sorted(parameter.opts, key=len)
            default = parameter.default if parameter.show_default else None
            if isinstance(default, list | tuple):
                default = ",".join(map(str, default))
            rows.append(
                [
                    ", ".join(f"`{o}{value if o == names[-1] else ''}`" for o in names),
                    parameter.help or "",
                    "" if default is None else f"`{default}`",
                ]
            )
    return [*parts, table(["option", "meaning", "default"], rows)] if rows else parts


def _click_help(text: str) -> list[str]:
    """Paragraphs; those that click is told to leave alone (`\\b`) become blocks."""
    parts = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if paragraph.startswith("\b\n"):
            parts.append(f"```text\n{textwrap.dedent(paragraph[2:])}\n```")
        else:
            parts.append(linked(" ".join(paragraph.split())))
    return parts


def _value(kind: click.ParamType) -> str:
    if isinstance(kind, click.Choice):
        return "|".join(map(str, kind.choices))
    names = {"integer range": "N", "float range": "NUMBER"}
    return names.get(kind.name, kind.name.upper())


def exit_codes() -> str:
    from generator.outcomes import OUTCOMES
    from pallas_debug.cli.exits import MEANING

    rows = [[f"`{code.value}`", f"`{code.name}`", text] for code, text in MEANING.items()]
    outcomes = [[text, f"`{code.value}`"] for text, code in OUTCOMES.items()]
    return page(
        "Exit codes",
        "pallas_debug/cli/exits.py",
        [
            "Exit codes of `pallas-debug`.",
            table(["code", "name", "meaning"], rows),
            "An outcome has the same code in every command:",
            table(["outcome", "code"], outcomes),
        ],
    )


def pytest_options() -> str:
    from pallas_debug_pytest.options import OPTIONS

    rows = []
    for option in OPTIONS:
        value = f"[={option.metavar}]" if option.const else f"={option.metavar}"
        value = value if option.metavar else ""
        bare = f"`{option.const}`" if option.const else "a value is required"
        rows.append(
            [
                f"`{option.flag}{value}`",
                f"`{option.ini}`",
                f"`{option.environment}`",
                bare,
                option.help,
            ]
        )
    return page(
        "pytest options",
        "pytest_plugin/pallas_debug_pytest/options.py",
        [
            "Each option has three forms. The command line takes precedence over the environment, "
            "and the environment over the ini file. An empty value counts as unset. "
            "See the [guide](../guides/pytest.md) for examples.",
            table(["command line", "ini", "environment", "bare flag", "meaning"], rows),
        ],
    )


def json_output() -> str:
    """Fields of the documents that commands print with `--json`."""
    from generator import documents
    from pallas_debug.cli.output import SCHEMA
    from pallas_debug.store import schema

    parts = [
        "With `--json` a command prints one document on standard output. Its first field, "
        "`schema`, has the name and version of its format, such as `pallas-debug/ls/1`. The "
        "version goes up when a field is removed, renamed, or changes its type or meaning. New "
        "fields may appear at any time: ignore those that you do not know. Every field is "
        "always present, and `null` if it has no value.",
        "[Exit codes](exit-codes.md) are the same as without `--json`.",
        table(
            ["command", "schema", "document"],
            [
                [f"`{name}`", f"`pallas-debug/{name}/{SCHEMA}`", link_to(kind.__name__)]
                for name, kind in documents.DOCUMENTS.items()
            ],
        ),
    ]
    of_dumps = reachable(schema.KINDS)
    for kind in reachable(documents.DOCUMENTS.values()):
        if kind in of_dumps:
            continue
        parts += [f"## {kind.__name__}", *docstring(kind), fields_table(kind)]
    shared = ", ".join(
        f"[{kind.__name__}](dump-format.md#{kind.__name__.lower()})" for kind in of_dumps
    )
    parts += ["## Shared with the dump format", f"{shared}."]
    return page("JSON output", "docs/generator/documents.py", parts)


def keys() -> str:
    """The keys of the terminal UI, from its registry of actions."""
    from pallas_debug.tui.app import registry
    from pallas_debug.tui.keys import HEADINGS, MOVING, display_keys
    from pallas_debug.tui.panes.dialogs import moving_keys

    parts = [
        "Keys of `pallas-debug browse`. `?` shows the same, with those of the focused pane; "
        "`ctrl+p` lists every action by title.",
        f"## {MOVING}",
        "In every list and text, and in the help.",
        table(["keys", "what they do"], [[_keys(keys), what] for keys, what in moving_keys()]),
    ]
    groups: dict[str, list[list[str]]] = {}
    for action in registry().values():
        heading = HEADINGS[action.group]
        row = [_keys(display_keys(action.keys)), action.title]
        groups.setdefault(heading, []).append(row)
    for heading, rows in groups.items():
        parts += [f"## {heading}", table(["keys", "what they do"], rows)]
    return page("Keys", "pallas_debug/tui/commands/", parts)


def _keys(text: str) -> str:
    return " ".join(f"`{key}`" for key in text.split()) or "palette"
