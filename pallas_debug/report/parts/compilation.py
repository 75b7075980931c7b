"""A compilation: its status or failure, its memory, and its passes as a profile."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from pallas_debug.model import Compilation, Failure, Pass
from pallas_debug.render import visible
from pallas_debug.report import words
from pallas_debug.report.markup import Child, Markup, tag
from pallas_debug.report.parts.common import facts, mark, measured, place, table
from pallas_debug.report.parts.findings import Link, nowhere
from pallas_debug.store.layout import pass_name

MAX_MESSAGE = 8000
"""Maximum characters shown of a compiler's message."""


def status(compilation: Compilation) -> Markup:
    """`✓ ok`, or the stage that failed."""
    if compilation.failure is not None:
        return mark("bad", f"failed: {compilation.failure.stage}")
    return mark("ok" if compilation.ok else "bad", compilation.status)


def failure_card(failure: Failure, link: Link = nowhere, on: Sequence[str] = ()) -> Markup:
    """Why there is no executable: the compiler's message, and its explanation."""
    explained = failure.explanation
    message = failure.message.strip()
    cut = message[:MAX_MESSAGE]
    if len(message) > len(cut):
        cut += f"\n… {len(message) - len(cut):,} more characters"
    title = explained.title if explained is not None and explained.title else failure.headline
    source = failure.source
    return tag(
        "article",
        tag(
            "header",
            tag("h4", mark("bad", f"{failure.stage}: {title[:300]}")),
            tag(
                "p",
                place(source, link(source)) if source else None,
                tag("span", f"on {', '.join(on)}") if on else None,
                class_="pd-where",
            ),
            class_="pd-head",
        ),
        facts(
            [
                ("cause", explained.cause),
                *(("detail", detail) for detail in explained.details),
                ("try", explained.advice),
                ("versions", explained.versions),
                ("explanation", f"pallas-debug explain {explained.id}"),
            ]
            if explained is not None
            else []
        ),
        facts([("type", failure.type), ("last pass", failure.last_pass)]),
        tag(
            "details",
            tag("summary", "the compiler’s message"),
            tag("pre", cut, tabindex="0", aria_label="the compiler’s message"),
        )
        if cut
        else None,
        class_="pd-card pd-is-bad",
    )


def compilation_facts(compilation: Compilation) -> Markup:
    """How the compiler was called, and how long it took."""
    return facts(
        [
            ("device", compilation.device_kind),
            ("compiled in", words.seconds(compilation.seconds) if compilation.seconds else None),
            ("switches", ", ".join(compilation.switches)),
            ("flags", tag("code", " ".join(compilation.flags)) if compilation.flags else None),
            *((name, version) for name, version in compilation.versions.items()),
            *(("note", note) for note in compilation.notes),
        ]
    )


def passes_table(compilation: Compilation, href: str | None = None) -> Markup:
    """The passes as a profile: size of the text after each, and time.

    Args:
      href: address of the first pass in the page, to which the number of a pass is added.
    """
    passes = compilation.passes
    if not passes:
        return Markup()
    largest = max(p.size for p in passes) or 1
    slowest = max((p.seconds or 0.0 for p in passes), default=0.0) or 1.0
    before: int | None = None
    rows: list[list[Child]] = []
    for p in passes:
        grown = "" if before is None or before == p.size else f"{p.size - before:+,} B"
        before = p.size
        rows.append(
            [
                _name(p, href),
                _outcome(p),
                measured(p.size / largest, words.size(p.size)),
                grown.replace("-", "−") or words.MISSING,
                measured((p.seconds or 0.0) / slowest, words.seconds(p.seconds)),
            ]
        )
    known = [p.seconds for p in passes if p.seconds is not None]
    total = f", {words.seconds(sum(known))} in all" if known else ""
    return table(
        f"Passes for {compilation.target}: {len(compilation.changed_passes)} of {len(passes)} "
        f"changed something{total}",
        ["pass", "text", "size after", "change", "time"],
        rows,
        numeric=(2, 3, 4),
        class_="pd-passes",
    )


def _name(this: Pass, href: str | None) -> Child:
    name = pass_name(this.number, this.name)
    if href is None or not (this.file and (this.changed or this.number == 0)):
        return name
    return tag("a", name, href=href + quote(visible(name), safe=""))


def _outcome(this: Pass) -> Markup:
    if this.failed:
        return mark("bad", "failed")
    return tag("span", "changed") if this.changed else tag("span", "same", class_="pd-dim")
