"""`pallas-debug source`: Python source annotated with the operations that come from each line."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from pallas_debug.cli import costs, output, where
from pallas_debug.cli import options as shared
from pallas_debug.cli.exits import Exit
from pallas_debug.errors import UsageError
from pallas_debug.render import plural
from pallas_debug.store import texts

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
    line: str | None = shared.option(
        "-n", "--line", metavar="LINE", help="Print the operations of a line: 12, or tile.py:12."
    )
    whole: bool = shared.option("-a", "--all", help="Print the whole file; with --line, all texts.")
    cost: bool = shared.option("--cost", help="Print the cost of each line in the final schedule.")
    as_json: bool = shared.as_json()


def run(options: SourceOptions) -> int:
    """Show the source of a kernel, with the number of operations that come from each line.

    The source is the copy in the dump, not the current file. Operations of functions that a line
    calls count for that line too. `--line` prints the operations themselves, in each stage and
    pass.

    `--cost` prints the cost of each line in the final schedule, including its calls: its share of
    the cycles, its bundles, register spills and fills, copies, and the units that it uses.

    Several targets of a kernel are shown side by side, and of several kernels the hottest lines.

    Raw dumps have locations only if libtpu ran with --xla_mosaic_enable_dump_debug_info=true.
    """
    if options.cost and (options.stage, options.line) != (None, None):
        raise UsageError("--cost is about all lines in the final schedule: omit --pass and --line")
    place = where.place_at(options.where, options.kernel, options.target)
    chosen = place.chosen()
    found, items = list[Annotated](), list[costs.Costed]()

    def document(side: tuple[StoredKernel, str | None]) -> dict[str, Any]:
        kernel, target = side
        names = {"kernel": kernel.name, "target": target, "stage": None, "file": None}
        empty = dict.fromkeys(("lines", "texts", "costs"), ())
        if options.cost:
            items.append(costs.Costed(kernel, kernel.target(target)))
            found.append(_costs(items[-1]))
        elif options.line is not None:
            return {**names, **empty, **_one_line(kernel, target, options)}
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
      own: the kernel's file.
      title, head: lines above it: what it is, and the names of the columns.
      cells: text beside each line.
      brief: the same beside other targets.
      comments: text behind each line.
      hottest: the line with most.
      notes: sentences below it.
    """

    kernel: StoredKernel
    target: str | None
    own: str | None
    title: str
    cells: Mapping[Place, str]
    brief: Mapping[Place, str]
    hottest: Place
    document: Mapping[str, Any]
    head: str = ""
    comments: Mapping[Place, str] = field(default_factory=dict)
    notes: Sequence[str] = ()


def _operations(kernel: StoredKernel, target: str | None, options: SourceOptions) -> Annotated:
    """Count the operations that come from each line."""
    text = (
        texts.find_text(kernel, target, options.stage) if options.stage else _last(kernel, target)
    )
    counts = _counts(text.module())
    if not counts:
        raise UsageError(f"{text.label} names no Python line: it was dumped without locations")
    own, source = _own_file(kernel, counts), _source(kernel)
    totals = {place: sum(names.values()) for place, names in sorted(counts.items())}
    cells = {place: f"{total:8,}" for place, total in totals.items()}
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
        cells=cells,
        brief=cells,
        hottest=max(totals, key=lambda place: totals[place]),
        document=text.as_json() | {"file": own, "lines": lines},
    )


def _costs(item: costs.Costed) -> Annotated:
    """Attribute the cycles of the final schedule to lines."""
    lines = costs.lines_of(item)
    own = costs.own_file(item, lines)
    return Annotated(
        kernel=item.kernel,
        target=item.target,
        own=own,
        title=costs.title(item),
        head=costs.HEAD,
        cells={cost.source.place: costs.cells(cost) for cost in lines},
        brief={cost.source.place: f"{cost.share:8.1%}" for cost in lines},
        comments={cost.source.place: costs.units(cost) for cost in lines},
        hottest=max(lines, key=lambda cost: cost.own_share).source.place,
        notes=costs.notes(item),
        document={"stage": "bundles", "file": own, "costs": lines},
    )


def _print(found: Sequence[Annotated], *, whole: bool) -> None:
    """Print a kernel, its targets side by side, or the hottest line of each of several kernels."""
    if len({one.kernel.name for one in found}) > 1:
        rows = [
            [one.kernel.name, one.target or "", one.brief[one.hottest].strip(), *_hottest(one)]
            for one in found
        ]
        output.print_table(["kernel", "target", "most", "line", ""], rows, right=(2,))
        return
    own, source = found[0].own, _source(found[0].kernel)
    is_alone = len(found) == 1
    columns = [one.cells if is_alone else one.brief for one in found]
    for one in found:
        output.echo(one.title)
    head = found[0].head if is_alone else "".join(f"{one.target:>8}" for one in found)
    if head:
        output.echo(f"{head} line")
    blanks = [" " * max(map(len, cells.values())) for cells in columns]

    def echo(place: Place, text: str) -> None:
        shown = "".join(c.get(place, b) for c, b in zip(columns, blanks, strict=True))
        _echo(f"{shown} {text}".rstrip(), found[0].comments.get(place, "") if is_alone else "")

    places = list(dict.fromkeys(itertools.chain(*columns)))
    numbers = [n for file, n in places if file == own and 0 < n <= len(source)]
    if numbers:
        output.echo(own or "")
        first, last = (1, len(source)) if whole else (min(numbers), max(numbers))
        for number in range(first, last + 1):
            echo((own or "", number), f"{number:5} {source[number - 1]}")
    others = [place for place in places if place[0] != own or place[1] not in numbers]
    if others:
        output.echo("elsewhere" if numbers else "the dump keeps no source of")
    for file, number in others:
        echo((file, number), f"{PurePath(file).name}:{number}")
    for note in dict.fromkeys(note for one in found for note in one.notes):
        output.echo_wrapped(note, 4)


def _hottest(one: Annotated) -> tuple[str, str]:
    """Return a kernel's hottest line, and its text."""
    (file, number), source = one.hottest, _source(one.kernel)
    is_known = file == one.own and 0 < number <= len(source)
    return f"{PurePath(file).name}:{number}", source[number - 1].strip() if is_known else ""


def _echo(text: str, comment: str) -> None:
    """Print a line with its comment, below it if the terminal is too narrow."""
    width = output.terminal_width()
    if not width or len(text) + len(comment) <= width:
        output.echo(text + comment)
        return
    output.echo(text)
    if comment:
        column = len(costs.HEAD) + 7
        output.echo_wrapped(" " * column + comment.lstrip(), column + 2)


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
    path = kernel.stage_path("source")
    return [] if path is None else kernel.stage_text("source").split("\n")


def _own_file(kernel: StoredKernel, counts: dict[Place, Any]) -> str | None:
    """Return the kernel's own file, whose text is in the dump."""
    if kernel.own_file is not None:
        return kernel.own_file
    files = Counter(file for file, _ in counts)
    return files.most_common(1)[0][0] if files else None


def _one_line(kernel: StoredKernel, target: str | None, options: SourceOptions) -> dict[str, Any]:
    """Print the operations of one Python line, stage by stage; with `--json`, only return them."""
    file, number = parsed(str(options.line))
    stage = options.stage
    chosen = [texts.find_text(kernel, target, stage)] if stage else texts.texts_of(kernel, target)
    own = kernel.own_file
    found: list[tuple[StoredText, Module, list[int]]] = []
    known: set[Place] = set()
    for text in chosen:
        module = text.module()
        known |= module.from_source.keys()
        places = [p for p in module.from_source if p[1] == number and is_file(p[0], file, own)]
        found.append((text, module, sorted({n for p in places for n in module.from_source[p]})))
    if not any(lines for _, _, lines in found):
        raise UsageError(_none_there(kernel, str(options.line), known, file, own))
    if not options.as_json:
        source = _source(kernel)
        if (file is None or is_file(own or "", file, None)) and 0 < number <= len(source):
            output.echo(source[number - 1].strip())
        for text, module, lines in found:
            _print_operations(text, module, lines, whole=options.whole or stage is not None)
    return {"file": own, "stage": stage, "texts": [_operations_as_json(*one) for one in found]}


MAX_DIGITS = 9
"""Maximum number of digits of a line number."""

SHOWN = 5
"""Maximum number of operations printed per stage for `--line` without `--all`."""


def _print_operations(text: StoredText, module: Module, lines: list[int], *, whole: bool) -> None:
    output.echo(f"{text.label}: {plural(len(lines), 'operation')}")
    shown = lines if whole else lines[:SHOWN]
    for n in shown:
        output.echo(f"  {n + 1:6}  {_without_location(module, n)}")
    if len(shown) < len(lines):
        output.echo(f"          … {len(lines) - len(shown)} more with --all")


def _without_location(module: Module, line: int) -> str:
    from pallas_debug.ir.operations import location_at

    text = module.lines[line]
    at = location_at(text, module.kind)
    return (text if at is None else text[: at[0]] + text[at[1] :]).strip()


def _operations_as_json(text: StoredText, module: Module, lines: list[int]) -> dict[str, Any]:
    return text.as_json() | {
        "operations": [
            {"line": n + 1, "name": module.names[n], "text": _without_location(module, n)}
            for n in lines
        ]
    }


def parsed(line: str) -> tuple[str | None, int]:
    file, _, number = line.rpartition(":")
    if not number.isdecimal() or len(number) > MAX_DIGITS:
        raise UsageError(f"--line {line!r} is neither a line such as 12 nor one such as tile.py:12")
    return file or None, int(number)


def is_file(file: str, wanted: str | None, own: str | None) -> bool:
    """Match a file by its path or path suffix, or by default the kernel's own file."""
    if wanted is None:
        return own is None or file == own
    return (
        file == wanted
        or PurePath(file).parts[-len(PurePath(wanted).parts) :] == PurePath(wanted).parts
    )


def _none_there(
    kernel: StoredKernel, line: str, known: set[Place], file: str | None, own: str | None
) -> str:
    if not known:
        return f"the texts of {kernel.name} name no Python line: they were dumped without locations"
    near = sorted(number for name, number in known if is_file(name, file, own))
    if not near:
        # The frames around a kernel that pallas-debug lowered are its own.
        named = {PurePath(name) for name, _ in known}
        theirs = {path for path in named if "pallas_debug" not in path.parts} or named
        files = ", ".join(sorted({path.name for path in theirs}))
        return f"no operation comes from {line}; there are some from {files}"
    listed = ", ".join(map(str, near[:40])) + (", …" if len(near) > 40 else "")
    return f"no operation comes from line {line}; there are some from {listed}"
