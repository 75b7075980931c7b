"""`pallas-debug stats`: a kernel's schedule in numbers."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    from pallas_debug.store import StoredKernel


@dataclass(frozen=True, kw_only=True)
class StatsOptions(shared.FunctionOptions):
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

    named = programs.named_function(options.what)
    assume = parse_counts(options.assume)
    call: _Call | None = None
    if named is None:
        found, code = _of_dump(options, assume)
    else:
        require_jax("`stats` of a function")
        call, code = programs.function_call(named, options), Exit.OK
        with programs.running(options.what):
            found = _of_function(call, options, assume)
    if (options.what_if or options.assume) and not all(one.profile for one in found):
        raise UsageError("--what-if and --assume are about cycles, which a GPU's stats do not have")
    changed = _changed(found, call, options) if options.what_if and found else None
    if options.as_json:
        output.print_json("stats", {"stats": [one.stats for one in found], "what_if": changed})
    elif len(found) == 1:
        _print(found[0], options, changed)
    else:
        columns = ["kernel", "target", "cycles", "mostly", "spills", "hottest line"]
        output.print_table(columns, [one.row for one in found], right=(2, 4))
    output.follow(_next(found), as_json=options.as_json)
    return code


command = shared.make("stats", StatsOptions, run)


@dataclass(frozen=True, kw_only=True)
class _Found:
    """Costs of a kernel.

    Attributes:
      text: returns the text of a line.
      profile: of a kernel for a TPU, whose schedule is known.
      folder: its folder, if it is in a dump.
    """

    name: str
    stats: Stats | GpuStats
    text: Callable[[SourceLine], str | None]
    profile: Profile | None = None
    folder: Path | None = None

    @property
    def row(self) -> list[str]:
        """Cells of the table of several kernels; for a GPU, instructions in place of cycles."""
        from pallas_debug.profile.gpu import GpuStats

        stats = self.stats
        if isinstance(stats, GpuStats):
            total = stats.instructions or 1
            cycles, spills = "", str(stats.spill_stores or 0)
            reasons = [(name, count / total) for name, count in stats.classes.items()]
            lines = [(line.source, line.count / total, "") for line in stats.lines]
        else:
            cycles, spills = str(stats.cycles.total), str(stats.spills)
            reasons = [(one.reason, one.share) for one in stats.bottleneck]
            lines = [(line.source, line.share, line.reason) for line in stats.hottest]
        mostly = [f"{reason} {percent(share)}" for reason, share in reasons[:1]]
        hottest = [f"{line_text(at)} {percent(share)} {why}" for at, share, why in lines[:1]]
        return [self.name, stats.target, cycles, *(mostly or [""]), spills, *(hottest or [""])]


def _profiled(
    profile: Profile,
    assume: Mapping[str, int | str],
    text: Callable[[SourceLine], str | None],
    kernel: StoredKernel | None = None,
) -> _Found:
    """Return what a kernel costs, with assumed counts; `kernel` is None if it is not in a dump."""
    name, folder = (profile.name, None) if kernel is None else (kernel.name, kernel.folder)
    profile = replace(profile, assume=assume)
    return _Found(name=name, stats=profile.stats, text=text, profile=profile, folder=folder)


def _next(found: Sequence[_Found]) -> str | None:
    """Command to run next: the lines of the kernel, or the costliest of several; None of none."""
    profiles = [(one.profile, one.folder) for one in found if one.profile and one.folder]
    if not profiles:
        return None
    most, folder = max(profiles, key=lambda one: one[0].cycles.total.value or 0)
    return followup.after_stats(folder, most.target, is_one=len(profiles) == 1)


def _print(found: _Found, options: StatsOptions, changed: WhatIf | None) -> None:
    from pallas_debug.profile import gpu_text
    from pallas_debug.profile.gpu import GpuStats
    from pallas_debug.profile.text import StatsText

    stats, whole = found.stats, options.whole
    sections: Iterable[tuple[Iterable[str], int]]
    if isinstance(stats, GpuStats):
        sections = [(gpu_text.lines_of(stats, whole=whole, text_of=found.text), 4)]
    else:
        made = StatsText(stats, provenance=options.provenance, text_of=found.text)
        sections = made.sections(changed, whole=whole)
    for lines, indent in sections:
        for line in lines:
            output.echo_wrapped(line, indent)


_Call = tuple[Callable[..., Any], list[Any], dict[str, Any]]
"""A function and its arguments."""


def _of_function(
    call: _Call, options: StatsOptions, assume: Mapping[str, int | str]
) -> list[_Found]:
    from pallas_debug.profiling import gpu_stats_of, profiles_of

    target, kernel = options.target or defaults.TARGET, options.kernel
    if all(map(is_for_gpu, target.split(","))):
        gpus = gpu_stats_of(*call, target=target, kernel=kernel)
        return [_Found(name=stats.kernel, stats=stats, text=_text_now) for stats in gpus]
    estimate = options.whole or options.as_json
    profiles = profiles_of(*call, target=target, kernel=kernel, estimate=estimate)
    return [_profiled(profile, assume, _text_now) for profile in profiles]


def _text_now(line: SourceLine) -> str | None:
    """Return the text of a line, from its file."""
    from pallas_debug.findings.sighting import with_text

    found = with_text(line)
    return found.text if found else None


def _changed(found: Sequence[_Found], call: _Call | None, options: StatsOptions) -> WhatIf:
    """Estimate changes of a kernel; those of the function's parameters by tracing it again."""
    from pallas_debug import inputs
    from pallas_debug.dumping import traced_blocks
    from pallas_debug.profile.whatif import changed_blocks

    if len(found) > 1:
        listed = ", ".join(f"{one_line(one.name)} for {one.stats.target}" for one in found[:20])
        raise UsageError(f"--what-if changes one kernel on one target; there are {listed}")
    profile, changes, parameters = found[0].profile, options.what_if, set[str]()
    assert profile is not None
    if call is not None:
        function, args, kwargs = call
        with contextlib.suppress(ValueError):  # a builtin may have no signature
            parameters = set(inspect.signature(function).parameters)
    own = [text for text in changes if text.partition("=")[0].strip() in parameters]
    if call is None or not own:
        return profile.simulator.what_if(changes)
    _, values = inputs.parse(own, values=False)
    with programs.running(options.what):
        traced = traced_blocks(function, args, {**kwargs, **values}, profile.target)
    blocks = [found for name, found in traced if name == profile.name]
    if len(blocks) != 1:
        raise UsageError(
            f"with {', '.join(own)}, {profile.name} is called {len(blocks)} times, not once"
        )
    others = [text for text in changes if text not in own]
    return profile.simulator.simulated(changed_blocks(blocks[0], others), ", ".join(changes))


def _of_dump(options: StatsOptions, assume: Mapping[str, int | str]) -> tuple[list[_Found], Exit]:
    """Return the costs of the kernels in a dump, and the exit code."""
    from pallas_debug.cli.costs import Costed, costed
    from pallas_debug.store.profiles import read_gpu_stats

    programs.refuse_arguments(options)
    if options.what.endswith(".py") and Path(options.what).is_file():
        raise UsageError(
            f"stats does not run {one_line(options.what)}. Dump its kernels first: "
            f"pallas-debug dump {typed(options.what)}"
        )
    items = costed(where.place_at(options.what, options.kernel, options.target))

    def of(item: Costed) -> _Found:
        kernel = item.kernel
        if not is_for_gpu(item.target):
            return _profiled(item.profile, assume, kernel.line_text, kernel)
        stats = read_gpu_stats(kernel, item.stored)
        return _Found(name=kernel.name, stats=stats, text=kernel.line_text)

    found, _ = output.attempted(items, of)
    is_damaged = any(item.problems for item in items if not is_for_gpu(item.target))
    return found, Exit.CANNOT_RUN if is_damaged or not found else Exit.OK
