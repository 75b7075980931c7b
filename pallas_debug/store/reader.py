"""Reader for dump directories: ours, and plain ones of raw libtpu dumps.

An unreadable file becomes the `problem` of its kernel or compilation; the rest stays readable.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from pallas_debug.errors import DumpDirectoryError, DumpFormatError, NoDumpsError, UsageError, meant
from pallas_debug.model import Compilation, Failure, Kernel, RunRecord
from pallas_debug.render import one_line
from pallas_debug.store import files, layout, raw, schema, texts
from pallas_debug.store.layout import (
    DOCUMENT,
    KERNEL,
    RAW_TARGET,
    RUNS,
    by_generation,
)
from pallas_debug.store.stored import StoredCompilation, StoredKernel, entries_of, read_compilation
from pallas_debug.store.texts import StoredText
from pallas_debug.tracebacks import WithoutOurFrames


@dataclass(frozen=True, kw_only=True)
class DumpReader:
    """A dump directory, ours or libtpu's."""

    root: Path
    _raw: dict[str, raw.RawCompile] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __iter__(self) -> Iterator[StoredKernel]:
        yield from self.kernels()

    def kernels(self) -> list[StoredKernel]:
        """Return the kernels by name, then those of raw dumps by age.

        Raises:
          DumpDirectoryError: the directory can no longer be listed.
        """
        return [self.read(name) for name in self.names()]

    @property
    def _is_kernel(self) -> bool:
        """True if `root` is the folder of a single kernel."""
        return files.is_there(self.root / KERNEL)

    def names(self) -> list[str]:
        """Return the names that `read` takes, from the directory listing alone.

        For raw dumps from libtpu 0.0.42 and before, the first file of each kernel is also read, as
        it contains the name.

        Raises:
          DumpDirectoryError: the directory can no longer be listed.
        """
        if self._is_kernel:
            return [_name_of(self.root)]
        entries = files.listed(self.root, self.root)
        found = raw.named_compiles(self.root, entries.files)
        # Update in place: other threads may be reading, and must not miss entries that remain.
        self._raw.update(found)
        for name in self._raw.keys() - found.keys():
            del self._raw[name]
        return [*layout.kernel_folders(entries.folders), *found]

    def read(self, name: str) -> StoredKernel:
        """Read one kernel of `names`; if its folder cannot be read, its `problem` says why.

        Raw dumps have no digests.
        """
        if self._is_kernel:
            return _read_kernel(self.root, self.root)
        if files.is_folder(self.root / name):
            return _read_kernel(self.root / name, self.root)
        compile_ = self._find_raw(name)
        if compile_ is not None:
            return _raw_kernel(self.root, name, compile_)
        gone = f"{one_line(name)} is no longer in this directory"
        return StoredKernel(name=name, folder=self.root, problem=gone)

    def _find_raw(self, name: str) -> raw.RawCompile | None:
        if name not in self._raw:
            with contextlib.suppress(DumpDirectoryError):
                self.names()
        return self._raw.get(name)

    def texts(self, name: str) -> Iterator[StoredText]:
        """Yield the searchable texts of one kernel of `names`; see `texts.texts_of_folder`."""
        folder = self.root if self._is_kernel else self.root / name
        if files.is_folder(folder):
            yield from texts.texts_of_folder(folder, self.root, name)
        elif (compile_ := self._find_raw(name)) is not None:
            yield from texts.raw_texts(name, compile_)

    def find(self, wanted: str) -> StoredKernel:
        """Return the kernel with this folder name or own name, or a unique prefix of either.

        Raises:
          UsageError: none matches, or several do; the message lists them.
        """
        with WithoutOurFrames():
            return self._found(wanted)

    def _found(self, wanted: str) -> StoredKernel:
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
            listed = _listed([k.name for k in found])
            raise UsageError(
                f"{wanted!r} names several kernels in {root}: {listed}. Add more of the name."
            )
        known = [name for k in kernels for name in (k.name, k.kernel.name if k.kernel else k.name)]
        hint = meant(wanted, known)
        raise UsageError(f"no kernel {wanted!r}{hint} in {root}; there are: {_listed(names)}")

    def runs(self) -> Iterator[RunRecord]:
        """Yield the readable records of tests and scripts, run by run."""
        for run in entries_of(self.root / RUNS, self.root).folders:
            for file in entries_of(self.root / RUNS / run, self.root).files:
                path = self.root / RUNS / run / file
                if path.suffix == DOCUMENT:
                    with contextlib.suppress(OSError, DumpFormatError):
                        yield schema.decode(files.read(path, self.root), RunRecord, path)


def _listed(names: Sequence[str]) -> str:
    more = f", and {len(names) - 20} more" if len(names) > 20 else ""
    return (", ".join(map(one_line, names[:20])) or "none") + more


def open_dumps(root: str | Path) -> DumpReader:
    """Return a reader for `root`: a dump directory, one kernel's folder, or raw libtpu dumps.

    A URL such as `s3://bucket/dumps` names one in an object store, which is copied to this machine.

    Raises:
      DumpDirectoryError: it does not exist, is a file, or cannot be listed.
    """
    with WithoutOurFrames():
        if layout.is_url(root):
            from pallas_debug.store.remote import fetch

            root = fetch(str(root))
        root = Path(root)
        if "\0" in str(root):
            raise NoDumpsError(f"no such directory: {one_line(root)}: a path cannot contain a NUL.")
        files.check_listable(root)
        return DumpReader(root=root)


def _name_of(folder: Path) -> str:
    """Return the name of a folder, even one given as `.`; tolerates circular links."""
    return PurePath(os.path.realpath(folder)).name


def _read_kernel(folder: Path, root: Path) -> StoredKernel:
    path = folder / KERNEL
    kernel, problem = None, None
    try:
        kernel = schema.decode(files.read(path, root), Kernel, path)
    except FileNotFoundError:
        problem = (
            f"{one_line(folder)} holds no {KERNEL}: it is not a kernel's folder, or is incomplete."
        )
    except DumpFormatError as error:
        problem = str(error)
    targets: list[str] = []
    try:
        targets = sorted(files.listed(folder, root).folders, key=by_generation)
    except DumpDirectoryError as error:
        problem = problem or str(error)
    made = (read_compilation(folder / name, root) for name in targets)
    compilations = tuple(filter(None, made))
    return StoredKernel(
        name=folder.name if folder != root else _name_of(folder),
        folder=folder,
        kernel=kernel,
        problem=problem,
        compilations=compilations,
        root=root,
    )


def _raw_kernel(root: Path, name: str, compile_: raw.RawCompile) -> StoredKernel:
    try:
        passes = tuple(raw.outline(compile_.passes))
    except OSError as error:
        problem = f"{one_line(str(error.filename))} cannot be read: {error.strerror}."
        return StoredKernel(name=name, folder=root, problem=problem)
    except DumpFormatError as error:
        return StoredKernel(name=name, folder=root, problem=str(error))
    failure = _raw_failure(compile_)
    compilation = Compilation(
        kernel=name,
        target=RAW_TARGET,
        status="failed" if failure else "ok",
        key="",
        passes=passes,
        failure=failure,
    )
    return StoredKernel(
        name=name,
        folder=root,
        kernel=Kernel(name=compile_.kernel, digest="", primitive="unknown"),
        compilations=(StoredCompilation(folder=root, target=RAW_TARGET, compilation=compilation),),
    )


def _raw_failure(compile_: raw.RawCompile) -> Failure | None:
    """Return the failure as far as the files show it; they do not contain the message."""
    failed = next((p for p in compile_.passes if p.failed), None)
    if failed is not None:
        message = f"the pass {failed.name} failed; raw dumps do not contain the message"
        return Failure(stage="compile", type="unknown", message=message, last_pass=failed.name)
    if compile_.whole:
        return None
    last = compile_.passes[-1].name
    message = (
        f"the last pass that libtpu wrote is {last}, but a complete compile ends with {raw.LAST}: "
        "libtpu died in the next pass, was stopped, or is still running, or files are missing here"
    )
    return Failure(stage="crash", type="unknown", message=message, last_pass=last)
