"""Writer of a dump directory, safe for many processes and hosts at once, any of which may die.

Nothing is written in place. Files are created in a folder of their own under `.tmp/`, flushed, and
renamed into place in one step, so a reader never sees a partial folder, and neither a kill nor a
power failure loses what was there before. Where one step is not enough, the folder under `.tmp/`
records how to finish or undo the operation, which `Store` does when it is opened.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pallas_debug.errors import DumpDirectoryError, LockTimeoutError, NoDumpsError
from pallas_debug.model import Compilation, FileRecord, Kernel
from pallas_debug.store import layout, locks, schema, scratch
from pallas_debug.store.base import DumpStore
from pallas_debug.store.disk import (
    Content,
    Disk,
    explained,
    explaining,
    is_as_recorded,
    read_regular,
)

if TYPE_CHECKING:
    from pallas_debug.store.remote import Upload

_STRIPES = 3  # hex digits: at most 4,096 lock files per target, however many kernels

_OF_KERNEL = (layout.JAXPR, layout.SOURCE, layout.KERNEL)
"""Files that `put_kernel` writes; the last one marks the folder as complete."""

_ATTEMPTS = 3
"""Maximum attempts to write a folder that another process keeps deleting."""

_EXISTS = frozenset({errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR})


class Store(DumpStore):
    """A dump directory open for writing.

    Args:
      root: the directory, created if needed.
      waiting: how to wait for the locks of other processes.
      disk: performs the file operations.
      upload: uploads the directory when it is closed.

    Raises:
      DumpDirectoryError: on creation, when `root` cannot be such a directory; on writing, when the
        disk is full or the directory has gone.
    """

    def __init__(
        self,
        root: Path,
        *,
        waiting: locks.Waiting | None = None,
        disk: Disk | None = None,
        upload: Upload | None = None,
    ) -> None:
        super().__init__(root.absolute(), None if upload is None else upload.url)
        self._upload = upload
        self._waiting = waiting or locks.Waiting()
        self._disk = disk or Disk()
        self._has_locks = True
        try:
            self._make_folders(self.root)
        except (FileExistsError, NotADirectoryError) as error:
            raise NoDumpsError(
                f"cannot dump to {root}: it is a file, or lies below one. "
                "Name a directory; it is created if it does not exist."
            ) from error
        except FileNotFoundError as error:  # raised below /proc, where the directory never existed
            raise DumpDirectoryError(
                f"cannot dump to {root}: no directory can be created there. Dump elsewhere."
            ) from error
        except OSError as error:
            raise explained(error, self.root) from error
        with self._explaining():
            self._recover()
            tempfile.TemporaryFile(dir=self.root).close()

    def close(self) -> None:
        if self._upload is not None:
            self._upload.finish()

    def is_empty(self) -> bool:
        return not any(self.root.glob("[!.]*"))

    def _read(self, path: Path) -> bytes | None:
        return read_regular(path)

    def _has(self, folder: Path, records: Mapping[str, FileRecord]) -> bool:
        return all(_is_whole(folder, *one) for one in records.items())

    def _put_kernel(
        self, folder: Path, files: Mapping[str, bytes], derived: Mapping[str, bytes]
    ) -> bool:
        """Write a kernel's files; existing ones are replaced together.

        After a kill in between, the next `Store` replaces the rest.
        """
        with self._explaining():
            if not self._pending(folder).exists() and self._same(folder, files):
                return False
            if not folder.exists() and self._publish({**derived, **files}, folder):
                return True
            self._replace_files(folder, files)
        return False

    def _put_files(self, folder: Path, files: Mapping[str, bytes]) -> None:
        with self._explaining():
            if not self._same(folder, files):
                for name, content in files.items():
                    self._replace_file(folder / name, content)

    def _put_compilation(
        self, kernel: Kernel, folder: Path, compilation: Compilation, files: Mapping[str, Content]
    ) -> None:
        with self._explaining():
            self._publish(files, folder, manifest=compilation)

    @contextlib.contextmanager
    def claim(self, kernel: Kernel, target: str) -> Iterator[None]:
        """Hold the right to compile `kernel` for `target`, among the processes of this host.

        Raises:
          LockTimeoutError: another process held it for longer than this one waits.
          WorkerError: waiting was stopped.
        """
        name = f"{kernel.digest[:_STRIPES]}-{layout.target_folder(target)}"
        with self._locked(name, f"compiling {kernel.name} for {target}"):
            yield

    def put_document(self, name: str, content: bytes) -> Path:
        path = self.root / name
        with self._explaining():
            self._replace_file(path, content)
        return path

    # Publishing: a folder appears, or replaces another, in one step.

    def _publish(
        self, files: Mapping[str, Content], folder: Path, manifest: Compilation | None = None
    ) -> bool:
        """Create `folder` with `files` in it, atomically.

        Args:
          manifest: of a target's folder, which replaces an existing one; it is written last and
            records the other files. Without one, an existing folder is kept.

        Returns:
          False if `folder` already existed and was kept.
        """
        for _ in range(_ATTEMPTS):
            with self._workspace() as workspace:
                new = (
                    workspace / layout.NEW
                )  # with the modes that the umask gives; its parent is private
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
            f"cannot dump to {self.root}: something deletes files under {layout.TMP}/ while they "
            "are written. Stop cleaning the directory during a run; no half-written folder was left"
        )

    def _write_folder(
        self, new: Path, files: Mapping[str, Content], manifest: Compilation | None
    ) -> dict[str, FileRecord]:
        """Write and flush a folder, and return the records of its files by path below it."""
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
            written[layout.COMPILATION] = self._disk.write(new / layout.COMPILATION, document)
        self._disk.flush_all([*(new / name for name in written), *reversed(folders)])
        return written

    def _install(self, workspace: Path, folder: Path) -> tuple[Path, Path]:
        """Replace `folder` by `new`, and return the arguments by which `_undo` reverses that.

        The previous folder is then in the workspace.
        """
        new, old = workspace / layout.NEW, workspace / layout.OLD
        while not self._rename_to_nothing(new, folder):
            with contextlib.suppress(FileNotFoundError):  # another process moved it just now
                if self._disk.exchange(new, folder):
                    return new, folder
                self._move_away(folder, workspace, old)
        return (old, folder) if old.exists() else (folder, new)

    def _move_away(self, folder: Path, workspace: Path, old: Path) -> None:
        """Move `folder` to `old`, from where `_restore` recovers it if this process dies."""
        owner = workspace / layout.OWNER
        if owner.exists():
            self._disk.remove(old)  # another process has published in its place meanwhile
        else:
            self._disk.write(owner, os.fsencode(folder.relative_to(self.root)))
            self._disk.flush_all([owner, workspace, workspace.parent])
        self._disk.rename(folder, old)

    def _undo(self, folder: Path, one: Path, other: Path) -> None:
        """Withdraw a folder that lost files while it was published."""
        with contextlib.suppress(OSError):
            if one == folder:
                self._disk.rename(folder, other)
            elif not self._disk.exchange(one, folder):
                self._disk.rename(folder, one.with_name(layout.INCOMPLETE))
                self._disk.rename(one, folder)

    def _rename_to_nothing(self, old: Path, new: Path) -> bool:
        """Rename a folder; False if `new` exists."""
        try:
            self._disk.rename(old, new)
        except OSError as error:
            if error.errno in _EXISTS:
                return False
            raise
        return True

    # Replacing files one by one.

    def _replace_files(self, folder: Path, files: Mapping[str, bytes]) -> None:
        """Replace several files of a kernel such that a kill leaves no permanent mixture.

        They are first published together under `.tmp/`; the next run completes the replacement.
        """
        with self._writing(folder):
            self._complete(folder)
            if self._same(folder, files):
                return
            with self._workspace() as workspace:
                self._write_folder(workspace / layout.NEW, files, None)
                self._disk.rename(workspace / layout.NEW, self._pending(folder))
                self._disk.flush(self._pending(folder).parent)
            self._complete(folder)

    def _complete(self, folder: Path) -> None:
        """Replace a kernel's files with the pending ones; the caller holds its lock."""
        pending = self._pending(folder)
        if not pending.is_dir():
            return
        for name in _OF_KERNEL:
            content = read_regular(pending / name)
            if content is not None and not self._same(folder, {name: content}):
                self._replace_file(folder / name, content)
        with self._workspace() as workspace:  # moved in one step: a partial folder would be useless
            self._disk.rename(pending, workspace / layout.OLD)

    def _pending(self, folder: Path) -> Path:
        return self.root / layout.TMP / f"{layout.PENDING}{folder.name}"

    def _replace_file(self, path: Path, content: Content) -> None:
        with self._workspace() as workspace:
            self._disk.write(workspace / layout.FILE, content)
            self._disk.flush(workspace / layout.FILE)
            self._make_folders(path.parent)
            self._disk.rename(workspace / layout.FILE, path)
            self._disk.flush(path.parent)

    def _same(self, folder: Path, files: Mapping[str, bytes]) -> bool:
        return all(
            read_regular(folder / name, len(content)) == content for name, content in files.items()
        )

    # Recovery after killed processes.

    def _recover(self) -> None:
        """Finish or undo the work of processes that died, and delete their temporary files."""
        tmp = self.root / layout.TMP
        if tmp.is_symlink() or not tmp.is_dir():
            return  # in a directory that is not ours, a link may lead anywhere
        for pending in tmp.glob(f"{layout.PENDING}*"):
            name = pending.name.removeprefix(layout.PENDING)
            folder = self.root / name
            if name.startswith(".") or folder.is_symlink() or not folder.is_dir():
                continue
            with contextlib.suppress(LockTimeoutError), self._writing(folder, at_once=True):
                self._complete(folder)
        scratch.sweep(tmp, recover=self._restore)

    def _restore(self, workspace: Path) -> None:
        """Move a folder back if its replacement was never published.

        Safe even if the process that moved it is alive: it finds the folder, and moves it again.
        """
        owner = read_regular(workspace / layout.OWNER)
        if owner is None or not (workspace / layout.OLD).exists():
            return
        place = PurePosixPath(os.fsdecode(owner))
        if place.is_absolute() or ".." in place.parts or len(place.parts) != 2:
            return
        with contextlib.suppress(OSError):
            if self._rename_to_nothing(workspace / layout.OLD, self.root / place):
                self._disk.flush((self.root / place).parent)

    # Folders and locks.

    @contextlib.contextmanager
    def _workspace(self) -> Iterator[Path]:
        """Yield a folder under `.tmp/` that no sweep deletes while this process lives."""
        tmp = self.root / layout.TMP
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
                    if path.name != layout.LOCK:
                        self._disk.remove(path)
            made.remove()

    def _make_folders(self, path: Path) -> None:
        """Create a folder and its parents such that they survive a power failure."""
        missing = [path]
        while not missing[-1].exists() and missing[-1].parent != missing[-1]:
            missing.append(missing[-1].parent)
        if not missing[-1].is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(missing[-1]))
        for folder in reversed(missing[:-1]):
            self._disk.make_folder(folder)
            self._flush_above(folder)

    def _flush_above(self, folder: Path) -> None:
        """Flush the directory entry of a new folder."""
        with contextlib.suppress(PermissionError):  # the parent may be writable but not listable
            self._disk.flush(folder.parent)

    @contextlib.contextmanager
    def _locked(self, name: str, task: str, *, at_once: bool = False) -> Iterator[None]:
        """Hold a lock of this directory; without lock support, warn once and continue."""
        waiting = replace(self._waiting, timeout=0.0) if at_once else self._waiting
        with contextlib.ExitStack() as stack:
            if self._has_locks:
                path = self.root / layout.LOCKS / f"{name}{layout.LOCK}"
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
        stripe = folder.name[-layout.DIGITS :][:_STRIPES]
        return self._locked(stripe, f"writing {folder.name}", at_once=at_once)

    def _explaining(self) -> AbstractContextManager[None]:
        return explaining(self.root)


def _is_whole(folder: Path, name: str, record: FileRecord) -> bool:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        return False
    return is_as_recorded(folder / path, record)


def _holds(folder: Path, written: Mapping[str, FileRecord]) -> bool:
    """Return whether a folder still contains what was written to it, comparing file sizes."""
    try:
        return all((folder / name).stat().st_size == r.size for name, r in written.items())
    except OSError:
        return False
