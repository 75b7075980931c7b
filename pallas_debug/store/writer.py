"""Writer of a dump directory, safe for many processes and hosts at once, any of which may die.

Nothing is written in place. Files are created in a folder of their own under `.tmp/`, flushed, and
renamed into place, so a reader never sees a partial file or compilation. A process that dies while
it replaces a compilation may leave the kernel without one: the next run compiles it again.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pallas_debug.errors import DumpDirectoryError, DumpFormatError, NoDumpsError
from pallas_debug.model import Compilation, Dump, FileRecord, Kernel, RunRecord
from pallas_debug.profile.blocks import BlockMap
from pallas_debug.store import disk, files, layout, locks, schema, scratch
from pallas_debug.store.disk import Content, explained, explaining

if TYPE_CHECKING:
    from pallas_debug.store.remote import Upload

FINAL = ("lowering", "compile")
"""Stages whose failures are deterministic."""

_STRIPES = 3  # hex digits: at most 4,096 lock files per target, however many kernels

_EXISTS = frozenset({errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR})


def open_store(where: str | Path, *, waiting: locks.Waiting | None = None) -> Store:
    """Open a dump directory for writing, creating it if needed.

    Args:
      where: a local path, or a URL such as `s3://bucket/dumps`, to which `close` uploads.
      waiting: how to wait for the locks of other processes.

    Raises:
      DumpDirectoryError: the directory is not writable.
      UsageError: the URL does not refer to an object store.
    """
    if not layout.is_url(where):
        return Store(Path(where), waiting=waiting)
    from pallas_debug.store.remote import upload_to

    upload = upload_to(str(where))
    return Store(upload.folder, waiting=waiting, upload=upload)


class Store:
    """A dump directory open for writing.

    Args:
      root: the directory, created if needed.
      waiting: how to wait for the locks of other processes.
      upload: uploads the directory when it is closed.

    Attributes:
      root: the directory.
      name: the directory as the user names it: a path or a URL.

    Raises:
      DumpDirectoryError: on creation, when `root` cannot be such a directory; on writing, when the
        disk is full or the directory has gone.
    """

    def __init__(
        self,
        root: Path,
        *,
        waiting: locks.Waiting | None = None,
        upload: Upload | None = None,
    ) -> None:
        self.root = root.absolute()
        self.name: str | Path = self.root if upload is None else upload.url
        self._upload = upload
        self._kept: set[Path] = set()
        self._waiting = waiting or locks.Waiting()
        self._has_locks = True
        try:
            self.root.mkdir(parents=True, exist_ok=True)
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
            tmp = self.root / layout.TMP
            if not tmp.is_symlink():  # in a directory that is not ours, a link may lead anywhere
                scratch.sweep(tmp)
            tempfile.TemporaryFile(dir=self.root).close()

    def close(self) -> None:
        """Upload what was written, if the directory is in an object store.

        Raises:
          DumpDirectoryError: that failed.
        """
        if self._upload is not None:
            self._upload.finish()

    def is_empty(self) -> bool:
        """Return whether the directory holds no kernels and no runs."""
        return not any(self.root.glob("[!.]*"))

    def folder(self, kernel: Kernel) -> Path:
        """Return the folder of a kernel's files, existing or not."""
        return self.root / layout.kernel_folder(kernel)

    def keeps(self, kernel: Kernel, target: str | None = None) -> bool:
        """Return whether this store wrote or found a kernel, or its compilation for a target.

        Failed attempts, on a full disk for example, do not count.
        """
        folder = self.folder(kernel)
        return (folder if target is None else folder / layout.target_folder(target)) in self._kept

    def kept(self, dumps: Iterable[Dump]) -> list[Dump]:
        """Return those of `dumps` that were kept, each with its kept compilations."""
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

    @contextlib.contextmanager
    def claim(self, kernel: Kernel, target: str) -> Iterator[None]:
        """Hold the right to compile `kernel` for `target`, among the processes of this host.

        Without lock support, warns once and continues.

        Raises:
          LockTimeoutError: another process held it for longer than this one waits.
          WorkerError: waiting was stopped.
        """
        name = f"{kernel.digest[:_STRIPES]}-{layout.target_folder(target)}{layout.LOCK}"
        with contextlib.ExitStack() as stack:
            if self._has_locks:
                path = self.root / layout.LOCKS / name
                task = f"compiling {kernel.name} for {target}"
                with self._explaining():
                    path.parent.mkdir(exist_ok=True)
                    try:
                        stack.enter_context(locks.hold(path, task, self._waiting))
                    except locks.LocksUnavailable as error:
                        self._has_locks = False
                        self._waiting.warn(
                            f"{self.root} is on a file system without locks ({error.strerror}): "
                            "other processes may compile the same kernels at the same time. "
                            "That costs time and damages nothing"
                        )
            yield

    # Kernels, and files beside them.

    def put_kernel(
        self,
        kernel: Kernel,
        *,
        jaxpr: str,
        source: str | None,
        program: str | None = None,
        blocks: BlockMap | None = None,
    ) -> Path:
        """Write a kernel's manifest, jaxpr and source, and return its folder.

        An existing folder keeps its compilations.

        Args:
          program: the kernel as a standalone program.
          blocks: as for `put_blocks`. In a new folder, both are written together with the rest,
            which takes a fraction of the time.
        """
        folder = self.folder(kernel)
        texts = {layout.JAXPR: jaxpr, layout.SOURCE: source, layout.PROGRAM: program}
        files = {n: t.encode(errors="replace") for n, t in texts.items() if t is not None}
        files[layout.KERNEL] = schema.encode(kernel)
        derived = {} if blocks is None else {layout.BLOCKS: schema.encode(blocks)}
        with self._explaining():
            is_new = not folder.exists() and self._publish({**derived, **files}, folder)
        if not is_new:
            self._put_files(folder, files)
            if blocks is not None:
                self.put_blocks(kernel, blocks)
        self._kept.add(folder)
        return folder

    def put_blocks(self, kernel: Kernel, blocks: BlockMap) -> Path:
        """Write a kernel's block map, and return the file.

        It does not replace a more complete block map: index maps read scalar prefetch, whose values
        are not known in every run.
        """
        path = self.folder(kernel) / layout.BLOCKS
        if not _knows_more(self._content(path), blocks, path):
            self._put_files(path.parent, {layout.BLOCKS: schema.encode(blocks)})
        return path

    def put_run(self, record: RunRecord) -> Path:
        """Write the record of a test or script under `runs/<run>/`."""
        name = f"{layout.RUNS}/{layout.clean(record.run)}/{layout.run_file(record.name)}"
        path = self.root / name
        with self._explaining():
            self._replace_file(path, schema.encode(record))
        return path

    # Compilations.

    def put_compilation(
        self, kernel: Kernel, compilation: Compilation, files: Mapping[str, Content]
    ) -> Path:
        """Write a compilation, replacing any previous one for its target, and return the folder.

        Args:
          files: contents by their path below the target's folder.
        """
        folder = self.folder(kernel) / layout.target_folder(compilation.target)
        with self._explaining():
            self._publish(files, folder, manifest=compilation)
        self._kept.add(folder)
        return folder

    def find_compilation(self, kernel: Kernel, target: str, key: str) -> Compilation | None:
        """Return the complete compilation stored under the same key, or None.

        A damaged compilation counts as missing and will be replaced, and so does a compilation
        whose compiler died or was stopped, because that may not be the kernel's fault.
        """
        folder = self.folder(kernel) / layout.target_folder(target)
        path = folder / layout.COMPILATION
        try:
            found = schema.decode(self._content(path) or b"", Compilation, path)
        except DumpFormatError:
            return None
        is_final = found.failure is None or found.failure.stage in FINAL
        is_listed = all(p.file is None or p.file in found.files for p in found.passes)
        if found.key != key or not is_final or not is_listed:
            return None
        try:
            for name, record in found.files.items():
                files.check_name(name, path)
                content = files.read(folder / name, self.root, record.size)
                if hashlib.sha256(content).hexdigest() != record.sha256:
                    return None
        except (OSError, DumpFormatError):
            return None
        self._kept.add(folder)
        return replace(found, cached=True)

    # Files are written under `.tmp/` and renamed into place.

    def _publish(
        self, files: Mapping[str, Content], folder: Path, manifest: Compilation | None = None
    ) -> bool:
        """Create `folder` with `files` in it, in one step.

        Args:
          manifest: of a target's folder, which replaces an existing one; it is written last and
            records the other files. Without one, an existing folder is kept.

        Returns:
          False if `folder` already existed and was kept.
        """
        with self._workspace() as workspace:
            new = workspace / "new"  # with the modes that the umask gives; its parent is private
            self._write_folder(new, files, manifest)
            folder.parent.mkdir(parents=True, exist_ok=True)
            for attempt in itertools.count():  # other processes may be replacing it, too
                if self._rename_to_nothing(new, folder):
                    break
                if manifest is None:
                    return False
                with contextlib.suppress(FileNotFoundError):
                    folder.rename(workspace / f"old-{attempt}")
        return True

    def _write_folder(
        self, new: Path, files: Mapping[str, Content], manifest: Compilation | None
    ) -> None:
        """Write and flush the files of a folder."""
        new.mkdir()
        written: dict[str, FileRecord] = {}
        for name, content in files.items():
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            written[name] = disk.write(new / name, content)
        if manifest is not None:
            document = schema.encode(replace(manifest, cached=False, files=dict(written)))
            written[layout.COMPILATION] = disk.write(new / layout.COMPILATION, document)
        disk.flush_all([new / name for name in written])

    def _rename_to_nothing(self, old: Path, new: Path) -> bool:
        """Rename a folder; False if `new` exists."""
        try:
            old.rename(new)
        except OSError as error:
            if error.errno in _EXISTS:
                return False
            raise
        return True

    def _put_files(self, folder: Path, files: Mapping[str, bytes]) -> None:
        """Write files of a kernel whose content has changed, each by itself."""
        with self._explaining():
            for name, content in files.items():
                if self._content(folder / name, len(content)) != content:
                    self._replace_file(folder / name, content)

    def _content(self, path: Path, limit: int = files.MAX_MANIFEST) -> bytes | None:
        """Return the content of a file in the directory; None if it cannot be read."""
        try:
            return files.read(path, self.root, limit)
        except (OSError, DumpFormatError):
            return None

    def _replace_file(self, path: Path, content: bytes) -> None:
        with self._workspace() as workspace:
            disk.write(workspace / "file", content)
            disk.flush(workspace / "file")
            path.parent.mkdir(parents=True, exist_ok=True)
            (workspace / "file").rename(path)

    @contextlib.contextmanager
    def _workspace(self) -> Iterator[Path]:
        """Yield a folder under `.tmp/` that no sweep deletes while this process lives."""
        tmp = self.root / layout.TMP
        with self._explaining():
            tmp.mkdir(exist_ok=True)
            made = scratch.Scratch(tmp)
        try:
            with self._explaining():
                yield made.path
        finally:
            made.remove()

    def _explaining(self) -> AbstractContextManager[None]:
        return explaining(self.root)


def _knows_more(stored: bytes | None, blocks: BlockMap, path: Path) -> bool:
    """Return whether a stored block map has more known index maps or scalars than another one."""
    try:
        found = schema.decode(stored or b"", BlockMap, path)
    except DumpFormatError:
        return False
    return _known(found) > _known(blocks)


def _known(blocks: BlockMap) -> tuple[bool, int, int]:
    """Rank of a block map by its completeness."""
    return (
        blocks.unknown is None,
        -sum(operand.unknown is not None for operand in blocks.operands),
        len(blocks.scalars),
    )
