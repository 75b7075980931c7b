"""Files that are written completely or not at all, and explanations of errors of the disk."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from pallas_debug.errors import DumpDirectoryError
from pallas_debug.model import FileRecord

Content = bytes | Path
"""Content of a file to be written: its bytes, or a file to copy."""

_CHUNK = 1 << 20

_FLUSHES = 16
"""Maximum number of files that are flushed at a time."""

_NO_FLUSH = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})
"""Errors from file systems that do not support flushing."""


def write(path: Path, content: Content) -> FileRecord:
    """Create a file without flushing it, and return its size and digest."""
    digest, size = hashlib.sha256(), 0
    source = io.BytesIO(content) if isinstance(content, bytes) else content.open("rb")
    with source, path.open("xb") as file:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
            size += file.write(chunk)
    return FileRecord(size=size, sha256=digest.hexdigest())


def flush(path: Path) -> None:
    """Return once a file's content would survive a power failure."""
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in _NO_FLUSH:
            raise
    finally:
        os.close(opened)


def flush_all(paths: Sequence[Path]) -> None:
    """Flush several files at once, once all of them have been written.

    A device combines the flushes that wait for it, and takes several milliseconds for each that
    comes alone.
    """
    from concurrent.futures import ThreadPoolExecutor  # slow to import; reports flush no files

    with ThreadPoolExecutor(min(len(paths), _FLUSHES)) as threads:
        for _ in threads.map(flush, paths):
            pass


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that a user named completely or not at all.

    A pipe or another special file is written directly, and so is a file in a folder in which none
    can be created. A link is kept.

    Raises:
      OSError: it cannot be written; a file that was there before is unchanged.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not (path.is_file() and os.access(path.parent, os.W_OK)):
        path.write_bytes(data)
        return
    temporary = path.with_name(f".{path.name[:50]}.{os.getpid()}.part")
    try:
        temporary.write_bytes(data)
        if path.exists():
            shutil.copymode(path, temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def explaining(root: Path) -> Iterator[None]:
    """Turn an `OSError` into a `DumpDirectoryError` that says why `root` cannot be written to."""
    try:
        yield
    except OSError as error:
        raise explained(error, root) from error


def explained(error: OSError, root: Path) -> DumpDirectoryError:
    """Return the error to show the user: the directory, the cause, and what to do."""
    cause = _SENTENCES.get(error.errno or 0)
    if cause is None:
        gone = not root.exists()
        cause = "it no longer exists. Was it deleted during the run?" if gone else f"{error}"
    return DumpDirectoryError(f"cannot dump to {root}: {cause}")


_FREE = "Free some space, or dump elsewhere; the files written until then are complete"
_NOT_WRITABLE = "it is not writable. Dump elsewhere, or change its permissions"

_SENTENCES = {
    errno.ENOSPC: f"the disk is full, or has no inodes left (`df -i`). {_FREE}",
    errno.EDQUOT: f"your disk quota is used up. {_FREE}",
    errno.EACCES: _NOT_WRITABLE,
    errno.EPERM: _NOT_WRITABLE,
    errno.EROFS: _NOT_WRITABLE,
}
