"""The text files of a dump directory, found by their names: no file is read for it.

Folders are looked into where a text may be and nowhere else, so links in a circle do no harm.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pallas_debug.errors import DumpDirectoryError, DumpFormatError
from pallas_debug.store import files, raw
from pallas_debug.store.files import is_there
from pallas_debug.store.names import COMPILATION, KERNEL, RUNS
from pallas_debug.store.reader import RAW_TARGET

_OF_KERNEL = {"source": "source.py", "jaxpr": "jaxpr.txt"}
_OF_TARGET = {"stablehlo": "stablehlo.mlir", "mosaic": "mosaic.mlir"}
_ON_REQUEST = {"source": "source.py", "log": "compiler.log"}


@dataclass(frozen=True, kw_only=True)
class TextFile:
    """A stage or pass in a file; target is None where it is the same for every one.

    Attributes:
      root: the directory that was named, which nothing is read outside of.
    """

    path: Path
    root: Path
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


Tell = Callable[[str], object]


def text_files(root: Path, wanted: Filter, tell: Tell) -> Iterator[TextFile]:
    """The texts in a dump directory, a kernel's or a target's folder, or raw dumps.

    Args:
      tell: is called with a sentence for each folder that cannot be listed.

    Raises:
      DumpDirectoryError: the directory does not exist or cannot be listed.
    """
    files.check_listable(root)
    if is_there(root / COMPILATION):
        yield from _of_target(root, root, root.absolute().parent.name, wanted, tell)
        return
    if is_there(root / KERNEL):
        yield from _of_kernel(root, root, root.resolve().name, wanted, tell)
        return
    entries = sorted(files.listed(root, root))
    for name, is_folder in entries:
        if is_folder and name != RUNS and not name.startswith(".") and wanted.takes_kernel(name):
            yield from _of_kernel(root / name, root, name, wanted, tell)
    yield from _raw([root / name for name, is_folder in entries if not is_folder], wanted)


def _of_kernel(
    folder: Path, root: Path, kernel: str, wanted: Filter, tell: Tell
) -> Iterator[TextFile]:
    for stage, name in _OF_KERNEL.items():
        path = folder / name
        if wanted.takes_stage(stage) and is_there(path):
            yield TextFile(path=path, root=root, kernel=kernel, target=None, stage=stage)
    for name, is_folder in _listed(folder, root, tell):
        if is_folder:
            yield from _of_target(folder / name, root, kernel, wanted, tell)


def _of_target(
    folder: Path, root: Path, kernel: str, wanted: Filter, tell: Tell
) -> Iterator[TextFile]:
    if not wanted.takes_target(folder.name):
        return
    named = [(stage, folder / name) for stage, name in (_OF_TARGET | _ON_REQUEST).items()]
    named = [(stage, path) for stage, path in named if is_there(path)]
    for inner in (folder / "passes", folder / "llo"):
        found = [name for name, is_folder in _listed(inner, root, tell) if not is_folder]
        named += [((inner / name).stem, inner / name) for name in found]
    for stage, path in named:
        if wanted.takes_stage(stage):
            yield TextFile(path=path, root=root, kernel=kernel, target=folder.name, stage=stage)


def _listed(folder: Path, root: Path, tell: Tell) -> list[tuple[str, bool]]:
    """What a folder holds, by name; nothing if there is no such folder."""
    if not os.path.isdir(folder):  # noqa: PTH112 - as Path.is_dir, but for what it raises
        return []
    try:
        return sorted(files.listed(folder, root))
    except DumpDirectoryError as error:
        tell(str(error))
        return []


def _raw(paths: list[Path], wanted: Filter) -> Iterator[TextFile]:
    """The passes of raw dumps; one that changed nothing is left out, as our dumps do."""
    counts: dict[str, int] = {}
    for compile_ in raw.compiles(paths):
        counts[compile_.kernel] = count = counts.get(compile_.kernel, 0) + 1
        name = compile_.kernel if count == 1 else f"{compile_.kernel}#{count}"
        before: Path | None = None
        for this in compile_.passes:
            same = before is not None and _same(before, this.path)
            before = this.path
            stage = f"{this.number:02d}-{this.name}"
            taken = wanted.takes_kernel(name) and wanted.takes_target(RAW_TARGET)
            if taken and not same and wanted.takes_stage(stage):
                root = this.path.parent
                yield TextFile(
                    path=this.path, root=root, kernel=name, target=RAW_TARGET, stage=stage
                )


def _same(a: Path, b: Path) -> bool:
    try:
        return raw.same_text(a, b)
    except (OSError, DumpFormatError):  # reading it says so
        return False
