"""`pallas-debug help`: the help of a command, or of all."""

from __future__ import annotations

import click


@click.command("help")
@click.argument("name", metavar="[COMMAND]", required=False)
@click.pass_context
def command(context: click.Context, name: str | None) -> None:
    """Show what COMMAND does, and its options; without one, all commands."""
    parent = context.parent
    assert parent is not None
    if name is None:
        click.echo(parent.get_help())
        return
    assert isinstance(parent.command, click.Group)
    _, found, _ = parent.command.resolve_command(parent, [name])
    assert found is not None
    with found.make_context(name, ["--help"], parent=parent):
        pass
