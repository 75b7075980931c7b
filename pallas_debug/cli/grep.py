"""`pallas-debug grep`: a search over all stages and passes of all kernels."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pallas_debug import defaults
from pallas_debug.cli import output
from pallas_debug.cli.exits import Exit
from pallas_debug.errors import UsageError

if TYPE_CHECKING:
    from pallas_debug.cli.texts import TextFile
    from pallas_debug.ir.search import Hit, Query


@click.command("grep")
@click.argument("pattern")
@click.argument("directory", type=click.Path(path_type=Path), default=defaults.DIRECTORY)
@click.option("-i", "--ignore-case", is_flag=True, help="Upper and lower case are alike.")
@click.option("-F", "--fixed", is_flag=True, help="PATTERN is text, no regular expression.")
@click.option("-c", "--count", is_flag=True, help="Counts of lines for each text that has some.")
@click.option("-l", "--files", is_flag=True, help="Names of the texts alone.")
@click.option("-k", "--kernel", help="Only kernels with this in their name.")
@click.option("-t", "--target", help="Only these targets, joined by commas.")
@click.option("-p", "--pass", "stage", help="Only this stage or pass, by number or name.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(
    pattern: str,
    directory: Path,
    ignore_case: bool,
    fixed: bool,
    count: bool,
    files: bool,
    kernel: str | None,
    target: str | None,
    stage: str | None,
    as_json: bool,
) -> int:
    """Search DIRECTORY (`dumps` unless given) for PATTERN, a regular expression of Python.

    All stages and passes of all kernels are searched, each text once: a pass that changed nothing
    has none of its own. The source and the compiler's log are searched when asked for, with
    `--pass source` or `--pass log`. Lines are printed as `grep -n` prints them.

    The exit code is 1 when nothing is found, and 3 when a text could not be searched.
    """
    from pallas_debug.cli.texts import Filter, text_files
    from pallas_debug.ir.search import Query

    query = Query(text=pattern, literal=fixed, ignore_case=ignore_case)
    try:
        query.compiled()
    except re.error as error:
        raise UsageError(
            f"{pattern!r} is no regular expression: {error}. With -F it is taken as it stands."
        ) from error
    targets = [name.strip() for name in target.split(",")] if target else []
    problems: list[str] = []
    wanted = Filter(kernel=kernel, targets=targets, stage=stage)
    texts = list(text_files(directory, wanted, problems.append))
    if not texts:
        output.say(f"no texts of that kernel, target and pass in {directory}")
    if count or files:
        found = _counts(texts, query, problems, names_only=files, as_json=as_json)
    else:
        found = _hits(texts, query, problems, as_json=as_json)
    for problem in problems:
        output.say(problem)
    if problems:
        return Exit.CANNOT_RUN
    return Exit.OK if found else Exit.FAILED


def _counts(
    texts: Sequence[TextFile], query: Query, problems: list[str], *, names_only: bool, as_json: bool
) -> bool:
    from pallas_debug.ir import search

    found: list[dict[str, Any]] = []
    paths = (t.path for t in texts)
    counted = search.count(paths, query, first=names_only, opened=_opener(texts))
    for text, (path, number, problem) in zip(texts, counted, strict=True):
        if problem:
            problems.append(problem)
        if not number:
            continue
        found.append(_where(text) | ({} if names_only else {"count": number}))
        if not as_json:
            output.echo(str(path) if names_only else f"{path}:{number}")
    if as_json:
        output.print_json(found)
    return bool(found)


def _opener(texts: Sequence[TextFile]) -> Callable[[Path], int]:
    from pallas_debug.store.files import DumpFile

    roots = {text.path: text.root for text in texts}
    return lambda path: DumpFile(path=path, root=roots[path]).open()


def _hits(texts: Sequence[TextFile], query: Query, problems: list[str], *, as_json: bool) -> bool:
    rows: list[dict[str, Any]] = []
    any_found = False
    for text, hit in _found(texts, query, problems):
        any_found = True
        if as_json:
            place = {"line": hit.line, "column": hit.column, "text": hit.text, "cut": hit.cut}
            rows.append(_where(text) | place)
        else:
            _print(hit)
    if as_json:
        output.print_json(rows)
    return any_found


def _found(
    texts: Sequence[TextFile], query: Query, problems: list[str]
) -> Iterator[tuple[TextFile, Hit]]:
    from pallas_debug.ir import search

    by_path = {text.path: text for text in texts}
    for event in search.search(by_path, query, opened=_opener(texts)):
        if isinstance(event, search.Hit):
            yield by_path[event.path], event
        elif event.problem:
            problems.append(event.problem)


def _print(hit: Hit) -> None:
    """Print a hit as `grep -n` does; a long line is cut, which an ellipsis shows."""
    more = "…" if hit.cut else ""
    if not output.colored():
        output.echo(f"{hit.path}:{hit.line}:{more}{''.join(hit.parts)}{more}")
        return
    before, match, after = map(output.visible, hit.parts)
    path = output.visible(str(hit.path))
    place = f"{click.style(path, fg='magenta')}:{click.style(str(hit.line), fg='green')}:"
    click.echo(f"{place}{more}{before}{click.style(match, fg='red', bold=True)}{after}{more}")


def _where(text: TextFile) -> dict[str, Any]:
    return {
        "kernel": text.kernel,
        "target": text.target,
        "stage": text.stage,
        "path": str(text.path),
    }
