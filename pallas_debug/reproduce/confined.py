"""Child processes for scripts: an empty directory, limits, a minimal environment."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from pallas_debug.errors import CannotRunError
from pallas_debug.store.scratch import PREFIX, Scratch

INHERITED = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TPU_LIBRARY_PATH")
"""Environment variables that a child inherits."""

_SET = {
    "JAX_PLATFORMS": "cpu",
    "JAX_ENABLE_COMPILATION_CACHE": "false",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_LOG_DIR": "disabled",
}

_BOOT = Path(__file__).with_name("boot.py")
_MAX_OUTPUT = 2**20


class ConfinedProcess:
    """A process that runs a Python file, confined by `boot.py`.

    Its output goes to files, whose size the limit bounds; leaving the block kills its process
    group.

    Args:
      code: content of the file.
      seconds: wall time after which the caller stops it; also limits CPU time.
      is_asked: whether it answers requests on its standard input, instead of writing to a file.

    Raises:
      CannotRunError: the process cannot be started.
    """

    def __init__(
        self, code: str, *, seconds: float, arguments: Sequence[str] = (), is_asked: bool = False
    ) -> None:
        self._code = code
        self._seconds = seconds
        self._arguments = tuple(arguments)
        self._is_asked = is_asked

    def __enter__(self) -> Self:
        try:
            self._scratch = Scratch(Path(tempfile.gettempdir()), PREFIX)
            self._folder = self._scratch.path
            self._start()
        except OSError as error:
            raise CannotRunError(
                f"cannot start a process for the script: {error}. Set TMPDIR to a directory "
                "that is writable and has space"
            ) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._scratch.remove()

    def _start(self) -> None:
        file = self._folder / "reproduce.py"
        file.write_text(self._code, encoding="utf-8")
        home = self._folder / "empty"
        home.mkdir()
        cores = len(os.sched_getaffinity(0))
        command = [str(int(self._seconds * cores) + 10), str(os.getpid()), str(file)]
        with self._output("out") as out, self._output("err") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-I", str(_BOOT), *command, *self._arguments],
                cwd=home,
                env=environment(home),
                stdin=subprocess.PIPE if self._is_asked else subprocess.DEVNULL,
                stdout=subprocess.PIPE if self._is_asked else out,
                stderr=err,
                start_new_session=True,
            )

    def _output(self, name: str) -> IO[bytes]:
        return (self._folder / name).open("wb")

    def wait(self) -> int | None:
        """Wait for the exit code; None if it was stopped after its time limit."""
        try:
            return self.process.wait(self._seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.kill()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    @property
    def out(self) -> str:
        """Tail of the output, unless it answers requests."""
        return _end(self._folder / "out")

    @property
    def err(self) -> str:
        return _end(self._folder / "err")


def environment(home: Path) -> dict[str, str]:
    """Return the complete environment of a child, including its writable directories."""
    kept = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return {**kept, **_SET, "HOME": str(home), "TMPDIR": str(home)}


def _end(file: Path) -> str:
    with file.open("rb") as opened:
        size = opened.seek(0, os.SEEK_END)
        opened.seek(max(size - _MAX_OUTPUT, 0))
        return opened.read(_MAX_OUTPUT).decode(errors="replace")
