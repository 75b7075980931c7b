"""`pallas-debug verify --search`: the smallest input for which a function's kernels fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pallas_debug import defaults, followup
from pallas_debug.cli import options as shared
from pallas_debug.cli import output, programs
from pallas_debug.cli.exits import Exit
from pallas_debug.errors import UsageError
from pallas_debug.render import plural

if TYPE_CHECKING:
    from pallas_debug.cli.verify import VerifyOptions
    from pallas_debug.searches.search import SearchResult


def run(options: VerifyOptions) -> Exit:
    """Search, print what was found, and return the exit code."""
    from pallas_debug._api.search import INTERRUPTED, search
    from pallas_debug.cli import verify

    named = programs.function_of(options)
    if named is None:
        raise programs.not_a_function("--search", options.what)
    if options.as_json:
        raise UsageError("--search prints no JSON")
    if options.inputs or options.spec:
        raise UsageError("--search draws the arguments: describe them with --arg and --let")
    function = programs.imported(*named)
    known: list[SearchResult] = []
    correct = None if options.reference is None else verify.reference(options.reference)

    def tick(so_far: SearchResult) -> None:
        known[:] = [so_far]

    with output.status(lambda: _so_far(known)):
        found = search(
            function,
            options.args,
            reference=correct,
            let=options.lets,
            budget=defaults.SEARCH_BUDGET if options.budget is None else options.budget,
            seed=options.seed,
            tick=tick,
            targets=",".join(options.targets),
            rtol=options.rtol,
            atol=options.atol,
            grad=options.grad,
        )
    click.echo(output.visible(str(found)))
    if found.failing is not None:
        words = [word for text in found.failing.input.texts for word in ("--arg", text)]
        words += shared.compared(options.reference)
        words += ["--grad"] * options.grad
        for name, value in (("--rtol", options.rtol), ("--atol", options.atol)):
            words += [] if value is None else [name, str(value)]
        output.follow(followup.command("verify", options.what, *words))
    if found.stopped == INTERRUPTED:
        return Exit.INTERRUPTED
    if found.failing is not None:
        return Exit.FAILED
    return Exit.OK if found.ok and not found.stopped and not found.unsettled else Exit.CANNOT_RUN


def _so_far(known: list[SearchResult]) -> str:
    if not known:
        return "searching"
    (found,) = known
    fails = f", {found.failed:,} fail, smallest {found.failing.input}" if found.failing else ""
    return f"searching: {plural(found.tried, 'input')} tried{fails}"
