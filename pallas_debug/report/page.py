"""The page: parts, data, style and script in one self-contained file.

A content security policy allows exactly the inline style and script that are in the page, by their
hashes, and no connection, image, frame or form. Data are in elements that browsers do not run.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from pallas_debug.model import Failure
from pallas_debug.report.chunks import Chunk
from pallas_debug.report.collect import Contents, ReportedKernel, ReportedTarget
from pallas_debug.report.markup import Markup, join, tag
from pallas_debug.report.pack import compressed, shown
from pallas_debug.report.parts import changes, compilation, findings, overview
from pallas_debug.report.parts.common import section
from pallas_debug.report.parts.overview import StatsByLabel
from pallas_debug.report.section import build_section

STYLES = ("parts.css", "page.css")
SCRIPTS = (
    "elements.js",
    "data.js",
    "tokens.js",
    "diff.js",
    "lines.js",
    "explorer.js",
    "strip.js",
    "tables.js",
    "app.js",
)
"""Files of `static/`, in order; the scripts share one scope."""

_EARLY = 'document.documentElement.className = "js";'
"""Run before the body is drawn: parts that need the script are hidden without it."""


def render_page(contents: Contents, title: str) -> str:
    """The whole page."""
    built = list(map(build_section, contents.kernels))
    style = static(STYLES)
    script = "(() => {\n'use strict';\n" + static(SCRIPTS) + "\n})();\n"
    policy = (
        f"default-src 'none'; script-src {_hash(_EARLY)} {_hash(script)}; "
        f"style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
    )
    head = [
        tag("meta", charset="utf-8"),
        _policy(policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        _inline("script", _EARLY),
        _inline("style", style),
    ]
    body = [
        tag("a", "Skip to the content", href="#main", class_="pd-skip"),
        _bar(),
        tag(
            "main",
            _overview(contents, title, [one.stats for one in built]),
            [one.section for one in built],
            id="main",
            tabindex="-1",
        ),
        _data(contents, [one.chunks for one in built]),
        _inline("script", script),
    ]
    page = tag(
        "html",
        tag("head", head),
        tag("body", body, class_="pallas-debug pd-page"),
        lang="en",
    )
    return f"<!doctype html>\n{page}\n"


def static(names: Iterable[str]) -> str:
    """Files of `static/`, one after the other."""
    folder = Path(__file__).parent / "static"  # `importlib.resources` takes 10 ms to import
    return "\n".join((folder / name).read_text("utf-8").strip() for name in names)


def _policy(policy: str) -> Markup:
    return Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">')


def _inline(name: str, content: str) -> Markup:
    """Our own style or script, verbatim: its hash is in the policy."""
    return Markup(f"<{name}>{content}</{name}>")


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _bar() -> Markup:
    return tag(
        "header",
        tag("a", tag("b", "pallas-debug"), " report", href="#overview", class_="pd-brand"),
        tag("nav", id="crumbs", aria_label="Where you are", class_="pd-crumbs"),
        tag("div", id="tools", class_="pd-tools"),
        tag("nav", id="parts", hidden=True, aria_label="Parts of the kernel", class_="pd-parts"),
        class_="pd-top",
    )


def _overview(contents: Contents, title: str, stats: Sequence[StatsByLabel]) -> Markup:
    of_all = [
        tag(
            "section",
            tag("h3", tag("a", reported.name, href=f"#{reported.id}")),
            _failures(reported),
            findings.finding_list(reported.records.findings, reported.link),
            findings.hint_list(reported.records.hints, reported.link),
        )
        for reported in contents.kernels
        if reported.records.findings
        or reported.records.hints
        or any(_failure(t) for t in reported.targets)
    ]
    elsewhere = findings.finding_list(contents.elsewhere)
    pairs = zip(contents.kernels, stats, strict=True)
    kernels = overview.matrix(contents, stats) if contents.kernels else None
    return tag(
        "section",
        tag("h1", title),
        overview.verdict(contents),
        overview.shares(contents, stats),
        section("Findings", *of_all, level=2),
        section("Findings of kernels that are not in this directory", elsewhere, level=2),
        section("What would save cycles", overview.proposals(contents, stats), level=2),
        section("Side by side", changes.changes_table(pairs), level=2),
        section("Kernels", kernels, level=2),
        id="overview",
        class_="pd-view",
    )


def _failure(target: ReportedTarget) -> Failure | None:
    """Why a target does not compile; None for an old dump, which is only compared."""
    made = target.stored.compilation
    return made.failure if made is not None and not target.is_old else None


def _failures(reported: ReportedKernel) -> Markup:
    """Failures of a kernel; targets with the same failure share a card."""
    cards: dict[tuple[str, str], tuple[Failure, list[str]]] = {}
    for target in reported.targets:
        if (failure := _failure(target)) is not None:
            same = failure.stage, failure.headline
            cards.setdefault(same, (failure, []))[1].append(target.label)
    return join(compilation.failure_card(f, reported.link, on) for f, on in cards.values())


def _data(contents: Contents, chunks: Sequence[Sequence[Chunk]]) -> Markup:
    """The chunks, and an index of their contents."""
    index = {
        "kernels": [
            {
                "id": reported.id,
                "name": shown(reported.name),
                **_own_place(reported),
                "targets": [shown(target.label) for target in reported.targets],
                "chunks": [chunk.as_json() for chunk in found],
            }
            for reported, found in zip(contents.kernels, chunks, strict=True)
        ]
    }
    parts = [_block("index", compressed(index))]
    parts += [_block(c.id, c.data) for found in chunks for c in found]
    return join(parts)


def _block(id_: str, data: str) -> Markup:
    return Markup(f'<script type="text/plain" id="{id_}">{data}</script>\n')


def _own_place(reported: ReportedKernel) -> dict[str, str | int | None]:
    of = reported.stored.kernel
    source = of.source if of is not None else None
    if source is None:
        return {"file": None, "line": None}
    return {"file": shown(source.file), "line": source.line}
