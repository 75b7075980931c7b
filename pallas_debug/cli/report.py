"""`pallas-debug report`: the kernels of a dump directory as one HTML page."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from pallas_debug import defaults
from pallas_debug.cli import options as shared
from pallas_debug.cli import output, where
from pallas_debug.cli.exits import Exit
from pallas_debug.errors import UsageError
from pallas_debug.render import one_line, plural


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    where: tuple[str | Path, ...] = shared.argument(
        metavar="[[OLD] WHERE]", type=shared.PLACE, nargs=-1
    )
    to: Path = shared.option(
        "-o",
        "--to",
        type=shared.FILE,
        default=defaults.REPORT,
        show_default=True,
        help="The file to write.",
    )
    is_opened: bool = shared.option("--open", help="Open the page in a browser.")
    kernel: str | None = shared.option("-k", "--kernel", help="Only this kernel.")
    targets: tuple[str, ...] = shared.option(
        "-t", "--target", help="Only this target; can be repeated."
    )


def run(options: ReportOptions) -> int:
    """Write one HTML page about the kernels of WHERE (`dumps` by default).

    \b
    pallas-debug report dumps --open
    pallas-debug report old/ new/      what changed, with old and new side by side

    The page begins with a verdict. It shows findings at their lines, what would save cycles, source
    linked to the operations of each pass, timelines, and diffs; with OLD, a dump directory from
    before, or with several targets, it shows costs and texts side by side. It is a single
    self-contained file, which opens from a disk or from CI artefacts, without a network.

    The exit code is 3 if something in a directory cannot be read; the page says so, too.
    """
    from pallas_debug.report import write_report

    if len(options.where) > 2:
        raise UsageError(
            f"report takes two directories at most, OLD and NEW, not {len(options.where)}"
        )
    paths = options.where or (Path(defaults.DIRECTORY),)
    places = [where.place_at(path, options.kernel) for path in paths]
    place, kernels = places[-1], places[-1].kernels()
    before = (places[0].reader, places[0].kernels()) if len(places) > 1 else None
    every = [*(before[1] if before is not None else ()), *kernels]
    targets = options.targets or ((place.target,) if place.target else ())
    if not kernels and not any(record.findings for record in place.reader.runs()):
        raise UsageError(where.no_kernels(place.root))
    where.check_targets(targets, every)
    title = " → ".join(one.root.resolve().name for one in places)
    try:
        size = write_report(
            place.reader, kernels, options.to, title=title, targets=targets, before=before
        )
    except OSError as error:
        raise output.unwritable(options.to, error) from error
    compilations = [c for k in every for c in k.compilations]
    found = [k.problem for k in every] + [c.problem for c in compilations]
    problems = [*filter(None, found), *(d for c in compilations for d in c.damaged())]
    for problem in problems:
        output.message(problem)
    output.echo(f"{one_line(options.to)}: {plural(len(kernels), 'kernel')}, {size:,} B")
    if options.is_opened:
        _open(options.to)
    output.follow(place.first_failure(kernels) or place.look(kernels, "stats"))
    return Exit.CANNOT_RUN if problems else Exit.OK


command = shared.make("report", ReportOptions, run)


def _open(page: Path) -> None:
    """Open a page in a graphical browser; without a display, name the file.

    A browser that draws in the terminal would show neither the script's parts nor a way back.
    """
    import webbrowser

    path = page.resolve()
    has_display = any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")))
    if not (has_display or sys.platform != "linux") or not webbrowser.open(path.as_uri()):
        output.message(f"there is no display for a browser; open {one_line(path)}")
