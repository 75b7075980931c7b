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

from pallas_debug.errors import DumpDirectoryError
from pallas_debug.model import Compilation, FileRecord, Kernel
from pallas_debug.store import files, layout, schema
from pallas_debug.store.base import DumpStore
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

    def _read(self, path: Path) -> bytes | None:
        return objects.contents(_object(path), files.MAX_MANIFEST)

    def _has(self, folder: Path, records: Mapping[str, FileRecord]) -> bool:
        return _holds(objects.sizes(_object(folder)), records)

    def _put_kernel(
        self, folder: Path, files: Mapping[str, bytes], derived: Mapping[str, bytes]
    ) -> bool:
        manifest = _object(folder / list(files)[-1])
        is_new = objects.status(manifest) is None
        if is_new or not self._same(folder, files):
            written = {**(derived if is_new else {}), **files}
            contents = {_object(folder / name): content for name, content in written.items()}
            last = contents.pop(manifest)
            objects.write(contents)
            objects.write({manifest: last})
        return is_new

    def _put_files(self, folder: Path, files: Mapping[str, bytes]) -> None:
        if not self._same(folder, files):
            objects.write({_object(folder / name): content for name, content in files.items()})

    def _put_compilation(
        self, kernel: Kernel, folder: Path, compilation: Compilation, files: Mapping[str, Content]
    ) -> None:
        found = self._stored(kernel, folder, compilation.key)
        if found is None or not set(compilation.stages) <= set(found.stages):
            content = {
                name: data if isinstance(data, bytes) else data.read_bytes()
                for name, data in files.items()
            }
            self._publish(_object(folder), compilation, content)

    def claim(self, kernel: Kernel, target: str) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def put_document(self, name: str, content: bytes) -> Path:
        path = self.root / name
        objects.write({path: content})
        return path

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
            if objects.contents(manifest, len(document)) == document and _holds(there, records):
                known = {*records, layout.COMPILATION}
                objects.remove(folder / name for name in there if name not in known)
                return
        raise DumpDirectoryError(
            f"cannot dump to {self.root}: another process keeps replacing {folder}, with other "
            "options or another compiler. Give each its own directory"
        )

    def _same(self, folder: Path, content: Mapping[str, bytes]) -> bool:
        return all(
            objects.contents(_object(folder / name), len(text)) == text
            for name, text in content.items()
        )


def _object(path: Path) -> ObjectPath:
    """The same path: all of them are below a root that is an `ObjectPath`."""
    assert isinstance(path, ObjectPath)
    return path


def _holds(there: Mapping[str, int], records: Mapping[str, FileRecord]) -> bool:
    """Return whether all recorded files are there, comparing sizes, as objects are whole."""
    return all(there.get(name) == record.size for name, record in records.items())


def _record(data: bytes) -> FileRecord:
    return FileRecord(size=len(data), sha256=hashlib.sha256(data).hexdigest())
