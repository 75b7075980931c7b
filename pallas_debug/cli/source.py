"""`pallas-debug source`: Python source annotated with the operations that come from each line."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import click

from pallas_debug.cli import options as shared
from pallas_debug.cli import output, where
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
class SourceOptions:
    kernel_at: Path
    kernel: str | None
    target: str | None
    stage: str | None
    line: str | None
    whole: bool
    cost: bool
    as_json: bool


@click.argument("kernel_at", metavar="WHERE", type=shared.PLACE)
@shared.kernel
@shared.target
@click.option("-p", "--pass", "stage", help="Count in this stage or pass; the last one by default.")
@click.option(
    "-n", "--line", metavar="LINE", help="Print the operations of a line: 12, or tile.py:12."
)
@click.option(
    "-a", "--all", "whole", is_flag=True, help="Print the whole file; with --line, all texts."
)
@click.option("--cost", is_flag=True, help="Print the cost of each line in the final schedule.")
@shared.as_json
def run(options: SourceOptions) -> int:
    """Show the source of a kernel, with the number of operations that come from each line.

    The source is the copy in the dump, not the current file. Operations of functions that a line
    calls count for that line too. `--line` prints the operations themselves, in each stage and
    pass.

    `--cost` prints the cost of each line in the final schedule, including its calls: its share of
    the cycles, its bundles, register spills and fills, copies, and the units that it
    uses; with `--line`, it prints the bundles themselves.

    Raw dumps have locations only if libtpu ran with --xla_mosaic_enable_dump_debug_info=true.
    """
    found, of_path = where.kernel_at(options.kernel_at, options.kernel)
    target, stage = options.target or of_path, options.stage
    if options.cost:
        from pallas_debug.cli import costs

        return costs.run(found, target, options, source=_source(found))
    if options.line is not None:
        return _one_line(found, target, options.line, options)
    text = texts.find_text(found, target, stage) if stage else _last(found, target)
    counts = _counts(text.module())
    if not counts:
        raise UsageError(f"{text.label} names no Python line: it was dumped without locations")
    own = _own_file(found, counts)
    source = _source(found)
    if options.as_json:
        fields = _as_json(text, counts, own, source)
        output.print_json("source", fields | {"texts": [], "costs": [], "bundles": []})
    else:
        _print(text, counts, own, source, whole=options.whole)
    return Exit.OK


command = shared.make("source", SourceOptions, run)


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
    if kernel.kernel is not None and kernel.kernel.source is not None:
        return kernel.kernel.source.file
    files = Counter(file for file, _ in counts)
    return files.most_common(1)[0][0] if files else None


def _print(
    text: StoredText,
    counts: dict[Place, Counter[str]],
    own: str | None,
    source: list[str],
    *,
    whole: bool,
) -> None:
    output.echo(f"{text.label}: operations by source line")
    lines = [line for file, line in counts if file == own and 0 < line <= len(source)]
    if lines:
        output.echo(own or "")
        first, last = (1, len(source)) if whole else (min(lines), max(lines))
        for number in range(first, last + 1):
            total = sum(counts.get((own or "", number), Counter()).values())
            shown = f"{total:,}" if total else ""
            output.echo(f"{shown:>8} {number:5} {source[number - 1]}".rstrip())
    kept = range(1, len(source) + 1)
    others = sorted(place for place in counts if place[0] != own or place[1] not in kept)
    if others:
        output.echo("elsewhere" if lines else "the dump keeps no source of")
        for file, number in others:
            total = sum(counts[file, number].values())
            output.echo(f"{total:8,} {PurePath(file).name}:{number}")


def _as_json(
    text: StoredText, counts: dict[Place, Counter[str]], own: str | None, source: list[str]
) -> dict[str, Any]:
    return text.as_json() | {
        "file": own,
        "lines": [
            {
                "file": file,
                "line": number,
                "text": source[number - 1] if file == own and 0 < number <= len(source) else None,
                "operations": dict(names.most_common()),
            }
            for (file, number), names in sorted(counts.items())
        ],
    }


def _one_line(kernel: StoredKernel, target: str | None, line: str, options: SourceOptions) -> int:
    """Print the operations of one Python line, stage by stage."""
    file, number = parsed(line)
    stage = options.stage
    chosen = [texts.find_text(kernel, target, stage)] if stage else texts.texts_of(kernel, target)
    own = kernel.kernel.source.file if kernel.kernel and kernel.kernel.source else None
    found: list[tuple[StoredText, Module, list[int]]] = []
    known: set[Place] = set()
    for text in chosen:
        module = text.module()
        known |= module.from_source.keys()
        places = [p for p in module.from_source if p[1] == number and is_file(p[0], file, own)]
        found.append((text, module, sorted({n for p in places for n in module.from_source[p]})))
    if not any(lines for _, _, lines in found):
        raise UsageError(_none_there(kernel, line, known, file, own))
    if options.as_json:
        rows = [_operations_as_json(*entry) for entry in found]
        where_ = {"kernel": kernel.name, "target": target, "stage": stage, "file": own}
        of_lines: dict[str, Any] = {"lines": [], "texts": rows, "costs": [], "bundles": []}
        output.print_json("source", where_ | of_lines)
        return Exit.OK
    source = _source(kernel)
    if (file is None or is_file(own or "", file, None)) and 0 < number <= len(source):
        output.echo(source[number - 1].strip())
    for text, module, lines in found:
        _print_operations(text, module, lines, whole=options.whole or stage is not None)
    return Exit.OK


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
