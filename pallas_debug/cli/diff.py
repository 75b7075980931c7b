"""`pallas-debug diff`: changes made by a pass, or between targets, kernels and dumps."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pallas_debug.cli import options as shared
from pallas_debug.cli import output, where
from pallas_debug.cli.costs import Costed
from pallas_debug.cli.exits import Exit
from pallas_debug.errors import PallasDebugError, UsageError, meant
from pallas_debug.render import one_line, plural
from pallas_debug.store import texts
from pallas_debug.store.files import is_there

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pallas_debug.ir.diff import Diff
    from pallas_debug.ir.operations import Noise
    from pallas_debug.store import StoredCompilation, StoredKernel, StoredText


@dataclass(frozen=True, kw_only=True)
class DiffOptions(shared.StoredOptions):
    stages: tuple[str, ...] = shared.argument(metavar="[OTHER] [STAGE [STAGE]]", nargs=-1)
    ignore: str | None = shared.option(
        "-i", "--ignore", help="Differences to ignore, comma-separated: ssa, loc, attrs; or all."
    )
    summary: bool = shared.option("-s", "--summary", help="Print only counts of operations.")
    stats: bool = shared.option(
        "--stats", help="Compare costs instead of texts: cycles, bundles, spills, bytes, lines."
    )
    as_json: bool = shared.as_json()


def run(options: DiffOptions) -> int:
    """Show what a pass changed, or what differs between two stages, targets or dumps.

    \b
    pallas-debug diff flash             the last pass that changed something
    pallas-debug diff flash 13          pass 13 against the one before
    pallas-debug diff flash mosaic 13   any two stages
    pallas-debug diff flash v6e 13 -t v5e
    pallas-debug diff old/flash new/flash 13
    pallas-debug diff old/ new/         which kernels differ, a line each
    pallas-debug diff --stats old/ new/
    pallas-debug diff --stats flash v6e -t v5e

    STAGE is any stage or pass that `show` accepts. WHERE and OTHER are a kernel's folder or name,
    or a dump directory (ours or raw); OTHER may also be a target. Lines of WHERE, or of the earlier
    stage, start with `-`.

    With `--ignore ssa`, renumbered values do not count as changes, but other operands do. The exit
    code does not depend on whether there are differences.
    """
    stages = list(options.stages)
    place = where.place_at(options.where, options.kernel, options.target)
    is_other = bool(stages) and (_is_place(stages[0]) or stages[0] in _targets(place.kernels()))
    against = stages.pop(0) if is_other else None
    if options.stats and (against is None or stages):
        raise UsageError(
            "diff --stats takes two places, such as `diff --stats old/ new/`, or a kernel and "
            "another target, such as `diff --stats flash v6e -t v5e`; and no stage"
        )
    if len(stages) > 2:
        raise UsageError(f"diff takes two stages at most, not {len(stages)}: {' '.join(stages)}")
    if against is None:
        kernel = place.only()
        code = _show([_of_one(kernel, place.target, stages)], [], options)
        output.follow(place.look([kernel], "stats"), as_json=options.as_json)
        return code
    pairs, alone = _pairs(place, against, options)
    if not pairs:
        raise UsageError(f"no kernel of {one_line(place.root)} has a counterpart to compare with")
    kernels = [kernel for (kernel, _), _ in pairs]
    if options.stats:
        from pallas_debug.cli import diff_stats

        paired = [(Costed(*_compiled(a)), Costed(*_compiled(b))) for a, b in pairs]
        others = [Costed(*_compiled(side)) for side in alone if side[1] is not None]
        code = diff_stats.compare(paired, others, as_json=options.as_json)
        output.follow(place.look(kernels, "stats"), as_json=options.as_json)
        return code
    found: dict[tuple[str, str], tuple[StoredText, StoredText]] = {}
    for a, b in pairs:  # stages before the compiler's are the same for all targets
        try:
            old = _named(*a, stages[0] if stages else None)
            new = _counterpart(*b, stages[1] if len(stages) > 1 else old.stage)
        except PallasDebugError as error:
            if len(pairs) == 1:
                raise
            output.message(str(error))
        else:
            found[old.label, new.label] = old, new
    code = _show(list(found.values()), alone, options)
    output.follow(place.look(kernels, "diff", "--stats", other=against), as_json=options.as_json)
    return code


command = shared.make("diff", DiffOptions, run)


_Side = tuple["StoredKernel", str | None]
"""A kernel, and the target that it was compiled for."""


def _is_place(text: str) -> bool:
    return "/" in text or Path(text).is_dir()


def _targets(kernels: Iterable[StoredKernel]) -> set[str]:
    return {name for k in kernels for c in k.compilations for name in (c.target, c.folder.name)}


def _compiled(side: _Side) -> tuple[StoredKernel, StoredCompilation]:
    kernel, target = side
    return kernel, kernel.target(target)


def _pairs(
    place: where.Place, against: str, options: DiffOptions
) -> tuple[list[tuple[_Side, _Side]], list[_Side]]:
    """Pair the kernels at a place with those of a target or at another place.

    Kernels are paired by folder first, then by name; the only ones on both sides in any case.

    Returns:
      The pairs, and the kernels without a counterpart.
    """
    old = place.chosen()
    targets = _targets(kernel for kernel, _ in old)
    if against in targets:
        other = replace(place, target=against).chosen()
        old = [side for side in old if side[1] != other[0][1]] or old
    else:
        other = where.place_at(against, options.kernel, options.target).chosen()
    is_same = against in targets or all(
        len({target for _, target in sides}) == 1 for sides in (old, other)
    )
    are_alone = len({k.name for k, _ in old}) == len({k.name for k, _ in other}) == 1
    pairs, left = list[tuple[_Side, _Side]](), list(other)
    for a in old:
        alike = [b for b in left if is_same or a[1] == b[1]]
        exact = [b for b in alike if b[0].name == a[0].name]
        named = [b for b in alike if b[0].own_name == a[0].own_name]
        found = exact or named or (alike if are_alone else [])
        if found:
            pairs.append((a, found[0]))
            left.remove(found[0])
    paired = {id(a) for a, _ in pairs}
    return pairs, [*(a for a in old if id(a) not in paired), *left]


def _show(
    pairs: Sequence[tuple[StoredText, StoredText]], alone: Sequence[_Side], options: DiffOptions
) -> int:
    """Print a diff, or a line for each of several and the diff of the only one that differs."""
    from pallas_debug.ir import diff as engine

    ignored = noise(options.ignore)
    diffs = [
        (old, new, engine.diff(old.lines, new.lines, ignore=ignored, kind=new.module().kind))
        for old, new in pairs
    ]
    if options.as_json:
        output.print_json("diff", {"diffs": [_as_json(*one, options) for one in diffs]})
        return Exit.OK
    if len(diffs) > 1:
        for _, new, different in diffs:
            lines = f"-{different.removed:,} +{different.added:,} lines"
            output.echo(f"{new.label}: {lines if different.changed else 'no difference'}")
    for kernel, target in alone:
        output.message(f"{one_line(kernel.folder / (target or ''))} has no counterpart")
    changed = [one for one in diffs if one[2].changed]
    if len(diffs) > 1 and len(changed) != 1:
        return Exit.OK
    for old, new, different in changed or diffs:
        if options.summary:
            _print_summary(old, new, different)
        elif different.changed:
            _print_unified(different, old, new)
        if not different.changed:
            but = f", but for {', '.join(ignored)}" if ignored else ""
            output.message(f"no difference between {old.label} and {new.label}{but}")
    return Exit.OK


def noise(text: str | None) -> tuple[Noise, ...]:
    """Return the kinds of noise that `--ignore` names."""
    from pallas_debug.ir.operations import NOISE

    if not text:
        return ()
    wanted = [word.strip() for word in text.split(",")]
    for word in wanted:
        if word not in (*NOISE, "all"):
            hint = meant(word, [*NOISE, "all"])
            raise UsageError(f"--ignore {word!r}{hint} is not one of {', '.join(NOISE)}, all")
    return tuple(known for known in NOISE if known in wanted or "all" in wanted)


def _of_one(
    kernel: StoredKernel, target: str | None, stages: Sequence[str]
) -> tuple[StoredText, StoredText]:
    """Return two stages of a kernel; the one before, if a single one or none is named."""
    if len(stages) == 2:
        return texts.find_text(kernel, target, stages[0]), texts.find_text(
            kernel, target, stages[1]
        )
    new = _named(kernel, target, stages[0] if stages else None)
    return _before(kernel, target, new), new


def _named(kernel: StoredKernel, target: str | None, stage: str | None) -> StoredText:
    """Return the given stage, or by default the last pass that changed something."""
    if stage is not None:
        return texts.find_text(kernel, target, stage)
    stored = kernel.target(target)
    passes = stored.passes
    if not passes:
        raise UsageError(f"{kernel.name} for {stored.target} has no passes; name two stages")
    return texts.text_of_pass(
        kernel, stored, next((p for p in passes[::-1] if p.changed), passes[-1])
    )


def _before(kernel: StoredKernel, target: str | None, text: StoredText) -> StoredText:
    """Return the stage before a pass: the previous pass, or `mosaic` for the first."""
    stored = kernel.target(target)
    passes = [texts.text_of_pass(kernel, stored, one) for one in stored.passes]
    if is_there(kernel.stage_file("mosaic", target).path):
        passes.insert(0, texts.find_text(kernel, target, "mosaic"))
    for order in (passes, texts.llo_texts(kernel, stored)):
        for before, one in itertools.pairwise(order):
            if one.stage == text.stage:
                return before
    raise UsageError(
        f"{text.stage} is not a pass with another before it: also name the stage to compare it with"
    )


def _counterpart(kernel: StoredKernel, target: str | None, stage: str) -> StoredText:
    """Return the same stage elsewhere; passes match by name because their numbers may differ."""
    kind, colon, name = stage.rpartition(":")  # of an LLO pass
    number, dash, own_name = name.partition("-")
    is_pass = dash and number.isdecimal()
    return texts.find_text(kernel, target, f"{kind}{colon}{own_name}" if is_pass else stage)


def _header(old: StoredText, new: StoredText) -> str:
    """Name the sides by what they differ in: targets, stages, or else places."""
    from pallas_debug.ir.diff import sides

    if old.target != new.target:
        return sides(old.target or "-", new.target or "-")
    if old.stage != new.stage:
        return sides(old.stage, new.stage)
    return sides(str(old.file.path), str(new.file.path))


def _print_unified(different: Diff, old: StoredText, new: StoredText) -> None:
    output.echo(_header(old, new))
    looks: dict[str, dict[str, Any]] = {
        "-": {"fg": "red"},
        "+": {"fg": "green"},
        "@": {"fg": "cyan"},
    }
    for n, line in enumerate(different.unified(old.label, new.label)):
        if output.colored():
            look = {"bold": True} if n < 2 else looks.get(line[:1], {})
            click.echo(click.style(output.visible(line), **look))
        else:
            output.echo(line)


def _print_summary(old: StoredText, new: StoredText, different: Diff) -> None:
    from pallas_debug.ir.diff import changed_operations

    click.echo(
        f"{output.visible(old.label)} -> {output.visible(new.label)}: "
        f"{plural(different.removed, 'line')} removed, {different.added} added"
    )
    rows = [
        [name, f"{before:,}", f"{after:,}", f"{after - before:+,}"]
        for name, (before, after) in changed_operations(old.module(), new.module()).items()
    ]
    if rows:
        output.print_table(["operation", "before", "after", "change"], rows)


def _as_json(
    old: StoredText, new: StoredText, different: Diff, options: DiffOptions
) -> dict[str, Any]:
    from pallas_debug.ir.diff import changed_operations

    return {
        "old": old.as_json(),
        "new": new.as_json(),
        "changed": different.changed,
        "removed": different.removed,
        "added": different.added,
        "operations": {
            name: {"before": before, "after": after}
            for name, (before, after) in changed_operations(old.module(), new.module()).items()
        },
        "lines": [] if options.summary else list(different.unified(old.label, new.label)),
    }
