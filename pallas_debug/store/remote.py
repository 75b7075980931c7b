"""Dump directories in object stores: read through a local copy, uploaded once they are written.

This is the only code that talks to an object store, through fsspec; everything else reads and
writes local files. Copies lie in the user's cache folder, one per URL, and may be deleted there.
Every use lists the folder in the store and downloads the objects whose entity tag, time or size has
changed. Names from the store are untrusted: those that would leave the folder, are hidden, or
belong to no dump are ignored, so that naming a bucket does not download all that is in it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import json
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pallas_debug.errors import DumpDirectoryError, NoDumpsError, PallasDebugError, UsageError
from pallas_debug.render import one_line
from pallas_debug.store import disk, layout, locks

_INSTALL = "pip install 'pallas-debug[remote]'"
_STAMPS = ("ETag", "etag", "generation", "md5Hash", "LastModified", "mtime", "updated", "created")
_WAITING = locks.Waiting(timeout=3600.0)


def fetch(url: str) -> Path:
    """Return a local path with the contents that the dump at a URL has now.

    The URL may also name the folder of a kernel or target, or end in a prefix of a kernel's name;
    so does the path, then.

    Raises:
      NoDumpsError: there is no dump.
      DumpDirectoryError: it cannot be downloaded.
      UsageError: fsspec knows no such store.
    """
    url = url.rstrip("/")
    path = _copied(url)
    if path is not None and not (path / layout.COMPILATION).exists():
        return path
    above, _, name = url.rpartition("/")
    if not above.endswith("/") and (folder := _copied(above)) is not None:
        return folder / name
    raise NoDumpsError(
        f"no such directory: {one_line(url)}, or there is no dump in it. "
        f"`pallas-debug dump --to {one_line(url)} SCRIPT.py` creates one."
    )


def _copied(url: str) -> Path | None:
    """Update the copy of a dump and return its path; None if the store has no dump there."""
    import platformdirs

    above, _, name = url.rpartition("/")
    if not above or name in ("", "..") or "\0" in url:
        raise UsageError(f"{url!r} names no folder of a bucket: write it as s3://bucket/dumps")
    place = f"{layout.clean(above)[:100]}-{hashlib.sha256(above.encode()).hexdigest()[:8]}"
    cache = platformdirs.user_cache_path("pallas-debug", appauthor=False) / place
    with _explaining("read", url), contextlib.ExitStack() as stack:
        fs, key = _opened(url)
        try:
            entries = fs.find(key, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            entries = {}
        found = _of_dump(key, entries)
        if not found:
            shutil.rmtree(cache / name, ignore_errors=True)
            return None
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.suppress(locks.LocksUnavailable):
            lock = cache / f".{name}{layout.LOCK}"
            stack.enter_context(locks.hold(lock, f"copying {url}", _WAITING))
        _update(fs, key, cache / name, found)
    return cache / name


def _update(fs: Any, key: str, copy: Path, found: Mapping[str, Any]) -> None:
    """Download what has changed, and delete what is gone."""
    index, known = copy.with_name(f".{copy.name}.json"), dict[str, str]()
    with contextlib.suppress(OSError, ValueError):
        known = dict(json.loads(index.read_bytes()))
    for gone in known.keys() - found.keys():
        (copy / gone).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # until a folder is not empty
            for parent in (copy / gone).parents:
                parent.rmdir()
    stamps = {n: " ".join(f"{e[s]}" for s in _STAMPS if e.get(s)) for n, e in found.items()}
    changed = [
        name
        for name, stamp in stamps.items()
        if not (stamp and known.get(name) == stamp and (copy / name).is_file())
        or (copy / name).stat().st_size != found[name]["size"]
    ]
    # If this process is killed before the end, these are downloaded again.
    disk.write_whole(index, json.dumps(stamps | dict.fromkeys(changed, "")).encode())
    with tempfile.TemporaryDirectory(dir=copy.parent, prefix=".part-") as part:
        paths = [f"{part}/{number}" for number in range(len(changed))]
        if changed:
            fs.get([f"{key}/{name}" for name in changed], paths)
        for name, path in zip(changed, paths, strict=True):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            Path(path).replace(copy / name)
    disk.write_whole(index, json.dumps(stamps).encode())


class Upload:
    """A local folder that begins as a copy of the dump at a URL; `finish` uploads what changed.

    Raises:
      DumpDirectoryError: the store cannot be reached, or refuses.
      UsageError: fsspec knows no such store.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        there = _copied(self.url)
        with _explaining("write", self.url):
            fs, key = _opened(self.url)  # refused now, rather than after an hour of compiling
            fs.pipe_file(f"{key}/{layout.TMP}/writable", b"pallas-debug writes dumps here\n")
            self.folder = Path(tempfile.mkdtemp(prefix="pallas-debug-upload-"))
            if there is not None:
                shutil.copytree(there, self.folder, dirs_exist_ok=True)
        self._uploaded, self._process = self._versions(), os.getpid()
        atexit.register(self._remove)

    def _versions(self) -> dict[str, tuple[int, int]]:
        """Return inode and time of each file: writers replace files, and never change them."""
        found = {}
        for path in self.folder.rglob("[!.]*"):
            name, status = path.relative_to(self.folder).as_posix(), path.stat()
            if stat.S_ISREG(status.st_mode) and not name.startswith("."):
                found[name] = status.st_ino, status.st_mtime_ns
        return found

    def finish(self) -> None:
        """Upload new and changed files, manifests last, and delete those that are gone.

        Raises:
          DumpDirectoryError: it failed; the message names the local folder, which is then kept.
        """
        now = self._versions()
        new = [name for name, version in now.items() if self._uploaded.get(name) != version]
        try:
            with _explaining("write", self.url):
                fs, key = _opened(self.url)
                for is_last in (False, True):
                    if names := [n for n in new if n.endswith(layout.MANIFESTS) == is_last]:
                        there = [f"{key}/{name}" for name in names]
                        fs.put([f"{self.folder}/{name}" for name in names], there)
                if gone := [f"{key}/{name}" for name in self._uploaded if name not in now]:
                    fs.rm(gone)
        except DumpDirectoryError as error:
            where = f"The dump is in {self.folder} on this machine: copy it from there"
            raise DumpDirectoryError(f"{error} {where}, or run again.") from error
        self._uploaded = now

    def _remove(self) -> None:
        if self._process == os.getpid() and self._versions() == self._uploaded:
            shutil.rmtree(self.folder, ignore_errors=True)


upload_to = functools.cache(Upload)
"""Return the folder for a URL, which all sessions of this process share."""


def _opened(url: str) -> tuple[Any, str]:
    """Return fsspec's file system of a URL, and the path in it."""
    # gcsfs logs a traceback for every attempt; what matters is in our message.
    logging.getLogger("gcsfs").addHandler(logging.NullHandler())
    try:
        from fsspec.core import url_to_fs

        fs, key = url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        raise DumpDirectoryError(
            f"{one_line(url)} cannot be opened without another package: {one_line(str(error))}. "
            f"For s3:// and gs://, install the extra: {_INSTALL}"
        ) from error
    except ValueError as error:
        raise UsageError(f"{one_line(url)} cannot be opened: {one_line(str(error))}") from error
    return fs, key.rstrip("/")


@contextlib.contextmanager
def _explaining(verb: str, url: str) -> Iterator[None]:
    """Turn exceptions of client libraries into a `DumpDirectoryError`."""
    try:
        yield
    except PallasDebugError:
        raise
    except Exception as error:
        text = one_line(f"{type(error).__name__}: {' '.join(str(error).split())}"[:240])
        raise DumpDirectoryError(
            f"cannot {verb} {one_line(url)}: {text}. Check the bucket's name, the right to {verb} "
            "there, your credentials and the network."
        ) from error


def _of_dump(key: str, entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return those objects below a folder that belong to a dump, by their paths in it."""
    named = {n[len(key) + 1 :]: e for n, e in entries.items() if e["type"] != "directory"}
    heads = {name.rpartition("/")[0] for name in named if name.endswith(layout.MANIFESTS)}

    def is_of_dump(name: str, top: str, *rest: str) -> bool:
        if any(not part or part[0] == "." or "\0" in part for part in (top, *rest)):
            return False
        if top == layout.RUNS:
            return len(rest) == 2 and name.endswith(layout.DOCUMENT)
        return bool(heads & {"", top}) or (not rest and "-mosaic-dump-" in top)

    return {name: e for name, e in named.items() if is_of_dump(name, *name.split("/"))}
