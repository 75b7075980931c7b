"""Texts of a kernel: its stages, the passes for each target, LLO, the schedule, log and program.

A text has the same name everywhere (`jaxpr`, `13-infer-vector-layout`, `llo:54-post-ra`, `bundles`,
`log`), and can be found in two ways: by its name, through a kernel's manifests; or by listing
folders without reading any file, for a search over 10,000 kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from pallas_debug import defaults, render
from pallas_debug.errors import DumpDirectoryError, DumpFormatError, UsageError
from pallas_debug.model import STAGES, Pass
from pallas_debug.render import one_line
from pallas_debug.store import files, layout, raw
from pallas_debug.store.files import DumpFile, is_there
from pallas_debug.store.stored import StoredCompilation, StoredKernel, matching

if TYPE_CHECKING:
    from pallas_debug.ir.operations import Module

LOG, PROGRAM = "log", "program"

_OF_KERNEL: dict[str, str] = {
    "source": layout.SOURCE,
    PROGRAM: layout.PROGRAM,
    "jaxpr": layout.JAXPR,
}
OF_SCHEDULE = {PurePath(file).stem: file for file in layout.SCHEDULE_FILES}
"""Files of the schedule by the names of their texts: `bundles`, `critical-path`."""

OF_GPU = {
    "constraints": layout.CONSTRAINTS,
    "resources": layout.RESOURCES,
    "llvm": layout.LLVM,
    "ptx": layout.PTX,
    "ptxas": layout.PTXAS,
    "sass": layout.SASS,
}
"""Files of a GPU's folder by the names of their texts."""

ASSEMBLY = ("ptx", "sass")
"""Those that are forms of the kernel with Python lines."""

_BESIDE = {**OF_SCHEDULE, **OF_GPU}

_OF_TARGET: dict[str, str] = {
    "stablehlo": layout.STABLEHLO,
    "mosaic": layout.MOSAIC,
    "ttir": layout.TTIR,
    **_BESIDE,
    LOG: layout.LOG,
}
_ON_REQUEST = ("source", PROGRAM, LOG, "hlo", "vmem")
"""Texts that are not a form of the kernel, or not readable: searched only on request."""


@dataclass(frozen=True, kw_only=True)
class StoredText:
    """A text of a kernel.

    Attributes:
      kernel: name of its folder, or that of raw dumps.
      target: None if the text is the same for every target.
      stage: as users write it: `mosaic`, `13-infer-vector-layout`, `llo:54-post-ra`, `log`.
    """

    kernel: str
    target: str | None
    stage: str
    file: DumpFile

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def label(self) -> str:
        return "/".join(filter(None, (self.kernel, self.target, self.stage)))

    def open(self) -> int:
        """Open the text and return the descriptor; see `DumpFile.open`."""
        return self.file.open()

    @cached_property
    def text(self) -> str:
        """The whole text; see `DumpFile.text`."""
        return self.file.text()

    @property
    def lines(self) -> list[str]:
        return self.text.removesuffix("\n").split("\n") if self.text else []

    def module(self) -> Module:
        from pallas_debug.ir.operations import Module

        return Module(self.lines)

    def as_json(self) -> dict[str, str | None]:
        return {"kernel": self.kernel, "target": self.target, "stage": self.stage}


# By name, through the manifests.


def find_text(kernel: StoredKernel, target: str | None, wanted: str) -> StoredText:
    """Return a stage, the log or the program by name, or a pass by number, name or part of it.

    An LLO pass is written `llo:54`, `llo:post-ra` or `llo:54-post-ra`.

    Raises:
      UsageError: there is no such text, or there are several targets and none was given.
      DumpFormatError: the manifest cannot be read.
    """
    if wanted in _OF_KERNEL:
        return _existing(kernel, None, wanted, kernel.named(_OF_KERNEL[wanted]))
    if wanted in _OF_TARGET and not kernel.compilations and wanted != LOG:
        return _existing(kernel, None, wanted, kernel.named(_OF_TARGET[wanted]))
    stage, _, name = wanted.partition(":")
    stored = kernel.target(target)
    if stage == layout.LLO:
        return _text_of_llo(kernel, stored, name)
    if wanted in _OF_TARGET:
        return _existing(kernel, stored.target, wanted, stored.named(_OF_TARGET[wanted]))
    return text_of_pass(kernel, stored, stored.find_pass(wanted, [*_OF_KERNEL, *_OF_TARGET]))


def text_of_pass(kernel: StoredKernel, stored: StoredCompilation, wanted: Pass) -> StoredText:
    """Return the text after a pass; see `StoredCompilation.file`."""
    return _text(kernel, stored, layout.pass_name(wanted.number, wanted.name), stored.file(wanted))


def _text(
    kernel: StoredKernel, stored: StoredCompilation, stage: str, file: DumpFile
) -> StoredText:
    return StoredText(kernel=kernel.name, target=stored.target, stage=stage, file=file)


def llo_stage(file: str) -> str:
    """Return the name of an LLO pass's text, given that of its file: `llo:54-post-ra`."""
    return f"{layout.LLO}:{PurePath(file).stem}"


def llo_texts(kernel: StoredKernel, stored: StoredCompilation) -> list[StoredText]:
    """Return the texts after LLO passes, in order."""
    names = (path.name for path in stored.llo())
    return [
        _text(kernel, stored, llo_stage(name), stored.named(f"{layout.LLO}/{name}"))
        for name in names
    ]


def texts_beside(kernel: StoredKernel, stored: StoredCompilation) -> list[StoredText]:
    """Return the texts other than stages and passes: LLO passes, the schedule, the log."""
    if stored.target == layout.RAW_TARGET:
        return []
    named = {**_BESIDE, LOG: layout.LOG}.items()
    found = [_text(kernel, stored, stage, stored.named(name)) for stage, name in named]
    return [*llo_texts(kernel, stored), *(text for text in found if is_there(text.path))]


def _text_of_llo(kernel: StoredKernel, stored: StoredCompilation, wanted: str) -> StoredText:
    found = llo_texts(kernel, stored)
    where = f"{one_line(kernel.name)} for {one_line(stored.target)}"
    if not found:
        raise UsageError(
            f"{where} was dumped without LLO passes; dump it again with --stages llo, or "
            "llo:PASS for single ones"
        )
    names = [text.stage.partition(":")[2] for text in found]
    passes = [(int(number), name) for number, _, name in (n.partition("-") for n in names)]
    return found[matching(wanted, passes, "LLO pass", f"in {where}")]


def texts_of(kernel: StoredKernel, target: str | None) -> list[StoredText]:
    """Return the stages and the passes that changed something, in order of creation."""
    found = [
        find_text(kernel, target, stage)
        for stage in STAGES[1:]
        if is_there(kernel.stage_file(stage, target).path)
    ]
    if kernel.compilations:
        stored = kernel.target(target)
        passes = enumerate(stored.passes)
        found += [text_of_pass(kernel, stored, p) for n, p in passes if p.changed or n == 0]
        found += [text for text in texts_beside(kernel, stored) if text.stage in ASSEMBLY]
    return found


def _existing(kernel: StoredKernel, target: str | None, stage: str, file: DumpFile) -> StoredText:
    if not is_there(file.path):
        missing = one_line(file.path)
        why = _why_missing(kernel, target, stage)
        raise UsageError(f"{one_line(kernel.name)} has no {stage}: there is no {missing}{why}")
    return StoredText(kernel=kernel.name, target=target, stage=stage, file=file)


def _why_missing(kernel: StoredKernel, target: str | None, stage: str) -> str:
    """Explain why a file of the schedule does not exist."""
    file = OF_SCHEDULE.get(stage)
    if file is None or target is None:
        return ""
    made = kernel.target(target).compilation
    known = next((m for m in made.missing if m.file == file), None) if made else None
    if known is not None:
        return f"; {render.why_missing(known)}"
    wanted = defaults.STAGES[3] if file == layout.ESTIMATE else defaults.STAGES[2]
    if made is not None and wanted in made.stages:
        return "; the compiler writes it only for some kernels, and not before it fails"
    return f". Dump it again with --stages {wanted}"


# By file names, without reading any file.


@dataclass(frozen=True, kw_only=True)
class TextFilter:
    """Filter for texts: everything, unless narrowed. Kernels and stages match by substring.

    Attributes:
      stage: a stage, or a pass by number or a part of its name; `llo` is all passes of LLO, and
        `llo:54` one of them. The source, the program, the compiler's log, the HLO and the memory
        map match only if named.
    """

    kernel: str | None = None
    targets: Sequence[str] = field(default=())
    stage: str | None = None

    def takes_kernel(self, name: str) -> bool:
        return self.kernel is None or self.kernel in name

    def takes_target(self, name: str) -> bool:
        return not self.targets or name in [layout.target_folder(t) for t in self.targets]

    def takes_stage(self, name: str) -> bool:
        if self.stage is None:
            return name not in _ON_REQUEST
        of, _, name = name.rpartition(":")  # `llo` of an LLO pass
        if self.stage == layout.LLO:
            return of == layout.LLO
        kind, _, wanted = self.stage.rpartition(":")
        if kind != of and (kind or wanted.isdecimal()):
            return False
        number, _, rest = name.partition("-")
        if wanted.isdecimal():
            return number.isdecimal() and int(number) == int(wanted)
        return wanted in (name, number) or (wanted in rest and name not in _ON_REQUEST)


ALL = TextFilter()

Warn = Callable[[str], object]
"""Called with a sentence for each folder that cannot be listed."""


def texts_in(root: Path, wanted: TextFilter, warn: Warn) -> Iterator[StoredText]:
    """Yield the texts in a dump directory, a kernel's or a target's folder, or raw dumps.

    A pass that changed nothing has no text of its own, in raw dumps too.

    Raises:
      DumpDirectoryError: the directory does not exist or cannot be listed.
    """
    files.check_listable(root)
    if is_there(root / layout.COMPILATION):
        yield from _of_target(root, root, root.absolute().parent.name, wanted, warn)
        return
    if is_there(root / layout.KERNEL):
        yield from texts_of_folder(root, root, root.resolve().name, wanted, warn)
        return
    entries = files.listed(root, root)
    for name in layout.kernel_folders(entries.folders):
        if wanted.takes_kernel(name):
            yield from texts_of_folder(root / name, root, name, wanted, warn)
    if wanted.takes_target(layout.RAW_TARGET):
        for name, compile_ in raw.named_compiles(root, entries.files).items():
            if wanted.takes_kernel(name):
                yield from _changed_raw_texts(name, compile_, wanted)


def texts_of_folder(
    folder: Path, root: Path, kernel: str, wanted: TextFilter = ALL, warn: Warn = lambda _: None
) -> Iterator[StoredText]:
    """Yield the texts in a kernel's folder, which lies in `root`."""
    yield from _there(folder, root, kernel, None, _OF_KERNEL, wanted)
    for name in _listed(folder, root, warn).folders:
        yield from _of_target(folder / name, root, kernel, wanted, warn)


def raw_texts(kernel: str, compile_: raw.RawCompile) -> Iterator[StoredText]:
    """Yield the texts of a raw dump, in pass order."""
    for this in compile_.passes:
        yield StoredText(
            kernel=kernel,
            target=layout.RAW_TARGET,
            stage=layout.pass_name(this.number, this.name),
            file=DumpFile(path=this.path, root=this.path.parent),
        )


def _of_target(
    folder: Path, root: Path, kernel: str, wanted: TextFilter, warn: Warn
) -> Iterator[StoredText]:
    if not wanted.takes_target(folder.name):
        return
    yield from _there(folder, root, kernel, folder.name, _OF_TARGET, wanted)
    for inner in (folder / layout.PASSES, folder / layout.LLO):
        for name in _listed(inner, root, warn).files:
            stem = Path(name.removesuffix(layout.COMPRESSED)).stem
            stage = llo_stage(name) if inner.name == layout.LLO else stem
            if wanted.takes_stage(stage):
                file = DumpFile(path=inner / name, root=root)
                yield StoredText(kernel=kernel, target=folder.name, stage=stage, file=file)


def _there(
    folder: Path,
    root: Path,
    kernel: str,
    target: str | None,
    names: dict[str, str],
    wanted: TextFilter,
) -> Iterator[StoredText]:
    for stage, name in names.items():
        if wanted.takes_stage(stage) and is_there(folder / name):
            file = DumpFile(path=folder / name, root=root)
            yield StoredText(kernel=kernel, target=target, stage=stage, file=file)


def _listed(folder: Path, root: Path, warn: Warn) -> files.Listing:
    """List a folder; nothing if it does not exist or cannot be listed."""
    if files.is_folder(folder):
        try:
            return files.listed(folder, root)
        except DumpDirectoryError as error:
            warn(str(error))
    return files.Listing()


def _changed_raw_texts(
    kernel: str, compile_: raw.RawCompile, wanted: TextFilter
) -> Iterator[StoredText]:
    before: Path | None = None
    for text in raw_texts(kernel, compile_):
        same = before is not None and _same(before, text.path)
        before = text.path
        if not same and wanted.takes_stage(text.stage):
            yield text


def _same(a: Path, b: Path) -> bool:
    try:
        return raw.same_text(a, b)
    except (OSError, DumpFormatError):  # reported when the text itself is read
        return False
