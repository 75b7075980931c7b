"""Writer of a dump directory in an object store, safe for many processes and hosts at once.

An object store has neither renames nor locks. Each object appears whole, though, and folders are
named by the content of their kernel, so writers of the same kernel write the same:

- A folder's manifest is written last and removed first: without it there is no compilation.
- A complete compilation under the same key is left as it is, unless stages are added to it.
- After writing, the folder is listed. If another writer has mixed its files with ours, which takes
  other compiler options at the same moment, ours are written again. A reader of a mixture finds
  sizes that differ from the manifest's, and the next run compiles again.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from pallas_debug.errors import DumpDirectoryError, DumpFormatError
from pallas_debug.model import Compilation, FileRecord, Kernel, RunRecord
from pallas_debug.profile.blocks import BlockMap
from pallas_debug.store import files, layout, origin, schema
from pallas_debug.store.base import DumpStore, is_final, knows_more, records_of
from pallas_debug.store.disk import Content
from pallas_debug.store.remote import objects
from pallas_debug.store.remote.paths import ObjectPath

_ATTEMPTS = 3
"""Maximum attempts to write a folder that another process keeps changing."""

_PROBE = b"pallas-debug writes dumps here\n"


class ObjectStore(DumpStore):
    """A dump directory in an object store, open for writing.

    Args:
      root: the directory. The bucket must exist.

    Raises:
      DumpDirectoryError: on creation and on writing, when the store cannot be reached or refuses.
      UsageError: fsspec knows no such store.
    """

    root: ObjectPath

    def __init__(self, root: ObjectPath) -> None:
        super().__init__(root)
        # Always the same object, so that the right to delete is not needed.
        objects.write({root / layout.TMP / layout.PROBE: _PROBE})

    def is_empty(self) -> bool:
        return all(name.startswith(".") for name, _ in objects.listed(self.root))

    def put_kernel(self, kernel: Kernel, *, jaxpr: str, source: str | None) -> Path:
        folder = self._folder(kernel)
        texts = {layout.JAXPR: jaxpr.encode(errors="replace")}
        if source is not None:
            texts[layout.SOURCE] = source.encode(errors="replace")
        manifest = schema.encode(kernel)
        if not self._same(folder, {**texts, layout.KERNEL: manifest}):
            objects.write({folder / name: text for name, text in texts.items()})
            objects.write({folder / layout.KERNEL: manifest})
        self._kept.add(folder)
        return folder

    def put_program(self, kernel: Kernel, program: str) -> Path:
        folder = self._folder(kernel)
        content = origin.signed(
            kernel.digest, {layout.PROGRAM: program.encode(errors="replace")}, layout.PROGRAM
        )
        if not self._same(folder, content):
            objects.write({folder / name: text for name, text in content.items()})
        return folder / layout.PROGRAM

    def put_blocks(self, kernel: Kernel, blocks: BlockMap) -> Path:
        path = self._folder(kernel) / layout.BLOCKS
        found = objects.contents(path, files.MAX_MANIFEST)
        content = schema.encode(blocks)
        if found != content and not knows_more(found, blocks, path):
            objects.write({path: content})
        return path

    def put_compilation(
        self, kernel: Kernel, compilation: Compilation, files: Mapping[str, Content]
    ) -> Path:
        folder = self._folder(kernel) / layout.target_folder(compilation.target)
        found = self._complete(kernel, folder, compilation.key)
        if found is None or not set(compilation.stages) <= set(found.stages):
            content = {
                name: data if isinstance(data, bytes) else data.read_bytes()
                for name, data in files.items()
            }
            self._publish(
                folder, compilation, origin.signed(kernel.digest, content, layout.STABLEHLO)
            )
        self._kept.add(folder)
        return folder

    def find_compilation(self, kernel: Kernel, target: str, key: str) -> Compilation | None:
        folder = self._folder(kernel) / layout.target_folder(target)
        found = self._complete(kernel, folder, key)
        if found is None:
            return None
        self._kept.add(folder)
        return replace(found, cached=True)

    def claim(self, kernel: Kernel, target: str) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def put_run(self, record: RunRecord) -> Path:
        folder = self.root / layout.RUNS / layout.clean(record.run)
        path = folder / layout.run_file(record.name)
        objects.write({path: schema.encode(record)})
        return path

    def put_document(self, name: str, content: bytes) -> Path:
        path = self.root / name
        objects.write({path: content})
        return path

    def _folder(self, kernel: Kernel) -> ObjectPath:
        return self.root / layout.kernel_folder(kernel)

    def _publish(
        self, folder: ObjectPath, compilation: Compilation, content: Mapping[str, bytes]
    ) -> None:
        """Write a target's folder, its manifest last."""
        records = {name: _record(data) for name, data in content.items()}
        manifest = folder / layout.COMPILATION
        document = schema.encode(replace(compilation, cached=False, files=records))
        for _ in range(_ATTEMPTS):
            if objects.status(manifest) is not None:
                objects.remove([manifest])
            objects.write({folder / name: data for name, data in content.items()})
            objects.write({manifest: document})
            there = objects.sizes(folder)
            if objects.contents(manifest, len(document)) == document and _has(there, records):
                known = {*records, layout.COMPILATION}
                objects.remove(folder / name for name in there if name not in known)
                return
        raise DumpDirectoryError(
            f"cannot dump to {self.root}: another process keeps replacing {folder}, with other "
            "options or another compiler. Give each its own directory"
        )

    def _complete(self, kernel: Kernel, folder: ObjectPath, key: str) -> Compilation | None:
        """Return the compilation in a folder if it has this key and all its files."""
        path = folder / layout.COMPILATION
        data = objects.contents(path, files.MAX_MANIFEST)
        if data is None:
            return None
        try:
            found = schema.decode(data, Compilation, path, kernel)
        except DumpFormatError:
            return None
        records = records_of(found)
        if found.key != key or not is_final(found) or records is None:
            return None
        return found if _has(objects.sizes(folder), records) else None

    def _same(self, folder: ObjectPath, content: Mapping[str, bytes]) -> bool:
        return all(
            objects.contents(folder / name, len(text)) == text for name, text in content.items()
        )


def _has(there: Mapping[str, int], records: Mapping[str, FileRecord]) -> bool:
    """Return whether all recorded files are there, comparing sizes, as objects are whole."""
    return all(there.get(name) == record.size for name, record in records.items())


def _record(data: bytes) -> FileRecord:
    return FileRecord(size=len(data), sha256=hashlib.sha256(data).hexdigest())
