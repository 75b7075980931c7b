"""`pallas-debug report`: the kernels of a dump directory as one HTML page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from pallas_debug import defaults, followup
from pallas_debug.cli import options as shared
from pallas_debug.cli import output, where
from pallas_debug.cli.exits import Exit
from pallas_debug.errors import UsageError
from pallas_debug.render import one_line, plural


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    where: Path
    to: Path
    kernel: str | None
    targets: tuple[str, ...]


@shared.where
@click.option(
    "-o",
    "--to",
    type=click.Path(path_type=Path, dir_okay=False),
    default=defaults.REPORT,
    show_default=True,
    help="The file to write.",
)
@click.option("-k", "--kernel", help="Only this kernel.")
@click.option("-t", "--target", "targets", multiple=True, help="Only this target; can be repeated.")
def run(options: ReportOptions) -> int:
    """Write one HTML page about the kernels of WHERE (`dumps` by default).

    The page shows kernels and targets, findings at their lines, source linked to the operations of
    each pass, sizes and times of passes, and diffs. It is a single self-contained file, which opens
    from a disk or from CI artefacts, without a network.

    The exit code is 3 if something in WHERE cannot be read; the page says so, too.
    """
    from pallas_debug.report import write_report

    place = where.place_at(options.where, options.kernel)
    kernels = place.kernels()
    reader, targets = place.reader, options.targets or ((place.target,) if place.target else ())
    if not kernels and not any(record.findings for record in reader.iter_runs()):
        raise UsageError(where.no_kernels(place.root))
    where.check_targets(targets, kernels)
    try:
        written = write_report(
            reader,
            kernels,
            options.to,
            title=place.root.resolve().name,
            targets=targets,
        )
    except OSError as error:
        raise output.unwritable(options.to, error) from error
    compilations = [c for k in kernels for c in k.compilations]
    found = [k.problem for k in kernels] + [c.problem for c in compilations]
    problems = [*filter(None, found), *(d for c in compilations for d in c.damaged())]
    for problem in problems:
        output.message(problem)
    if written.left_out:
        output.message(
            f"the texts of {plural(written.left_out, 'compilation')} are left out because the "
            "page would be too large; select what it shows with -k and -t"
        )
    output.echo(f"{one_line(options.to)}: {plural(len(kernels), 'kernel')}, {written.size:,} B")
    output.follow(place.first_failure(kernels) or followup.command("ls", place.root))
    return Exit.CANNOT_RUN if problems else Exit.OK


command = shared.make("report", ReportOptions, run)
