"""A kernel in a dump directory: its files, its compilations, or what is wrong with it.

Only `files.py` opens files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

from pallas_debug.errors import DumpDirectoryError, DumpFormatError, UsageError, meant
from pallas_debug.model import Compilation, FileRecord, Kernel, Pass, SourceLine, Stage
from pallas_debug.profile.blocks import BlockMap
from pallas_debug.render import one_line
from pallas_debug.store import files, schema
from pallas_debug.store.files import DumpFile
from pallas_debug.store.layout import BLOCKS, COMPILATION, LLO, RAW_TARGET, STAGE_FILES

MAX_BLOCKS = 16 << 20
"""Maximum size in bytes of a block map."""

_OF_KERNEL: tuple[Stage, ...] = ("source", "jaxpr")
"""Stages that are the same for every target."""


@dataclass(frozen=True, kw_only=True)
class StoredCompilation:
    """A compilation in a dump directory, or the problem with it.

    Attributes:
      root: the directory that the user named, outside which nothing is read; None for `folder`.
    """

    folder: Path
    target: str
    compilation: Compilation | None = None
    problem: str | None = None
    root: Path | None = None

    @property
    def passes(self) -> tuple[Pass, ...]:
        """The passes, in order.

        Raises:
          DumpFormatError: the compilation cannot be read.
        """
        return self._read().passes

    def find_pass(self, wanted: str, others: Iterable[str] = ()) -> Pass:
        """Return the pass by its number (`13`), its name or a unique part of it, or both.

        Args:
          others: names that the message may suggest as well, such as those of stages.

        Raises:
          UsageError: none matches, or several do; the message lists them.
          DumpFormatError: the compilation cannot be read.
        """
        passes = self.passes
        named = [(p.number, p.name) for p in passes]
        return passes[matching(wanted, named, "pass", f"for {self.target}", others)]

    def text(self, wanted: Pass) -> str:
        """Return the text after a pass; one that changed nothing shares the previous pass's text.

        Raises:
          DumpFormatError: the directory does not have it (any more), or it is damaged or refused.
        """
        return self.file(wanted).text()

    def file(self, wanted: Pass) -> DumpFile:
        """Return the file of the text after a pass.

        Raises:
          DumpFormatError: the directory does not have it, or its manifest names a file elsewhere.
        """
        passes = self.passes
        folder = one_line(self.folder)
        if wanted not in passes:
            raise DumpFormatError(f"{folder} has no pass {one_line(wanted.name)!r}")
        upto = passes[: passes.index(wanted) + 1]
        latest = next((p for p in reversed(upto) if p.file), None)
        if latest is None or latest.file is None:
            raise DumpFormatError(f"{folder} keeps no text of the pass {one_line(wanted.name)!r}")
        return self.named(latest.file)

    def named(self, name: str) -> DumpFile:
        """Return a file by its path below the target's folder, whether it exists or not.

        Raises:
          DumpFormatError: it would not lie below the folder.
        """
        files.check_name(name, self.folder / COMPILATION)
        if self.target == RAW_TARGET:  # libtpu may still be writing, and keeps no records
            return DumpFile(path=self.folder / name, root=self.root or self.folder)
        return DumpFile(
            path=self.folder / name,
            root=self.root or self.folder,
            record=self.compilation.files.get(name) if self.compilation else None,
            refreshed=partial(self._reread, name),
        )

    def llo(self) -> list[Path]:
        """Return the files of LLO passes, in order."""
        if self.target == RAW_TARGET:
            return []
        inner = self.folder / LLO
        names = entries_of(inner, self.root or self.folder).files
        return [inner / name for name in sorted(names, key=lambda n: (len(n.partition("-")[0]), n))]

    def damaged(self) -> list[str]:
        """Return a message for each file that is missing or differs in size from its record.

        Reads no text.
        """
        made = self.compilation
        return [p for p in map(self._problem_of, made.files if made else ()) if p is not None]

    def _problem_of(self, name: str) -> str | None:
        try:
            found = self.named(name)
            os.close(found.open())
        except FileNotFoundError:
            return (
                f"{one_line(found.path)} is missing, and its manifest lists it. "
                "Dump the kernel again."
            )
        except DumpFormatError as error:
            return str(error)
        return None

    def _reread(self, name: str) -> FileRecord | None:
        """Reread a file's record from the manifest: the folder may have been replaced since."""
        found = read_compilation(self.folder, self.root or self.folder)
        made = found.compilation if found is not None else None
        if made is None or made == self.compilation:
            return None
        return made.files.get(name)

    def _read(self) -> Compilation:
        if self.compilation is None:
            raise DumpFormatError(self.problem or f"{one_line(self.folder)} cannot be read")
        return self.compilation


@dataclass(frozen=True, kw_only=True)
class StoredKernel:
    """A kernel in a dump directory, or the problem with its folder.

    Attributes:
      root: the directory that the user named, outside which nothing is read; None for `folder`.
    """

    name: str
    folder: Path
    kernel: Kernel | None = None
    problem: str | None = None
    compilations: tuple[StoredCompilation, ...] = field(default=())
    root: Path | None = None

    @property
    def own_name(self) -> str:
        """Name of the kernel, or of its folder if it cannot be read."""
        return self.kernel.name if self.kernel is not None else self.name

    @property
    def own_file(self) -> str | None:
        """The Python file of the kernel."""
        return self.kernel.source.file if self.kernel and self.kernel.source else None

    @cached_property
    def source_lines(self) -> list[str]:
        """Lines of the kernel's file, as they were dumped; none if they cannot be read."""
        try:
            return self.stage_file("source").text().split("\n")
        except DumpFormatError:
            return []

    def line_text(self, line: SourceLine) -> str | None:
        """Text of a Python line, as it was dumped."""
        lines = self.source_lines if line.file == self.own_file else ()
        return lines[line.line - 1] if 0 < line.line <= len(lines) else line.text

    def target(self, name: str | None) -> StoredCompilation:
        """Return the compilation for a target, or by default the only one.

        Raises:
          UsageError: there is none, or several and none was named.
        """
        known = ", ".join(one_line(c.target) for c in self.compilations) or "none"
        if name is None:
            if len(self.compilations) == 1:
                return self.compilations[0]
            if not self.compilations:
                raise UsageError(
                    f"{one_line(self.name)} is not compiled for any target; dump it again"
                )
            raise UsageError(f"{one_line(self.name)}: select a target; there are: {known}")
        for compilation in self.compilations:
            if compilation.target == name or compilation.folder.name == name:
                return compilation
        hint = meant(name, [c.target for c in self.compilations])
        raise UsageError(f"{one_line(self.name)} has no target {name!r}{hint}; there are: {known}")

    def stage_file(self, stage: Stage, target: str | None = None) -> DumpFile:
        """Return the file of a stage before the compiler's passes, whether it exists or not.

        Raises:
          UsageError: the stage depends on the target, and none or an unknown one was named.
        """
        if self.compilations and stage not in _OF_KERNEL:
            return self.target(target).named(STAGE_FILES[stage])
        return self.named(STAGE_FILES[stage])

    def blocks(self) -> BlockMap | None:
        """Return the block map; None in raw dumps.

        Raises:
          DumpFormatError: it cannot be read, is refused, or is damaged.
        """
        path = self.folder / BLOCKS
        try:
            data = files.read(path, self.root or self.folder, MAX_BLOCKS)
            return schema.decode(data, BlockMap, path)
        except FileNotFoundError:
            return None

    def named(self, name: str) -> DumpFile:
        """Return a file of the kernel's folder that is the same for every target."""
        return DumpFile(path=self.folder / name, root=self.root or self.folder)


def matching(
    wanted: str,
    passes: Sequence[tuple[int, str]],
    kind: str,
    where: str,
    others: Iterable[str] = (),
) -> int:
    """Return the position of the pass with a number (`13`, `13-name`), a name or a part of it.

    Args:
      passes: numbers and names.
      kind, where: what was asked for, as messages name it.
      others: names that the message may suggest as well.

    Raises:
      UsageError: none matches, or several do; the message lists them.
    """
    head, dash, _ = wanted.partition("-")
    digits = head if head.isdecimal() and len(head) < 10 else ""
    number = int(digits) if digits and (dash or wanted == digits) else None
    exact = [at for at, (n, name) in enumerate(passes) if number == n or wanted == name]
    found = exact or [at for at, (_, name) in enumerate(passes) if wanted in name]
    if len(found) == 1:
        return found[0]
    hint = "" if found else meant(wanted, [*others, *(name for _, name in passes)])
    several = "; several match" if found else ""
    shown = [passes[at] for at in found] or passes
    listed = ", ".join(f"{n:02d} {one_line(name)}" for n, name in shown) or "none"
    raise UsageError(f"no {kind} {wanted!r}{hint} {where}{several}: {listed}")


def entries_of(folder: Path, root: Path) -> files.Listing:
    """List a folder; nothing if it cannot be listed."""
    try:
        return files.listed(folder, root)
    except DumpDirectoryError:
        return files.Listing()


def read_compilation(folder: Path, root: Path) -> StoredCompilation | None:
    """Read the compilation in a folder; None if it is not a target's or is just being replaced."""
    path = folder / COMPILATION
    try:
        made = schema.decode(files.read(path, root), Compilation, path)
    except FileNotFoundError:
        return None
    except DumpFormatError as error:
        name = folder.name
        return StoredCompilation(folder=folder, target=name, problem=str(error), root=root)
    return StoredCompilation(folder=folder, target=made.target, compilation=made, root=root)
