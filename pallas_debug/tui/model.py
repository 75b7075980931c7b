"""What the panes show: kernels, stages and passes of dump directories, read when they are needed.

Imports no textual: it is tested, and used by whoever wants the same view without a screen.
"""

from __future__ import annotations

import shlex
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from pallas_debug.errors import DumpDirectoryError, PallasDebugError
from pallas_debug.model import STAGES, Failure, Pass, RunRecord, Stage
from pallas_debug.store import (
    DumpReader,
    StoredCompilation,
    StoredKernel,
    StoredText,
    layout,
    open_dumps,
)
from pallas_debug.store.files import DumpFile, is_there

KEPT = 256
"""Kernels whose documents stay in memory once they were read."""

ERROR, LOG = "error", "log"
"""Steps that are no text of the kernel: why it failed, what the compiler said."""


class Entry(NamedTuple):
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
      file: where it is neither: LLO after the passes, or the compiler's log.
      label: what a person calls it.
    """

    label: str
    stage: Stage | None = None
    pass_: Pass | None = None
    file: Path | None = None

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

    @property
    def of_kernel(self) -> bool:
        """Whether it is the kernel in some form, and not what was said about it."""
        return self.label not in (ERROR, LOG)


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
        self._read: OrderedDict[Entry, StoredKernel] = OrderedDict()
        self._lock = threading.Lock()  # workers read, too
        self.entries: list[Entry] = []
        self.take(self.listed())

    def listed(self) -> list[Entry]:
        """The kernels that the directories hold now, to be taken over by `take`.

        A directory that can be listed no more keeps what it had.
        """
        found: list[Entry] = []
        for i, reader in enumerate(self._readers):
            try:
                found += [Entry(i, name) for name in reader.names()]
            except DumpDirectoryError:
                found += [entry for entry in self.entries if entry.dump == i]
        if len(self.roots) > 1:  # what is in both stands side by side
            found.sort(key=lambda e: (e.name, e.dump))
        return found

    def take(self, entries: list[Entry]) -> bool:
        """Take over the kernels there are; whether they are others than before."""
        before, self.entries = self.entries, entries
        self.__dict__.pop("_known", None)
        self.__dict__.pop("_by_kernel", None)
        return entries != before

    @cached_property
    def _known(self) -> frozenset[Entry]:
        return frozenset(self.entries)

    @cached_property
    def _by_kernel(self) -> dict[tuple[int, str], list[Entry]]:
        found: dict[tuple[int, str], list[Entry]] = {}
        for entry in self.entries:
            found.setdefault((entry.dump, kernel_name(entry.name)), []).append(entry)
        return found

    def forget(self, entry: Entry | None = None) -> None:
        """Read a kernel, or all, from the disk again when it is asked for."""
        with self._lock:
            if entry is None:
                self._read.clear()
            else:
                self._read.pop(entry, None)

    def stored(self, entry: Entry) -> StoredKernel:
        """What the dump has of a kernel; read from the disk unless it was among the last ones."""
        with self._lock:
            found = self._read.get(entry)
            if found is not None:
                self._read.move_to_end(entry)
                return found
        found = self.glance(entry)
        with self._lock:
            self._read[entry] = found
            while len(self._read) > KEPT:
                self._read.popitem(last=False)
        return found

    def glance(self, entry: Entry) -> StoredKernel:
        """The same, read from the disk and not kept: for who looks at all kernels."""
        return self._readers[entry.dump].read(entry.name)

    def texts(self, entry: Entry) -> Iterator[StoredText]:
        """The texts of a kernel for all its targets, found by the names of their files."""
        return self._readers[entry.dump].texts(entry.name)

    def runs(self, dump: int) -> Iterator[RunRecord]:
        """What tests and scripts recorded in a directory, each read when it is asked for."""
        return self._readers[dump].iter_runs()

    def named(self, dump: int, name: str) -> list[Entry]:
        """The kernels of a directory by their own name, or that of their folder."""
        exact = Entry(dump, name)
        return [exact] if exact in self._known else self._by_kernel.get((dump, name), [])

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
        if compilation is not None:
            for path in compilation.others():
                label = LOG if path.name == layout.LOG else path.stem
                steps.append(Step(label=label, file=path))
            if self.failure(entry, target) is not None or compilation.problem:
                steps.append(Step(label=ERROR))
        return steps

    def file(self, place: Place) -> DumpFile:
        """The file that a text is in, to be opened.

        Raises:
          PallasDebugError: there is none.
        """
        stored = self.stored(place.entry)
        compilation = self.compilation(place.entry, place.target)
        if place.step.stage is not None:
            target = compilation.target if compilation else None
            file = stored.stage_file(place.step.stage, target)
            if not is_there(file.path):
                raise PallasDebugError(f"{stored.name} has no {place.step.stage}")
            return file
        if place.step.file is not None:
            return self._other(place.step.file, place, compilation)
        if place.step.pass_ is None or compilation is None:
            raise PallasDebugError(f"{stored.name} has no file for {place.step.label}")
        return compilation.file(place.step.pass_)

    def _other(self, path: Path, place: Place, made: StoredCompilation | None) -> DumpFile:
        """A file that is neither a stage nor a pass: LLO, or the compiler's log."""
        if made is not None and path.is_relative_to(made.folder):
            return made.named(str(path.relative_to(made.folder)))
        return DumpFile(path=path, root=self.roots[place.entry.dump])

    def path(self, place: Place) -> Path:
        """The path of the file that a text is in, to be shown or handed to a program.

        Raises:
          PallasDebugError: there is none.
        """
        return self.file(place).path

    def size(self, place: Place) -> int:
        """Bytes of a text; 0 where it is in no file, or cannot be looked at."""
        try:
            return self.path(place).stat().st_size
        except (OSError, ValueError, PallasDebugError):
            return 0

    def text(self, place: Place) -> str:
        """What a step left; where it cannot be read, the reason."""
        if place.step.label == ERROR:
            return self._error(place)
        try:
            return self.file(place).text()
        except (OSError, PallasDebugError) as error:
            return str(error)

    def _error(self, place: Place) -> str:
        compilation = self.compilation(place.entry, place.target)
        failure = self.failure(place.entry, place.target)
        if failure is None:
            return (compilation.problem if compilation else None) or "it compiled"
        where = f"\n{failure.source}" if failure.source else ""
        return f"{failure.type} at {failure.stage}{where}\n\n{failure.message}"

    def lines(self, place: Place) -> list[str]:
        """The text of a step, by lines."""
        return self.text(place).removesuffix("\n").split("\n")

    def failing(self, entry: Entry, target: str | None, steps: Sequence[Step]) -> int | None:
        """Where a kernel that failed is to be opened: its failing pass, or the last there is."""
        if self.failure(entry, target) is None:
            return None
        for i, step in enumerate(steps):
            if step.failed:
                return i
        texts = [i for i, step in enumerate(steps) if step.pass_ or step.stage]
        return texts[-1] if texts else len(steps) - 1 if steps else None

    def failure(self, entry: Entry, target: str | None) -> Failure | None:
        """Why a kernel has no executable for a target; None where it has one."""
        compilation = self.compilation(entry, target)
        found = compilation.compilation if compilation else None
        return found.failure if found else None

    # Diffs.

    def before(self, place: Place) -> Place | None:
        """The last text of the same compilation that is another one than this."""
        steps = self.steps(place.entry, place.target)
        labels = [s.label for s in steps]
        if place.step.label not in labels or not place.step.of_kernel:
            return None
        earlier = [s for s in steps[: labels.index(place.step.label)] if s.changed]
        return Place(entry=place.entry, target=place.target, step=earlier[-1]) if earlier else None

    def twin(self, entry: Entry) -> Entry | None:
        """The same kernel in the other directory: of the same folder's name, or of its own name."""
        if len(self.roots) < 2:
            return None
        other = 1 - entry.dump
        if Entry(other, entry.name) in self._known:
            return Entry(other, entry.name)
        alike = self._by_kernel.get((other, kernel_name(entry.name)), [])
        return alike[0] if len(alike) == 1 else None

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
        from pallas_debug.ir import diff  # not at the start: it takes a while
        from pallas_debug.ir.normal import NOISE

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
        if first.step.file is not None and first.step.label != LOG:
            return shlex.join(["cat", str(first.step.file)])
        words = [str(self.roots[first.entry.dump]), spelled(first.step)]
        options = ["--kernel", first.entry.name]
        options += ["--target", first.target] if first.target else []
        if base is None:
            return shlex.join(["pallas-debug", "show", *words, *options])
        if base.entry == place.entry and base.target == place.target:
            words.append(spelled(place.step))
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


def spelled(step: Step) -> str:
    """A step as one names it on the command line."""
    return f"{step.pass_.number}" if step.pass_ is not None else step.label
