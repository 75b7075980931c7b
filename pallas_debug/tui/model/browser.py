"""Kernels, stages and passes of dump directories, read on demand."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from pallas_debug.errors import PallasDebugError
from pallas_debug.model import STAGES, Failure, Kernel, Pass, RunRecord, Stage
from pallas_debug.store import (
    DumpReader,
    StoredCompilation,
    StoredKernel,
    StoredText,
    open_dumps,
    texts,
)
from pallas_debug.store.files import DumpFile, is_there
from pallas_debug.store.texts import ASSEMBLY, LOG, OF_GPU, OF_SCHEDULE

CACHED = 256
"""Maximum number of kernels whose documents are cached."""

STATS = "stats"
"""Label of the step with a kernel's statistics."""

DRAWN = (STATS, "utilization", "vmem")
"""Texts that are computed, and a table and an HTML page that are drawn."""

TABLES = [
    *(name for name in OF_SCHEDULE if name != "bundles"),
    *(name for name in OF_GPU if name not in (*ASSEMBLY, "llvm")),
]
"""Texts about the schedule that are not forms of the kernel."""


class Entry(NamedTuple):
    """A kernel in one of the directories.

    Attributes:
      dump: index of the directory.
      name: name of the kernel's folder, or of the kernel in raw dumps.
    """

    dump: int
    name: str


@dataclass(frozen=True, kw_only=True)
class KernelStep:
    """A stage before the compiler, a pass of it, or another file.

    Attributes:
      label: name on the screen.
      stage: set for a stage.
      pass_: set for a pass.
      file: set otherwise: LLO after the passes, the schedule, or the compiler's log.
    """

    label: str
    stage: Stage | None = None
    pass_: Pass | None = None
    file: Path | None = None

    @property
    def name(self) -> str:
        """Name without the number, which differs from kernel to kernel."""
        return self.pass_.name if self.pass_ is not None else self.label

    @property
    def changed(self) -> bool:
        """True if the step has a text of its own."""
        return self.pass_ is None or self.pass_.changed

    @property
    def failed(self) -> bool:
        return self.pass_ is not None and self.pass_.failed

    @property
    def of_kernel(self) -> bool:
        """True if the step's text is a form of the kernel, not a message or a log."""
        return self.label not in (STATS, LOG, *TABLES)


@dataclass(frozen=True, kw_only=True)
class TextPlace:
    """Text of a kernel. `target` is None if the dump has no compilation of the kernel."""

    entry: Entry
    target: str | None
    step: KernelStep


@dataclass(frozen=True, kw_only=True)
class Against:
    """Text with which each text is compared. None means the same as for the text itself.

    Attributes:
      step: name or label of another step.
      other_dump: whether to compare with the same kernel in the other directory.
    """

    step: str | None = None
    target: str | None = None
    entry: Entry | None = None
    other_dump: bool = False


BEFORE = Against()
"""The previous text of the same compilation."""


class Browser:
    """One or two dump directories. May be used from several threads.

    Raises:
      DumpDirectoryError: a directory does not exist, is a file, or cannot be listed.
    """

    def __init__(self, *roots: Path) -> None:
        self.roots = roots
        self._readers: list[DumpReader] = [open_dumps(root) for root in roots]
        self._read: OrderedDict[Entry, StoredKernel] = OrderedDict()
        self._lock = threading.Lock()
        self.entries = self._listed()

    def _listed(self) -> list[Entry]:
        found = [
            Entry(i, name) for i, reader in enumerate(self._readers) for name in reader.names()
        ]
        if len(self.roots) > 1:  # the same kernel of both directories is adjacent
            found.sort(key=lambda e: (kernel_name(e.name), e.name, e.dump))
        return found

    @cached_property
    def _known(self) -> frozenset[Entry]:
        return frozenset(self.entries)

    @cached_property
    def _by_kernel(self) -> dict[tuple[int, str], list[Entry]]:
        found: dict[tuple[int, str], list[Entry]] = {}
        for entry in self.entries:
            found.setdefault((entry.dump, kernel_name(entry.name)), []).append(entry)
        return found

    def stored(self, entry: Entry) -> StoredKernel:
        """Return the stored data of a kernel, through the cache."""
        with self._lock:
            found = self._read.get(entry)
            if found is not None:
                self._read.move_to_end(entry)
                return found
        found = self.glance(entry)
        with self._lock:
            self._read[entry] = found
            while len(self._read) > CACHED:
                self._read.popitem(last=False)
        return found

    def glance(self, entry: Entry) -> StoredKernel:
        """Read a kernel without caching it, for iterating over all kernels."""
        return self._readers[entry.dump].read(entry.name)

    def texts(self, entry: Entry) -> Iterator[StoredText]:
        """Yield the texts of a kernel for all targets, found by the names of their files."""
        return self._readers[entry.dump].texts(entry.name)

    def runs(self, dump: int) -> Iterator[RunRecord]:
        """Yield the runs that tests and scripts recorded in a directory."""
        return self._readers[dump].runs()

    def named(self, dump: int, name: str) -> list[Entry]:
        """Return the kernels in a directory with this folder name or kernel name."""
        exact = Entry(dump, name)
        return [exact] if exact in self._known else self._by_kernel.get((dump, name), [])

    def compilation(self, entry: Entry, target: str | None) -> StoredCompilation | None:
        """Return the compilation for a target, else the first failed one, else the first."""
        found = self.stored(entry).compilations
        for compilation in found:
            if compilation.target == target:
                return compilation
        failed = (c for c in found if c.compilation is None or not c.compilation.ok)
        return next(failed, found[0] if found else None)

    def target(self, entry: Entry, wanted: str | None) -> str | None:
        """Return the target to show if `wanted` is requested."""
        compilation = self.compilation(entry, wanted)
        return compilation.target if compilation else None

    def steps(self, entry: Entry, target: str | None) -> list[KernelStep]:
        """Return the stages of a kernel and its passes for a target."""
        stored = self.stored(entry)
        compilation = self.compilation(entry, target)
        name = compilation.target if compilation else None
        stages = (stage for stage in STAGES if is_there(stored.stage_file(stage, name).path))
        steps = [KernelStep(label=stage, stage=stage) for stage in stages]
        if compilation is None:
            return steps
        if compilation.compilation is not None:
            passes = compilation.compilation.passes
            steps += [KernelStep(label=f"{p.number:02d} {p.name}", pass_=p) for p in passes]
        beside = texts.texts_beside(stored, compilation)
        if any(text.stage == "bundles" for text in beside):
            steps.append(KernelStep(label=STATS))
        steps += [KernelStep(label=text.stage, file=text.path) for text in beside]
        return steps

    def file(self, place: TextPlace) -> DumpFile:
        """Return the file of a text.

        Raises:
          PallasDebugError: there is none.
        """
        stored = self.stored(place.entry)
        compilation = self.compilation(place.entry, place.target)
        step = place.step
        if step.stage is not None:
            target = compilation.target if compilation else None
            return texts.find_text(stored, target, step.stage).file
        if compilation is None or (step.pass_ is None and step.file is None):
            raise PallasDebugError(f"{stored.name} has no file for {step.label}")
        if step.pass_ is None:
            return texts.find_text(stored, compilation.target, step.label).file
        return texts.text_of_pass(stored, compilation, step.pass_).file

    def path(self, place: TextPlace) -> Path:
        """Return the path of a text, to show it or pass it to a program.

        Raises:
          PallasDebugError: there is none.
        """
        return self.file(place).path

    def size(self, place: TextPlace) -> int:
        """Return the size of a text in bytes; 0 if it has no file."""
        try:
            return self.path(place).stat().st_size
        except (OSError, ValueError, PallasDebugError):
            return 0

    def text(self, place: TextPlace) -> str:
        """Return a text, or the reason why it cannot be read."""
        if place.step.label in DRAWN and (drawn := self._drawn(place)):
            return drawn
        try:
            return self.file(place).text()
        except (OSError, PallasDebugError) as error:
            return str(error)

    def _drawn(self, place: TextPlace) -> str:
        """Return statistics, or a table of the schedule; empty if it cannot be read."""
        from pallas_debug.profile.text import lines_of  # all are slow to import
        from pallas_debug.profile.units import read_utilization
        from pallas_debug.store.profiles import read_profile
        from pallas_debug.tui.model.drawn import memory_lines, unit_lines

        compilation = self.compilation(place.entry, place.target)
        try:
            found = read_profile(self.stored(place.entry), compilation) if compilation else None
        except PallasDebugError as error:
            return str(error)
        if found is None:
            return "there is no schedule"
        if place.step.label == STATS:
            return "\n".join(lines_of(found.profile.stats))
        if place.step.label == "vmem":
            return "\n".join(memory_lines(found.profile.memory))
        table = read_utilization(found.profile.texts.utilization or "")
        return "\n".join(unit_lines(table)) if table else ""

    def lines(self, place: TextPlace) -> list[str]:
        """Return the lines of a text."""
        return self.text(place).removesuffix("\n").split("\n")

    def failing(self, entry: Entry, target: str | None, steps: Sequence[KernelStep]) -> int | None:
        """Return the step at which to open a failed kernel: the failing pass, or the last text."""
        if self.failure(entry, target) is None:
            return None
        for i, step in enumerate(steps):
            if step.failed:
                return i
        texts = [i for i, step in enumerate(steps) if step.pass_ or step.stage]
        return texts[-1] if texts else len(steps) - 1 if steps else None

    def failure(self, entry: Entry, target: str | None) -> Failure | None:
        """Return why a kernel failed for a target, or None."""
        compilation = self.compilation(entry, target)
        found = compilation.compilation if compilation else None
        return found.failure if found else None

    # Diffs.

    def before(self, place: TextPlace) -> TextPlace | None:
        """Return the last different text of the same compilation."""
        steps = self.steps(place.entry, place.target)
        labels = [s.label for s in steps]
        if place.step.label not in labels or not place.step.of_kernel:
            return None
        earlier = [s for s in steps[: labels.index(place.step.label)] if s.changed]
        return (
            TextPlace(entry=place.entry, target=place.target, step=earlier[-1]) if earlier else None
        )

    def counterpart(self, entry: Entry) -> Entry | None:
        """Return the same kernel in the other directory, by folder name or by kernel name."""
        if len(self.roots) < 2:
            return None
        other = 1 - entry.dump
        if Entry(other, entry.name) in self._known:
            return Entry(other, entry.name)
        alike = self._by_kernel.get((other, kernel_name(entry.name)), [])
        return alike[0] if len(alike) == 1 else None

    def base(self, place: TextPlace, against: Against) -> TextPlace | None:
        """Return the text with which a text is compared, if it exists."""
        if against == BEFORE:
            return self.before(place)
        entry = (
            self.counterpart(place.entry) if against.other_dump else against.entry or place.entry
        )
        if entry is None:
            return None
        step = against.step or place.step.name
        target = self.target(entry, against.target or place.target)
        if against.target not in (None, target):
            return None
        found = (s for s in self.steps(entry, target) if step in (s.name, s.label))
        return next((TextPlace(entry=entry, target=target, step=s) for s in found), None)

    def in_order(self, place: TextPlace, base: TextPlace) -> tuple[TextPlace, TextPlace]:
        """Return two texts in the order of a diff: old, new.

        The first directory is the old one, and so is the earlier text of a compilation. Otherwise
        `place` is the old text, and `base`, which it is compared with, the new one.
        """
        if place.entry.dump != base.entry.dump:
            is_first = place.entry.dump < base.entry.dump
        elif (place.entry, place.target) == (base.entry, base.target):
            steps = self.steps(place.entry, place.target)
            is_first = steps.index(place.step) < steps.index(base.step)
        else:
            is_first = True
        return (place, base) if is_first else (base, place)

    def label(self, place: TextPlace, other: TextPlace) -> str:
        """Return what distinguishes a text from another: directory, kernel, target, step."""
        parts = []
        if place.entry.dump != other.entry.dump:
            parts.append(os.path.relpath(self.roots[place.entry.dump], self._parent))
        elif place.entry != other.entry:
            parts.append(place.entry.name)
        if place.target != other.target:
            parts.append(place.target or "no target")
        if place.step.label != other.step.label or not parts:
            parts.append(place.step.label)
        return " ".join(parts)

    @cached_property
    def _parent(self) -> str:
        """Folder that contains both directories."""
        return os.path.commonpath([root.absolute() for root in self.roots])

    # The source.

    def source_file(self, entry: Entry) -> str | None:
        """Return the file of the kernel's function, as the compiler names it."""
        kernel = self.stored(entry).kernel
        return kernel.source.file if kernel and kernel.source else None

    def source_line(self, entry: Entry) -> int:
        """Return the line of the kernel's function in its file, or 1."""
        kernel = self.stored(entry).kernel
        return kernel.source.line if kernel and kernel.source else 1

    def source_lines(self, entry: Entry) -> list[str]:
        """Return the lines of that file as dumped, or a message if it was not."""
        try:
            return self.stored(entry).stage_file("source").text().removesuffix("\n").split("\n")
        except PallasDebugError as error:
            return [str(error)]


class SingleFile(Browser):
    """Browser for a text file that does not belong to a kernel."""

    def __init__(self, file: Path) -> None:
        self._file = file
        super().__init__()
        self.roots = (file,)

    def _listed(self) -> list[Entry]:
        return [Entry(0, self._file.name)]

    def glance(self, entry: Entry) -> StoredKernel:
        name = self._file.name
        kernel = Kernel(name=name, digest="", primitive="unknown")
        return StoredKernel(name=name, folder=self._file.absolute().parent, kernel=kernel)

    def texts(self, entry: Entry) -> Iterator[StoredText]:
        return iter(())

    def runs(self, dump: int) -> Iterator[RunRecord]:
        return iter(())

    def named(self, dump: int, name: str) -> list[Entry]:
        return []

    def steps(self, entry: Entry, target: str | None) -> list[KernelStep]:
        return [KernelStep(label=self._file.name, file=self._file)]

    def file(self, place: TextPlace) -> DumpFile:
        return DumpFile(path=self._file, root=None)  # named by the user, so follow links


def kernel_name(folder: str) -> str:
    """Return `softmax` for the folder `softmax-1f2e3d4c`."""
    name, dash, digest = folder.rpartition("-")
    return name if dash and len(digest) == 8 else folder
