"""Section of one kernel: the parts of each target around the panes of source and texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pallas_debug.report.chunks import Chunk, chunks_of
from pallas_debug.report.collect import ReportedKernel, ReportedTarget
from pallas_debug.report.markup import Child, Markup, tag
from pallas_debug.report.parts import (
    advice,
    changes,
    compilation,
    figures,
    findings,
    kernel,
    memory,
    timeline,
)
from pallas_debug.report.parts.common import mark, section
from pallas_debug.report.parts.overview import StatsByLabel
from pallas_debug.store.profiles import StoredProfile, read_profile


@dataclass(frozen=True, kw_only=True)
class BuiltSection:
    """A kernel's section of the page, its data, and its statistics for the overview."""

    section: Markup
    chunks: list[Chunk]
    stats: StatsByLabel


def build_section(reported: ReportedKernel) -> BuiltSection:
    """Read everything that the page shows about a kernel; its schedules are not kept in memory."""
    profiles = [read_profile(target.kernel, target.stored) for target in reported.targets]
    shown = [
        found if found is not None and (target.is_ok or found.profile.schedule.bundles) else None
        for target, found in zip(reported.targets, profiles, strict=True)
    ]
    stats = {
        target.label: found.profile.stats
        for target, found in zip(reported.targets, shown, strict=True)
        if found is not None
    }
    return BuiltSection(
        section=_kernel(reported, shown, stats),
        chunks=chunks_of(reported, profiles),
        stats=stats,
    )


def _kernel(
    reported: ReportedKernel, profiles: Sequence[StoredProfile | None], stats: StatsByLabel
) -> Markup:
    of = reported.stored.kernel
    problem = reported.stored.problem
    targets = list(zip(reported.targets, profiles, strict=True))
    return tag(
        "section",
        tag(
            "header",
            tag("h2", reported.name, id=f"{reported.id}-title"),
            kernel.subtitle(of) if of is not None else None,
            class_="pd-kernel-head",
        ),
        tag("p", mark("bad", problem), class_="pd-problem") if problem else None,
        section("Findings", findings.finding_list(reported.records.findings, reported.link)),
        section("Found in the old dump only", findings.finding_list(reported.gone)),
        section("Hints", findings.hint_list(reported.records.hints, reported.link)),
        section("Not judged", findings.gap_list(reported.records.gaps)),
        _tabs(reported),
        [_summary(reported, at, *pair) for at, pair in enumerate(targets)],
        tag(
            "section",
            tag("h3", "Source and operations"),
            tag("p", "The linked source and compiler texts need JavaScript.", class_="pd-nojs"),
            tag("div", class_="pd-explorer", data_explorer=reported.id),
            class_="pd-part",
        ),
        section("Side by side", changes.changes_table([(reported, stats)])),
        [_details(reported, at, *pair) for at, pair in enumerate(targets)],
        section("Operands", kernel.operands_table(of)) if of is not None else None,
        section("Prints", findings.print_list(reported.records.prints, reported.link)),
        id=reported.id,
        class_="pd-view pd-kernel",
        aria_labelledby=f"{reported.id}-title",
    )


def _tabs(reported: ReportedKernel) -> Markup:
    """Links to the targets."""
    links = [
        tag(
            "a",
            target.label,
            mark("ok", "ok") if target.is_ok else mark("bad", "failed"),
            href=f"#{reported.id}/t{at}",
        )
        for at, target in enumerate(reported.targets)
    ]
    return tag("nav", links, class_="pd-tabs", aria_label="Targets") if links else Markup()


def _summary(
    reported: ReportedKernel, at: int, target: ReportedTarget, found: StoredProfile | None
) -> Markup:
    """Panel above the source, for one target."""
    stored, made = target.stored, target.stored.compilation
    content: list[Child] = [tag("h3", target.label, class_="pd-target-name")]
    if stored.problem:
        content.append(tag("p", mark("bad", stored.problem), class_="pd-problem"))
    if made is not None and made.failure is not None:
        content.append(compilation.failure_card(made.failure, reported.link))
    if found is not None:
        profile = found.profile
        content += [
            figures.tiles(profile.stats),
            section("Bottleneck", figures.bottleneck(profile.bottleneck)),
            section("Advice", advice.listed(advice.advice_list(profile.advice, reported.link))),
            tag("div", class_="pd-strip", data_strip=f"{reported.id}/{at}"),
            section("Timeline", timeline.timeline_part(profile, reported.name)),
        ]
    return _of_target(reported, at, content)


def _details(
    reported: ReportedKernel, at: int, target: ReportedTarget, found: StoredProfile | None
) -> Markup:
    """Panels below the source, for one target."""
    made = target.stored.compilation
    if made is None:
        return Markup()
    content: list[Child] = []
    if found is not None:
        stats, text = found.profile.stats, target.kernel.line_text
        content += [
            section("Lines by cost", figures.lines_table(stats, reported.link, text)),
            section("Memory", memory.memory_part(stats.memory)),
            section("About these figures", figures.notes(stats, found.problems)),
        ]
    content += [
        section("Passes", compilation.passes_table(made, f"#{reported.id}/t{at}/")),
        section("Compilation", compilation.compilation_facts(made)),
    ]
    return _of_target(reported, at, content)


def _of_target(reported: ReportedKernel, at: int, content: Sequence[Child]) -> Markup:
    return tag("div", content, class_="pd-target", data_kernel=reported.id, data_target=at)
