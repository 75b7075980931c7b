"""Reader of objects, with the checks and errors of `files.py`, which calls it."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from pallas_debug.errors import DumpDirectoryError, DumpFormatError
from pallas_debug.store import files
from pallas_debug.store.remote import objects
from pallas_debug.store.remote.objects import ObjectStatus
from pallas_debug.store.remote.paths import ObjectPath


def status(path: ObjectPath) -> ObjectStatus | None:
    """Return what is at a path; None if nothing is, or if the store cannot be asked."""
    try:
        return objects.status(path)
    except DumpDirectoryError:
        return None


def listed(folder: ObjectPath, root: Path) -> list[tuple[str, bool]]:
    """Return the names in a folder; see `files.listed`."""
    files.check_below(folder, root)
    return objects.listed(folder)


def checked(path: ObjectPath, root: Path | None, limit: int) -> ObjectStatus:
    """Return the status of an object of at most `limit` bytes.

    Raises:
      FileNotFoundError: there is none.
      DumpFormatError: it is refused, or cannot be read.
    """
    if root is not None:
        files.check_below(path, root)
    try:
        found = objects.status(path)
    except DumpDirectoryError as error:
        raise DumpFormatError(str(error)) from error
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    files.check_kind(stat.S_IFDIR if found.is_folder else stat.S_IFREG, path)
    if found.size > limit:
        raise files.too_large(path, found.size, limit)
    return found


def opened(path: ObjectPath, root: Path | None, limit: int) -> int:
    """Return a descriptor of a local copy of an object; raises as `checked`."""
    found = checked(path, root, limit)
    try:
        return objects.opened(path, found)
    except FileNotFoundError:
        raise
    except DumpDirectoryError as error:
        raise DumpFormatError(str(error)) from error
    except OSError as error:  # of the local copy
        raise files.unreadable(path, error) from error


def content(path: ObjectPath, root: Path, limit: int) -> bytes:
    """Return the content of a small object; raises as `checked`."""
    files.check_below(path, root)
    try:
        data = objects.contents(path, limit)
    except DumpDirectoryError as error:
        raise DumpFormatError(str(error)) from error
    if data is None:
        found = checked(path, root, limit)  # says why, unless the object is just being replaced
        raise FileNotFoundError(errno.ENOENT, f"changed from {found.size} bytes", str(path))
    return data
