"""`pallas-debug source`: Python source annotated with the operations that come from each line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from pallas_debug.cli import costs, output, where
from pallas_debug.cli import options as shared
from pallas_debug.cli.exits import Exit
from pallas_debug.errors import UsageError
from pallas_debug.store import texts
from pallas_debug.store.files import is_there

if TYPE_CHECKING:
    from pallas_debug.ir.operations import Module
    from pallas_debug.store import StoredKernel, StoredText

Place = tuple[str, int]
"""A file as the compiler names it, and a line number in it."""


@dataclass(frozen=True, kw_only=True)
class SourceOptions(shared.StoredOptions):
    stage: str | None = shared.option(
        "-p", "--pass", help="Count in this stage or pass; the last one by default."
    )
    whole: bool = shared.option("-a", "--all", help="Print the whole file.")
    cost: bool = shared.option("--cost", help="Print the cost of each line in the final schedule.")
    as_json: bool = shared.as_json()


def run(options: SourceOptions) -> int:
    """Show the source of a kernel, with the number of operations that come from each line.

    The source is the copy in the dump, not the current file. Operations of functions that a line
    calls count for that line too.

    `--cost` prints the cost of each line in the final schedule, including its calls: its share of
    the cycles, its bundles, register spills and fills, and copies.

    Of several kernels or targets, it shows the hottest lines.

    Raw dumps have locations only if libtpu ran with --xla_mosaic_enable_dump_debug_info=true.
    """
    if options.cost and options.stage is not None:
        raise UsageError("--cost is about the final schedule: omit --pass")
    place = where.place_at(options.where, options.kernel, options.target)
    chosen = place.chosen()
    found, items = list[Annotated](), list[costs.Costed]()

    def document(side: tuple[StoredKernel, str | None]) -> dict[str, Any]:
        kernel, target = side
        names = {"kernel": kernel.name, "target": target, "stage": None, "file": None}
        empty = dict.fromkeys(("lines", "costs"), ())
        if options.cost:
            items.append(costs.Costed(kernel, kernel.target(target)))
            found.append(_costs(items[-1]))
        else:
            found.append(_operations(kernel, target, options))
        return {**names, **empty, **found[-1].document}

    documents, code = output.attempted(chosen, document)
    if any(item.problems for item in items):
        code = Exit.CANNOT_RUN
    if options.as_json:
        output.print_json("source", {"sources": documents})
    elif found:
        _print(found, whole=options.whole)
    words = ("timeline",) if options.cost else ("source", "--cost")
    next_ = place.look([kernel for kernel, _ in chosen], *words)
    output.follow(next_, as_json=options.as_json)
    return code


command = shared.make("source", SourceOptions, run)


@dataclass(frozen=True, kw_only=True)
class Annotated:
    """What comes from each line of a kernel for a target, or what each line costs.

    Attributes:
      own: the kernel's file, whose text is in the dump.
      title, head: lines above it: what it is, and the names of the columns.
      cells: text beside each line.
      hottest: the line with most.
      most: what it has.
      notes: sentences below it.
    """

    kernel: StoredKernel
    target: str | None
    own: str
    title: str
    cells: Mapping[Place, str]
    hottest: Place
    most: str
    document: Mapping[str, Any]
    head: str = ""
    notes: Sequence[str] = ()


def _operations(kernel: StoredKernel, target: str | None, options: SourceOptions) -> Annotated:
    """Count the operations that come from each line."""
    text = (
        texts.find_text(kernel, target, options.stage) if options.stage else _last(kernel, target)
    )
    counts = _counts(text.module())
    if not counts:
        raise UsageError(f"{text.label} names no Python line: it was dumped without locations")
    totals = {place: sum(names.values()) for place, names in sorted(counts.items())}
    hottest = max(totals, key=lambda place: totals[place])
    own, source = kernel.own_file or hottest[0], _source(kernel)
    lines = [
        {
            "file": file,
            "line": number,
            "text": source[number - 1] if file == own and 0 < number <= len(source) else None,
            "operations": dict(names.most_common()),
        }
        for (file, number), names in sorted(counts.items())
    ]
    return Annotated(
        kernel=kernel,
        target=target,
        own=own,
        title=f"{text.label}: operations by source line",
        cells={place: f"{total:8,}" for place, total in totals.items()},
        hottest=hottest,
        most=f"{totals[hottest]:,}",
        document=text.as_json() | {"file": own, "lines": lines},
    )


def _costs(item: costs.Costed) -> Annotated:
    """Attribute the cycles of the final schedule to lines."""
    lines = costs.lines_of(item)
    hottest = max(lines, key=lambda cost: cost.own_share)
    own = item.kernel.own_file or hottest.source.file
    return Annotated(
        kernel=item.kernel,
        target=item.target,
        own=own,
        title=costs.title(item),
        head=costs.HEAD,
        cells={cost.source.place: costs.cells(cost) for cost in lines},
        hottest=hottest.source.place,
        most=f"{hottest.share:.1%}",
        notes=costs.notes(item),
        document={"stage": "bundles", "file": own, "costs": lines},
    )


def _print(found: Sequence[Annotated], *, whole: bool) -> None:
    """Print a kernel with its source, or the hottest line of each of several."""
    if len(found) > 1:
        rows = [[one.kernel.name, one.target or "", one.most, *_hottest(one)] for one in found]
        output.print_table(["kernel", "target", "most", "line", ""], rows, right=(2,))
        return
    (one,) = found
    own, source = one.own, _source(one.kernel)
    output.echo(one.title)
    if one.head:
        output.echo(f"{one.head} line")
    blank = " " * max(map(len, one.cells.values()))
    numbers = [n for file, n in one.cells if file == own and 0 < n <= len(source)]
    if numbers:
        output.echo(own)
        first, last = (1, len(source)) if whole else (min(numbers), max(numbers))
        for number in range(first, last + 1):
            cells = one.cells.get((own, number), blank)
            output.echo(f"{cells} {number:5} {source[number - 1]}".rstrip())
    others = [place for place in one.cells if place[0] != own or place[1] not in numbers]
    if others:
        output.echo("elsewhere" if numbers else "the dump keeps no source of")
    for file, number in others:
        output.echo(f"{one.cells[file, number]} {PurePath(file).name}:{number}")
    for note in one.notes:
        output.echo_wrapped(note, 4)


def _hottest(one: Annotated) -> tuple[str, str]:
    """Return a kernel's hottest line, and its text."""
    (file, number), source = one.hottest, _source(one.kernel)
    is_known = file == one.own and 0 < number <= len(source)
    return f"{PurePath(file).name}:{number}", source[number - 1].strip() if is_known else ""


def _last(kernel: StoredKernel, target: str | None) -> StoredText:
    found = texts.texts_of(kernel, target)
    if not found:
        raise UsageError(f"{kernel.name} has no stages and no passes")
    return found[-1]


def _counts(module: Module) -> dict[Place, Counter[str]]:
    """Count operations by name for each Python line."""
    return {
        place: Counter(name for n in lines if (name := module.names[n]))
        for place, lines in module.from_source.items()
    }


def _source(kernel: StoredKernel) -> list[str]:
    file = kernel.stage_file("source")
    return file.text().split("\n") if is_there(file.path) else []
