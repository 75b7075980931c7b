"""Destination of a session's results: one interface of local and remote dump directories."""

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
from pallas_debug.store.remote.paths import ObjectPath, place

FINAL = ("lowering", "compile")
"""Stages whose failures are deterministic."""


class DumpStore(abc.ABC):
    """A dump directory open for writing.

    Attributes:
      root: the directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
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

    @abc.abstractmethod
    def is_empty(self) -> bool:
        """Return whether the directory holds no kernels and no runs."""

    @abc.abstractmethod
    def put_kernel(self, kernel: Kernel, *, jaxpr: str, source: str | None) -> Path:
        """Write a kernel's manifest, jaxpr and source, and return its folder.

        An existing folder keeps its compilations.
        """

    @abc.abstractmethod
    def put_program(self, kernel: Kernel, program: str) -> Path:
        """Write a kernel as a standalone program, and return the file."""

    @abc.abstractmethod
    def put_blocks(self, kernel: Kernel, blocks: BlockMap) -> Path:
        """Write a kernel's block map, and return the file.

        It does not replace one with more known index maps: they read scalar prefetch, whose values
        are not known in every run.
        """

    @abc.abstractmethod
    def put_compilation(
        self, kernel: Kernel, compilation: Compilation, files: Mapping[str, Content]
    ) -> Path:
        """Write a compilation, replacing any previous one for its target, and return the folder.

        Args:
          files: contents by their path below the target's folder.
        """

    @abc.abstractmethod
    def find_compilation(self, kernel: Kernel, target: str, key: str) -> Compilation | None:
        """Return the complete compilation stored under the same key, or None.

        A damaged one counts as missing and will be replaced. So does one whose compiler died or was
        stopped, since that may not be the kernel's fault.
        """

    @abc.abstractmethod
    def claim(self, kernel: Kernel, target: str) -> AbstractContextManager[None]:
        """Hold the right to compile `kernel` for `target`, as far as the directory has locks.

        Raises:
          LockTimeoutError: another process held it for longer than this one waits.
          WorkerError: waiting was stopped.
        """

    @abc.abstractmethod
    def put_run(self, record: RunRecord) -> Path:
        """Write the record of a test or script under `runs/<run>/`."""

    @abc.abstractmethod
    def put_document(self, name: str, content: bytes) -> Path:
        """Write a file by its path below the directory, replacing it in one step."""


def open_store(where: str | Path, *, waiting: locks.Waiting | None = None) -> DumpStore:
    """Open a dump directory for writing, creating it if needed.

    Args:
      where: a local path, or a URL such as `s3://bucket/dumps`.
      waiting: how to wait for the locks of other processes.

    Raises:
      DumpDirectoryError: it is not writable.
      UsageError: the URL names no object store.
    """
    root = place(where)
    if isinstance(root, ObjectPath):
        from pallas_debug.store.remote.uploads import ObjectStore

        return ObjectStore(root)
    from pallas_debug.store.writer import Store

    return Store(root, waiting=waiting)


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
    """Return whether a stored block map has more known index maps than another one."""
    if not blocks.num_unknown:
        return False
    try:
        found = schema.decode(stored or b"", BlockMap, path)
    except DumpFormatError:
        return False
    return found.unknown is None and found.num_unknown < blocks.num_unknown
