"""What the panes show: kernels, stages and passes of dump directories, read when they are needed.

Imports no textual: it is tested, and used by whoever wants the same view without a screen.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pallas_debug.errors import PallasDebugError
from pallas_debug.ir import diff
from pallas_debug.ir.normal import NOISE
from pallas_debug.model import STAGES, Pass, Stage
from pallas_debug.store import DumpReader, StoredCompilation, StoredKernel, open_dumps


@dataclass(frozen=True, order=True)
class Entry:
    """A kernel in one of the directories that are browsed.

    Attributes:
      dump: which of them, counted from 0.
      name: of the kernel's folder, or that of raw dumps.
    """

    dump: int
    name: str


@dataclass(frozen=True, kw_only=True)
class Step:
    """One line of the pane in the middle: a stage before the compiler, or a pass of it.

    Attributes:
      stage: its name where it is a stage.
      pass_: what the dump says of it where it is a pass.
      label: what a person calls it.
    """

    label: str
    stage: Stage | None = None
    pass_: Pass | None = None

    @property
    def name(self) -> str:
        """What it is called in every kernel, whatever its number there."""
        return self.pass_.name if self.pass_ is not None else self.label

    @property
    def changed(self) -> bool:
        """Whether it has a text of its own."""
        return self.pass_ is None or self.pass_.changed

    @property
    def failed(self) -> bool:
        return self.pass_ is not None and self.pass_.failed


@dataclass(frozen=True, kw_only=True)
class Place:
    """A text of a kernel: what a pane shows, or what a diff starts from.

    Attributes:
      target: None where the dump has none for it.
    """

    entry: Entry
    target: str | None
    step: Step


@dataclass(frozen=True, kw_only=True)
class Against:
    """What texts are compared with, wherever one goes: what is None is that of the text itself.

    Attributes:
      step: name or label of another step.
      other_dump: the same kernel in the other directory.
    """

    step: str | None = None
    target: str | None = None
    entry: Entry | None = None
    other_dump: bool = False


BEFORE = Against()
"""The text before, of the same compilation."""


class Browser:
    """Dump directories as the terminal UI walks through them.

    Raises:
      DumpDirectoryError: one does not exist, is a file, or cannot be listed.
    """

    def __init__(self, *roots: Path) -> None:
        self.roots = roots
        self._readers: list[DumpReader] = [open_dumps(root) for root in roots]
        self._read: dict[Entry, StoredKernel] = {}
        self.entries: list[Entry] = []
        self.refresh()

    def refresh(self) -> bool:
        """List the directories again; whether there is anything new, or gone."""
        before = self.entries
        self.entries = [
            Entry(i, name) for i, reader in enumerate(self._readers) for name in reader.names()
        ]
        if len(self.roots) > 1:  # what is in both stands side by side
            self.entries.sort(key=lambda e: (e.name, e.dump))
        return self.entries != before

    def forget(self, entry: Entry | None = None) -> None:
        """Read a kernel, or all, from the disk again when it is asked for."""
        if entry is None:
            self._read.clear()
        else:
            self._read.pop(entry, None)

    def stored(self, entry: Entry) -> StoredKernel:
        """What the dump has of a kernel; read from the disk at the first time."""
        if entry not in self._read:
            self._read[entry] = self._readers[entry.dump].read(entry.name)
        return self._read[entry]

    def compilation(self, entry: Entry, target: str | None) -> StoredCompilation | None:
        """For a target, or for the first there is, failures before others."""
        found = self.stored(entry).compilations
        for compilation in found:
            if compilation.target == target:
                return compilation
        failed = (c for c in found if c.compilation is None or not c.compilation.ok)
        return next(failed, found[0] if found else None)

    def target(self, entry: Entry, wanted: str | None) -> str | None:
        """The target that is shown where `wanted` is asked for."""
        compilation = self.compilation(entry, wanted)
        return compilation.target if compilation else None

    def steps(self, entry: Entry, target: str | None) -> list[Step]:
        """The stages that the dump has of a kernel, and the passes for a target."""
        stored = self.stored(entry)
        compilation = self.compilation(entry, target)
        name = compilation.target if compilation else None
        steps = [
            Step(label=stage, stage=stage)
            for stage in STAGES
            if stored.stage_path(stage, name) is not None
        ]
        if compilation is not None and compilation.compilation is not None:
            steps += [
                Step(label=f"{p.number:02d} {p.name}", pass_=p)
                for p in compilation.compilation.passes
            ]
        return steps

    def path(self, place: Place) -> Path:
        """The file that a text is in.

        Raises:
          PallasDebugError: there is none.
        """
        stored = self.stored(place.entry)
        compilation = self.compilation(place.entry, place.target)
        if place.step.stage is not None:
            target = compilation.target if compilation else None
            path = stored.stage_path(place.step.stage, target)
            if path is None:
                raise PallasDebugError(f"{stored.name} has no {place.step.stage}")
            return path
        assert place.step.pass_ is not None
        assert compilation is not None
        return compilation.path(place.step.pass_)

    def text(self, place: Place) -> str:
        """What a step left; where it cannot be read, the reason."""
        stored = self.stored(place.entry)
        compilation = self.compilation(place.entry, place.target)
        try:
            if place.step.stage is not None:
                target = compilation.target if compilation else None
                return stored.stage_text(place.step.stage, target)
            assert place.step.pass_ is not None
            assert compilation is not None
            return compilation.text(place.step.pass_)
        except PallasDebugError as error:
            return str(error)

    def lines(self, place: Place) -> list[str]:
        """The text of a step, by lines."""
        return self.text(place).removesuffix("\n").split("\n")

    def failing(self, entry: Entry, target: str | None, steps: Sequence[Step]) -> int | None:
        """Where a kernel that failed is to be opened: its failing pass, or the last there is."""
        compilation = self.compilation(entry, target)
        failure = compilation and compilation.compilation and compilation.compilation.failure
        if not failure:
            return None
        for i, step in enumerate(steps):
            if step.failed:
                return i
        return len(steps) - 1 if steps else None

    # Diffs.

    def before(self, place: Place) -> Place | None:
        """The last text of the same compilation that is another one than this."""
        steps = self.steps(place.entry, place.target)
        labels = [s.label for s in steps]
        if place.step.label not in labels:
            return None
        earlier = [s for s in steps[: labels.index(place.step.label)] if s.changed]
        return Place(entry=place.entry, target=place.target, step=earlier[-1]) if earlier else None

    def twin(self, entry: Entry) -> Entry | None:
        """The same kernel in the other directory: of the same folder's name, or of its own name."""
        others = [e for e in self.entries if e.dump != entry.dump]
        same = [e for e in others if e.name == entry.name]
        alike = [e for e in others if kernel_name(e.name) == kernel_name(entry.name)]
        return same[0] if same else alike[0] if len(alike) == 1 else None

    def base(self, place: Place, against: Against) -> Place | None:
        """What a text is compared with; None where there is no such text."""
        if against == BEFORE:
            return self.before(place)
        entry = self.twin(place.entry) if against.other_dump else against.entry or place.entry
        if entry is None:
            return None
        step = against.step or place.step.name
        target = self.target(entry, against.target or place.target)
        if against.target not in (None, target):
            return None
        found = (s for s in self.steps(entry, target) if step in (s.name, s.label))
        return next((Place(entry=entry, target=target, step=s) for s in found), None)

    def change(self, old: Place, new: Place, *, noise: bool) -> list[str]:
        """What is other in one text than in another, as `diff -u` has it.

        Args:
          noise: whether renumbered values, locations and the order of attributes count.
        """
        found = diff.diff(self.lines(old), self.lines(new), ignore=() if noise else NOISE)
        names = self.label(old, new), self.label(new, old)
        lines = list(found.unified(*names))
        less = "" if noise else " but for numbers of values, locations and the order of attributes"
        return lines or [f"{names[1]} is as {names[0]}{less}"]

    def label(self, place: Place, other: Place) -> str:
        """What a text is called beside another: no more of its name than tells them apart."""
        parts = [place.step.label]
        if place.entry != other.entry or place.target != other.target:
            parts.insert(0, place.target or "no target")
        if place.entry.name != other.entry.name:
            parts.insert(0, place.entry.name)
        if place.entry.dump != other.entry.dump:
            parts.insert(0, str(self.roots[place.entry.dump]))
        return " ".join(parts)

    # The source.

    def source_file(self, entry: Entry) -> str | None:
        """The file in which the kernel's function stands, as the compiler names it."""
        kernel = self.stored(entry).kernel
        return kernel.source.file if kernel and kernel.source else None

    def source_lines(self, entry: Entry) -> list[str]:
        """That file as the dump keeps it; where it does not, a line that says so."""
        try:
            return self.stored(entry).stage_text("source").removesuffix("\n").split("\n")
        except PallasDebugError as error:
            return [str(error)]

    # The command line.

    def command(self, place: Place, base: Place | None = None) -> str:
        """What prints the same in a shell: `pallas-debug show …`, or `diff` against a base."""
        first = base or place
        words = [str(self.roots[first.entry.dump]), _spelled(first.step)]
        options = ["--kernel", first.entry.name]
        options += ["--target", first.target] if first.target else []
        if base is None:
            return shlex.join(["pallas-debug", "show", *words, *options])
        if base.entry == place.entry and base.target == place.target:
            words.append(_spelled(place.step))
        elif base.entry == place.entry:
            options += ["--against", place.target or ""]
        else:
            other = self.roots[place.entry.dump] / place.entry.name
            options += ["--against", str(other / place.target if place.target else other)]
        return shlex.join(["pallas-debug", "diff", *words, *options])


def kernel_name(folder: str) -> str:
    """`softmax-1f2e3d4c`, a folder's name, is of the kernel `softmax`."""
    name, dash, digest = folder.rpartition("-")
    return name if dash and len(digest) == 8 else folder


def _spelled(step: Step) -> str:
    return f"{step.pass_.number}" if step.pass_ is not None else step.label
