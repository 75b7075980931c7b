"""The only code that opens files of a dump directory, which may be untrusted.

A path is opened one component at a time, relative to the folder opened before it, without following
links. A link that stays within the directory is resolved first and its target is opened in the same
way, so that no folder can be swapped for a link in between. The directory that the user named may
itself be a link, or lie below one.

Anything but a regular file (a named pipe, a device, a socket, a directory) is refused without being
opened, and so is a file above a size limit.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import IO, NamedTuple

from pallas_debug.errors import DumpDirectoryError, DumpFormatError, NoDumpsError
from pallas_debug.model import FileRecord
from pallas_debug.render import one_line
from pallas_debug.store import layout

MAX_MANIFEST = 64 << 20
"""Maximum size in bytes of a JSON document: the manifest of a kernel, compilation or run."""

MAX_WHOLE = 32 << 20
"""Maximum size in bytes of a text that is read whole: by `show`, `diff`, `source`."""

MAX_TEXT = 1 << 30
"""Maximum size in bytes of a text that is read in pieces: by `browse`, `grep`, `explain`."""

_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
# O_PATH needs permission to traverse a folder, but not to list it.
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
_LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PIECE = 1 << 18

_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class _LinkFound(Exception):
    """A component of a path is a symbolic link."""


@dataclass(frozen=True, kw_only=True)
class DumpFile:
    """A file of a dump directory, opened only by `open`.

    Attributes:
      root: the directory that the user named, which the file must lie in. None for a file that the
        user named directly: links are then followed.
      record: size and digest according to the manifest; None if it has none.
      refreshed: rereads the record from the manifest, since another process may have replaced the
        folder.
    """

    path: Path
    root: Path | None
    record: FileRecord | None = None
    refreshed: Callable[[], FileRecord | None] | None = None

    @property
    def is_compressed(self) -> bool:
        return self.path.suffix == layout.COMPRESSED

    def open(self) -> int:
        """Open the file after checking that its size is as recorded, and return the descriptor.

        That of a compressed file has its content.

        Raises:
          FileNotFoundError: there is no such file.
          DumpFormatError: it is refused, cannot be read, or is damaged.
        """
        fd = self._open(MAX_TEXT)
        return _inflated(fd, self.path, MAX_TEXT) if self.is_compressed else fd

    def _open(self, limit: int) -> int:
        fd = _opened(self.path, self.root, limit)
        try:
            self._check_size(os.fstat(fd).st_size)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _check_size(self, size: int) -> None:
        if self.record is not None and size != self.record.size:
            current = self._current
            if current is None or size != current.size:
                raise DumpFormatError(
                    f"{one_line(self.path)} is damaged: it has {size:,} bytes, and its "
                    f"manifest records {self.record.size:,}. {DAMAGED}"
                )

    def text(self) -> str:
        """Return the whole text, with U+FFFD for bytes that are not UTF-8.

        Raises:
          DumpFormatError: there is no such file; it is refused, cannot be read, or is damaged.
        """
        try:
            fd = self._open(MAX_WHOLE)
        except FileNotFoundError as error:
            raise unreadable(self.path, error) from error
        data = _read(fd, self.path, MAX_WHOLE)
        if self.record is not None and self.record.sha256:
            digest = hashlib.sha256(data).hexdigest()
            if digest != self.record.sha256:
                current = self._current
                if current is None or digest != current.sha256:
                    raise DumpFormatError(
                        f"{one_line(self.path)} is damaged: its SHA-256 begins with {digest[:12]}, "
                        f"and its manifest records {one_line(self.record.sha256[:12])}. {DAMAGED}"
                    )
        if self.is_compressed:
            data = b"".join(_inflate(io.BytesIO(data), self.path, MAX_WHOLE))
        return data.decode(errors="replace")

    @property
    def _current(self) -> FileRecord | None:
        return self.refreshed() if self.refreshed is not None else None


DAMAGED = "Dump the kernel again; until then `cat` prints what is left of the file."


def read(path: Path, root: Path, limit: int = MAX_MANIFEST) -> bytes:
    """Return the content of a file in `root`.

    Raises:
      FileNotFoundError, NotADirectoryError: there is no such file.
      DumpFormatError: it is refused, or cannot be read.
    """
    return _read(_opened(path, root, limit), path, limit)


def pieces(path: Path, root: Path | None) -> Iterator[bytes]:
    """Yield the content of a file in pieces; `root` as in `DumpFile`.

    Raises:
      FileNotFoundError: there is no such file.
      DumpFormatError: it is refused, or cannot be read.
    """
    fd = _opened(path, root, MAX_TEXT)
    if path.suffix == layout.COMPRESSED:
        fd = _inflated(fd, path, MAX_TEXT)
    try:
        left = MAX_TEXT  # the file may grow while it is read
        while left > 0 and (piece := os.read(fd, _PIECE)):
            left -= len(piece)
            yield piece
    except OSError as error:
        raise unreadable(path, error) from error
    finally:
        os.close(fd)


def is_there(path: Path) -> bool:
    """Return whether the path exists, readable or not, including as a dangling link."""
    return os.path.lexists(path)


def is_file(path: Path) -> bool:
    """Return whether the path is a regular file.

    Unlike `Path.is_file` before Python 3.14, raises nothing for a path in a folder that may not be
    searched, or with a name that is too long.
    """
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: Path) -> bool:
    """Return whether the path is a directory; raises nothing, as `is_file`."""
    return os.path.isdir(path)  # noqa: PTH112


def check_listable(root: Path) -> None:
    """Check that a directory that the user named can be listed.

    Raises:
      DumpDirectoryError: it does not exist, is not a directory, or cannot be listed.
    """
    os.close(_listable(root, root))


class Listing(NamedTuple):
    """Sorted names of the folders in a folder, and of its other entries."""

    folders: Sequence[str] = ()
    files: Sequence[str] = ()


def listed(folder: Path, root: Path) -> Listing:
    """List a folder below `root`, which may have 100,000s of entries.

    Raises:
      DumpDirectoryError: it does not exist, is not a directory, is refused, or cannot be listed.
    """
    folders: list[str] = []
    names: list[str] = []
    fd = _listable(folder, root)
    try:
        with os.scandir(fd) as entries:
            for entry in entries:
                try:
                    is_folder = entry.is_dir()
                except OSError:  # a link that points to itself
                    is_folder = False
                (folders if is_folder else names).append(entry.name)
        return Listing(sorted(folders), sorted(names))
    except OSError as error:
        raise DumpDirectoryError(
            f"{one_line(folder)} cannot be listed: {error.strerror}."
        ) from error
    finally:
        os.close(fd)


def _listable(folder: Path, root: Path) -> int:
    try:
        return _below(folder, root, _LISTED)
    except FileNotFoundError:
        raise NoDumpsError(
            f"no such directory: {one_line(folder)}. `pallas-debug dump SCRIPT.py` creates one."
        ) from None
    except NotADirectoryError:
        raise NoDumpsError(
            f"{one_line(folder)} is a file, or lies below one; "
            "name the directory that holds the dumps."
        ) from None
    except DumpFormatError as error:
        raise DumpDirectoryError(str(error)) from error
    except OSError as error:
        raise DumpDirectoryError(
            f"{one_line(folder)} cannot be listed: {error.strerror}."
        ) from error


def check_name(name: str, manifest: Path) -> None:
    """Check that a path in a manifest names a file below the manifest's own folder.

    Raises:
      DumpFormatError: it is absolute, contains `..` or a NUL, or is empty.
    """
    parts = PurePath(name).parts
    if not parts or PurePath(name).is_absolute() or ".." in parts or "\0" in name:
        raise DumpFormatError(
            f"{one_line(manifest)} names the file {one_line(name)!r}, which is not a path below "
            "its own folder: the manifest was edited, or was made to read other files. "
            "It is not opened; dump the kernel again."
        )


def _opened(path: Path, root: Path | None, limit: int) -> int:
    """Open a regular file of at most `limit` bytes, and return the descriptor."""
    try:
        fd = _of_user(path) if root is None else _below(path, root, _FILE)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(error.errno, os.strerror(error.errno or 0), str(path)) from error
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    try:
        status = os.fstat(fd)
        check_kind(status.st_mode, path)
        if status.st_size > limit:
            raise too_large(path, status.st_size, limit)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _of_user(path: Path) -> int:
    if os.path.lexists(path):
        check_kind(path.stat().st_mode, path)  # opening a device may have side effects
    return os.open(path, _FILE & ~os.O_NOFOLLOW)


def _below(path: Path, root: Path, flags: int) -> int:
    """Open a path in `root`, following only links that stay in it."""
    parts = check_below(path, root)
    try:
        return _walk(root, parts, path, flags)
    except _LinkFound:
        pass
    real, top = Path(os.path.realpath(path)), Path(os.path.realpath(root))
    if real.parts[: len(top.parts)] != top.parts:
        raise refused(path, f"it is a link, or lies below one, that leads out to {one_line(real)}")
    try:
        return _walk(top, real.parts[len(top.parts) :], path, flags)
    except _LinkFound:
        why = "its links form a loop, or change while it is read"
        raise refused(path, why) from None


def check_below(path: Path, root: Path) -> tuple[str, ...]:
    """Return the parts of a path in `root`, after checking that its text leads nowhere else."""
    parts = path.parts[len(root.parts) :]
    if path.parts[: len(root.parts)] != root.parts or path.is_absolute() != root.is_absolute():
        raise refused(path, f"it is not below {one_line(root)}")
    if ".." in parts:
        raise refused(path, "its name contains `..`")
    if "\0" in str(path):
        raise refused(path, "its name contains a NUL")
    return parts


def _walk(root: Path, parts: tuple[str, ...], path: Path, flags: int) -> int:
    """Open the last of some path components, one after the other.

    Raises:
      _LinkFound: one is a link.
    """
    if not parts:
        return os.open(root, flags & ~os.O_NOFOLLOW)
    fd = os.open(root, _FOLDER & ~os.O_NOFOLLOW)
    try:
        for part in parts[:-1]:
            inner = _step(part, _FOLDER, fd)
            os.close(fd)
            fd = inner
        if flags == _FILE:
            mode = os.stat(parts[-1], dir_fd=fd, follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode):
                raise _LinkFound
            check_kind(mode, path)  # opening a device may have side effects
        return _step(parts[-1], flags, fd)
    finally:
        os.close(fd)


def _step(name: str, flags: int, fd: int) -> int:
    try:
        return os.open(name, flags, dir_fd=fd)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK):
            mode = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode):
                raise _LinkFound from None
        raise


def _inflated(fd: int, path: Path, limit: int) -> int:
    """Close the descriptor of a compressed file, and return one of its content."""
    with os.fdopen(fd, "rb") as packed, tempfile.TemporaryFile() as content:
        for piece in _inflate(packed, path, limit):
            content.write(piece)
        content.seek(0)
        return os.dup(content.fileno())


def _inflate(packed: IO[bytes], path: Path, limit: int) -> Iterator[bytes]:
    """Yield the content of a compressed file, up to a limit: a small file may have a huge one."""
    size = 0
    try:
        with gzip.GzipFile(fileobj=packed) as file:
            while piece := file.read(_PIECE):
                size += len(piece)
                if size > limit:
                    raise too_large(path, size, limit)
                yield piece
    except (EOFError, zlib.error, OSError) as error:
        raise unreadable(path, error) from error


def _read(fd: int, path: Path, limit: int) -> bytes:
    """Read a descriptor to its end and close it; the file may grow meanwhile."""
    try:
        with os.fdopen(fd, "rb", buffering=0) as file:
            data = file.read(os.fstat(fd).st_size + 1) or b""
            while piece := file.read(_PIECE):
                data += piece
                if len(data) > limit:
                    break
    except OSError as error:
        raise unreadable(path, error) from error
    if len(data) > limit:
        raise too_large(path, len(data), limit)
    return data


def check_kind(mode: int, path: Path) -> None:
    if stat.S_ISREG(mode):
        return
    kind = next((name for test, name in _KINDS if test(mode)), "something else")
    raise DumpFormatError(
        f"{one_line(path)} is {kind} and not a regular file, so it was not read. "
        "Delete it and dump again."
    )


def refused(path: Path, why: str) -> DumpFormatError:
    return DumpFormatError(
        f"{one_line(path)} was not read: {why}. Nothing outside the directory that you name is "
        "read; to read a dump that consists of links, copy it with `cp -rL` or name the "
        "directory that they lead to."
    )


def too_large(path: Path, size: int, limit: int) -> DumpFormatError:
    other = "; `browse` and `grep` read larger ones" if limit == MAX_WHOLE else ""
    return DumpFormatError(
        f"{one_line(path)} has {size:,} bytes, more than the {limit:,} that are read{other}. "
        "If the compiler really wrote so much, look at it with `less`; if not, delete it."
    )


def unreadable(path: Path, error: Exception) -> DumpFormatError:
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    if isinstance(error, PermissionError):
        return DumpFormatError(
            f"{one_line(path)} cannot be read: {why}. Change its permissions, or dump again."
        )
    return DumpFormatError(f"{one_line(path)} cannot be read: {why}. Dump again.")
