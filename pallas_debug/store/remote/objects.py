"""Objects of an object store, through fsspec: the only module that talks to one.

Answers are checked as those of a hostile server: names that leave a folder are dropped, sizes are
limited before anything is read, and a text is copied to an unnamed temporary file whose descriptor
stands for it. Copies are shared as long as the store reports the same entity tag.

Every error of a client library becomes one of ours; see `unreachable.py`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat as modes
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pallas_debug import defaults
from pallas_debug.errors import DumpDirectoryError, NoDumpsError, UsageError
from pallas_debug.render import one_line
from pallas_debug.store.remote.paths import ObjectPath
from pallas_debug.store.remote.unreachable import explaining, is_empty_range, is_missing_bucket

_PIECE = 8 << 20
"""Bytes per request of a large object."""

_AT_ONCE = 32 << 20
"""Bytes that are sent or prefetched together."""

_READ = os.O_RDONLY | os.O_CLOEXEC

_STAMPS = ("ETag", "etag", "generation", "md5Hash", "LastModified", "mtime", "updated", "created")
_TIMES = ("LastModified", "mtime", "updated", "created")

_SILENT = logging.NullHandler()

INSTALL = "pip install 'pallas-debug[remote]'"


@dataclass(frozen=True, kw_only=True)
class ObjectStatus:
    """An object or a folder of objects.

    Attributes:
      stamp: changes when the object is replaced.
      modified: in seconds since 1970; 0 if the store does not say.
    """

    is_folder: bool
    size: int = 0
    stamp: str = ""
    modified: float = 0.0


# Reading.


def status(path: ObjectPath) -> ObjectStatus | None:
    """Return what is at a path, or None if nothing is.

    Raises:
      DumpDirectoryError: the store cannot be asked.
    """
    seen = _snapshot_of(path)
    if seen is not None:
        return seen.status(path)
    with explaining("read", path):
        fs = _filesystem(path)
        try:
            return _status(fs.info(_key(fs, path)))
        except (FileNotFoundError, NotADirectoryError) as error:
            if is_missing_bucket(error):
                raise
            return None


def stat(path: ObjectPath) -> os.stat_result:
    """Return a status as `os.stat` does; see `ObjectPath.stat`."""
    found = status(path)
    if found is None:
        raise FileNotFoundError(2, os.strerror(2), str(path))
    mode = (modes.S_IFDIR | 0o555) if found.is_folder else (modes.S_IFREG | 0o444)
    inode, device = _copies.identity(path, found.stamp)
    when = found.modified
    return os.stat_result((mode, inode, device, 1, 0, 0, found.size, when, when, when))


def listed(folder: ObjectPath) -> list[tuple[str, bool]]:
    """Return the names in a folder, each with whether it is a folder.

    Raises:
      NoDumpsError: there is nothing, or an object.
      DumpDirectoryError: it cannot be listed.
    """
    seen = _snapshot_of(folder)
    if seen is not None:
        return list(seen.folders.get(folder, {}).items())
    with explaining("list", folder):
        fs = _filesystem(folder)
        key = _key(fs, folder)
        try:
            entries = fs.ls(key, detail=True)
        except (FileNotFoundError, NotADirectoryError) as error:
            if is_missing_bucket(error):
                raise
            raise NoDumpsError(_nothing(folder)) from None
        if [e["name"].rstrip("/") for e in entries] == [key] and entries[0]["type"] != "directory":
            raise NoDumpsError(
                f"{one_line(folder)} is an object; name the folder that holds the dumps."
            )
        return list(_children(key, entries))


def contents(path: ObjectPath, limit: int) -> bytes | None:
    """Return an object's content, or None if there is none or it is larger than `limit`.

    Raises:
      DumpDirectoryError: the store cannot be asked.
    """
    seen = _snapshot_of(path)
    if seen is not None and path in seen.contents:
        return seen.contents[path]
    with explaining("read", path):
        fs = _filesystem(path)
        try:  # one request, whose answer is limited whatever the object's size
            data: bytes = fs.cat_file(_key(fs, path), start=0, end=limit + 1)
        except (FileNotFoundError, IsADirectoryError) as error:
            if is_missing_bucket(error):
                raise
            return None
        except Exception as error:
            if not is_empty_range(error):
                raise
            return b""
    return data if len(data) <= limit else None


def opened(path: ObjectPath, found: ObjectStatus) -> int:
    """Return a descriptor of a copy of an object, at its start.

    Raises:
      FileNotFoundError: it was deleted meanwhile.
      DumpDirectoryError: it cannot be read.
      OSError: the copy cannot be written.
    """
    copy = _copies.open(path, found.stamp)
    if copy is not None:
        return copy
    seen = _snapshot_of(path)
    known = seen.contents.get(path) if seen is not None else None
    with tempfile.TemporaryFile(buffering=0) as file:
        for piece in [known] if known is not None else _pieces(path, found.size):
            file.write(piece)
        made = os.dup(file.fileno())
    if _copies.keep(path, found.stamp, made, found.size):
        copy = _copies.open(path, found.stamp)
        if copy is not None:
            return copy
        return opened(path, found)  # dropped meanwhile, for others
    os.lseek(made, 0, os.SEEK_SET)
    return made


def _pieces(path: ObjectPath, size: int) -> Iterator[bytes]:
    with explaining("read", path):
        fs = _filesystem(path)
        key = _key(fs, path)
        if size <= _PIECE:
            yield fs.cat_file(key)[: _PIECE + 1]
            return
        for start in range(0, size, _PIECE):
            yield fs.cat_file(key, start=start, end=min(start + _PIECE, size))


class _Copies:
    """Copies of recently read objects, by path; the oldest are closed when there are too many."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[ObjectPath, tuple[str, int, int]] = OrderedDict()
        self._bytes = 0

    def open(self, path: ObjectPath, stamp: str) -> int | None:
        """Return a descriptor of a copy, at its start; None if there is none."""
        with self._lock:
            copy = self._find(path, stamp)
            # Opened again rather than duplicated: duplicates share one position.
            return None if copy is None else os.open(f"/proc/self/fd/{copy}", _READ)

    def identity(self, path: ObjectPath, stamp: str) -> tuple[int, int]:
        """Return inode and device of a copy; zeros if there is none."""
        with self._lock:
            copy = self._find(path, stamp)
            found = os.fstat(copy) if copy is not None else None
        return (found.st_ino, found.st_dev) if found is not None else (0, 0)

    def _find(self, path: ObjectPath, stamp: str) -> int | None:
        found = self._kept.get(path)
        if found is None or not stamp or found[0] != stamp:
            return None
        self._kept.move_to_end(path)
        return found[1]

    def keep(self, path: ObjectPath, stamp: str, copy: int, size: int) -> bool:
        """Take over a copy; False if it is too large to be kept, or cannot be opened again."""
        limit = defaults.MAX_CACHED_OBJECTS
        if not stamp or size > limit // 2 or not os.path.exists("/proc/self/fd"):  # noqa: PTH110
            return False
        with self._lock:
            if self._find(path, stamp) is not None:  # another thread was faster
                os.close(copy)
                return True
            self._forget(path)
            self._kept[path] = stamp, copy, size
            self._bytes += size
            while self._bytes > limit or len(self._kept) > defaults.MAX_CACHED_COPIES:
                self._forget(next(iter(self._kept)))
        return True

    def _forget(self, path: ObjectPath) -> None:
        found = self._kept.pop(path, None)
        if found is not None:
            os.close(found[1])
            self._bytes -= found[2]


_copies = _Copies()


# Snapshots: one listing, and the manifests in it, in place of a request for each.


@dataclass(kw_only=True)
class _Snapshot:
    root: ObjectPath
    found: Mapping[ObjectPath, ObjectStatus]
    contents: dict[ObjectPath, bytes] = field(default_factory=dict)

    def status(self, path: ObjectPath) -> ObjectStatus | None:
        if path in self.found:
            return self.found[path]
        return ObjectStatus(is_folder=True) if path in self.folders else None

    @cached_property
    def folders(self) -> dict[ObjectPath, dict[str, bool]]:
        made: dict[ObjectPath, dict[str, bool]] = {self.root: {}}
        for path in self.found:
            child, is_folder = path, False
            while child != self.root:
                names = made.setdefault(ObjectPath(*child.parts[:-1]), {})
                if child.name in names:
                    break
                names[child.name] = is_folder
                child, is_folder = ObjectPath(*child.parts[:-1]), True
        return made


_active = threading.local()


def _snapshot_of(path: ObjectPath) -> _Snapshot | None:
    seen: _Snapshot | None = getattr(_active, "snapshot", None)
    return seen if seen is not None and path.is_relative_to(seen.root) else None


@contextlib.contextmanager
def snapshot(root: ObjectPath, prefetched: Iterable[str] = ()) -> Iterator[None]:
    """Answer this thread's questions about `root` from one listing, made now.

    Args:
      prefetched: names of files whose contents are read at once, wherever they are.

    Raises:
      NoDumpsError: there is nothing at `root`.
      DumpDirectoryError: it cannot be listed.
    """
    if _snapshot_of(root) is not None:
        yield
        return
    found = _found_below(root)
    made = _Snapshot(root=root, found=found)
    wanted = frozenset(prefetched)
    _prefetch(made, [path for path in found if path.name in wanted])
    before = getattr(_active, "snapshot", None)
    _active.snapshot = made
    try:
        yield
    finally:
        _active.snapshot = before


def sizes(folder: ObjectPath) -> dict[str, int]:
    """Return the size of each object below a folder, by its path there; none if there is none.

    Raises:
      DumpDirectoryError: it cannot be listed.
    """
    try:
        found = _found_below(folder)
    except NoDumpsError:
        return {}
    skipped = len(folder.parts)
    return {"/".join(path.parts[skipped:]): this.size for path, this in found.items()}


def _found_below(root: ObjectPath) -> dict[ObjectPath, ObjectStatus]:
    with explaining("list", root):
        fs = _filesystem(root)
        key = _key(fs, root)
        try:
            entries = fs.find(key, detail=True)
        except (FileNotFoundError, NotADirectoryError) as error:
            if is_missing_bucket(error):
                raise
            entries = {}
    found = {
        root.joinpath(*parts): _status(entry)
        for name, entry in entries.items()
        if (parts := _below(key, name)) and entry.get("type") != "directory"
    }
    if not found:
        raise NoDumpsError(_nothing(root))
    return found


def _prefetch(into: _Snapshot, paths: Iterable[ObjectPath]) -> None:
    """Read small objects together; what cannot be read is asked for again, and reported then."""
    fs = _filesystem(into.root)
    total, keys = 0, dict[str, ObjectPath]()
    for path in paths:
        total += into.found[path].size
        if total > _AT_ONCE:
            break
        keys[_key(fs, path)] = path
    if not keys:
        return
    with explaining("read", into.root):
        read = fs.cat(list(keys), on_error="return")
    for key, data in read.items():
        if key in keys and isinstance(data, bytes) and len(data) == into.found[keys[key]].size:
            into.contents[keys[key]] = data


# Writing.


def write(objects: Mapping[ObjectPath, bytes]) -> None:
    """Create or replace objects, several at a time; each appears whole.

    Raises:
      DumpDirectoryError: one cannot be written; others may have been.
    """
    batch, size = dict[ObjectPath, bytes](), 0
    for path, data in objects.items():
        if batch and size + len(data) > _AT_ONCE:
            _write(batch)
            batch, size = {}, 0
        batch[path] = data
        size += len(data)
    if batch:
        _write(batch)


def _write(batch: Mapping[ObjectPath, bytes]) -> None:
    first = next(iter(batch))
    with explaining("write", first):
        fs = _filesystem(first)
        fs.pipe({_key(fs, path): data for path, data in batch.items()})


def remove(paths: Iterable[ObjectPath]) -> None:
    """Delete objects; those that are gone do not matter.

    Raises:
      DumpDirectoryError: one cannot be deleted.
    """
    for path in paths:
        with explaining("write", path), contextlib.suppress(FileNotFoundError):
            fs = _filesystem(path)
            fs.rm_file(_key(fs, path))


# The store's answers.


def _filesystem(path: ObjectPath) -> Any:
    """Return fsspec's file system of a path; fsspec caches them."""
    try:
        import fsspec
    except ImportError as error:
        raise DumpDirectoryError(
            f"{one_line(path)} is in an object store, and fsspec, which reads and writes those, "
            f"is not installed. Install the extra: {INSTALL}"
        ) from error
    # gcsfs logs a traceback for every attempt; what matters is in our message.
    logging.getLogger("gcsfs").addHandler(_SILENT)
    try:
        return fsspec.filesystem(path.scheme, use_listings_cache=False)
    except ImportError as error:
        raise DumpDirectoryError(
            f"{one_line(path)} cannot be opened: the package for {path.scheme}:// is missing "
            f"({one_line(str(error))}). gs:// and s3:// come with the extra: {INSTALL}"
        ) from error
    except ValueError as error:
        raise UsageError(
            f"no object store is called {path.scheme}:// ({one_line(str(error))}). A dump "
            "directory is a local path, gs://bucket/…, s3://bucket/…, or any other URL that "
            "fsspec opens"
        ) from error


def _key(fs: Any, path: ObjectPath) -> str:
    return str(fs._strip_protocol(str(path)))


def _status(entry: Mapping[str, Any]) -> ObjectStatus:
    stamp = " ".join(f"{entry[name]}" for name in _STAMPS if entry.get(name))
    size = entry.get("size")
    return ObjectStatus(
        is_folder=entry.get("type") == "directory",
        size=size if isinstance(size, int) and size >= 0 else 0,
        stamp=f"{size} {stamp}" if stamp else "",
        modified=_seconds(next((entry[n] for n in _TIMES if entry.get(n)), 0.0)),
    )


def _seconds(when: Any) -> float:
    if isinstance(when, (int, float)):
        return float(when)
    with contextlib.suppress(AttributeError, ValueError, OverflowError):
        return float(when.timestamp())
    return 0.0


def _children(folder: str, entries: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, bool]]:
    for entry in entries:
        parts = _below(folder, str(entry.get("name", "")))
        if len(parts) == 1:
            yield parts[0], entry.get("type") == "directory"


def _below(folder: str, key: str) -> tuple[str, ...]:
    """Return the parts of a key below a folder; none for a name that no file could have."""
    prefix = folder.rstrip("/") + "/"
    if not key.startswith(prefix):
        return ()
    parts = tuple(key[len(prefix) :].rstrip("/").split("/"))
    return () if any(part in ("", ".", "..") or "\0" in part for part in parts) else parts


def _nothing(folder: ObjectPath) -> str:
    return (
        f"no such directory: {one_line(folder)}, or there is nothing in it. "
        f"`pallas-debug dump --to {one_line(folder)} SCRIPT.py` creates one."
    )
