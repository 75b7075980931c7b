"""`pallas-debug diff`: changes made by a pass, or between targets, kernels and dumps."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pallas_debug.cli import options as shared
from pallas_debug.cli import output, where
from pallas_debug.cli.exits import Exit
from pallas_debug.errors import UsageError, meant
from pallas_debug.model import STAGES
from pallas_debug.render import plural
from pallas_debug.store import layout, texts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pallas_debug.ir.diff import Change, Diff, Summary
    from pallas_debug.ir.operations import Noise
    from pallas_debug.store import StoredCompilation, StoredKernel, StoredText

MAX_CONTEXT = 1_000_000


@dataclass(frozen=True, kw_only=True)
class DiffOptions:
    kernel_at: Path
    stages: tuple[str, ...]
    kernel: str | None
    target: str | None
    against: str | None
    ignore: str | None
    context: int
    summary: bool
    stats: bool
    as_json: bool


@click.argument("kernel_at", metavar="WHERE", type=shared.PLACE)
@click.argument("stages", metavar="[STAGE [STAGE]]", nargs=-1)
@shared.kernel
@shared.target
@click.option(
    "--against",
    metavar="OTHER",
    help="Compare with the same stage of another target, kernel or dump: v6e, or a path.",
)
@click.option(
    "-i", "--ignore", help="Differences to ignore, comma-separated: ssa, loc, attrs; or all."
)
@click.option(
    "-U",
    "--context",
    type=click.IntRange(0, MAX_CONTEXT),
    default=3,
    help="Lines of context around a change.",
    show_default=True,
)
@click.option("-s", "--summary", is_flag=True, help="Print only counts of operations.")
@click.option(
    "--stats",
    is_flag=True,
    help="Compare costs instead of texts, between WHERE and another path or --against.",
)
@shared.as_json
def run(options: DiffOptions) -> int:
    """Show what a pass changed, or what differs between two stages.

    \b
    pallas-debug diff dumps/flash             the last pass that changed something
    pallas-debug diff dumps/flash 13          pass 13 against the one before
    pallas-debug diff dumps/flash mosaic 13   any two stages
    pallas-debug diff dumps/flash 13 -t v5e --against v6e
    pallas-debug diff old/flash 13 --against new/flash
    pallas-debug diff --stats old/ new/       cycles, spills, units, lines of all kernels
    pallas-debug diff --stats dumps/flash --against v6e

    STAGE is any stage or pass that `show` accepts. WHERE is a kernel's folder, or a dump directory
    (ours or raw), followed by the start of a kernel's name if it contains several.

    With `--ignore ssa`, renumbered values do not count as changes, but other operands do. The exit
    code does not depend on whether there are differences.
    """
    stages = options.stages
    if options.stats:
        from pallas_debug.cli import diff_stats

        return diff_stats.run(options)
    if len(stages) > 2:
        raise UsageError(f"diff takes two stages at most, not {len(stages)}: {' '.join(stages)}")
    ignored = noise(options.ignore)
    if len(stages) == 1 and options.against is None:
        _refuse_path(options.kernel_at, stages[0])
    found, of_path = where.kernel_at(options.kernel_at, options.kernel)
    old, new = _sides(found, options.target or of_path, stages, options.against)
    from pallas_debug.ir import diff as engine

    module = new.module()
    different = engine.diff(old.lines, new.lines, ignore=ignored, kind=module.kind)
    if options.as_json:
        counts = engine.summary(old.module(), module)
        hunks = [] if options.summary else list(_hunks(different, options.context))
        output.print_json("diff", _as_json(old, new, different, counts) | {"hunks": hunks})
        return Exit.OK
    if options.summary:
        _print_summary(old, new, different, engine.summary(old.module(), module))
    elif different.changed:
        _print_unified(different, old, new, options.context)
    if not different.changed:
        but = f", but for {', '.join(ignored)}" if ignored else ""
        output.message(f"no difference between {old.label} and {new.label}{but}")
    return Exit.OK


command = shared.make("diff", DiffOptions, run)


def _refuse_path(kernel_at: Path, stage: str) -> None:
    """Reject the path of another dump in place of a stage.

    Raises:
      UsageError: a directory was named, which is no stage.
    """
    if "/" in stage and Path(stage).is_dir():
        raise UsageError(
            f"{stage} is a directory, not a stage or pass. To compare two dumps: pallas-debug diff "
            f"{shlex.quote(str(kernel_at))} --against {shlex.quote(stage)}"
        )


def noise(text: str | None) -> tuple[Noise, ...]:
    """Return the kinds of noise that `--ignore` names.

    Raises:
      UsageError: a kind is unknown.
    """
    from pallas_debug.ir.operations import NOISE

    if not text:
        return ()
    wanted = [word.strip() for word in text.split(",")]
    for word in wanted:
        if word not in (*NOISE, "all"):
            hint = meant(word, [*NOISE, "all"])
            raise UsageError(f"--ignore {word!r}{hint} is not one of {', '.join(NOISE)}, all")
    return tuple(known for known in NOISE if known in wanted or "all" in wanted)


def _sides(
    kernel: StoredKernel, target: str | None, stages: tuple[str, ...], against: str | None
) -> tuple[StoredText, StoredText]:
    if against is not None:
        other, other_target = _other(kernel, target, against)
        first = _named(kernel, target, stages[0] if stages else None)
        second = stages[1] if len(stages) > 1 else first.stage
        return first, _counterpart(other, other_target, second)
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
    if text.target is None or text.stage in (*STAGES, texts.LOG, *texts.OF_SCHEDULE):
        raise UsageError(f"{text.stage} is not a pass: also name the stage to compare it with")
    stored = kernel.target(target)
    if text.stage.startswith(f"{layout.LLO}:"):
        of_llo = texts.llo_texts(kernel, stored)
        at = [one.stage for one in of_llo].index(text.stage)
        if at == 0:
            raise UsageError(
                f"{text.stage} is the first LLO pass of the dump: also name the stage to compare "
                "it with"
            )
        return of_llo[at - 1]
    passes = stored.passes
    at = [layout.pass_name(p.number, p.name) for p in passes].index(text.stage)
    if at > 0:
        return texts.text_of_pass(kernel, stored, passes[at - 1])
    if kernel.stage_path("mosaic", target) is None:
        raise UsageError(f"{text.stage} is the first pass: there is nothing before it")
    return texts.find_text(kernel, target, "mosaic")


def _other(
    kernel: StoredKernel, target: str | None, against: str
) -> tuple[StoredKernel, str | None]:
    """Return the kernel and target that `--against` names."""
    if any(against in (c.target, c.folder.name) for c in kernel.compilations):
        return kernel, against
    path = where.local(against)
    if not path.exists() and "/" not in against:
        known = ", ".join(c.target for c in kernel.compilations) or "none"
        raise UsageError(
            f"--against {against!r} is neither a target of {kernel.name} nor a path here; "
            f"its targets: {known}"
        )
    other, of_path = where.kernel_at(path, _same_kernel(path, kernel))
    return other, of_path or _same_target(other, target or _only_target(kernel))


def _same_kernel(path: Path, kernel: StoredKernel) -> str | None:
    """Return the matching kernel's name if the other dump directory contains several kernels."""
    from pallas_debug.store import open_dumps

    if not path.is_dir():
        return None
    kernels = open_dumps(path).kernels()
    if len(kernels) <= 1:
        return None
    name = kernel.kernel.name if kernel.kernel else kernel.name
    alike = [k.name for k in kernels if k.name == kernel.name]
    return next(iter(alike), name)


def _only_target(kernel: StoredKernel) -> str | None:
    return kernel.compilations[0].target if len(kernel.compilations) == 1 else None


def _same_target(kernel: StoredKernel, target: str | None) -> str | None:
    """Return the same target if the other kernel has it, otherwise that kernel's only target."""
    known = any(target in (c.target, c.folder.name) for c in kernel.compilations)
    return target if known or len(kernel.compilations) != 1 else kernel.compilations[0].target


def _counterpart(kernel: StoredKernel, target: str | None, stage: str) -> StoredText:
    """Return the same stage elsewhere; passes match by name because their numbers may differ."""
    number, dash, name = stage.partition("-")
    if number.startswith(f"{layout.LLO}:"):
        return texts.find_text(kernel, target, f"{layout.LLO}:{name}")
    if dash and number.isdecimal():
        stored: StoredCompilation = kernel.target(target)
        exact = [p for p in stored.passes if p.name == name]
        if exact:
            return texts.text_of_pass(kernel, stored, exact[-1])
        raise UsageError(f"{kernel.name} for {stored.target} has no pass {name!r} to compare with")
    return texts.find_text(kernel, target, stage)


def _print_unified(different: Diff, old: StoredText, new: StoredText, context: int) -> None:
    if not output.colored():
        for line in different.unified(old.label, new.label, context):
            output.echo(line)
        return
    click.echo(click.style(f"--- {output.visible(old.label)}", bold=True))
    click.echo(click.style(f"+++ {output.visible(new.label)}", bold=True))
    for hunk in different.hunks(context):
        click.echo(click.style(different.place(hunk), fg="cyan"))
        for change in hunk:
            for line in _styled(different, change):
                click.echo(line)


def _styled(different: Diff, change: Change) -> Iterator[str]:
    """Yield the lines of a change in colour, highlighting the words that differ in paired lines."""
    from pallas_debug.ir.diff import words

    if change.tag == "equal":
        for n in change.new:
            yield " " + output.visible(different.new.lines[n])
        return
    spans: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for a, b in different.pairs(change):
        if a is not None and b is not None:
            spans["-", a], spans["+", b] = words(different.old.lines[a], different.new.lines[b])
    for sign, numbers, side, color in (
        ("-", change.old, different.old, "red"),
        ("+", change.new, different.new, "green"),
    ):
        for n in numbers:
            line, at = side.lines[n], 0
            pieces = [click.style(sign, fg=color)]
            for start, stop in spans.get((sign, n), []):
                pieces.append(click.style(output.visible(line[at:start]), fg=color))
                pieces.append(click.style(output.visible(line[start:stop]), fg=color, reverse=True))
                at = stop
            yield "".join([*pieces, click.style(output.visible(line[at:]), fg=color)])


def _print_summary(old: StoredText, new: StoredText, different: Diff, counts: Summary) -> None:
    click.echo(
        f"{output.visible(old.label)} -> {output.visible(new.label)}: "
        f"{plural(different.removed, 'line')} removed, {different.added} added"
    )
    rows = [
        [name, f"{before:,}", f"{after:,}", f"{after - before:+,}"]
        for name, (before, after) in counts.changed.items()
    ]
    if rows:
        output.print_table(["operation", "before", "after", "change"], rows)


def _as_json(old: StoredText, new: StoredText, different: Diff, counts: Summary) -> dict[str, Any]:
    return {
        "old": old.as_json(),
        "new": new.as_json(),
        "changed": different.changed,
        "removed": different.removed,
        "added": different.added,
        "operations": {
            name: {"before": before, "after": after}
            for name, (before, after) in counts.changed.items()
        },
    }


def _hunks(different: Diff, context: int) -> Iterator[list[dict[str, Any]]]:
    for hunk in different.hunks(context):
        yield [
            {
                "tag": change.tag,
                "old": _numbered(different.old, change.old),
                "new": _numbered(different.new, change.new),
            }
            for change in hunk
        ]


def _numbered(side: Any, numbers: range) -> list[dict[str, Any]]:
    return [{"line": side.numbers[n] + 1, "text": side.lines[n]} for n in numbers]
