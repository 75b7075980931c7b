"""Advice: what makes a kernel slow, with the evidence for it, and what to change."""

from __future__ import annotations

from collections.abc import Sequence

from pallas_debug.profile.advice import Advice
from pallas_debug.profile.whatif import WhatIf
from pallas_debug.report import words
from pallas_debug.report.markup import Markup, tag
from pallas_debug.report.parts.common import facts, mark, place, quoted
from pallas_debug.report.parts.findings import Link, nowhere


def advice_list(found: Sequence[Advice], link: Link = nowhere) -> Markup:
    """A card for each piece."""
    if not found:
        return Markup()
    return tag("div", [_card(advice, link) for advice in found], class_="pd-cards")


def _card(advice: Advice, link: Link) -> Markup:
    source = advice.source
    href = link(source) if source is not None else None
    where = [place(source, href)] if source is not None else []
    if advice.operand is not None:
        where.append(tag("code", advice.operand))
    return tag(
        "article",
        tag(
            "header",
            tag("h4", mark("warn", advice.kind)),
            tag("p", where, class_="pd-where") if where else None,
            class_="pd-head",
        ),
        quoted(source, href) if source is not None and source.text else None,
        tag("p", advice.message),
        facts([("try", advice.remedy), ("saves", _saving(advice.what_if))]),
        class_="pd-card pd-is-warn",
    )


def _saving(what_if: WhatIf) -> str:
    """`7,402 of 12,287 cycles (60 %), with q_ref[2]=256`."""
    now = what_if.now.value or 1
    saved = f"{words.number(round(what_if.saved))} of {words.number(now)} cycles"
    most = "at most " if what_if.is_bound else ""
    return f"{most}{saved} ({words.percent(what_if.saved / now)}), with {what_if.change}"
