"""`pallas-debug grep`: search across all stages and passes of all kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pallas_debug import defaults, followup
from pallas_debug.cli import options as shared
from pallas_debug.cli import output, where
from pallas_debug.cli.exits import Exit
from pallas_debug.errors import PatternError, UsageError, meant
from pallas_debug.render import one_line

if TYPE_CHECKING:
    from pallas_debug.ir.search import Hit, Query
    from pallas_debug.store import StoredText


@dataclass(frozen=True, kw_only=True)
class GrepOptions:
    pattern: str = shared.argument()
    where: str | Path = shared.argument(type=shared.PLACE, default=defaults.DIRECTORY)
    ignore_case: bool = shared.option("-i", "--ignore-case", help="Ignore upper and lower case.")
    fixed: bool = shared.option("-F", "--fixed", help="PATTERN is plain text.")
    kernel: str | None = shared.option("-k", "--kernel", help="Only this kernel.")
    target: str | None = shared.option(
        "-t", "--target", help="Only these targets, joined by commas."
    )
    stage: str | None = shared.option(
        "-p", "--pass", help="Only this stage or pass, by number or name."
    )
    as_json: bool = shared.as_json()


def run(options: GrepOptions) -> int:
    """Search WHERE (`dumps` by default) for PATTERN, a regular expression.

    All stages and passes of all kernels are searched, each text once: a pass that changed nothing
    has no text of its own. The source, the program and the compiler's log are searched only on
    request: `--pass source`, `program` or `log`. Lines are printed as by `grep -n`.

    Regular expressions use RE2 syntax: Python's, without look-around and back-references.

    The exit code is 1 if nothing is found, and 3 if a text could not be searched.
    """
    from pallas_debug.ir.search import Query
    from pallas_debug.store.texts import TextFilter, texts_in

    query = Query(text=options.pattern, literal=options.fixed, ignore_case=options.ignore_case)
    try:
        query.compiled()
    except PatternError as error:
        raise UsageError(f"{error}. Pass -F to search for it as plain text.") from error
    place = where.place_at(options.where, options.kernel)
    targets = [name.strip() for name in (options.target or place.target or "").split(",") if name]
    kernel = None if place.kernel is None else place.reader.find(place.kernel).name
    problems: list[str] = []
    wanted = TextFilter(kernel=kernel, targets=targets, stage=options.stage)
    texts = list(texts_in(place.root, wanted, problems.append))
    _check_names(place, targets, options.stage, texts)
    found = _hits(texts, query, problems, as_json=options.as_json)
    for problem in problems:
        output.message(problem)
    if found is not None:
        output.follow(_look_at(*found, place), as_json=options.as_json)
    if problems:
        return Exit.CANNOT_RUN
    return Exit.FAILED if found is None else Exit.OK


command = shared.make("grep", GrepOptions, run)


def _look_at(text: StoredText, line: int, place: where.Place) -> str:
    """Command that shows the first line that was found in its text."""
    at = place.path(text.kernel)
    target = [] if text.target is None else ["-t", text.target]
    if output.has_terminal():
        return followup.command("browse", at, *target, "-p", text.stage, "-n", str(line))
    return followup.command("show", at, text.stage, *target)


def _check_names(
    place: where.Place, targets: Sequence[str], stage: str | None, texts: Sequence[StoredText]
) -> None:
    """Check that there are texts for the targets and the pass given on the command line."""
    from pallas_debug.store.texts import ALL, texts_in

    if texts and not targets:
        return
    where.check_targets(targets, place.kernels())
    if texts:
        return
    everything = list(texts_in(place.root, ALL, lambda _: None))
    if stage is None or not everything:
        output.message(where.no_kernels(place.root))
        return
    passes = sorted({text.stage.partition("-")[2] or text.stage for text in everything})
    raise UsageError(
        f"no stage or pass {stage!r}{meant(stage, passes)} in {one_line(place.root)}; there are: "
        f"{', '.join(map(one_line, passes[:40]))}{', …' if len(passes) > 40 else ''}"
    )


def _hits(
    texts: Sequence[StoredText], query: Query, problems: list[str], *, as_json: bool
) -> tuple[StoredText, int] | None:
    """Print the lines that match, and return the first: its text and number."""
    rows: list[dict[str, Any]] = []
    first: tuple[StoredText, int] | None = None
    for text, hit in _found(texts, query, problems):
        first = first or (text, hit.line)
        if as_json:
            place = {"line": hit.line, "column": hit.column, "text": hit.text, "cut": hit.cut}
            rows.append(text.as_json() | {"path": str(text.path)} | place)
        else:
            _print(hit)
    if as_json:
        output.print_json("grep", {"matches": rows})
    return first


def _found(
    texts: Sequence[StoredText], query: Query, problems: list[str]
) -> Iterator[tuple[StoredText, Hit]]:
    from pallas_debug.ir import search

    by_path = {text.path: text for text in texts}
    for event in search.search(by_path, query, opened=lambda path: by_path[path].open()):
        if isinstance(event, search.Hit):
            yield by_path[event.path], event
        elif event.problem:
            problems.append(event.problem)


def _print(hit: Hit) -> None:
    """Print a hit like `grep -n`, with an ellipsis where a long line was cut."""
    more = "…" if hit.cut else ""
    if not output.colored():
        output.echo(f"{hit.path}:{hit.line}:{more}{''.join(hit.parts)}{more}")
        return
    before, match, after = map(output.visible, hit.parts)
    path = output.styled("place", output.visible(str(hit.path)))
    found = output.styled("found", match)
    click.echo(f"{path}:{output.styled('ok', str(hit.line))}:{more}{before}{found}{after}{more}")
