"""`pallas-debug timeline`: the pipeline of a kernel over its first and last grid steps."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pallas_debug import defaults
from pallas_debug.cli import options as shared
from pallas_debug.cli import output, where
from pallas_debug.cli.exits import Exit

if TYPE_CHECKING:
    from pallas_debug.profile.stats import Profile
    from pallas_debug.profile.timeline.timeline import Timeline
    from pallas_debug.store import StoredKernel


@dataclass(frozen=True, kw_only=True)
class TimelineOptions:
    kernel_at: Path
    kernel: str | None
    target: str | None
    to: Path | None
    steps: int | None
    as_json: bool


@click.argument("kernel_at", metavar="WHERE", type=shared.PLACE)
@shared.kernel
@shared.target
@click.option(
    "-o",
    "--to",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a trace file for https://ui.perfetto.dev or chrome://tracing, or - for standard "
    "output.",
)
@click.option(
    "-n",
    "--steps",
    type=click.IntRange(min=1, max=defaults.MAX_TIMELINE_STEPS),
    help="Steps to show from the beginning, and half as many from the end; by default what fits "
    f"the terminal, and {defaults.TIMELINE_STEPS} in a trace file.",
)
@shared.as_json
def run(options: TimelineOptions) -> int:
    """Show when a kernel computes, copies and waits, over its first and last grid steps.

    \b
    pallas-debug dump SCRIPT.py
    pallas-debug timeline dumps/flash -t v5e
    pallas-debug timeline dumps/flash -t v5e -o trace.json

    What each step runs and copies, including copies started by the kernel, is read from the
    schedule's scalar instructions. Durations are estimates: cycles of the bundles, and copies as
    long as in libtpu's own estimates. The last steps of a grid of many thousands are not shown.
    """
    from pallas_debug.cli.costs import check_bundles, schedule_of

    found, of_path = where.kernel_at(options.kernel_at, options.kernel)
    stored = found.target(options.target or of_path)
    read = schedule_of(found, stored)
    check_bundles(read, found.name, stored.target)
    profile, code = read.profile, Exit.CANNOT_RUN if read.problems else Exit.OK
    if options.to is not None:
        steps = options.steps or defaults.TIMELINE_STEPS
        _write(_timeline(found, profile, steps), options.to)
        return code
    from pallas_debug.profile.timeline import strip

    width = shutil.get_terminal_size((100, 24)).columns
    steps = options.steps or strip.steps_that_fit(width) * 2 // 3
    made = _timeline(found, profile, steps)
    if options.as_json:
        output.print_json("timeline", {"timeline": made})
        return code
    for line in strip.strip(made, width, ascii_only=not _is_unicode()):
        output.echo(line)
    return code


command = shared.make("timeline", TimelineOptions, run)


def _timeline(kernel: StoredKernel, profile: Profile, first: int) -> Timeline:
    from pallas_debug.profile.timeline.timeline import timeline_of

    name = kernel.kernel.name if kernel.kernel else kernel.name
    return timeline_of(profile, first=first, last=max(first // 2, 1), name=name)


def _write(timeline: Timeline, to: Path) -> None:
    from pallas_debug.profile.timeline.trace_events import trace_json

    text = trace_json(timeline)
    if str(to) == "-":
        output.echo(text, newline=False)
        return
    output.write_file(to, text.encode(errors="backslashreplace"))
    output.message(f"wrote {to}: open it at https://ui.perfetto.dev, or in chrome://tracing")


def _is_unicode() -> bool:
    """Return whether standard output can encode the characters of a strip."""
    try:
        "█░▼▲·┊×µ".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
