"""Temporary folders whose lock shows that the owner is alive, and a sweep of orphans.

Process IDs are unreliable: in another PID namespace the ID belongs to another process, or to none.
The owner locks a file inside the folder while it writes, and the kernel releases the lock when the
owner dies. If locks cannot decide, because the file system has none or the folder was made on
another host, a folder counts as abandoned `ABANDONED_AFTER` seconds after its last change.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pallas_debug.store import locks
from pallas_debug.store.layout import LOCK, clean

PREFIX = "pallas-debug-"
"""Prefix of all our folders in the system's temporary directory, so that one sweep finds them."""

ABANDONED_AFTER = 24 * 3600.0
"""Seconds without a change after which a folder counts as abandoned, if locks cannot decide."""


class Scratch:
    """A new folder below `parent`, locked until it is removed or its process ends.

    Raises:
      OSError: it cannot be created.
    """

    def __init__(self, parent: Path, prefix: str = "") -> None:
        while True:
            self.path = Path(tempfile.mkdtemp(dir=parent, prefix=f"{prefix}{_identity()}-"))
            self._locks: list[int] = []
            try:
                if self._lock():
                    return
            except FileNotFoundError:
                continue  # deleted by a sweep meanwhile: retry
            except BaseException:  # including ctrl+c
                self.remove()
                raise

    def _lock(self) -> bool:
        """Lock the folder; False if a sweep deleted it between its creation and its lock."""
        path = self.path / LOCK
        lock = locks.open_lock(path)
        self._locks.append(lock)
        try:
            if locks.try_lock(lock) and _is_file(lock, path):
                return True
        except locks.LocksUnavailable:
            self._close()
            return True
        self._close()
        return False

    @property
    def lock(self) -> int | None:
        """File descriptor of the lock, or None without locks."""
        return next(iter(self._locks), None)

    def _close(self) -> None:
        with contextlib.suppress(IndexError):
            # `pop` is atomic: two threads may remove the folder at once, and a descriptor closed
            # twice may belong to another file by then.
            os.close(self._locks.pop())

    def disown(self) -> None:
        """In a forked process: leave the folder and its lock to the parent that created it."""
        self._close()

    def remove(self) -> None:
        """Delete the folder and its contents; idempotent."""
        delete(self.path)
        self._close()


def delete(path: Path) -> None:
    """Delete a scratch folder, its lock last, so that the next sweep can continue after a kill."""
    with contextlib.suppress(OSError):
        for below in path.iterdir():
            if below.name == LOCK:
                continue
            if below.is_dir() and not below.is_symlink():
                shutil.rmtree(below, ignore_errors=True)
            else:
                below.unlink()
        (path / LOCK).unlink(missing_ok=True)
        path.rmdir()


@contextlib.contextmanager
def folder(prefix: str) -> Iterator[Path]:
    """Temporary folder in the system's directory for them, deleted at the end of the block."""
    made = Scratch(Path(tempfile.gettempdir()), prefix)
    try:
        yield made.path
    finally:
        made.remove()


def sweep(parent: Path, prefix: str = "") -> None:
    """Delete the folders below `parent` whose owners have died.

    Args:
      parent: where to look; a no-op if it cannot be listed.
      prefix: of the folders' names.
    """
    try:
        with os.scandir(parent) as entries:
            names = [e.name for e in entries if e.name.startswith(prefix) and _is_ours(e)]
    except OSError:
        return
    for name in names:
        with contextlib.suppress(OSError):
            _sweep(parent / name, name.removeprefix(prefix))


def _sweep(path: Path, identity: str) -> None:
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        opened = os.open(path / LOCK, flags)
    except FileNotFoundError:
        if identity.startswith(f"{_host()}-"):  # a live owner will retry
            with contextlib.suppress(OSError):
                path.rmdir()  # only if empty
        return
    try:
        try:
            if not locks.try_lock(opened):
                return  # its owner is alive
            decides = identity.startswith(f"{_host()}-") and _is_file(opened, path / LOCK)
        except locks.LocksUnavailable:
            decides = False
        if decides or time.time() - path.lstat().st_mtime > ABANDONED_AFTER:
            delete(path)
    finally:
        os.close(opened)


def _is_ours(entry: os.DirEntry[str]) -> bool:
    """Return whether the entry is a folder of this user."""
    try:
        found = entry.stat(follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _is_file(opened: int, path: Path) -> bool:
    """Return whether an open file is still the one at `path`."""
    try:
        return os.path.samestat(os.fstat(opened), path.lstat())
    except FileNotFoundError:
        return False


def _identity() -> str:
    """Return `<host>-<pid>`, a prefix of folder names; the pid is for people."""
    return f"{_host()}-{os.getpid()}"


def _host() -> str:
    return clean(socket.gethostname())[:60].replace("-", "_")
