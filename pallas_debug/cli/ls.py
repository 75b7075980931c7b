"""`pallas-debug ls`: the kernels of a dump directory, or the passes of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pallas_debug import followup, render
from pallas_debug.cli import options as shared
from pallas_debug.cli import output, where
from pallas_debug.cli.exits import Exit
from pallas_debug.findings.facts import line_text

if TYPE_CHECKING:
    from pallas_debug.store import StoredCompilation, StoredKernel


@dataclass(frozen=True, kw_only=True)
class LsOptions(shared.StoredOptions):
    show_all: bool = shared.option("-a", "--all", help="Include passes that changed nothing.")
    as_json: bool = shared.as_json()


def run(options: LsOptions) -> int:
    """List the kernels of WHERE (`dumps` by default), or the passes of one kernel.

    WHERE is a dump directory, a kernel's folder in it (the start of its name is enough, as in
    old/rmsnorm, or rmsnorm for one in `dumps`), or a directory of raw dumps, written by libtpu with
    --xla_mosaic_dump_to.

    The exit code is 3 if something in WHERE cannot be read.
    """
    place = where.place_at(options.where, options.kernel, options.target)
    chosen = [(kernel, place.compilations(kernel)) for kernel in place.kernels()]
    if options.as_json:
        rows = [_as_json(k, compilations) for k, compilations in chosen]
        output.print_json("ls", {"kernels": rows})
    elif place.is_one:
        _print_passes(chosen, show_all=options.show_all)
    else:
        _print_kernels(chosen)
        if not chosen:
            output.message(where.no_kernels(place.root))
    problems = 0
    for k, compilations in chosen:
        # Check every file only for a single kernel; checking the files of many would be slow.
        damaged = [d for c in compilations for d in c.damaged()] if place.is_one else []
        for problem in [k.problem, *(c.problem for c in compilations), *damaged]:
            if problem:
                output.message(problem)
                problems += 1
    if chosen:
        output.follow(_next(place, [k for k, _ in chosen]), as_json=options.as_json)
    return Exit.CANNOT_RUN if problems else Exit.OK


command = shared.make("ls", LsOptions, run)


def _next(place: where.Place, kernels: Sequence[StoredKernel]) -> str | None:
    """Command for the first failure; otherwise about the first kernel, or its passes."""
    failure = place.first_failure(kernels)
    compilations = place.compilations(kernels[0])
    if failure is not None or not compilations:
        return failure
    at = place.path(kernels[0].name)
    if place.is_one:
        return followup.command("diff", at, "-t", compilations[0].target)
    return followup.command("ls", at)


def _print_kernels(chosen: list[tuple[StoredKernel, list[StoredCompilation]]]) -> None:
    rows = []
    for kernel, compilations in chosen:
        source = kernel.kernel.source if kernel.kernel else None
        line = line_text(source) if source else ""
        if kernel.problem:
            rows.append([kernel.name, line, "", "failed: cannot be read"])
        for stored in compilations:
            made = stored.compilation
            status = "failed: cannot be read" if made is None else render.status(made)
            rows.append([kernel.name, line, stored.target, status])
        if not compilations and not kernel.problem:
            rows.append([kernel.name, line, "", "not compiled"])
    output.print_table(["kernel", "source", "target", "status"], rows)


def _print_passes(
    chosen: list[tuple[StoredKernel, list[StoredCompilation]]], *, show_all: bool
) -> None:
    rows = []
    for _, compilations in chosen:
        for stored in compilations:
            for p in stored.compilation.passes if stored.compilation else ():
                if show_all or p.changed:
                    state = "failed" if p.failed else "changed" if p.changed else "same"
                    took = "" if p.seconds is None else f"{p.seconds * 1000:.1f} ms"
                    rows.append(
                        [stored.target, f"{p.number:02d}", p.name, state, f"{p.size:,} B", took]
                    )
            rows += _others(stored)
    output.print_table(["target", "#", "pass", "text", "size", "time"], rows)


def _others(stored: StoredCompilation) -> list[list[str]]:
    """Rows for LLO passes and files of the schedule, including those that are missing."""
    from pallas_debug.store import layout, texts

    made = stored.compilation
    if made is None:
        return []
    sizes = {name: f"{record.size:,} B" for name, record in made.files.items()}
    llo = [f"{layout.LLO}/{path.name}" for path in stored.llo()]
    rows = [
        [stored.target, "", texts.llo_stage(name), "LLO", sizes.get(name, ""), ""] for name in llo
    ]
    rows += [
        [stored.target, "", stage, kind, sizes[name], ""]
        for kind, group in (("schedule", texts.OF_SCHEDULE), ("GPU", texts.OF_GPU))
        for stage, name in group.items()
        if name in sizes
    ]
    rows += [[stored.target, "", m.file, f"missing ({m.cause})", "", ""] for m in made.missing]
    return rows


def _as_json(kernel: StoredKernel, compilations: list[StoredCompilation]) -> dict[str, Any]:
    return {
        "name": kernel.name,
        "folder": str(kernel.folder),
        "kernel": kernel.kernel,
        "problem": kernel.problem,
        "compilations": [
            {
                "target": c.target,
                "folder": str(c.folder),
                "problem": c.problem,
                "compilation": c.compilation,
            }
            for c in compilations
        ],
    }
