"""Writing a dump directory: whole folders at once, many processes and hosts at the same time.

Nothing is written in place. A folder or file is made under `.tmp/` and renamed to where it
belongs, so a reader never meets half of one, and a run that is killed leaves what it had finished.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from filelock import FileLock

from pallas_debug.errors import DumpDirectoryError, DumpFormatError
from pallas_debug.model import Compilation, Kernel, RunRecord
from pallas_debug.store import origin, schema
from pallas_debug.store.names import COMPILATION as COMPILATION
from pallas_debug.store.names import KERNEL as KERNEL
from pallas_debug.store.names import PROGRAM as PROGRAM
from pallas_debug.store.names import RUNS as RUNS
from pallas_debug.store.names import clean, kernel_folder, target_folder

_TMP = ".tmp"
_LOCKS = ".locks"
_STRIPES = 3  # hex digits: at most 4,096 lock files, however many kernels

_FINAL = ("lowering", "compile")
"""Stages whose failures compiling again would give again."""

Content = bytes | Path
"""Of a file to be written: its bytes, or a file to be moved there."""


class Store:
    """A dump directory that is being written.

    Raises:
      DumpDirectoryError: on creation, when `root` cannot be such a directory; on writing, when
        the disk is full or the directory has gone.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise DumpDirectoryError(
                f"cannot dump to {root}: it is a file, or lies below one. "
                "Name a directory; it is made when it does not exist."
            ) from error
        except FileNotFoundError as error:  # as /proc answers; it has not gone, it never was
            raise DumpDirectoryError(
                f"cannot dump to {root}: no directory can be made there. Dump elsewhere."
            ) from error
        except OSError as error:
            raise _explained(error, self.root) from error
        with self._explaining():
            self._sweep()
            tempfile.TemporaryFile(dir=self.root).close()

    def folder(self, kernel: Kernel) -> Path:
        """Where this kernel's files are, or will be."""
        return self.root / kernel_folder(kernel)

    def put_kernel(self, kernel: Kernel, *, jaxpr: str, source: str | None) -> Path:
        """Write what a kernel is; its folder.

        A folder that is there already keeps its compilations.
        """
        folder = self.folder(kernel)
        files: dict[str, Content] = {"jaxpr.txt": jaxpr.encode(errors="replace")}
        if source is not None:
            files["source.py"] = source.encode(errors="replace")
        files[KERNEL] = schema.encode(kernel)
        with self._explaining():
            if self._same(folder, files):
                return folder
            if not folder.exists() and self._publish(files, folder):
                return folder
            for name, content in files.items():  # kernel.json last: it vouches for the others
                self._replace_file(folder / name, content)
        return folder

    def put_program(self, kernel: Kernel, program: str) -> Path:
        """Write a kernel as a program of its own, beside what it is; the file."""
        path = self.folder(kernel) / PROGRAM
        files: dict[str, Content] = {PROGRAM: program.encode(errors="replace")}
        files = origin.signed(kernel.digest, files, PROGRAM)
        with self._explaining():
            if not self._same(path.parent, files):
                for name, content in files.items():
                    self._replace_file(path.with_name(name), content)
        return path

    def put_compilation(
        self, kernel: Kernel, compilation: Compilation, files: Mapping[str, Content]
    ) -> Path:
        """Write what the compiler made of a kernel, replacing what was there for its target.

        Args:
          files: contents by their path below the target's folder.
        """
        folder = self.folder(kernel) / target_folder(compilation.target)
        files = origin.signed(kernel.digest, files, origin.STABLEHLO)
        document = schema.encode(replace(compilation, cached=False))
        with self._explaining():
            while not self._publish({**files, COMPILATION: document}, folder):
                self._discard(folder)
        return folder

    def find_compilation(self, kernel: Kernel, target: str, key: str) -> Compilation | None:
        """The compilation that is here already under the same key, or None.

        One that cannot be read is as good as none: it will be written anew. So is one whose
        compiler died or was stopped: that may be the machine's fault, and not the kernel's.
        """
        path = self.folder(kernel) / target_folder(target) / COMPILATION
        try:
            found = schema.decode(path.read_bytes(), Compilation, path)
        except (OSError, DumpFormatError):
            return None
        if found.key != key or (found.failure and found.failure.stage not in _FINAL):
            return None
        if any(p.file and not (path.parent / p.file).is_file() for p in found.passes):
            return None
        return replace(found, cached=True)

    @contextlib.contextmanager
    def claim(self, kernel: Kernel, target: str) -> Iterator[None]:
        """Hold the right to compile `kernel` for `target`, on this host and among its processes.

        The lock is the operating system's: it ends with the process that holds it, however that
        ends.
        """
        locks = self.root / _LOCKS
        lock = FileLock(locks / f"{kernel.digest[:_STRIPES]}-{target_folder(target)}.lock")
        with self._explaining():
            locks.mkdir(exist_ok=True)
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def put_run(self, record: RunRecord) -> Path:
        """Write what one test or script used, under `runs/<run>/`."""
        name = f"{clean(record.name)}-{_short(record.name)}.json"
        path = self.root / RUNS / clean(record.run) / name
        with self._explaining():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._replace_file(path, schema.encode(record))
        return path

    def _same(self, folder: Path, files: Mapping[str, Content]) -> bool:
        try:
            return all((folder / name).read_bytes() == content for name, content in files.items())
        except OSError:
            return False

    def _publish(self, files: Mapping[str, Content], folder: Path) -> bool:
        """Make `folder` with `files` in it, at once; False when it is there already."""
        temporary = self._temporary()
        whole = temporary / "new"  # with the modes that the umask gives; `temporary` is private
        try:
            whole.mkdir()
            for name, content in files.items():
                path = whole / name
                path.parent.mkdir(parents=True, exist_ok=True)
                if isinstance(content, Path):
                    shutil.copyfile(content, path)
                else:
                    path.write_bytes(content)
            folder.parent.mkdir(parents=True, exist_ok=True)
            try:
                whole.rename(folder)
            except OSError as error:
                if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    return False
                raise
            return True
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _discard(self, folder: Path) -> None:
        """Take `folder` out of sight at once, then delete it."""
        temporary = self._temporary()
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            folder.rename(temporary / "old")
        shutil.rmtree(temporary, ignore_errors=True)

    def _replace_file(self, path: Path, content: Content) -> None:
        temporary = self._temporary()
        try:
            if isinstance(content, Path):
                shutil.copyfile(content, temporary / "file")
            else:
                (temporary / "file").write_bytes(content)
            path.parent.mkdir(parents=True, exist_ok=True)
            (temporary / "file").replace(path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _temporary(self) -> Path:
        tmp = self.root / _TMP
        tmp.mkdir(exist_ok=True)
        return Path(tempfile.mkdtemp(dir=tmp, prefix=f"{_host()}-{os.getpid()}-"))

    def _sweep(self) -> None:
        """Delete what processes of this host left behind when they were killed."""
        for left in (self.root / _TMP).glob(f"{_host()}-*-*"):
            pid = left.name.removeprefix(f"{_host()}-").partition("-")[0]
            if pid.isdigit() and not _alive(int(pid)):
                shutil.rmtree(left, ignore_errors=True)

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise _explained(error, self.root) from error


def _explained(error: OSError, root: Path) -> DumpDirectoryError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        cause = "the disk is full. Free some space, or dump elsewhere; what was written is whole"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        cause = "it is not writable. Dump elsewhere, or change its permissions"
    elif not root.exists():
        cause = "it has gone. Was it deleted while the run went on?"
    else:
        cause = f"{error}"
    return DumpDirectoryError(f"cannot dump to {root}: {cause}")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # another user's; no process id at all
        pass
    return True


def _host() -> str:
    return clean(socket.gethostname()).replace("-", "_")


def _short(name: str) -> str:
    """Tells apart names that are the same once they are cleaned, `t[a/b]` and `t[a b]`."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
