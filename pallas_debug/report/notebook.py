"""Parts of the report for notebooks: static HTML with its style, and no script.

Notebooks show them through `_repr_html_`. Anything unreadable is left out or reported: displaying
an object never raises an exception.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from pallas_debug.errors import PallasDebugError
from pallas_debug.model import Dump, Finding, PrintRecord
from pallas_debug.report.markup import Child, Markup, tag
from pallas_debug.report.parts import (
    advice,
    compilation,
    figures,
    findings,
    kernel,
    memory,
)
from pallas_debug.report.parts.common import mark, section
from pallas_debug.store import open_dumps
from pallas_debug.store.profiles import read_profile

if TYPE_CHECKING:
    from pallas_debug.profile.comparison import Texts
    from pallas_debug.profile.stats import Stats
    from pallas_debug.store import StoredKernel


def fragment(*content: Child) -> str:
    """Parts with their style, for the output of a cell."""
    style = Markup(f"<style>{_style()}</style>")
    return str(tag("div", style, *content, class_="pallas-debug pd-notebook"))


@cache
def _style() -> str:
    from pallas_debug.report.page import static

    return static(["parts.css", "notebook.css"])


def dump_html(dump: Dump) -> str:
    """A dumped kernel: targets, figures of its schedule, passes, memory and blocks."""
    stored = _stored(dump)
    of_targets = []
    for made in dump.compilations:
        content: list[Child] = []
        if made.failure is not None:
            content.append(compilation.failure_card(made.failure))
        of = stored.compilations if stored is not None else ()
        target = next((one for one in of if one.target == made.target), None)
        found = read_profile(stored, target) if stored and target else None
        if stored is not None and found is not None:
            content.append(_costs(found.profile.stats, stored.line_text))
        content.append(compilation.passes_table(made))
        heading = tag("summary", tag("b", made.target), " ", compilation.status(made))
        of_targets.append(tag("details", heading, content, open=made is dump.compilations[0]))
    gone = tag("p", f"{dump.folder} is no longer there.", class_="pd-dim")
    return fragment(
        tag("h3", dump.kernel.name),
        kernel.subtitle(dump.kernel),
        gone if stored is None else None,
        of_targets,
        section("Operands", kernel.operands_table(dump.kernel), level=4),
    )


def stats_html(stats: Stats) -> str:
    """Figures of a schedule."""
    return fragment(
        tag("h3", stats.kernel, " ", tag("span", f"on {stats.target}", class_="pd-dim")),
        _costs(stats),
    )


def _costs(stats: Stats, text: Texts = lambda line: line.text) -> list[Child]:
    """Figures of a schedule; `text` returns that of a line."""
    return [
        section("Bottleneck", figures.bottleneck(stats.bottleneck), level=4),
        section("Advice", advice.listed(advice.advice_list(stats.advice)), level=4),
        figures.tiles(stats),
        section("Lines", figures.lines_table(stats, text=text), level=4),
        figures.notes(stats),
        section("Memory", memory.memory_part(stats.memory), level=4),
    ]


def checks_html(
    summary: Child,
    found: Sequence[Finding],
    prints: Sequence[PrintRecord] = (),
    not_checked: Sequence[str] = (),
    table: Child = None,
    title: str = "Not checked",
) -> str:
    """Findings, prints of kernels, and missing judgements."""
    gaps = tag("ul", [tag("li", text) for text in not_checked], class_="pd-notes")
    return fragment(
        tag("p", summary),
        table,
        findings.finding_list(found),
        section("Prints", findings.print_list(prints), level=4),
        section(title, gaps, level=4) if not_checked else None,
    )


def verdict_mark(ok: bool, text: str) -> Markup:
    """The summary of a verdict, with its sign."""
    return mark("ok" if ok else "bad", text)


def _stored(dump: Dump) -> StoredKernel | None:
    """The kernel's folder, if it is still there."""
    try:
        (found,) = open_dumps(dump.folder).kernels()
    except (PallasDebugError, OSError, ValueError):
        return None
    return found
