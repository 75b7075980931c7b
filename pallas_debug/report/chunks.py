"""Chunks of data in the page: the texts of a kernel, which scripts show on demand.

If a chunk cannot be read, the reason is shown in place of its texts. Chunks that would make the
page too large are left out, largest first, and the page says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import Any

from pallas_debug.errors import DumpFormatError, UsageError
from pallas_debug.model import Stage
from pallas_debug.profile.stats import Profile
from pallas_debug.report import schedule
from pallas_debug.report.collect import ReportedKernel, ReportedTarget
from pallas_debug.report.pack import Packer, Text, compressed, shown
from pallas_debug.store import StoredKernel, StoredText
from pallas_debug.store.layout import (
    ANALYSIS,
    CRITICAL_PATH,
    GAPS,
    HLO,
    PROFILE,
    REGISTERS,
    pass_name,
)
from pallas_debug.store.profiles import StoredProfile
from pallas_debug.store.texts import (
    LOG,
    OF_GPU,
    find_text,
    llo_texts,
    text_of_pass,
    texts_beside,
)

_BEFORE_PASSES: tuple[Stage, ...] = ("stablehlo", "mosaic", "ttir")
_OF_SCHEDULE = (ANALYSIS, CRITICAL_PATH, GAPS, PROFILE, REGISTERS, HLO)
"""Texts of the schedule that are shown as they are; others are shown as tables and maps."""


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Some texts, compressed.

    Attributes:
      id: of its element in the page.
      target: position of the target; None for texts of the kernel itself.
      names: of the texts, in order.
      data: compressed JSON; None if it was left out.
    """

    id: str
    target: int | None
    names: tuple[str, ...]
    data: str | None
    size: int

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"id": self.id, "target": self.target, "names": list(self.names)}
        return found | ({"left_out": self.size} if self.data is None else {})


def chunks_of(kernel: ReportedKernel, profiles: Sequence[StoredProfile | None]) -> list[Chunk]:
    """Chunks of one kernel: its own first, then those of each target."""
    own = [_stage(kernel.stored, "jaxpr")]
    source = _stage(kernel.stored, "source")
    extra = {
        "source": None if source.text is None else shown(source.text),
        "problem": source.problem,
        "notes": [list(note) for note in _notes(kernel)],
    }
    made = [_chunk(kernel.id, None, own, _document(Packer(), own) | extra)]
    for at, (target, profile) in enumerate(zip(kernel.targets, profiles, strict=True)):
        id_, moved = f"{kernel.id}-{at}", kernel.moved(target)
        passes = list(_passes(target))
        if target.kernel is not kernel.stored:
            passes = [_stage(target.kernel, "source"), _stage(target.kernel, "jaxpr"), *passes]
        if passes:
            content = _document(Packer(moved=moved), passes)
            made.append(_chunk(f"{id_}-passes", at, passes, content))
        if profile is not None:
            made.append(_of_schedule(f"{id_}-schedule", at, kernel, target, profile.profile))
        made += (
            _chunk(f"{id_}-llo{n}", at, [text], _document(Packer(moved=moved), [text]))
            for n, text in enumerate(_llo(target))
        )
    return made


def _of_schedule(
    id_: str, at: int, kernel: ReportedKernel, target: ReportedTarget, profile: Profile
) -> Chunk:
    """The bundles, and the compiler's other texts about its schedule."""
    own, moved = kernel.stored.own_file, kernel.moved(target)
    packer = Packer(moved=moved)
    bundles, starts = schedule.listing(profile, packer)
    texts = [Text(name="bundles", made=bundles)] if starts else []
    texts += _beside(target, [PurePath(path).stem for path in _OF_SCHEDULE])
    notes = [
        (moved(advice.source), advice) for advice in profile.advice if advice.source is not None
    ]
    content = _document(packer, texts) | {
        "strip": schedule.strip(profile, starts),
        "costs": schedule.costs(profile, own, moved),
        "notes": [
            [source.line, "advice", shown(f"{advice.kind}: {advice.message}")]
            for source, advice in notes
            if source.file == own
        ],
    }
    return _chunk(id_, at, texts, content)


def _document(packer: Packer, texts: Sequence[Text]) -> dict[str, Any]:
    """Texts and their tables, as one chunk."""
    packed = [packer.text(text) for text in texts]
    return {"texts": packed, **packer.tables()}


def within(chunks: Iterable[Chunk], limit: int) -> list[Chunk]:
    """The chunks, without the data of the largest if all together exceed `limit` bytes."""
    kept = list(chunks)
    total = sum(chunk.size for chunk in kept)
    for at in sorted(range(len(kept)), key=lambda at: kept[at].size, reverse=True):
        if total <= limit:
            break
        chunk = kept[at]
        total -= chunk.size
        kept[at] = Chunk(
            id=chunk.id, target=chunk.target, names=chunk.names, data=None, size=chunk.size
        )
    return kept


def _chunk(id_: str, target: int | None, texts: list[Text], content: dict[str, Any]) -> Chunk:
    data = compressed(content)
    names = tuple(shown(text.name) for text in texts)
    return Chunk(id=f"c-{id_}", target=target, names=names, data=data, size=len(data))


def _stage(kernel: StoredKernel, stage: Stage, target: str | None = None) -> Text:
    return _read(stage, partial(find_text, kernel, target, stage))


def _passes(target: ReportedTarget) -> Iterable[Text]:
    """StableHLO, Mosaic, the passes that changed something, and the compiler's log."""
    kernel, stored = target.kernel, target.stored
    for stage in _BEFORE_PASSES:
        if kernel.stage_path(stage, stored.target) is not None:
            yield _stage(kernel, stage, stored.target)
    if stored.compilation is None:
        return
    for n, this in enumerate(stored.passes):
        if this.changed or n == 0:
            name = pass_name(this.number, this.name)
            yield _read(name, partial(text_of_pass, kernel, stored, this))
    yield from _beside(target, [*OF_GPU, LOG])


def _llo(target: ReportedTarget) -> Iterable[Text]:
    """LLO passes: one of them is as large as all of Mosaic's."""
    return _beside(target, [text.stage for text in llo_texts(target.kernel, target.stored)])


def _beside(target: ReportedTarget, names: Iterable[str]) -> Iterable[Text]:
    """Texts other than stages and passes, with these names, if the dump has them."""
    known = {text.stage: text for text in texts_beside(target.kernel, target.stored)}
    for name in names:
        if name in known:
            yield _read(name, partial(known.__getitem__, name))


def _read(name: str, find: Callable[[], StoredText]) -> Text:
    """A text, or why it cannot be read."""
    try:
        return Text(name=name, text=find().text)
    except (DumpFormatError, UsageError) as error:
        return Text(name=name, problem=str(error))


def _notes(kernel: ReportedKernel) -> Iterable[tuple[int, str, str]]:
    """Lines of the kernel's own file with what was found there: a mark, and its text."""
    own = kernel.stored.own_file
    for finding in kernel.records.findings:
        message = finding.message.partition("\n")[0]
        for at in filter(None, (finding.source, finding.other)):
            if own is None or at.file == own:
                yield at.line, "finding", shown(f"{finding.kind}: {message}")
                if finding.advice and at is finding.source:
                    yield at.line, "finding", shown(f"try: {finding.advice}")
    alike: dict[tuple[int, str], list[str]] = {}
    for target in kernel.targets:
        made = target.stored.compilation
        failure = made.failure if made is not None and not target.is_old else None
        if failure is not None and failure.source is not None and failure.source.file == own:
            explained = failure.explanation
            sentence = explained.title if explained is not None else ""
            text = f"{failure.stage}: {sentence or failure.headline}"
            alike.setdefault((failure.source.line, text), []).append(target.label)
    for (line, text), labels in alike.items():
        yield line, "failure", shown(f"{', '.join(labels)} {text}")
