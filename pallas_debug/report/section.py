"""Section of one kernel: the parts of each target around the panes of source and texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pallas_debug.errors import DumpFormatError, UsageError
from pallas_debug.model import Compilation, SourceLine
from pallas_debug.profile.stats import Stats
from pallas_debug.report.chunks import Chunk, chunks_of
from pallas_debug.report.collect import ReportedKernel, own_file
from pallas_debug.report.markup import Child, Markup, tag
from pallas_debug.report.parts import advice, blocks, compilation, figures, findings, kernel, memory
from pallas_debug.report.parts.common import mark, section
from pallas_debug.report.parts.findings import Link
from pallas_debug.report.parts.overview import FiguresByTarget, OverviewFigures
from pallas_debug.store import StoredCompilation, StoredKernel
from pallas_debug.store.profiles import StoredProfile, read_profile


@dataclass(frozen=True, kw_only=True)
class BuiltSection:
    """A kernel's section of the page, its data, and its numbers for the overview."""

    section: Markup
    chunks: list[Chunk]
    figures: FiguresByTarget


def build_section(reported: ReportedKernel) -> BuiltSection:
    """Read everything that the page shows about a kernel; its schedules are not kept in memory."""
    profiles = [read_profile(reported.stored, c) for c in reported.compilations]
    return BuiltSection(
        section=_kernel(reported, profiles),
        chunks=chunks_of(reported, profiles),
        figures={
            stored.target: OverviewFigures.of(found.profile.stats)
            for stored, found in zip(reported.compilations, profiles, strict=True)
            if found is not None
        },
    )


def link_of(reported: ReportedKernel) -> Link:
    """Links to lines of a kernel's own file."""
    own = own_file(reported.stored)

    def link(source: SourceLine) -> str | None:
        return f"#{reported.id}/l{source.line}" if source.file == own else None

    return link


def _kernel(reported: ReportedKernel, profiles: Sequence[StoredProfile | None]) -> Markup:
    of = reported.stored.kernel
    link = link_of(reported)
    problem = reported.stored.problem
    source = source_lines(reported.stored)
    targets = list(enumerate(zip(reported.compilations, profiles, strict=True)))
    summaries = [_summary(reported, at, c, profile, link) for at, (c, profile) in targets]
    details = [_details(reported, at, c, profile, source) for at, (c, profile) in targets]
    tests = tag("ul", [tag("li", tag("code", name)) for name in reported.tests[:50]])
    return tag(
        "section",
        tag(
            "header",
            tag("h2", reported.name, id=f"{reported.id}-title"),
            kernel.subtitle(of) if of is not None else None,
            class_="pd-kernel-head",
        ),
        tag("p", mark("bad", problem), class_="pd-problem") if problem else None,
        _tabs(reported),
        summaries,
        section("Findings", findings.finding_list(reported.findings, link)),
        section("Hints", findings.hint_list(reported.hints, link)),
        section("Not judged", findings.gap_list(reported.gaps)),
        tag(
            "section",
            tag("h3", "Source and operations"),
            tag("p", "The linked source and compiler texts need JavaScript.", class_="pd-nojs"),
            tag("div", class_="pd-explorer", data_explorer=reported.id),
            class_="pd-part",
        ),
        details,
        section("Blocks", _blocks(reported)),
        section("Operands", kernel.operands_table(of)) if of is not None else None,
        section("Prints", findings.print_list(reported.prints, link)),
        section("Kernel", kernel.kernel_facts(of)) if of is not None else None,
        section("Used by", tests) if reported.tests else None,
        id=reported.id,
        class_="pd-view pd-kernel",
        aria_labelledby=f"{reported.id}-title",
    )


def _tabs(reported: ReportedKernel) -> Markup:
    """Links to the targets."""
    links = [
        tag("a", stored.target, _sign(stored), href=f"#{reported.id}/t{at}")
        for at, stored in enumerate(reported.compilations)
    ]
    return tag("nav", links, class_="pd-tabs", aria_label="Targets") if links else Markup()


def _sign(stored: StoredCompilation) -> Markup:
    ok = stored.compilation is not None and stored.compilation.ok
    return mark("ok" if ok else "bad", "ok" if ok else "failed")


def _summary(
    reported: ReportedKernel,
    at: int,
    stored: StoredCompilation,
    profile: StoredProfile | None,
    link: Link,
) -> Markup:
    """Panel above the source, for one target."""
    made = stored.compilation
    content: list[Child] = [tag("h3", stored.target, class_="pd-target-name")]
    if stored.problem:
        content.append(tag("p", mark("bad", stored.problem), class_="pd-problem"))
    if made is not None and made.failure is not None:
        content.append(compilation.failure_card(made.failure, link))
    if profile is not None and _was_scheduled(made, profile):
        content.append(figures.tiles(profile.profile.stats))
        content.append(tag("div", class_="pd-strip", data_strip=f"{reported.id}/{at}"))
        content.append(section("Bottleneck", figures.bottleneck(profile.profile.bottleneck)))
        content.append(section("Advice", advice.advice_list(profile.profile.advice, link)))
    return _of_target(reported, at, content)


def _was_scheduled(made: Compilation | None, profile: StoredProfile) -> bool:
    """Return whether there are figures to show: a failed compilation may have none."""
    failed = made is not None and made.failure is not None
    return not failed or profile.profile.stats.bundles.is_known


def _details(
    reported: ReportedKernel,
    at: int,
    stored: StoredCompilation,
    profile: StoredProfile | None,
    source: Sequence[str],
) -> Markup:
    """Panels below the source, for one target."""
    made = stored.compilation
    if made is None:
        return Markup()
    shown = profile is not None and _was_scheduled(made, profile)
    stats = profile.profile.stats if profile is not None and shown else None
    return _of_target(
        reported,
        at,
        [
            *(_figures(reported, stats, source, profile.problems) if stats and profile else ()),
            section("Passes", compilation.passes_table(made, f"#{reported.id}/t{at}/")),
            section("Compilation", compilation.compilation_facts(made), _missing(made)),
        ],
    )


def _figures(
    reported: ReportedKernel, stats: Stats, source: Sequence[str], problems: Sequence[str]
) -> tuple[Markup, ...]:
    lines = figures.lines_table(stats, link_of(reported), own_file(reported.stored), source)
    return (
        section("Lines by cost", lines),
        section("Units", figures.units_table(stats)),
        section("Loops", figures.loops_table(stats)),
        section("Copies and work", figures.traffic_facts(stats.traffic)),
        section("Memory", memory.memory_part(stats.memory)),
        section("About these figures", figures.notes(stats, problems)),
    )


def _missing(made: Compilation) -> Markup:
    """Requested files that do not exist."""
    if not made.missing:
        return Markup()
    rows = [
        tag(
            "li",
            mark("warn", file.file),
            f": {_CAUSES[file.cause]}",
            f" {file.flag}" if file.flag else None,
            tag("span", file.message[:300], class_="pd-sub") if file.message else None,
        )
        for file in made.missing
    ]
    return tag("ul", rows, class_="pd-notes")


_CAUSES = {
    "aborted": "the compiler died with the flag",
    "refused": "the compiler does not know the flag",
    "timeout": "the compiler took too long with the flag",
    "unwritten": "the compiler did not write it",
}


def _blocks(reported: ReportedKernel) -> Markup:
    """The table of blocks, and the element in which the script draws them."""
    try:
        found = reported.stored.blocks()
    except DumpFormatError as error:
        return tag("p", mark("bad", str(error)), class_="pd-problem")
    if found is None:
        return Markup()
    table = blocks.blocks_table(found)
    return tag("div", table, tag("div", class_="pd-blocks", data_blocks=reported.id))


def source_lines(stored: StoredKernel) -> list[str]:
    """Lines of the kernel's own file; none if the dump does not contain it."""
    try:
        return stored.stage_text("source").split("\n")
    except (DumpFormatError, UsageError):
        return []


def _of_target(reported: ReportedKernel, at: int, content: Sequence[Child]) -> Markup:
    return tag("div", content, class_="pd-target", data_kernel=reported.id, data_target=at)
