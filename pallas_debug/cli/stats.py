"""`pallas-debug stats`: a kernel's schedule in numbers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pallas_debug import defaults
from pallas_debug.cli import options as shared
from pallas_debug.cli import output, programs, where
from pallas_debug.cli.exits import Exit
from pallas_debug.errors import UsageError
from pallas_debug.installed import require_jax
from pallas_debug.render import one_line, typed

if TYPE_CHECKING:
    from pallas_debug.profile.stats import Profile
    from pallas_debug.profile.whatif import WhatIf
    from pallas_debug.store.profiles import StoredProfile


@dataclass(frozen=True, kw_only=True)
class StatsOptions(shared.CallOptions):
    kernel: str | None
    target: str | None
    whole: bool
    assume: tuple[str, ...]
    what_if: tuple[str, ...]
    as_json: bool


@shared.kernel
@click.option(
    "-t",
    "--target",
    help=f"The target, if there are several; {defaults.TARGET} for a function.",
)
@shared.args
@shared.inputs
@shared.spec
@shared.module
@click.option("--all", "whole", is_flag=True, help="Print all lines of source.")
@click.option(
    "--assume",
    multiple=True,
    metavar="NAME=COUNT",
    help="The value of a count that is known only at run time: n1=12 iterations of a loop, or "
    "'grid[0]=64' of a dynamic grid. Repeatable.",
    hidden=True,
)
@click.option(
    "--what-if",
    multiple=True,
    metavar="CHANGE",
    help="Estimate the cycles with a change, without compiling it: 'k_ref[2]=512' (a block), "
    "order=1,0,2 (the grid), k_ref=resident, k_ref.bits=16, k_ref.buffers=3, without=spill, "
    "overlap=0x10:4 (a loop); of a function also a parameter: block_k=512. Repeatable.",
)
@shared.as_json
@shared.what
def run(options: StatsOptions) -> int:
    """Show what a kernel costs: bundles, cycles, units, spills, memory and traffic.

    \b
    pallas-debug dump SCRIPT.py
    pallas-debug stats dumps/flash -t v5e
    pallas-debug stats package.module:function --arg 'bf16[1,2,512,128]' -t v6e

    WHAT is a dump directory, a kernel in one, or a function, which is compiled without being run. A
    number is marked `c` if libtpu stated it, `d` if it is derived from libtpu's output, and `a` if
    it rests on an assumption; `-` means that it is not available.
    """
    from pallas_debug.profile.counts import parse_counts
    from pallas_debug.profile.text import change_text, sections

    named = None if options.module else programs.named_function(options.what)
    assume, code = parse_counts(options.assume), Exit.OK
    if named is None:
        read = _of_dump(options)
        profile = replace(read.profile, assume=assume) if assume else read.profile
        code = Exit.CANNOT_RUN if read.problems else Exit.OK
        changed = profile.simulator.what_if(options.what_if) if options.what_if else None
    else:
        profile, changed = _of_function(named, options, assume)
    stats = profile.stats
    if options.as_json:
        output.print_json("stats", {"stats": stats, "what_if": changed})
        return code
    if changed is not None:
        output.echo_wrapped(change_text(changed), 4)
    for lines, indent in sections(stats, whole=options.whole):
        for line in lines:
            output.echo_wrapped(line, indent)
    return code


command = shared.make("stats", StatsOptions, run)


def _of_function(
    named: tuple[str, str], options: StatsOptions, assume: Mapping[str, int | str]
) -> tuple[Profile, WhatIf | None]:
    require_jax("`stats` of a function")
    from pallas_debug.profiling import profile_of

    function, positional, keyword = programs.function_call(named, options)
    target = options.target or defaults.TARGET
    with programs.running(options.what, function):
        found = profile_of(function, positional, keyword, target=target, kernel=options.kernel)
        profile = replace(found, assume=assume)
        if not options.what_if:
            return profile, None
        return profile, _changed(profile, function, positional, keyword, options.what_if)


def _changed(
    profile: Profile,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    changes: Sequence[str],
) -> WhatIf:
    """Estimate changes of a kernel; those of the function's parameters by tracing it again."""
    from pallas_debug import inputs
    from pallas_debug.dumping import traced_blocks
    from pallas_debug.profile.whatif import changed_blocks

    try:
        parameters = set(inspect.signature(function).parameters)
    except ValueError:  # a builtin may have none
        parameters = set()
    own = [text for text in changes if text.partition("=")[0].strip() in parameters]
    if not own:
        return profile.simulator.what_if(changes)
    _, values = inputs.parse(own, values=False)
    traced = traced_blocks(function, args, {**kwargs, **values}, profile.target)
    blocks = [found for name, found in traced if name == profile.name]
    if len(blocks) != 1:
        raise UsageError(
            f"with {', '.join(own)}, {profile.name} is called {len(blocks)} times, not once"
        )
    others = [text for text in changes if text not in own]
    return profile.simulator.simulated(changed_blocks(blocks[0], others), ", ".join(changes))


def _of_dump(options: StatsOptions) -> StoredProfile:
    from pallas_debug.cli.costs import schedule_of

    programs.refuse_arguments(options)
    is_script = options.what.endswith(".py") and Path(options.what).is_file()
    if options.module or options.rest or is_script:
        raise UsageError(
            f"stats does not run {one_line(options.what)}. Dump its kernels first: "
            f"pallas-debug dump {'-m ' if options.module else ''}"
            f"{typed(options.what)}"
        )
    found, of_path = where.kernel_at(where.local(options.what), options.kernel)
    return schedule_of(found, found.target(options.target or of_path))
