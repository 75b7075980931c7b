"""The text files of a dump directory, found by their names: no file is read for it.

Folders are looked into where a text may be and nowhere else, so links in a circle do no harm.
"""

from __future__ import annotations

import filecmp
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pallas_debug.errors import DumpDirectoryError
from pallas_debug.store import raw
from pallas_debug.store.reader import RAW_TARGET
from pallas_debug.store.writer import COMPILATION, KERNEL, RUNS

_OF_KERNEL = {"source": "source.py", "jaxpr": "jaxpr.txt"}
_OF_TARGET = {"stablehlo": "stablehlo.mlir", "mosaic": "mosaic.mlir"}
_ON_REQUEST = {"source": "source.py", "log": "compiler.log"}


@dataclass(frozen=True, kw_only=True)
class TextFile:
    """A stage or pass in a file; target is None where it is the same for every one."""

    path: Path
    kernel: str
    target: str | None
    stage: str


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which texts are meant: all, but for what is given. Names are matched by a part of them.

    Attributes:
      stage: a stage, or a pass by number or a part of its name. The source and the compiler's
        log are meant only if named.
    """

    kernel: str | None = None
    targets: Sequence[str] = field(default=())
    stage: str | None = None

    def takes_kernel(self, name: str) -> bool:
        return self.kernel is None or self.kernel in name

    def takes_target(self, name: str) -> bool:
        return not self.targets or name in [t.replace(":", "-") for t in self.targets]

    def takes_stage(self, name: str) -> bool:
        if self.stage is None:
            return name not in _ON_REQUEST
        number, _, rest = name.partition("-")
        if self.stage.isdecimal():
            return number.isdecimal() and int(number) == int(self.stage)
        return self.stage in (name, number) or (self.stage in rest and name not in _ON_REQUEST)


def text_files(root: Path, wanted: Filter) -> Iterator[TextFile]:
    """The texts in a dump directory, a kernel's or a target's folder, or raw dumps.

    Raises:
      DumpDirectoryError: the directory does not exist or cannot be listed.
    """
    if (root / COMPILATION).is_file():
        yield from _of_target(root, root.absolute().parent.name, wanted)
        return
    if (root / KERNEL).is_file():
        yield from _of_kernel(root, root.resolve().name, wanted)
        return
    entries = listed(root)
    for folder in entries:
        if folder.name == RUNS or folder.name.startswith(".") or not folder.is_dir():
            continue
        if wanted.takes_kernel(folder.name):
            yield from _of_kernel(folder, folder.name, wanted)
    yield from _raw([path for path in entries if not path.is_dir()], wanted)


def listed(folder: Path) -> list[Path]:
    """What a folder holds, by name.

    Raises:
      DumpDirectoryError: it cannot be listed.
    """
    from pallas_debug.store import open_dumps

    open_dumps(folder)  # says what is wrong with it, in the words of every command
    return sorted(folder.iterdir())


def _of_kernel(folder: Path, kernel: str, wanted: Filter) -> Iterator[TextFile]:
    for stage, name in _OF_KERNEL.items():
        path = folder / name
        if wanted.takes_stage(stage) and path.is_file():
            yield TextFile(path=path, kernel=kernel, target=None, stage=stage)
    for target in _folders(folder):
        yield from _of_target(target, kernel, wanted)


def _of_target(folder: Path, kernel: str, wanted: Filter) -> Iterator[TextFile]:
    if not wanted.takes_target(folder.name):
        return
    named = [(stage, folder / name) for stage, name in (_OF_TARGET | _ON_REQUEST).items()]
    for inner in ("passes", "llo"):
        if (folder / inner).is_dir():
            named += [(path.stem, path) for path in sorted((folder / inner).iterdir())]
    for stage, path in named:
        if wanted.takes_stage(stage) and path.is_file():
            yield TextFile(path=path, kernel=kernel, target=folder.name, stage=stage)


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError as error:
        raise DumpDirectoryError(f"{folder} cannot be listed: {error.strerror}.") from error


def _raw(files: list[Path], wanted: Filter) -> Iterator[TextFile]:
    """The passes of raw dumps; one that changed nothing is left out, as our dumps do."""
    counts: dict[str, int] = {}
    for compile_ in raw.compiles(files):
        counts[compile_.kernel] = count = counts.get(compile_.kernel, 0) + 1
        name = compile_.kernel if count == 1 else f"{compile_.kernel}#{count}"
        before: Path | None = None
        for this in compile_.passes:
            same = before is not None and _same(before, this.path)
            before = this.path
            stage = f"{this.number:02d}-{this.name}"
            taken = wanted.takes_kernel(name) and wanted.takes_target(RAW_TARGET)
            if taken and not same and wanted.takes_stage(stage):
                yield TextFile(path=this.path, kernel=name, target=RAW_TARGET, stage=stage)


def _same(a: Path, b: Path) -> bool:
    try:
        return filecmp.cmp(a, b, shallow=False)
    except OSError:  # whoever reads it says so
        return False
