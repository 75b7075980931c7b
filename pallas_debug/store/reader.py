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
from pathlib import Path, PurePath

from pallas_debug.errors import DumpDirectoryError, DumpFormatError, UsageError
from pallas_debug.model import Compilation, Failure, Kernel, Pass, RunRecord
from pallas_debug.report import one_line
from pallas_debug.store import files, raw, schema
from pallas_debug.store.names import KERNEL, RUNS
from pallas_debug.store.stored import LLO as LLO
from pallas_debug.store.stored import LOG as LOG
from pallas_debug.store.stored import OF_TARGET, STAGE_FILES, names_in, read_compilation
from pallas_debug.store.stored import PASSES as PASSES
from pallas_debug.store.stored import RAW_TARGET as RAW_TARGET
from pallas_debug.store.stored import StoredCompilation as StoredCompilation
from pallas_debug.store.stored import StoredKernel as StoredKernel
from pallas_debug.store.stored import StoredText as StoredText


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
        if self._is_kernel:
            return [_read_kernel(self.root, self.root)]
        folders, names = _scanned(self.root)
        kernels = [_read_kernel(self.root / name, self.root) for name in folders]
        for name, compile_ in _raw_compiles(self.root, names).items():
            kernels.append(_raw_kernel(self.root, name, compile_, raw.describe))
        return kernels

    @property
    def _is_kernel(self) -> bool:
        """Whether the folder of a single kernel was named."""
        return files.is_there(self.root / KERNEL)

    def names(self) -> list[str]:
        """What `read` takes: nothing is read for it but the directory itself.

        Raw dumps by libtpu 0.0.42 and before are the exception: a kernel's name stands in its
        first file.

        Raises:
          DumpDirectoryError: the directory can be listed no more.
        """
        if self._is_kernel:
            return [_name_of(self.root)]
        folders, names = _scanned(self.root)
        found = _raw_compiles(self.root, names)
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
        if self._is_kernel:
            return _read_kernel(self.root, self.root)
        if os.path.isdir(self.root / name):  # noqa: PTH112 - as Path.is_dir, but for what it raises
            return _read_kernel(self.root / name, self.root)
        compile_ = self._find_raw(name)
        if compile_ is not None:
            return _raw_kernel(self.root, name, compile_, raw.outline)
        gone = f"{one_line(name)} has gone from here"
        return StoredKernel(name=name, folder=self.root, problem=gone)

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
        folder = self.root if self._is_kernel else self.root / name
        if not os.path.isdir(folder):  # noqa: PTH112 - as Path.is_dir, but for what it raises
            yield from _raw_texts(self._find_raw(name))
            return
        if files.is_there(folder / STAGE_FILES["jaxpr"]):
            path = folder / STAGE_FILES["jaxpr"]
            yield StoredText(path=path, root=self.root, target=None, stage="jaxpr")
        for target in names_in(folder, self.root, of_folders=True):
            for stage in OF_TARGET:
                path = folder / target / STAGE_FILES[stage]
                if files.is_there(path):
                    yield StoredText(path=path, root=self.root, target=target, stage=stage)
            for inner in (folder / target / PASSES, folder / target / LLO):
                for file in names_in(inner, self.root, of_folders=False):
                    path = inner / file
                    yield StoredText(path=path, root=self.root, target=target, stage=path.stem)

    def find(self, wanted: str) -> StoredKernel:
        """The kernel by its folder's name, its own name, or a unique start of either.

        Raises:
          UsageError: none matches, or several do; the message lists them.
        """
        kernels = self.kernels()
        root = one_line(self.root)
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
            listed = ", ".join(one_line(k.name) for k in found)
            raise UsageError(f"{wanted!r} names several kernels in {root}: {listed}")
        listed = ", ".join(map(one_line, names[:20])) or "none"
        more = f", and {len(names) - 20} more" if len(names) > 20 else ""
        raise UsageError(f"no kernel {wanted!r} in {root}; there are: {listed}{more}")

    def runs(self) -> list[RunRecord]:
        """What tests and scripts recorded, run by run; records that cannot be read are left out."""
        return list(self.iter_runs())

    def iter_runs(self) -> Iterator[RunRecord]:
        """The same, each read when it is asked for."""
        for run in names_in(self.root / RUNS, self.root, of_folders=True):
            for file in names_in(self.root / RUNS / run, self.root, of_folders=False):
                path = self.root / RUNS / run / file
                if path.suffix == ".json":
                    with contextlib.suppress(OSError, DumpFormatError):
                        yield schema.decode(files.read(path, self.root), RunRecord, path)


def open_dumps(root: str | Path) -> DumpReader:
    """A reader of `root`: a dump directory, one kernel's folder, or raw libtpu dumps.

    Raises:
      DumpDirectoryError: it does not exist, is a file, or cannot be listed.
    """
    root = Path(root)
    if "\0" in str(root):
        raise DumpDirectoryError(f"no such directory: {one_line(root)}: a path holds no NUL.")
    files.check_listable(root)
    return DumpReader(root=root)


def read_text(path: Path) -> str:
    """The text of a file that lies directly in a folder of a dump; see `files.DumpFile.text`."""
    return files.read_text(path, path.parent)


def _scanned(root: Path) -> tuple[list[str], list[str]]:
    """The folders of kernels by name, and the files as they come.

    Raises:
      DumpDirectoryError: the directory cannot be listed.
    """
    folders, names = [], []
    for name, is_folder in files.listed(root, root):
        if not is_folder:
            names.append(name)
        elif name != RUNS and not name.startswith("."):
            folders.append(name)
    return sorted(folders), names


def _name_of(folder: Path) -> str:
    """The name of a folder, which `.` does not show. Links in a circle are no error here."""
    return PurePath(os.path.realpath(folder)).name


def _read_kernel(folder: Path, root: Path) -> StoredKernel:
    path = folder / KERNEL
    kernel, problem = None, None
    try:
        kernel = schema.decode(files.read(path, root), Kernel, path)
    except FileNotFoundError:
        problem = (
            f"{one_line(folder)} holds no {KERNEL}: it is no kernel's folder, or was cut short."
        )
    except DumpFormatError as error:
        problem = str(error)
    targets: list[str] = []
    try:
        targets = sorted(name for name, is_folder in files.listed(folder, root) if is_folder)
    except DumpDirectoryError as error:
        problem = problem or str(error)
    made = (read_compilation(folder / name, root, kernel) for name in targets)
    compilations = tuple(filter(None, made))
    return StoredKernel(
        name=folder.name if folder != root else _name_of(folder),
        folder=folder,
        kernel=kernel,
        problem=problem,
        compilations=compilations,
        root=root,
    )


def _raw_compiles(root: Path, names: list[str]) -> dict[str, raw.RawCompile]:
    """Compiles by what they are called here: by their kernel, and a number from the second on."""
    found: dict[str, raw.RawCompile] = {}
    counts: dict[str, int] = {}
    for compile_ in raw.compiles_in(root, names):
        counts[compile_.kernel] = count = counts.get(compile_.kernel, 0) + 1
        found[compile_.kernel if count == 1 else f"{compile_.kernel}#{count}"] = compile_
    return found


def _raw_texts(compile_: raw.RawCompile | None) -> Iterator[StoredText]:
    for this in compile_.passes if compile_ else ():
        stage = f"{this.number:02d}-{this.name}"
        yield StoredText(path=this.path, root=this.path.parent, target=RAW_TARGET, stage=stage)


Describe = Callable[[Sequence[raw.RawPass]], list[Pass]]


def _raw_kernel(
    root: Path, name: str, compile_: raw.RawCompile, describe: Describe
) -> StoredKernel:
    try:
        passes = tuple(describe(compile_.passes))
    except OSError as error:
        problem = f"{one_line(str(error.filename))} cannot be read: {error.strerror}."
        return StoredKernel(name=name, folder=root, problem=problem)
    except DumpFormatError as error:
        return StoredKernel(name=name, folder=root, problem=str(error))
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
