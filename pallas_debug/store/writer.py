"""Writing a dump directory: many processes and hosts at the same time, and any of them may die.

Nothing is written in place. Files are made in a folder of their own under `.tmp/`, flushed, and
renamed to where they belong in one step, so a reader never meets half of a folder, and neither a
kill nor a power failure loses what was there before. Where one step is not enough, what a run
leaves behind under `.tmp/` says how to finish or undo it; `Store` does so when it is opened.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path, PurePosixPath

from pallas_debug.errors import DumpDirectoryError, DumpFormatError, LockTimeoutError
from pallas_debug.model import Compilation, Dump, FileRecord, Kernel, RunRecord
from pallas_debug.store import locks, origin, schema, scratch
from pallas_debug.store.disk import (
    Content,
    Disk,
    explained,
    explaining,
    is_as_recorded,
    read_regular,
)
from pallas_debug.store.names import COMPILATION as COMPILATION
from pallas_debug.store.names import DIGITS as _DIGITS
from pallas_debug.store.names import KERNEL as KERNEL
from pallas_debug.store.names import PROGRAM as PROGRAM
from pallas_debug.store.names import RUNS as RUNS
from pallas_debug.store.names import clean, kernel_folder, target_folder

_TMP = ".tmp"
_LOCKS = ".locks"
_STRIPES = 3  # hex digits: at most 4,096 lock files per target, however many kernels

_NEW, _OLD, _OWNER = "new", "old", "belongs-to"
"""In a folder under `.tmp/`: what is to be published, what it replaces, and where that was."""

_OF_KERNEL = ("jaxpr.txt", "source.py", KERNEL)
"""What `put_kernel` writes; the last one vouches for the others."""

_PENDING = "pending-"
"""Prefix under `.tmp/` of the files of a kernel that are about to replace those it has."""

_FINAL = ("lowering", "compile")
"""Stages whose failures compiling again would reproduce."""

_ATTEMPTS = 3
"""How often a folder is written again that somebody else deletes meanwhile."""

_EXISTS = frozenset({errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR})


class Store:
    """A dump directory that is being written.

    Args:
      root: the directory, created if needed.
      waiting: how to wait for the locks of other processes.
      disk: what changes files.

    Raises:
      DumpDirectoryError: on creation, when `root` cannot be such a directory; on writing, when
        the disk is full or the directory has gone.
    """

    def __init__(
        self, root: Path, *, waiting: locks.Waiting | None = None, disk: Disk | None = None
    ) -> None:
        self.root = root.absolute()
        self._waiting = waiting or locks.Waiting()
        self._disk = disk or Disk()
        self._has_locks = True
        self._kept: set[Path] = set()
        try:
            self._make_folders(self.root)
        except (FileExistsError, NotADirectoryError) as error:
            raise DumpDirectoryError(
                f"cannot dump to {root}: it is a file, or lies below one. "
                "Name a directory; it is made when it does not exist."
            ) from error
        except FileNotFoundError as error:  # as /proc answers; it has not gone, it never was
            raise DumpDirectoryError(
                f"cannot dump to {root}: no directory can be made there. Dump elsewhere."
            ) from error
        except OSError as error:
            raise explained(error, self.root) from error
        with self._explaining():
            self._recover()
            tempfile.TemporaryFile(dir=self.root).close()

    def folder(self, kernel: Kernel) -> Path:
        """Where this kernel's files are, or will be."""
        return self.root / kernel_folder(kernel)

    def keeps(self, kernel: Kernel, target: str | None = None) -> bool:
        """Whether this store wrote or found a kernel, or its compilation for a target, whole.

        What was attempted and failed, on a full disk say, is not kept.
        """
        folder = self.folder(kernel)
        return (folder if target is None else folder / target_folder(target)) in self._kept

    def kept(self, dumps: Iterable[Dump]) -> list[Dump]:
        """Those of `dumps` that it keeps, each with those of its compilations that it keeps."""
        return [
            replace(
                dump,
                compilations=tuple(
                    c for c in dump.compilations if self.keeps(dump.kernel, c.target)
                ),
            )
            for dump in dumps
            if self.keeps(dump.kernel)
        ]

    def put_kernel(self, kernel: Kernel, *, jaxpr: str, source: str | None) -> Path:
        """Write what a kernel is; its folder.

        A folder that is there already keeps its compilations. Its files are replaced together:
        after a kill in between, the next `Store` replaces the rest.
        """
        folder = self.folder(kernel)
        files: dict[str, bytes] = {"jaxpr.txt": jaxpr.encode(errors="replace")}
        if source is not None:
            files["source.py"] = source.encode(errors="replace")
        files[KERNEL] = schema.encode(kernel)
        with self._explaining():
            is_there = not self._pending(folder).exists() and self._same(folder, files)
            if not is_there and (folder.exists() or not self._publish(files, folder)):
                self._replace_files(folder, files)
        self._kept.add(folder)
        return folder

    def put_program(self, kernel: Kernel, program: str) -> Path:
        """Write a kernel as a program of its own, beside what it is; the file."""
        path = self.folder(kernel) / PROGRAM
        files = origin.signed(kernel.digest, {PROGRAM: program.encode(errors="replace")}, PROGRAM)
        with self._explaining():
            if not self._same(path.parent, files):
                for name, content in files.items():
                    self._replace_file(path.with_name(name), content)
        return path

    def put_compilation(
        self, kernel: Kernel, compilation: Compilation, files: Mapping[str, Content]
    ) -> Path:
        """Write what the compiler made of a kernel, replacing what was there for its target.

        Args:
          files: contents by their path below the target's folder.
        """
        folder = self.folder(kernel) / target_folder(compilation.target)
        files = origin.signed(kernel.digest, files, origin.STABLEHLO)
        with self._explaining():
            self._publish(files, folder, manifest=compilation)
        self._kept.add(folder)
        return folder

    def find_compilation(self, kernel: Kernel, target: str, key: str) -> Compilation | None:
        """The compilation that is here already under the same key, whole, or None.

        A damaged one counts as missing and will be replaced. So does one whose compiler died or
        was stopped: that may be the machine's fault, and not the kernel's.
        """
        folder = self.folder(kernel) / target_folder(target)
        path = folder / COMPILATION
        try:
            found = schema.decode(read_regular(path) or b"", Compilation, path, kernel)
        except DumpFormatError:
            return None
        if found.key != key or (found.failure and found.failure.stage not in _FINAL):
            return None
        records = _records(found)
        if records is None or not all(_is_whole(folder, *one) for one in records.items()):
            return None
        self._kept.add(folder)
        return replace(found, cached=True)

    @contextlib.contextmanager
    def claim(self, kernel: Kernel, target: str) -> Iterator[None]:
        """Hold the right to compile `kernel` for `target`, on this host and among its processes.

        Raises:
          LockTimeoutError: another process held it for longer than this one waits.
          WorkerError: waiting was stopped.
        """
        name = f"{kernel.digest[:_STRIPES]}-{target_folder(target)}"
        with self._locked(name, f"compiling {kernel.name} for {target}"):
            yield

    def put_run(self, record: RunRecord) -> Path:
        """Write what one test or script used, under `runs/<run>/`."""
        name = f"{clean(record.name)}-{_short(record.name)}.json"
        path = self.root / RUNS / clean(record.run) / name
        with self._explaining():
            self._replace_file(path, schema.encode(record))
        return path

    # Publishing: a folder that appears, or replaces another, in one step.

    def _publish(
        self, files: Mapping[str, Content], folder: Path, manifest: Compilation | None = None
    ) -> bool:
        """Make `folder` with `files` in it, at once.

        Args:
          manifest: of a target's folder, which replaces what is there; it is written last and
            records the other files. Without one, a folder that is there stays.

        Returns:
          False where `folder` is there already and stays.
        """
        for _ in range(_ATTEMPTS):
            with self._workspace() as workspace:
                new = workspace / _NEW  # with the modes that the umask gives; its parent is private
                written = self._write_folder(new, files, manifest)
                if not _holds(new, written):
                    continue
                self._make_folders(folder.parent)
                if manifest is not None:
                    undo = self._install(workspace, folder)
                elif not self._rename_to_nothing(new, folder):
                    return False
                else:
                    undo = (folder, new)
                if _holds(folder, written):
                    self._disk.flush(folder.parent)
                    return True
                self._undo(folder, *undo)  # another process deleted files before the rename
        raise DumpDirectoryError(
            f"cannot dump to {self.root}: something deletes files under {_TMP}/ while they are "
            "written. Stop cleaning the directory during a run; no half-written folder was left"
        )

    def _write_folder(
        self, new: Path, files: Mapping[str, Content], manifest: Compilation | None
    ) -> dict[str, FileRecord]:
        """Write and flush a folder; what was written, by path below it."""
        self._disk.make_folder(new)
        folders = {new: None}
        written: dict[str, FileRecord] = {}
        for name, content in files.items():
            path = new / name
            for missing in reversed([p for p in path.parents if p.is_relative_to(new)]):
                if missing not in folders:
                    self._disk.make_folder(missing)
                    folders[missing] = None
            written[name] = self._disk.write(path, content)
        if manifest is not None:
            document = schema.encode(replace(manifest, cached=False, files=dict(written)))
            written[COMPILATION] = self._disk.write(new / COMPILATION, document)
        self._disk.flush_all([*(new / name for name in written), *reversed(folders)])
        return written

    def _install(self, workspace: Path, folder: Path) -> tuple[Path, Path]:
        """Put `new` in the place of `folder`; what `_undo` takes to reverse it.

        What was there is in the workspace then.
        """
        new, old = workspace / _NEW, workspace / _OLD
        while not self._rename_to_nothing(new, folder):
            with contextlib.suppress(FileNotFoundError):  # another process moved it just now
                if self._disk.exchange(new, folder):
                    return new, folder
                self._put_aside(folder, workspace, old)
        return (old, folder) if old.exists() else (folder, new)

    def _put_aside(self, folder: Path, workspace: Path, old: Path) -> None:
        """Move `folder` to `old`, where `_restore` finds it if this process dies next."""
        owner = workspace / _OWNER
        if owner.exists():
            self._disk.remove(old)  # another process has published in its place since
        else:
            self._disk.write(owner, os.fsencode(folder.relative_to(self.root)))
            self._disk.flush_all([owner, workspace, workspace.parent])
        self._disk.rename(folder, old)

    def _undo(self, folder: Path, one: Path, other: Path) -> None:
        """Take a folder out of sight that lost files as it was published."""
        with contextlib.suppress(OSError):
            if one == folder:
                self._disk.rename(folder, other)
            elif not self._disk.exchange(one, folder):
                self._disk.rename(folder, one.with_name("incomplete"))
                self._disk.rename(one, folder)

    def _rename_to_nothing(self, old: Path, new: Path) -> bool:
        """Rename a folder; False where there is something at `new`."""
        try:
            self._disk.rename(old, new)
        except OSError as error:
            if error.errno in _EXISTS:
                return False
            raise
        return True

    # Replacing files one by one.

    def _replace_files(self, folder: Path, files: Mapping[str, bytes]) -> None:
        """Replace several files of a kernel such that a kill does not leave a mixture for good.

        They are first published together under `.tmp/`. The next run replaces all of them.
        """
        with self._writing(folder):
            self._complete(folder)
            if self._same(folder, files):
                return
            with self._workspace() as workspace:
                self._write_folder(workspace / _NEW, files, None)
                self._disk.rename(workspace / _NEW, self._pending(folder))
                self._disk.flush(self._pending(folder).parent)
            self._complete(folder)

    def _complete(self, folder: Path) -> None:
        """Replace the files of a kernel with those that are pending; its lock is held."""
        pending = self._pending(folder)
        if not pending.is_dir():
            return
        for name in _OF_KERNEL:
            content = read_regular(pending / name)
            if content is not None and not self._same(folder, {name: content}):
                self._replace_file(folder / name, content)
        with self._workspace() as workspace:  # out of sight at once: half of them says nothing
            self._disk.rename(pending, workspace / _OLD)

    def _pending(self, folder: Path) -> Path:
        return self.root / _TMP / f"{_PENDING}{folder.name}"

    def _replace_file(self, path: Path, content: Content) -> None:
        with self._workspace() as workspace:
            self._disk.write(workspace / "file", content)
            self._disk.flush(workspace / "file")
            self._make_folders(path.parent)
            self._disk.rename(workspace / "file", path)
            self._disk.flush(path.parent)

    def _same(self, folder: Path, files: Mapping[str, bytes]) -> bool:
        return all(
            read_regular(folder / name, len(content)) == content for name, content in files.items()
        )

    # What killed processes left.

    def _recover(self) -> None:
        """Finish or undo what processes were at when they died, and delete what they left."""
        tmp = self.root / _TMP
        if tmp.is_symlink() or not tmp.is_dir():
            return  # a link in a directory that somebody else made leads to what is not ours
        for pending in tmp.glob(f"{_PENDING}*"):
            name = pending.name.removeprefix(_PENDING)
            folder = self.root / name
            if name.startswith(".") or folder.is_symlink() or not folder.is_dir():
                continue
            with contextlib.suppress(LockTimeoutError), self._writing(folder, at_once=True):
                self._complete(folder)
        scratch.sweep(tmp, recover=self._restore)

    def _restore(self, workspace: Path) -> None:
        """Put a folder back whose replacement was not published any more.

        This is safe even if the process that moved it is alive: it finds the folder, and moves it
        again.
        """
        owner = read_regular(workspace / _OWNER)
        if owner is None or not (workspace / _OLD).exists():
            return
        place = PurePosixPath(os.fsdecode(owner))
        if place.is_absolute() or ".." in place.parts or len(place.parts) != 2:
            return
        with contextlib.suppress(OSError):
            if self._rename_to_nothing(workspace / _OLD, self.root / place):
                self._disk.flush((self.root / place).parent)

    # Folders and locks.

    @contextlib.contextmanager
    def _workspace(self) -> Iterator[Path]:
        """A folder under `.tmp/` that no sweep touches while this process lives."""
        tmp = self.root / _TMP
        with self._explaining():
            if not tmp.is_dir():
                self._disk.make_folder(tmp)
                self._flush_above(tmp)
            made = scratch.Scratch(tmp)
        try:
            self._disk.made(made.path)
            with self._explaining():
                yield made.path
        finally:
            with contextlib.suppress(OSError):
                for path in made.path.iterdir():
                    if path.name != scratch.LOCK:
                        self._disk.remove(path)
            made.remove()

    def _make_folders(self, path: Path) -> None:
        """Create a folder and those above it, such that they survive a power failure."""
        missing = [path]
        while not missing[-1].exists() and missing[-1].parent != missing[-1]:
            missing.append(missing[-1].parent)
        if not missing[-1].is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(missing[-1]))
        for folder in reversed(missing[:-1]):
            self._disk.make_folder(folder)
            self._flush_above(folder)

    def _flush_above(self, folder: Path) -> None:
        """Flush the entry of a new folder."""
        with contextlib.suppress(PermissionError):  # one may write there, but not list it
            self._disk.flush(folder.parent)

    @contextlib.contextmanager
    def _locked(self, name: str, task: str, *, at_once: bool = False) -> Iterator[None]:
        """Hold a lock of this directory; where it has none, say so once and go on."""
        waiting = replace(self._waiting, timeout=0.0) if at_once else self._waiting
        with contextlib.ExitStack() as stack:
            if self._has_locks:
                path = self.root / _LOCKS / f"{name}.lock"
                with self._explaining():
                    path.parent.mkdir(exist_ok=True)
                    try:
                        stack.enter_context(locks.hold(path, task, waiting))
                    except locks.LocksUnavailable as error:
                        self._has_locks = False
                        self._waiting.warn(
                            f"{self.root} is on a file system without locks ({error.strerror}): "
                            "other processes may compile the same kernels at the same time. "
                            "That costs time and damages nothing"
                        )
            yield

    def _writing(self, folder: Path, *, at_once: bool = False) -> AbstractContextManager[None]:
        """Hold the lock for replacing a kernel's files."""
        stripe = folder.name[-_DIGITS:][:_STRIPES]
        return self._locked(stripe, f"writing {folder.name}", at_once=at_once)

    def _explaining(self) -> AbstractContextManager[None]:
        return explaining(self.root)


def _records(compilation: Compilation) -> dict[str, FileRecord] | None:
    """The files of a compilation with what is recorded of them; None where records disagree.

    Dumps from before `Compilation.files` record their passes alone.
    """
    records = dict(compilation.files)
    for this in compilation.passes:
        if this.file is None:
            continue
        record = FileRecord(size=this.size, sha256=this.sha256)
        if compilation.files and this.file not in compilation.files:
            return None
        if this.sha256 and records.setdefault(this.file, record) != record:
            return None
    return records


def _is_whole(folder: Path, name: str, record: FileRecord) -> bool:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        return False
    return is_as_recorded(folder / path, record)


def _holds(folder: Path, written: Mapping[str, FileRecord]) -> bool:
    """Whether a folder has what was written to it, by the sizes of its files."""
    try:
        return all((folder / name).stat().st_size == r.size for name, r in written.items())
    except OSError:
        return False


def _short(name: str) -> str:
    """Tells apart names that are the same once they are cleaned, `t[a/b]` and `t[a b]`."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
