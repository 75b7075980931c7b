"""Locations of a dump directory: a folder on this machine, or in an object store.

A location is a `Path`. In an object store it is an `ObjectPath`, whose text is its URL; it is
built, compared and queried for its parts, size and age like any path. `files.py` opens either kind,
and is the only reader; `writer.py` writes to the former, `uploads.py` to the latter.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from pathlib import Path, PosixPath, PurePosixPath
from typing import Any, NoReturn

from pallas_debug.errors import UsageError

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)
_CHAINED = re.compile(r"[\w+.-]+::")
_STORES = ("s3:", "s3a:", "gs:", "gcs:", "az:", "abfs:", "memory:")
"""First part of a path whose second slash was lost, as `Path("s3://…")` loses it."""


class ObjectPath(PosixPath):
    """A path in an object store, such as `s3://bucket/dumps`.

    Functions of `os` do not accept it: anything opened by descriptor goes through `files.py`.
    """

    @property
    def scheme(self) -> str:
        """The store's protocol, as fsspec names it."""
        return self.parts[0].removesuffix(":")

    def __str__(self) -> str:
        first, *rest = self.parts or ("",)
        return f"{first}//{'/'.join(rest)}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __fspath__(self) -> NoReturn:
        raise TypeError(f"{self} is in an object store, and has no path on this machine")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectPath) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash(self.parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.parts

    def is_absolute(self) -> bool:
        return True

    def absolute(self) -> ObjectPath:
        return self

    def resolve(self, strict: bool = False) -> ObjectPath:
        return self

    def expanduser(self) -> ObjectPath:
        return self

    def relative_to(self, *other: Any, **_: Any) -> Path:  # type: ignore[override]
        """Return the rest of the path, as a pure path."""
        return Path(PurePosixPath(*self.parts).relative_to(PurePosixPath(*other[0].parts)))

    def is_relative_to(self, *other: Any) -> bool:
        root: object = other[0]
        if not isinstance(root, ObjectPath):
            return False
        return self.parts[: len(root.parts)] == root.parts

    def samefile(self, other_path: object) -> bool:
        return self.__eq__(other_path)

    # Facts about the object, each a request to the store.

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return kind, size and time; device and inode are those of the copy that was last read.

        Raises:
          FileNotFoundError: there is no such object.
          DumpDirectoryError: the store cannot be reached.
        """
        from pallas_debug.store.remote import objects

        return objects.stat(self)

    def lstat(self) -> os.stat_result:
        return self.stat()

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        from pallas_debug.store.remote import objects

        return objects.status(self) is not None

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        from pallas_debug.store.remote import objects

        found = objects.status(self)
        return found is not None and found.is_folder

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        from pallas_debug.store.remote import objects

        found = objects.status(self)
        return found is not None and not found.is_folder

    def is_symlink(self) -> bool:
        return False

    def iterdir(self) -> Generator[ObjectPath, None, None]:
        from pallas_debug.store.remote import objects

        for name, _ in objects.listed(self):
            yield self / name


def place(where: str | Path) -> Path:
    """Return the location that a user gave: a URL such as `s3://bucket/dumps`, or a local path.

    Raises:
      UsageError: the text is neither, a chain of URLs, or a URL without a bucket.
    """
    if isinstance(where, ObjectPath):
        return where
    if not isinstance(where, str | os.PathLike):
        raise UsageError(f"a dump directory is a path or a URL, and not {where!r}")
    if isinstance(where, Path):
        is_url = where.parts[:1] and where.parts[0] in _STORES
        return ObjectPath(*where.parts) if is_url else where
    if "://" in where and _CHAINED.match(where):
        raise UsageError(
            f"{where!r} is a chain of fsspec URLs, which a dump directory cannot be. Name only "
            "the object store, such as s3://bucket/dumps"
        )
    found = _URL.fullmatch(where)
    if found is None:
        return Path(where)
    scheme, rest = found["scheme"].lower(), found["rest"]
    if scheme in ("file", "local"):
        return Path(rest)
    if not rest.strip("/"):
        raise UsageError(f"{where!r} names no bucket: write it as {scheme}://bucket/dumps")
    return ObjectPath(f"{scheme}:", *rest.split("/"))


def is_local(path: Path) -> bool:
    """Return whether functions of `os` accept a path."""
    return not isinstance(path, ObjectPath)
