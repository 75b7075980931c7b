"""Reading dump directories: ours, and plain ones of raw libtpu dumps, through one face.

What cannot be read is a `problem` of the kernel or compilation that it belongs to; the rest of
the directory stays readable.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pallas_debug.errors import DumpDirectoryError, DumpFormatError, UsageError
from pallas_debug.model import Compilation, Failure, Kernel, Pass, RunRecord, Stage
from pallas_debug.store import raw, schema
from pallas_debug.store.names import COMPILATION, KERNEL, RUNS

RAW_TARGET = "raw"
"""The target's name where libtpu's files do not say which chip they were made for."""

LLO, LOG, PASSES = "llo", "compiler.log", "passes"
"""Below a target's folder: what comes after the passes, what the compiler said, and they."""

_STAGE_FILES: dict[Stage, str] = {
    "source": "source.py",
    "jaxpr": "jaxpr.txt",
    "stablehlo": "stablehlo.mlir",
    "mosaic": "mosaic.mlir",
}

_OF_KERNEL: tuple[Stage, ...] = ("source", "jaxpr")
"""The stages that are the same for every target."""

_OF_TARGET: tuple[Stage, ...] = ("stablehlo", "mosaic")


@dataclass(frozen=True, kw_only=True)
class StoredCompilation:
    """A compilation in a dump directory, or what is wrong with it."""

    folder: Path
    target: str
    compilation: Compilation | None = None
    problem: str | None = None

    def find_pass(self, wanted: str) -> Pass:
        """The pass by its number (`13`), its name or a unique part of it.

        Raises:
          UsageError: none matches, or several do; the message lists them.
          DumpFormatError: the compilation cannot be read.
        """
        passes = self._read().passes
        number = int(wanted) if wanted.isdecimal() else None
        exact = [p for p in passes if p.number == number or p.name == wanted]
        found = exact or [p for p in passes if wanted in p.name]
        if len(found) == 1:
            return found[0]
        several = "; several match" if found else ""
        listed = ", ".join(f"{p.number:02d} {p.name}" for p in found or passes) or "none"
        raise UsageError(f"no pass {wanted!r} for {self.target}{several}: {listed}")

    def text(self, wanted: Pass) -> str:
        """The text after a pass. One that changed nothing has that of the pass before it.

        Raises:
          DumpFormatError: the directory does not keep it, or no more.
        """
        return read_text(self.path(wanted))

    def path(self, wanted: Pass) -> Path:
        """The file that holds the text after a pass.

        Raises:
          DumpFormatError: the directory does not keep it.
        """
        passes = self._read().passes
        if wanted not in passes:
            raise DumpFormatError(f"{self.folder} has no pass {wanted.name!r}")
        upto = passes[: passes.index(wanted) + 1]
        latest = next((p.file for p in reversed(upto) if p.file), None)
        if latest is None:
            raise DumpFormatError(f"{self.folder} keeps no text of the pass {wanted.name!r}")
        return self.folder / latest

    def others(self) -> list[Path]:
        """The files beside the passes: those of LLO, by name, and the compiler's log."""
        if self.target == RAW_TARGET:
            return []
        llo = [self.folder / LLO / name for name in _names(self.folder / LLO, of_folders=False)]
        log = self.folder / LOG
        return [*llo, log] if log.is_file() else llo

    def _read(self) -> Compilation:
        if self.compilation is None:
            raise DumpFormatError(self.problem or f"{self.folder} cannot be read")
        return self.compilation


@dataclass(frozen=True, kw_only=True)
class StoredText:
    """A text of a kernel, known by its file alone.

    Attributes:
      target: its folder's name; None where the text is the same for every target.
      stage: `jaxpr`, `13-infer-vector-layout`.
    """

    path: Path
    target: str | None
    stage: str


@dataclass(frozen=True, kw_only=True)
class StoredKernel:
    """A kernel in a dump directory, or what is wrong with its folder."""

    name: str
    folder: Path
    kernel: Kernel | None = None
    problem: str | None = None
    compilations: tuple[StoredCompilation, ...] = field(default=())

    def target(self, name: str | None) -> StoredCompilation:
        """The compilation for a target, or the only one there is.

        Raises:
          UsageError: there is none, or several and none was named.
        """
        known = ", ".join(c.target for c in self.compilations) or "none"
        if name is None:
            if len(self.compilations) == 1:
                return self.compilations[0]
            raise UsageError(f"{self.name}: say which target; there are: {known}")
        for compilation in self.compilations:
            if compilation.target == name or compilation.folder.name == name:
                return compilation
        raise UsageError(f"{self.name} has no target {name!r}; there are: {known}")

    def stage_text(self, stage: Stage, target: str | None = None) -> str:
        """The text of a stage before the compiler's passes.

        Raises:
          UsageError: the stage was not dumped (a raw directory holds passes alone).
        """
        path = self.stage_path(stage, target)
        if path is None:
            folder = self.folder if stage in _OF_KERNEL else self.target(target).folder
            missing = folder / _STAGE_FILES[stage]
            raise UsageError(f"{self.name} has no {stage}: there is no {missing}")
        return read_text(path)

    def stage_path(self, stage: Stage, target: str | None = None) -> Path | None:
        """The file of a stage before the compiler's passes; None where it was not dumped.

        Raises:
          UsageError: the stage is one of a target, and none or no known one was named.
        """
        of_target = self.compilations and stage not in _OF_KERNEL
        folder = self.target(target).folder if of_target else self.folder
        path = folder / _STAGE_FILES[stage]
        return path if path.is_file() else None


@dataclass(frozen=True, kw_only=True)
class DumpReader:
    """A directory of dumps, ours or libtpu's."""

    root: Path
    _raw: dict[str, raw.RawCompile] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __iter__(self) -> Iterator[StoredKernel]:
        yield from self.kernels()

    def kernels(self) -> list[StoredKernel]:
        """The kernels, by name; those of raw dumps by age.

        Raises:
          DumpDirectoryError: the directory can be listed no more.
        """
        if (self.root / KERNEL).is_file():  # a single kernel's folder was named
            return [_read_kernel(self.root)]
        folders, files = _scanned(self.root)
        kernels = [_read_kernel(self.root / name) for name in folders]
        for name, compile_ in _raw_compiles(self.root, files).items():
            kernels.append(_raw_kernel(self.root, name, compile_, raw.describe))
        return kernels

    def names(self) -> list[str]:
        """What `read` takes: nothing is read for it but the directory itself.

        Raw dumps by libtpu 0.0.42 and before are the exception: a kernel's name stands in its
        first file.

        Raises:
          DumpDirectoryError: the directory can be listed no more.
        """
        if (self.root / KERNEL).is_file():
            return [self.root.resolve().name]
        folders, files = _scanned(self.root)
        found = _raw_compiles(self.root, files)
        # Others may read meanwhile: what stays is there all the time.
        self._raw.update(found)
        for name in self._raw.keys() - found.keys():
            del self._raw[name]
        return [*folders, *found]

    def read(self, name: str) -> StoredKernel:
        """One kernel of `names`; where its folder cannot be read, its `problem` says why.

        Of raw dumps no more is read than tells which passes changed something: they come without
        digests.
        """
        if (self.root / KERNEL).is_file():
            return _read_kernel(self.root)
        if (self.root / name).is_dir():
            return _read_kernel(self.root / name)
        compile_ = self._find_raw(name)
        if compile_ is not None:
            return _raw_kernel(self.root, name, compile_, raw.outline)
        return StoredKernel(name=name, folder=self.root, problem=f"{name} has gone from here")

    def _find_raw(self, name: str) -> raw.RawCompile | None:
        if name not in self._raw:
            with contextlib.suppress(DumpDirectoryError):
                self.names()
        return self._raw.get(name)

    def texts(self, name: str) -> Iterator[StoredText]:
        """The texts of one kernel of `names` that a search goes through, each file once.

        Found by the names of the files, none of which is read. The source and the compiler's log
        are left out: they are not what the compiler made of a kernel.
        """
        folder = self.root if (self.root / KERNEL).is_file() else self.root / name
        if not folder.is_dir():
            yield from _raw_texts(self._find_raw(name))
            return
        if (folder / _STAGE_FILES["jaxpr"]).is_file():
            yield StoredText(path=folder / _STAGE_FILES["jaxpr"], target=None, stage="jaxpr")
        for target in _names(folder, of_folders=True):
            for stage in _OF_TARGET:
                if (folder / target / _STAGE_FILES[stage]).is_file():
                    path = folder / target / _STAGE_FILES[stage]
                    yield StoredText(path=path, target=target, stage=stage)
            for inner in (folder / target / PASSES, folder / target / LLO):
                for file in _names(inner, of_folders=False):
                    path = inner / file
                    yield StoredText(path=path, target=target, stage=path.stem)

    def find(self, wanted: str) -> StoredKernel:
        """The kernel by its folder's name, its own name, or a unique start of either.

        Raises:
          UsageError: none matches, or several do; the message lists them.
        """
        kernels = self.kernels()
        names = [k.name for k in kernels]
        by_name = [k for k in kernels if k.kernel and k.kernel.name == wanted]
        found = [k for k in kernels if k.name == wanted] or by_name
        found = found or [
            k
            for k in kernels
            if k.name.startswith(wanted) or (k.kernel and k.kernel.name.startswith(wanted))
        ]
        if len(found) == 1:
            return found[0]
        if found:
            listed = ", ".join(k.name for k in found)
            raise UsageError(f"{wanted!r} names several kernels in {self.root}: {listed}")
        listed = ", ".join(names[:20]) or "none"
        more = f", and {len(names) - 20} more" if len(names) > 20 else ""
        raise UsageError(f"no kernel {wanted!r} in {self.root}; there are: {listed}{more}")

    def runs(self) -> list[RunRecord]:
        """What tests and scripts recorded, run by run; records that cannot be read are left out."""
        return list(self.iter_runs())

    def iter_runs(self) -> Iterator[RunRecord]:
        """The same, each read when it is asked for."""
        for run in _names(self.root / RUNS, of_folders=True):
            for file in _names(self.root / RUNS / run, of_folders=False):
                path = self.root / RUNS / run / file
                if path.suffix == ".json":
                    with contextlib.suppress(OSError, DumpFormatError):
                        yield schema.decode(path.read_bytes(), RunRecord, path)


def open_dumps(root: str | Path) -> DumpReader:
    """A reader of `root`: a dump directory, one kernel's folder, or raw libtpu dumps.

    Raises:
      DumpDirectoryError: it does not exist, is a file, or cannot be listed.
    """
    root = Path(root)
    with _opened(root):
        return DumpReader(root=root)


def read_text(path: Path) -> str:
    """A text whatever its bytes: what is no UTF-8 is shown as U+FFFD.

    Raises:
      DumpFormatError: the file has gone, or cannot be read.
    """
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError as error:
        raise DumpFormatError(f"{path} cannot be read: {error.strerror}. Dump again.") from error


def _listed(root: Path) -> list[tuple[str, bool]]:
    """The names in a directory, each with whether it is one itself; nothing else is looked at."""
    with _opened(root) as entries:
        return [(entry.name, _is_folder(entry)) for entry in entries]


@contextlib.contextmanager
def _opened(root: Path) -> Iterator[Iterator[os.DirEntry[str]]]:
    """A directory that is listed; why it cannot be, in the words of every command."""
    try:
        with os.scandir(root) as entries:
            yield entries
    except FileNotFoundError as error:
        raise DumpDirectoryError(
            f"no such directory: {root}. `pallas-debug dump SCRIPT.py` makes one."
        ) from error
    except NotADirectoryError as error:
        raise DumpDirectoryError(
            f"{root} is a file, or lies below one; name the directory that holds the dumps."
        ) from error
    except OSError as error:
        raise DumpDirectoryError(f"{root} cannot be listed: {error.strerror}.") from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _scanned(root: Path) -> tuple[list[str], list[str]]:
    """The folders of kernels by name, and the files as they come.

    Raises:
      DumpDirectoryError: the directory cannot be listed.
    """
    folders, files = [], []
    with _opened(root) as entries:
        for entry in entries:
            name = entry.name
            if not _is_folder(entry):
                files.append(name)
            elif name != RUNS and not name.startswith("."):
                folders.append(name)
    return sorted(folders), files


def _names(folder: Path, *, of_folders: bool) -> list[str]:
    """What a folder holds of either kind, by name; nothing where it is not there."""
    try:
        return sorted(name for name, is_folder in _listed(folder) if is_folder == of_folders)
    except DumpDirectoryError:
        return []


def _read_kernel(folder: Path) -> StoredKernel:
    path = folder / KERNEL
    kernel, problem = None, None
    try:
        kernel = schema.decode(path.read_bytes(), Kernel, path)
    except FileNotFoundError:
        problem = f"{folder} holds no {KERNEL}: it is no kernel's folder, or was cut short."
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror}."
    except DumpFormatError as error:
        problem = str(error)
    try:
        targets = sorted(name for name, is_folder in _listed(folder) if is_folder)
    except DumpDirectoryError as error:
        targets, problem = [], problem or str(error)
    compilations = tuple(filter(None, (_read_compilation(folder / name) for name in targets)))
    return StoredKernel(
        name=folder.resolve().name,  # `.` has none of its own
        folder=folder,
        kernel=kernel,
        problem=problem,
        compilations=compilations,
    )


def _read_compilation(folder: Path) -> StoredCompilation | None:
    """None for what is no target's folder, or at this moment replaced by another process."""
    path = folder / COMPILATION
    try:
        compilation = schema.decode(path.read_bytes(), Compilation, path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror}."
    except DumpFormatError as error:
        problem = str(error)
    else:
        return StoredCompilation(folder=folder, target=compilation.target, compilation=compilation)
    return StoredCompilation(folder=folder, target=folder.name, problem=problem)


def _raw_compiles(root: Path, files: list[str]) -> dict[str, raw.RawCompile]:
    """Compiles by what they are called here: by their kernel, and a number from the second on."""
    found: dict[str, raw.RawCompile] = {}
    counts: dict[str, int] = {}
    for compile_ in raw.compiles_in(root, files):
        counts[compile_.kernel] = count = counts.get(compile_.kernel, 0) + 1
        found[compile_.kernel if count == 1 else f"{compile_.kernel}#{count}"] = compile_
    return found


def _raw_texts(compile_: raw.RawCompile | None) -> Iterator[StoredText]:
    for this in compile_.passes if compile_ else ():
        yield StoredText(path=this.path, target=RAW_TARGET, stage=f"{this.number:02d}-{this.name}")


Describe = Callable[[Sequence[raw.RawPass]], list[Pass]]


def _raw_kernel(
    root: Path, name: str, compile_: raw.RawCompile, describe: Describe
) -> StoredKernel:
    try:
        passes = tuple(describe(compile_.passes))
    except OSError as error:
        problem = f"{error.filename} cannot be read: {error.strerror}."
        return StoredKernel(name=name, folder=root, problem=problem)
    failure = _raw_failure(compile_)
    digest = hashlib.sha256(passes[0].sha256.encode()).hexdigest() if passes[0].sha256 else ""
    compilation = Compilation(
        kernel=name,
        target=RAW_TARGET,
        status="failed" if failure else "ok",
        key=digest,
        passes=passes,
        failure=failure,
    )
    return StoredKernel(
        name=name,
        folder=root,
        kernel=Kernel(name=compile_.kernel, digest=digest, primitive="unknown"),
        compilations=(StoredCompilation(folder=root, target=RAW_TARGET, compilation=compilation),),
    )


def _raw_failure(compile_: raw.RawCompile) -> Failure | None:
    """What the files tell of a failure: the message is not among it."""
    failed = next((p for p in compile_.passes if p.failed), None)
    if failed is not None:
        message = f"the pass {failed.name} failed; raw dumps do not hold the message"
        return Failure(stage="compile", type="unknown", message=message, last_pass=failed.name)
    if compile_.whole:
        return None
    last = compile_.passes[-1].name
    message = (
        f"the last pass that libtpu wrote is {last}, and a compile ends with {raw.LAST}: "
        "it died in the pass after that, was stopped, is still at it, or files are missing here"
    )
    return Failure(stage="crash", type="unknown", message=message, last_pass=last)
