"""Destination of a session's results: common interface of local and remote dump directories."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from pallas_debug.errors import DumpFormatError
from pallas_debug.model import Compilation, Dump, FileRecord, Kernel, RunRecord
from pallas_debug.profile.blocks import BlockMap
from pallas_debug.store import layout, locks, schema
from pallas_debug.store.disk import Content

FINAL = ("lowering", "compile")
"""Stages whose failures are deterministic."""


class DumpStore(abc.ABC):
    """A dump directory open for writing.

    Attributes:
      root: the directory.
      name: the directory as the user names it: a path or a URL.
    """

    def __init__(self, root: Path, url: str | None = None) -> None:
        self.root = root
        self.name = url or root
        self._kept: set[Path] = set()

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
          program, blocks: as for `put_program` and `put_blocks`. In a new folder, they are written
            together with the rest, which takes a fraction of the time.
        """
        folder = self.folder(kernel)
        files = {layout.JAXPR: jaxpr.encode(errors="replace")}
        if source is not None:
            files[layout.SOURCE] = source.encode(errors="replace")
        derived = {} if program is None else _program_files(kernel, program)
        if blocks is not None:
            derived[layout.BLOCKS] = schema.encode(blocks)
        manifest = {layout.KERNEL: schema.encode(kernel)}
        is_new = self._put_kernel(folder, {**files, **manifest}, derived)
        self._kept.add(folder)
        if not is_new and program is not None:
            self.put_program(kernel, program)
        if not is_new and blocks is not None:
            self.put_blocks(kernel, blocks)
        return folder

    def put_program(self, kernel: Kernel, program: str) -> Path:
        """Write a kernel as a standalone program, and return the file."""
        folder = self.folder(kernel)
        self._put_files(folder, _program_files(kernel, program))
        return folder / layout.PROGRAM

    def put_blocks(self, kernel: Kernel, blocks: BlockMap) -> Path:
        """Write a kernel's block map, and return the file.

        It does not replace a more complete block map: index maps read scalar prefetch, whose values
        are not known in every run.
        """
        path = self.folder(kernel) / layout.BLOCKS
        found = self._read(path)
        content = schema.encode(blocks)
        if found != content and not knows_more(found, blocks, path):
            self._put_files(path.parent, {layout.BLOCKS: content})
        return path

    def put_compilation(
        self, kernel: Kernel, compilation: Compilation, files: Mapping[str, Content]
    ) -> Path:
        """Write a compilation, replacing any previous one for its target, and return the folder.

        Args:
          files: contents by their path below the target's folder.
        """
        folder = self.folder(kernel) / layout.target_folder(compilation.target)
        self._put_compilation(kernel, folder, compilation, files)
        self._kept.add(folder)
        return folder

    def find_compilation(self, kernel: Kernel, target: str, key: str) -> Compilation | None:
        """Return the complete compilation stored under the same key, or None.

        A damaged compilation counts as missing and will be replaced, and so does a compilation
        whose compiler died or was stopped, because that may not be the kernel's fault.
        """
        folder = self.folder(kernel) / layout.target_folder(target)
        found = self._stored(kernel, folder, key)
        if found is None:
            return None
        self._kept.add(folder)
        return replace(found, cached=True)

    def put_run(self, record: RunRecord) -> Path:
        """Write the record of a test or script under `runs/<run>/`."""
        name = f"{layout.RUNS}/{layout.clean(record.run)}/{layout.run_file(record.name)}"
        return self.put_document(name, schema.encode(record))

    def _stored(self, kernel: Kernel, folder: Path, key: str) -> Compilation | None:
        """Return the compilation in a folder if it has this key and all its files."""
        path = folder / layout.COMPILATION
        try:
            found = schema.decode(self._read(path) or b"", Compilation, path, kernel)
        except DumpFormatError:
            return None
        records = records_of(found)
        if found.key != key or not is_final(found) or records is None:
            return None
        return found if self._has(folder, records) else None

    @abc.abstractmethod
    def close(self) -> None:
        """Upload what was written, if the directory is in an object store.

        Raises:
          DumpDirectoryError: that failed.
        """

    @abc.abstractmethod
    def is_empty(self) -> bool:
        """Return whether the directory holds no kernels and no runs."""

    @abc.abstractmethod
    def claim(self, kernel: Kernel, target: str) -> AbstractContextManager[None]:
        """Hold the right to compile `kernel` for `target`, if the directory supports locks.

        Raises:
          LockTimeoutError: another process held the lock for longer than this one waits.
          WorkerError: waiting was stopped.
        """

    @abc.abstractmethod
    def put_document(self, name: str, content: bytes) -> Path:
        """Write a file by its path below the directory, replacing it in one step."""

    @abc.abstractmethod
    def _read(self, path: Path) -> bytes | None:
        """Return the content of a manifest or document, or None if there is none."""

    @abc.abstractmethod
    def _has(self, folder: Path, records: Mapping[str, FileRecord]) -> bool:
        """Return whether a folder holds all recorded files."""

    @abc.abstractmethod
    def _put_kernel(
        self, folder: Path, files: Mapping[str, bytes], derived: Mapping[str, bytes]
    ) -> bool:
        """Write a kernel's files, of which the last one marks the folder as complete.

        Args:
          derived: files that are written only to a new folder.

        Returns:
          Whether the folder is new.
        """

    @abc.abstractmethod
    def _put_files(self, folder: Path, files: Mapping[str, bytes]) -> None:
        """Write files of a kernel, each by itself."""

    @abc.abstractmethod
    def _put_compilation(
        self, kernel: Kernel, folder: Path, compilation: Compilation, files: Mapping[str, Content]
    ) -> None:
        """Write a target's folder, with the manifest last."""


def _program_files(kernel: Kernel, program: str) -> dict[str, bytes]:
    return {layout.PROGRAM: program.encode(errors="replace")}


def open_store(where: str | Path, *, waiting: locks.Waiting | None = None) -> DumpStore:
    """Open a dump directory for writing, creating it if needed.

    Args:
      where: a local path, or a URL such as `s3://bucket/dumps`, to which `close` uploads.
      waiting: how to wait for the locks of other processes.

    Raises:
      DumpDirectoryError: the directory is not writable.
      UsageError: the URL does not refer to an object store.
    """
    from pallas_debug.store.writer import Store

    if not layout.is_url(where):
        return Store(Path(where), waiting=waiting)
    from pallas_debug.store.remote import upload_to

    upload = upload_to(str(where))
    return Store(upload.folder, waiting=waiting, upload=upload)


def is_final(compilation: Compilation) -> bool:
    """Return whether compiling the same again would have the same result."""
    return compilation.failure is None or compilation.failure.stage in FINAL


def records_of(compilation: Compilation) -> dict[str, FileRecord] | None:
    """Return the recorded files of a compilation, or None if records disagree.

    Dumps from before `Compilation.files` record only their passes.
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


def knows_more(stored: bytes | None, blocks: BlockMap, path: Path) -> bool:
    """Return whether a stored block map has more known index maps or scalars than another one."""
    try:
        found = schema.decode(stored or b"", BlockMap, path)
    except DumpFormatError:
        return False
    return _known(found) > _known(blocks)


def _known(blocks: BlockMap) -> tuple[bool, int, int]:
    """Rank of a block map by its completeness."""
    return blocks.unknown is None, -blocks.num_unknown, len(blocks.scalars)
