"""Reading dump directories: ours, and plain ones of raw libtpu dumps, through one face.

What cannot be read is a `problem` of the kernel or compilation that it belongs to; the rest of
the directory stays readable.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pallas_debug.errors import DumpDirectoryError, DumpFormatError, UsageError
from pallas_debug.model import Compilation, Failure, Kernel, Pass, RunRecord, Stage
from pallas_debug.store import raw, schema
from pallas_debug.store.writer import COMPILATION, KERNEL, RUNS

RAW_TARGET = "raw"
"""The target's name where libtpu's files do not say which chip they were made for."""

_STAGE_FILES: dict[Stage, str] = {
    "source": "source.py",
    "jaxpr": "jaxpr.txt",
    "stablehlo": "stablehlo.mlir",
    "mosaic": "mosaic.mlir",
}

_OF_KERNEL: tuple[Stage, ...] = ("source", "jaxpr")
"""The stages that are the same for every target."""


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

    def _read(self) -> Compilation:
        if self.compilation is None:
            raise DumpFormatError(self.problem or f"{self.folder} cannot be read")
        return self.compilation


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

    def __iter__(self) -> Iterator[StoredKernel]:
        yield from self.kernels()

    def kernels(self) -> list[StoredKernel]:
        """The kernels, by name; those of raw dumps by age.

        Raises:
          DumpDirectoryError: the directory can be listed no more.
        """
        if (self.root / KERNEL).is_file():  # a single kernel's folder was named
            return [_read_kernel(self.root)]
        paths = _listed(self.root)
        folders = [p for p in paths if _is_kernel(p) and p.is_dir()]
        files = [p for p in paths if p.is_file()]
        return [_read_kernel(folder) for folder in folders] + _raw_kernels(self.root, files)

    def names(self) -> list[str]:
        """What `read` takes, without a look into any kernel's folder; raw dumps are read whole.

        Raises:
          DumpDirectoryError: the directory can be listed no more.
        """
        if (self.root / KERNEL).is_file():
            return [self.root.resolve().name]
        try:
            with os.scandir(self.root) as entries:
                listed = [(entry.name, entry.is_dir()) for entry in entries]
        except OSError as error:
            raise DumpDirectoryError(f"{self.root} cannot be listed: {error.strerror}.") from error
        folders = sorted(name for name, is_folder in listed if is_folder)
        files = [self.root / name for name, is_folder in sorted(listed) if not is_folder]
        found = [name for name in folders if _is_kernel(self.root / name)]
        return found + [kernel.name for kernel in _raw_kernels(self.root, files)]

    def read(self, name: str) -> StoredKernel:
        """One kernel of `names`; where its folder cannot be read, its `problem` says why."""
        if (self.root / KERNEL).is_file():
            return _read_kernel(self.root)
        if (self.root / name).is_dir():
            return _read_kernel(self.root / name)
        files = [path for path in _listed(self.root) if path.is_file()]
        raw_kernels = {kernel.name: kernel for kernel in _raw_kernels(self.root, files)}
        if name in raw_kernels:
            return raw_kernels[name]
        return StoredKernel(name=name, folder=self.root, problem=f"{name} has gone from here")

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
        records = []
        for path in sorted((self.root / RUNS).glob("*/*.json")):
            try:
                records.append(schema.decode(path.read_bytes(), RunRecord, path))
            except (OSError, DumpFormatError):
                continue
        return records


def open_dumps(root: str | Path) -> DumpReader:
    """A reader of `root`: a dump directory, one kernel's folder, or raw libtpu dumps.

    Raises:
      DumpDirectoryError: it does not exist, is a file, or cannot be listed.
    """
    root = Path(root)
    _listed(root)
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


def _listed(root: Path) -> list[Path]:
    try:
        return sorted(root.iterdir())
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


def _is_kernel(folder: Path) -> bool:
    return not folder.name.startswith(".") and folder.name != RUNS


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
        targets = _listed(folder)
    except DumpDirectoryError as error:
        targets, problem = [], problem or str(error)
    compilations = tuple(filter(None, map(_read_compilation, targets)))
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


def _raw_kernels(root: Path, files: list[Path]) -> list[StoredKernel]:
    stored = []
    counts: dict[str, int] = {}
    for compile_ in raw.compiles(files):
        counts[compile_.kernel] = count = counts.get(compile_.kernel, 0) + 1
        name = compile_.kernel if count == 1 else f"{compile_.kernel}#{count}"
        try:
            stored.append(_raw_kernel(root, name, compile_))
        except OSError as error:
            problem = f"{error.filename} cannot be read: {error.strerror}."
            stored.append(StoredKernel(name=name, folder=root, problem=problem))
    return stored


def _raw_kernel(root: Path, name: str, compile_: raw.RawCompile) -> StoredKernel:
    passes = tuple(raw.describe(compile_.passes, keep_unchanged=True))
    failure = _raw_failure(compile_)
    digest = hashlib.sha256(passes[0].sha256.encode()).hexdigest()
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
