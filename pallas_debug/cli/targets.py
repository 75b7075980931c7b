"""`pallas-debug targets`: the chips that kernels can be compiled for."""

from __future__ import annotations

from dataclasses import dataclass

from pallas_debug.cli import options as shared
from pallas_debug.cli import output
from pallas_debug.cli.exits import Exit


@dataclass(frozen=True, kw_only=True)
class TargetsOptions:
    as_json: bool


@shared.as_json
def run(options: TargetsOptions) -> int:
    """List the chips that kernels can be compiled for.

    A full topology name such as v5e:2x4 is a target too.
    """
    from pallas_debug.compiler import targets
    from pallas_debug.hooks import extra_targets, plugin_manager

    known = targets.known(extra_targets(plugin_manager()))
    if options.as_json:
        output.print_json("targets", {"targets": known})
    else:
        output.print_table(
            ["target", "topology", "device kind", ""],
            [[t.name, t.topology or "", t.device_kind or "", t.summary] for t in known],
        )
    return Exit.OK


command = shared.make("targets", TargetsOptions, run)
