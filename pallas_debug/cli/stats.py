"""`pallas-debug stats`: a kernel's schedule in numbers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pallas_debug import defaults, followup
from pallas_debug.cli import options as shared
from pallas_debug.cli import output, programs, where
from pallas_debug.cli.exits import Exit
from pallas_debug.errors import UsageError
from pallas_debug.findings.facts import line_text
from pallas_debug.installed import require_jax
from pallas_debug.quantities import percent
from pallas_debug.render import one_line, typed
from pallas_debug.store.profiles import is_for_gpu

if TYPE_CHECKING:
    from pallas_debug.model import SourceLine
    from pallas_debug.profile.gpu import GpuStats
    from pallas_debug.profile.stats import Profile, Stats
    from pallas_debug.profile.whatif import WhatIf


@dataclass(frozen=True, kw_only=True)
class StatsOptions(shared.CallOptions):
    kernel: str | None = shared.option("-k", "--kernel", help="The kernel, if there are several.")
    target: str | None = shared.option(
        "-t",
        "--target",
        help=f"The target, if there are several; {defaults.TARGET} for a function.",
    )
    whole: bool = shared.option(
        "-v",
        "--all",
        help="Print everything: units, loops, copies, memory, all lines, and libtpu's own "
        "estimate.",
    )
    provenance: bool = shared.option(
        "--provenance",
        help="Mark each figure: c if libtpu stated it, d if it is derived from what libtpu wrote, "
        "a if it rests on an assumption.",
        hidden=True,
    )
    assume: tuple[str, ...] = shared.option(
        "--assume",
        metavar="NAME=COUNT",
        help="The value of a count that is known only at run time: n1=12 iterations of a loop, or "
        "'grid[0]=64' of a dynamic grid. Repeatable.",
        hidden=True,
    )
    what_if: tuple[str, ...] = shared.option(
        "--what-if",
        metavar="CHANGE",
        help="Estimate the cycles with a change, without compiling it: 'k_ref[2]=512' (a block), "
        "order=1,0,2 (the grid), k_ref=resident, k_ref.bits=16, k_ref.buffers=3, without=spill, "
        "overlap=0x10:4 (a loop); of a function also a parameter: block_k=512. Repeatable.",
    )
    as_json: bool = shared.as_json()
    what: str = shared.argument(default=defaults.DIRECTORY)


def run(options: StatsOptions) -> int:
    """Show what a kernel costs: its cycles, what they are spent on, and what would save some.

    \b
    pallas-debug stats                        the kernels of dumps/, a line each
    pallas-debug stats flash -t v5e
    pallas-debug stats package.module:function --arg 'bf16[1,2,512,128]' -t v6e

    WHAT is a dump directory, a kernel in one, or a function, which is compiled without being run.
    Several kernels or targets have a line each.
    """
    from pallas_debug.profile.counts import parse_counts

    named = None if options.module else programs.named_function(options.what)
    assume = parse_counts(options.assume)
    gpus: list[_Counted] = []
    if named is None:
        found, gpus, code = _of_dump(options)
        changed = None
        if options.what_if:
            changed = replace(found[0].profile, assume=assume).simulator.what_if(options.what_if)
    elif all(is_for_gpu(name) for name in (options.target or defaults.TARGET).split(",")):
        found, gpus, changed, code = [], _of_function_for_gpu(named, options), None, Exit.OK
    else:
        found, changed = _of_function(named, options, assume)
        code = Exit.OK
    stats = [replace(one.profile, assume=assume).stats for one in found]
    if options.as_json:
        every = [*stats, *(one.stats for one in gpus)]
        output.print_json("stats", {"stats": every, "what_if": changed})
    elif len(found) == 1 and not gpus:
        _print(stats[0], found[0].text, options, changed)
    elif len(gpus) == 1 and not found:
        _print_gpu(gpus[0], options)
    else:
        rows = [_row(one.name, of) for one, of in zip(found, stats, strict=True)]
        rows += map(_row_of_gpu, gpus)
        columns = ["kernel", "target", "cycles", "mostly", "spills", "hottest line"]
        output.print_table(columns, rows, right=(2, 4))
    if found:
        output.follow(_next(found), as_json=options.as_json)
    return code


command = shared.make("stats", StatsOptions, run)


@dataclass(frozen=True, kw_only=True)
class _Counted:
    """Statistics of a kernel for a GPU, and the texts of its lines."""

    stats: GpuStats
    text: Callable[[SourceLine], str | None]


@dataclass(frozen=True, kw_only=True)
class _Profiled:
    """A kernel's name, profile, the texts of its lines, and its folder if it is in a dump."""

    name: str
    profile: Profile
    text: Callable[[SourceLine], str | None]
    folder: Path | None = None


def _next(found: Sequence[_Profiled]) -> str | None:
    """Command to run next: the lines of the kernel, or the costliest of several; None of none."""
    most = max(found, key=lambda one: one.profile.cycles.total.value or 0)
    if most.folder is None:
        return None
    return followup.after_stats(most.folder, most.profile.target, is_one=len(found) == 1)


def _print(
    stats: Stats,
    text: Callable[[SourceLine], str | None],
    options: StatsOptions,
    changed: WhatIf | None,
) -> None:
    from pallas_debug.profile.text import StatsText

    made = StatsText(stats, provenance=options.provenance, text_of=text)
    for lines, indent in made.sections(changed, whole=options.whole):
        for line in lines:
            output.echo_wrapped(line, indent)


def _row(name: str, stats: Stats) -> list[str]:
    """Return the row of a kernel among several."""
    most, line = next(iter(stats.bottleneck), None), next(iter(stats.hottest), None)
    return [
        name,
        stats.target,
        str(stats.cycles.total),
        f"{most.reason} {percent(most.share)}" if most else "",
        str(stats.spills),
        f"{line_text(line.source)} {percent(line.share)} {line.reason}" if line else "",
    ]


def _print_gpu(counted: _Counted, options: StatsOptions) -> None:
    from pallas_debug.profile import gpu_text

    lines = gpu_text.lines_of(counted.stats, whole=options.whole, text_of=counted.text)
    for line in lines:
        output.echo_wrapped(line, 4)


def _row_of_gpu(counted: _Counted) -> list[str]:
    """Return the row of a kernel for a GPU, which has instructions in place of cycles."""
    stats = counted.stats
    most, line = next(iter(stats.classes.items()), None), next(iter(stats.lines), None)
    total = stats.instructions or 1
    return [
        stats.kernel,
        stats.target,
        "",
        f"{most[0]} {percent(most[1] / total)}" if most else "",
        str(stats.spill_stores or 0),
        f"{line_text(line.source)} {percent(line.count / total)}" if line else "",
    ]


def _of_function_for_gpu(named: tuple[str, str], options: StatsOptions) -> list[_Counted]:
    require_jax("`stats` of a function")
    from pallas_debug.profiling import gpu_stats_of

    if options.what_if or options.assume:
        raise UsageError("--what-if and --assume are about cycles, which a GPU's stats do not have")
    function, positional, keyword = programs.function_call(named, options)
    with programs.running(options.what):
        found = gpu_stats_of(
            function, positional, keyword, target=options.target, kernel=options.kernel
        )
    return [_Counted(stats=stats, text=_text_now) for stats in found]


def _text_now(line: SourceLine) -> str | None:
    """Return the text of a line, from its file."""
    from pallas_debug.findings.sighting import with_text

    found = with_text(line)
    return found.text if found else None


def _of_function(
    named: tuple[str, str], options: StatsOptions, assume: Mapping[str, int | str]
) -> tuple[list[_Profiled], WhatIf | None]:
    require_jax("`stats` of a function")
    from pallas_debug.profiling import profiles_of

    function, positional, keyword = programs.function_call(named, options)
    target = options.target or defaults.TARGET
    estimate = options.whole or options.as_json
    with programs.running(options.what):
        found = profiles_of(
            function, positional, keyword, target=target, kernel=options.kernel, estimate=estimate
        )
        profiled = [_Profiled(name=one.name, profile=one, text=_text_now) for one in found]
        if not options.what_if:
            return profiled, None
        _require_one(profiled)
        profile = replace(found[0], assume=assume)
        return profiled, _changed(profile, function, positional, keyword, options.what_if)


def _require_one(found: Sequence[_Profiled]) -> None:
    """Reject changes of several kernels."""
    if len(found) > 1:
        listed = ", ".join(f"{one_line(one.name)} for {one.profile.target}" for one in found[:20])
        raise UsageError(f"--what-if changes one kernel on one target; there are {listed}")


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


def _of_dump(options: StatsOptions) -> tuple[list[_Profiled], list[_Counted], Exit]:
    """Return the kernels with a schedule, those for GPUs, and the exit code."""
    from pallas_debug.cli.costs import Costed, costed
    from pallas_debug.store.profiles import read_gpu_stats

    programs.refuse_arguments(options)
    is_script = options.what.endswith(".py") and Path(options.what).is_file()
    if options.module or options.rest or is_script:
        raise UsageError(
            f"stats does not run {one_line(options.what)}. Dump its kernels first: "
            f"pallas-debug dump {'-m ' if options.module else ''}"
            f"{typed(options.what)}"
        )
    items = costed(where.place_at(options.what, options.kernel, options.target))

    def profiled(item: Costed) -> _Profiled:
        kernel = item.kernel
        return _Profiled(
            name=kernel.name, profile=item.profile, text=kernel.line_text, folder=kernel.folder
        )

    def counted(item: Costed) -> _Counted:
        stats = read_gpu_stats(item.kernel, item.stored)
        return _Counted(stats=stats, text=item.kernel.line_text)

    gpus, _ = output.attempted([item for item in items if is_for_gpu(item.target)], counted)
    scheduled = [item for item in items if not is_for_gpu(item.target)]
    found, _ = output.attempted(scheduled, profiled)
    code = Exit.CANNOT_RUN if any(item.problems for item in scheduled) else Exit.OK
    if not found and not gpus:
        return [], [], Exit.CANNOT_RUN
    if options.what_if:
        _require_one(found)
    return found, gpus, code
