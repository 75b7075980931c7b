"""Chunks of data in the page: the texts of a kernel, which scripts show on demand.

If a text cannot be read, the reason is shown in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pallas_debug.errors import DumpFormatError, UsageError
from pallas_debug.model import Stage
from pallas_debug.profile.stats import Profile
from pallas_debug.report import schedule
from pallas_debug.report.collect import ReportedKernel, ReportedTarget
from pallas_debug.report.pack import Packer, Text, compressed, shown
from pallas_debug.store import StoredKernel, StoredText
from pallas_debug.store.files import is_there
from pallas_debug.store.layout import pass_name
from pallas_debug.store.profiles import StoredProfile
from pallas_debug.store.texts import LOG, OF_GPU, find_text, text_of_pass, texts_beside

_BEFORE_PASSES: tuple[Stage, ...] = ("stablehlo", "mosaic", "ttir")


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Some texts, compressed.

    Attributes:
      id: of its element in the page.
      target: position of the target; None for texts of the kernel itself.
      names: of the texts, in order.
      data: compressed JSON.
    """

    id: str
    target: int | None
    names: tuple[str, ...]
    data: str

    def as_json(self) -> dict[str, Any]:
        return {"id": self.id, "target": self.target, "names": list(self.names)}


def chunks_of(kernel: ReportedKernel, profiles: Sequence[StoredProfile | None]) -> list[Chunk]:
    """Chunks of one kernel: its own first, then those of each target."""
    own = [_stage(kernel.stored, "jaxpr")]
    source = _stage(kernel.stored, "source")
    made = [
        _of_texts(
            kernel.id,
            None,
            own,
            Packer(),
            source=None if source.text is None else shown(source.text),
            problem=source.problem,
            notes=[list(note) for note in _notes(kernel)],
        )
    ]
    for at, (target, profile) in enumerate(zip(kernel.targets, profiles, strict=True)):
        id_, moved = f"{kernel.id}-{at}", kernel.moved(target)
        passes = list(_passes(target))
        if target.kernel is not kernel.stored:
            passes = [_stage(target.kernel, "source"), _stage(target.kernel, "jaxpr"), *passes]
        if passes:
            made.append(_of_texts(f"{id_}-passes", at, passes, Packer(moved=moved)))
        if profile is not None:
            made.append(_of_schedule(f"{id_}-schedule", at, kernel, target, profile.profile))
    return made


def _of_schedule(
    id_: str, at: int, kernel: ReportedKernel, target: ReportedTarget, profile: Profile
) -> Chunk:
    """The bundles, the use of the units, and the costs of lines."""
    own, moved = kernel.stored.own_file, kernel.moved(target)
    packer = Packer(moved=moved)
    bundles, starts = schedule.listing(profile, packer)
    content = {
        "texts": [bundles] if starts else [],
        **packer.tables(),
        "strip": schedule.strip(profile, starts),
        "costs": schedule.costs(profile, own, moved),
    }
    return _chunk(id_, at, ["bundles"] if starts else [], content)


def _of_texts(
    id_: str, target: int | None, texts: Sequence[Text], packer: Packer, **more: Any
) -> Chunk:
    """Texts and their tables."""
    packed = [packer.text(text) for text in texts]
    content = {"texts": packed, **packer.tables(), **more}
    return _chunk(id_, target, [text.name for text in texts], content)


def _chunk(id_: str, target: int | None, names: Sequence[str], content: dict[str, Any]) -> Chunk:
    return Chunk(
        id=f"c-{id_}", target=target, names=tuple(map(shown, names)), data=compressed(content)
    )


def _stage(kernel: StoredKernel, stage: Stage, target: str | None = None) -> Text:
    return _read(stage, partial(find_text, kernel, target, stage))


def _passes(target: ReportedTarget) -> Iterable[Text]:
    """StableHLO, Mosaic, the passes that changed something, a GPU's texts, and the log."""
    kernel, stored = target.kernel, target.stored
    for stage in _BEFORE_PASSES:
        if is_there(kernel.stage_file(stage, stored.target).path):
            yield _stage(kernel, stage, stored.target)
    if stored.compilation is None:
        return
    for n, this in enumerate(stored.passes):
        if this.changed or n == 0:
            name = pass_name(this.number, this.name)
            yield _read(name, partial(text_of_pass, kernel, stored, this))
    beside = {text.stage: text for text in texts_beside(kernel, stored)}
    for name in (*OF_GPU, LOG):
        if name in beside:
            yield _read(name, partial(beside.__getitem__, name))


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
