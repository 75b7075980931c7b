"""`pallas-debug targets`: the chips that one can compile for."""

from __future__ import annotations

import click

from pallas_debug.cli import output
from pallas_debug.cli.exits import Exit


@click.command("targets")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(as_json: bool) -> int:
    """List the chips that one can compile for.

    A full topology name such as v5e:2x4 is a target too.
    """
    from pallas_debug.compiler import targets
    from pallas_debug.hooks import extra_targets, plugin_manager

    known = targets.known(extra_targets(plugin_manager()))
    if as_json:
        output.print_json(known)
    else:
        output.print_table(
            ["target", "topology", "device kind", ""],
            [[t.name, t.topology or "", t.device_kind or "", t.summary] for t in known],
        )
    return Exit.OK
