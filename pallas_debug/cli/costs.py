"""`source --cost`: Python source annotated with what each line costs in the final schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pallas_debug.cli import output
from pallas_debug.cli.exits import Exit
from pallas_debug.errors import CannotRunError, DumpFormatError, UsageError
from pallas_debug.findings.facts import line_text
from pallas_debug.render import missing_lines, one_line, plural, typed

if TYPE_CHECKING:
    from pallas_debug.cli.source import SourceOptions
    from pallas_debug.profile.lines import LineCost
    from pallas_debug.profile.stats import Profile
    from pallas_debug.store import StoredCompilation, StoredKernel
    from pallas_debug.store.profiles import StoredProfile

SHOWN = 10
"""Maximum number of bundles printed for one line without `--all`."""

_BLANK = " " * 34

MIN_REST = 0.01
"""Minimum share of the cycles without a line that is reported."""


def run(
    kernel: StoredKernel, target: str | None, options: SourceOptions, *, source: list[str]
) -> int:
    """Print the cost of each line, or of a single line."""
    if options.stage is not None:
        raise UsageError("--cost describes the final schedule: omit --pass")
    stored = kernel.target(target)
    read = schedule_of(kernel, stored)
    profile = read.profile
    check_bundles(read, kernel.name, stored.target)
    code = Exit.CANNOT_RUN if read.problems else Exit.OK
    if options.line is not None:
        _one_line(profile, stored, options, name=kernel.name, source=source)
        return code
    costs = profile.lines
    if profile.schedule.is_sparse:
        raise CannotRunError(
            f"the lines of {one_line(kernel.name)} for {one_line(stored.target)} have no known "
            "cost; see above"
        )
    if not costs:
        raise UsageError(
            f"the schedule of {one_line(kernel.name)} for {one_line(stored.target)} names no "
            "Python line: it was dumped without locations"
        )
    own = _own_file(profile, costs)
    if options.as_json:
        fields = {"kernel": kernel.name, "target": stored.target, "stage": "bundles", "file": own}
        nothing: dict[str, Any] = {"lines": [], "texts": []}
        output.print_json("source", fields | nothing | {"costs": costs, "bundles": []})
        return code
    _print(profile, stored, costs, own, source, whole=options.whole)
    return code


def schedule_of(kernel: StoredKernel, stored: StoredCompilation) -> StoredProfile:
    """Read the schedule of a compilation, and report damaged parts.

    Raises:
      CannotRunError: the kernel was dumped without a schedule, or did not compile.
      DumpFormatError: the compilation cannot be read.
    """
    from pallas_debug.store.profiles import read_profile

    if stored.problem:
        raise DumpFormatError(stored.problem)
    read = read_profile(kernel, stored)
    check_compiled(read, kernel, stored)
    if read is None:
        reasons = missing_lines(stored.compilation) if stored.compilation else ()
        raise CannotRunError(
            f"{one_line(kernel.name)} has no schedule for {one_line(stored.target)}: "
            f"{'; '.join(reasons) or 'it was dumped without'}"
        )
    for problem in (*read.problems, *read.profile.schedule.problems):
        output.message(problem)
    return read


def check_compiled(
    read: StoredProfile | None, kernel: StoredKernel, stored: StoredCompilation
) -> None:
    """Refuse a compilation that failed before it had a schedule.

    Raises:
      CannotRunError: the compilation failed.
    """
    made = stored.compilation
    if (
        made is None
        or made.ok
        or (read is not None and (read.problems or read.profile.texts.bundles))
    ):
        return
    target = one_line(stored.target)
    raise CannotRunError(
        f"{one_line(kernel.name)} did not compile for {target}, so there is no schedule. For the "
        f"error: pallas-debug show {typed(str(kernel.folder))} error -t {target}"
    )


def check_bundles(read: StoredProfile, name: str, target: str) -> None:
    """Refuse a schedule whose bundles are damaged, after printing the damage.

    Raises:
      CannotRunError: bundles are damaged.
    """
    if read.problems and read.profile.texts.bundles is None:
        raise CannotRunError(
            f"the bundles of {one_line(name)} for {one_line(target)} cannot be read; see above"
        )


def _own_file(profile: Profile, costs: Sequence[LineCost]) -> str:
    if profile.kernel is not None and profile.kernel.source is not None:
        return profile.kernel.source.file
    return costs[0].source.file


def _print(
    profile: Profile,
    stored: StoredCompilation,
    costs: Sequence[LineCost],
    own: str,
    source: list[str],
    *,
    whole: bool,
) -> None:
    from pallas_debug.profile.lines import of_file

    total = plural(len(profile.schedule.bundles), "bundle")
    waiting = profile.cycles.waiting
    waits = f", of which {waiting} wait for copies" if waiting.value else ""
    output.echo(
        f"{stored.target}: {total}, {profile.cycles.total} cycles{waits}; "
        "share of each line in the cycles"
    )
    output.echo("  share     own bundles spill  fill copy line")
    here = of_file(costs, own)
    lines = [line for line in here if 0 < line <= len(source)]
    if lines:
        output.echo(own)
        first, last = (1, len(source)) if whole else (min(lines), max(lines))
        for number in range(first, last + 1):
            cost = here.get(number)
            shown = _cells(cost) if cost else _BLANK
            text = f"{shown} {number:5} {source[number - 1]}".rstrip()
            _echo(text, _units(cost) if cost else "")
    others = [cost for cost in costs if cost.source.file != own or cost.source.line not in lines]
    if others:
        output.echo("elsewhere" if lines else "the dump keeps no source of")
        for cost in others:
            place = line_text(cost.source)
            _echo(f"{_cells(cost)} {place} {cost.source.function or ''}".rstrip(), _units(cost))
    derived = sum(t.origin == "derived" for row in profile.tracing.traces for t in row if t.chain)
    if derived:
        output.echo_wrapped(
            f"{plural(derived, 'instruction')} without a location counted for the line that uses "
            "the result or produced the operands",
            4,
        )
    rest = 1 - sum(cost.own_share for cost in costs)
    if rest >= MIN_REST:
        output.echo_wrapped(
            f"{rest:.1%} of the cycles belong to no line: those of the pipeline around the kernel, "
            "and those without a location",
            4,
        )
    for assumption in profile.cycles.assumptions:
        output.echo_wrapped(f"assumed: {assumption}", 4)


def _echo(text: str, units: str) -> None:
    """Print a line with its units, below it if the terminal is too narrow."""
    width = output.terminal_width()
    if not width or len(text) + len(units) <= width:
        output.echo(text + units)
        return
    output.echo(text)
    if units:
        column = len(_BLANK) + 7
        output.echo_wrapped(" " * column + units.lstrip(), column + 2)


def _cells(cost: LineCost) -> str:
    own = f"{cost.own_share:.1%}" if cost.own_share else "-"
    counts = (cost.spills, cost.fills)
    spilled = " ".join(f"{count:5,}" if count else f"{'-':>5}" for count in counts)
    copies = f"{cost.copies:4,}" if cost.copies else "   -"
    return f"{cost.share:7.1%} {own:>7} {cost.bundles:7,} {spilled} {copies}"


def _units(cost: LineCost) -> str:
    """Units that a line uses, calls included, as a trailing comment."""
    if not cost.own_share or not cost.units:
        return ""
    return "  # " + ", ".join(f"{name} {count:,}" for name, count in cost.units.items())


def _one_line(
    profile: Profile,
    stored: StoredCompilation,
    options: SourceOptions,
    *,
    name: str,
    source: list[str],
) -> None:
    from pallas_debug.cli.source import is_file, parsed
    from pallas_debug.profile.lines import bundles_of

    file, number = parsed(str(options.line))
    own = _own_file(profile, profile.lines) if profile.lines else ""
    costs = [
        cost
        for cost in profile.lines
        if cost.source.line == number and is_file(cost.source.file, file, own)
    ]
    if not costs:
        near = sorted(c.source.line for c in profile.lines if is_file(c.source.file, file, own))
        listed = ", ".join(map(str, near[:40])) + (", …" if len(near) > 40 else "")
        raise UsageError(
            f"no bundle comes from line {options.line}; "
            f"{f'there are some from {listed}' if listed else 'the schedule names other files'}"
        )
    rows = [at for c in costs for at in bundles_of(profile.tracing, c.source.file, number)]
    if options.as_json:
        fields: dict[str, Any] = {"kernel": name, "target": stored.target, "stage": "bundles"}
        fields |= {"file": own, "lines": [], "texts": [], "costs": costs}
        found = [_as_json(profile, at, costs) for at in rows]
        output.print_json("source", fields | {"bundles": found})
        return
    if (file is None or is_file(own, file, None)) and 0 < number <= len(source):
        output.echo(source[number - 1].strip())
    for cost in costs:
        _echo(f"{_cells(cost)} {cost.source}", _units(cost))
    shown = rows if options.whole else rows[:SHOWN]
    for at in shown:
        for text in _as_json(profile, at, costs)["instructions"]:
            output.echo(f"  {profile.schedule.bundles[at].number:#7x}  {text}")
    if len(shown) < len(rows):
        output.echo(f"           … {len(rows) - len(shown)} more bundles with --all")


def _as_json(profile: Profile, at: int, costs: Sequence[LineCost]) -> dict[str, Any]:
    bundle = profile.schedule.bundles[at]
    places = {cost.source.place for cost in costs}
    texts = [
        instruction.text
        for instruction, trace in zip(bundle.instructions, profile.tracing.traces[at], strict=True)
        if any(line.place in places for line in trace.chain)
    ]
    executions = profile.cycles.executions
    return {
        "bundle": bundle.number,
        "executed": executions[at] if executions else None,
        "instructions": texts,
    }
