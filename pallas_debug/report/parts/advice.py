"""Advice: what would save cycles, how many, and what to change; what saves most comes first."""

from __future__ import annotations

from collections.abc import Iterable

from pallas_debug.profile.advice import Advice
from pallas_debug.report import words
from pallas_debug.report.markup import Child, Markup, tag
from pallas_debug.report.parts.common import measured, place
from pallas_debug.report.parts.findings import Link, nowhere


def advice_list(found: Iterable[Advice], link: Link = nowhere, of: Child = None) -> list[Markup]:
    """An item for each piece.

    Args:
      of: the kernel that each is for, if they are listed with those for others.
    """
    return [_item(advice, link, of) for advice in found]


def listed(items: list[Markup]) -> Markup:
    """Items as a list; nothing if there are none."""
    return tag("ol", items, class_="pd-proposals") if items else Markup()


def _item(advice: Advice, link: Link, of: Child) -> Markup:
    what_if, source = advice.what_if, advice.source
    now = what_if.now.value or 1
    most = "≤ " if what_if.is_bound else ""
    saved = f"{most}{words.number(round(what_if.saved))} cycles"
    cycles = f"{words.number(what_if.now.value)} → {words.number(what_if.cycles.value)} cycles"
    why = f"{advice.kind}: {advice.message}; {cycles} ({what_if.change})"
    return tag(
        "li",
        measured(what_if.saved / now, saved),
        tag("b", words.percent(what_if.saved / now), class_="pd-saved"),
        tag(
            "div",
            of,
            f"{advice.remedy} ",
            place(source, link(source)) if source is not None else None,
            tag("span", why, class_="pd-sub"),
        ),
    )
