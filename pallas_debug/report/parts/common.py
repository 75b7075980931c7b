"""Elements that several parts use: statuses, bars, tables, lists of facts, quoted lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from pallas_debug import quantities
from pallas_debug.findings.facts import line_text
from pallas_debug.model import SourceLine
from pallas_debug.report.markup import Child, Markup, tag

Mark = Literal["ok", "bad", "warn", "none"]

_GLYPHS: dict[Mark, str] = {"ok": "✓", "bad": "✕", "warn": "▲", "none": "–"}


def mark(kind: Mark, *text: Child) -> Markup:
    """A status: a sign and its text, so that the colour is never the only carrier."""
    sign = tag("span", _GLYPHS[kind], class_="pd-sign", aria_hidden="true")
    return tag("span", sign, " ", *text, class_=f"pd-mark pd-{kind}")


def bar(share: float) -> Markup:
    """A bar for a share of the largest value; the value itself is next to it."""
    width = max(0.0, min(1.0, share)) * 100
    inner = tag("rect", width=f"{width:.1f}", height="8", rx="1")
    return tag(
        "svg",
        inner,
        class_="pd-bar",
        viewBox="0 0 100 8",
        preserveAspectRatio="none",
        aria_hidden="true",
        focusable="false",
    )


def measured(share: float, text: str) -> Markup:
    """A bar with its value; values of a column have one width, so that the bars line up."""
    return tag("span", bar(share), tag("span", text, class_="pd-amount"), class_="pd-measured")


def change(share: float | None) -> Markup:
    """A relative change of a cost, with its sign: what grew is bad."""
    if share is None:
        return tag("span", "–", class_="pd-dim")
    if not share:
        return tag("span", "same", class_="pd-dim")
    text = quantities.percent(share, 1, signed=True).replace("-", "−")
    return tag("span", text, class_="pd-grown" if share > 0 else "pd-shrunk")


def table(
    caption: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Child]],
    *,
    numeric: Sequence[int] = (),
    prose: Sequence[int] = (),
    class_: str = "",
) -> Markup:
    """A table. The first column heads its row.

    Roles are explicit: a narrow page changes the layout of tables.

    Args:
      numeric: columns that are aligned to the right.
      prose: columns whose text wraps on a narrow page, where the others keep one line.
      class_: `pd-stacks` for a table whose cells are below each other on a narrow page.
    """

    def cell(at: int, content: Child, role: str) -> Markup:
        kind = "pd-n" if at in numeric else "pd-prose" if at in prose else None
        if role != "cell":
            return tag("th", content, class_=kind, scope=role, role=f"{role}header")
        label = columns[at] if "pd-stacks" in class_ else None
        return tag("td", content, class_=kind, role="cell", data_label=label)

    def row(cells: Sequence[Child]) -> Markup:
        return tag(
            "tr", [cell(n, c, "cell" if n else "row") for n, c in enumerate(cells)], role="row"
        )

    inner = tag(
        "table",
        tag("caption", caption),
        tag(
            "thead",
            tag("tr", [cell(n, c, "col") for n, c in enumerate(columns)], role="row"),
            role="rowgroup",
        ),
        tag("tbody", [row(cells) for cells in rows], role="rowgroup"),
        class_=f"pd-table {class_}".strip(),
        role="table",
    )
    return tag("div", inner, class_="pd-scroll", tabindex="0", role="region", aria_label=caption)


def facts(rows: Iterable[tuple[str, Child]]) -> Markup:
    """Names and values; rows without a value are left out."""
    found = [
        tag("div", tag("dt", name), tag("dd", value))
        for name, value in rows
        if value not in (None, "")
    ]
    return tag("dl", found, class_="pd-facts") if found else Markup()


def quoted(source: SourceLine, href: str | None = None) -> Markup:
    """A line of source: its number, which is a link in the page, and its text."""
    number = tag("span", source.line, class_="pd-lineno")
    head: Child = tag("a", number, href=href, aria_label=line_text(source)) if href else number
    text = source.text.rstrip() if source.text else line_text(source)
    return tag("pre", head, tag("code", text.lstrip()), class_="pd-quoted")


def place(source: SourceLine, href: str | None = None) -> Markup:
    """`kernel.py:97`, with the whole path as its title; a link in the page."""
    if href is not None:
        return tag("a", line_text(source), href=href, title=str(source), class_="pd-place")
    return tag("span", line_text(source), title=str(source), class_="pd-place")


def section(title: str, *content: Child, level: int = 3) -> Markup:
    """A titled part; nothing if it is empty."""
    inner = [child for child in content if child]
    if not inner:
        return Markup()
    heading = tag(f"h{level}", title)
    return tag("section", heading, inner, class_="pd-part")
