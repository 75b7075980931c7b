"""`pallas-debug timeline`: the pipeline of a kernel over its first and last grid steps."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pallas_debug import defaults
from pallas_debug.cli import costs, output, where
from pallas_debug.cli import options as shared
from pallas_debug.cli.exits import Exit

if TYPE_CHECKING:
    from pallas_debug.profile.timeline.timeline import Timeline


@dataclass(frozen=True, kw_only=True)
class TimelineOptions(shared.StoredOptions):
    to: Path | None = shared.option(
        "-o",
        "--to",
        type=shared.FILE,
        help="Write a trace file for https://ui.perfetto.dev or chrome://tracing, or - for "
        "standard output.",
    )
    as_json: bool = shared.as_json()


def run(options: TimelineOptions) -> int:
    """Show when a kernel computes, copies and waits, over its first and last grid steps.

    \b
    pallas-debug timeline                     the kernels of dumps/, a line each
    pallas-debug timeline flash -t v5e
    pallas-debug timeline flash -t v5e -o trace.json

    What each step runs and copies, including copies started by the kernel, is read from the
    schedule's scalar instructions. Durations are estimates: cycles of the bundles, and copies as
    long as in libtpu's own estimates. The last steps of a grid of many thousands are not shown.
    """
    from pallas_debug.profile.timeline import strip
    from pallas_debug.profile.timeline.timeline import timeline_of

    place = where.place_at(options.where, options.kernel, options.target)
    items = costs.costed(place)
    if options.to is not None and len(items) > 1:
        place.only().target(place.target)
    width = shutil.get_terminal_size((100, 24)).columns
    is_drawn = options.to is None and not options.as_json
    steps = strip.steps_that_fit(width) * 2 // 3 if is_drawn else defaults.TIMELINE_STEPS

    def timeline(item: costs.Costed) -> Timeline:
        name, last = item.kernel.own_name, max(steps // 2, 1)
        return timeline_of(item.with_bundles, first=steps, last=last, name=name)

    made, code = output.attempted(items, timeline)
    if any(item.problems for item in items):
        code = Exit.CANNOT_RUN
    if options.to is not None:
        _write(made[0], options.to)
    elif options.as_json:
        output.print_json("timeline", {"timelines": made})
    elif len(items) == 1:
        for line in strip.strip(made[0], width):
            output.echo(line)
    else:
        for one in made:
            output.echo_wrapped(strip.title(one), 4)
    kernels = [item.kernel for item in items]
    output.follow(place.look(kernels, "stats"), as_json=options.as_json)
    return code


command = shared.make("timeline", TimelineOptions, run)


def _write(timeline: Timeline, to: Path) -> None:
    from pallas_debug.profile.timeline.trace_events import trace_json

    text = trace_json(timeline)
    if str(to) == "-":
        output.echo(text, newline=False)
        return
    output.write_file(to, text.encode(errors="backslashreplace"))
    output.message(f"wrote {to}: open it at https://ui.perfetto.dev, or in chrome://tracing")
