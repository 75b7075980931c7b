"""A compiler process: its environment, its folder and its pipes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Hashable
from pathlib import Path
from typing import Any, BinaryIO, cast

from pallas_debug import defaults
from pallas_debug.compiler import gpu
from pallas_debug.compiler.protocol import (
    DUMPS,
    GPU,
    CompileRequest,
    Reply,
    read_reply,
    write_request,
)
from pallas_debug.compiler.stages import LLO_FOLDER, ChildFlags
from pallas_debug.errors import WorkerError
from pallas_debug.store import layout
from pallas_debug.store.scratch import PREFIX, Scratch

MOSAIC_FLAGS = ("--xla_mosaic_enable_dump_debug_info=true",)
"""Flags for every child besides the dump directory: locations on every operation."""

_DUMP_TO = "xla_mosaic_dump_to"

_LINGER = 10.0
"""Maximum seconds to wait for a child to exit: an abort first prints its location."""

_QUIET = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",  # otherwise libtpu waits for a metadata server: jax#11668
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # compile-only processes may run concurrently
    "TPU_LOG_DIR": "disabled",
    "JAX_ENABLE_COMPILATION_CACHE": "false",
}


class Child:
    """One process with libtpu loaded, and a folder for the files that it writes.

    Attributes:
      key: settings read on startup; a request with another key needs another child.
      taken: time of its last request (`time.monotonic`).
      served: number of requests.
    """

    taken = 0.0
    served = 0

    def __init__(self, flags: ChildFlags) -> None:
        self.key = key_of(flags)
        folders = {GPU if flags.gpu else _DUMP_TO: DUMPS, **flags.folders}
        self.has_llo = LLO_FOLDER in folders.values()
        self._scratch = scratch(*dict.fromkeys(folders.values()))
        self.folder = self._scratch.path
        self._dumps = [self.folder / name for name in dict.fromkeys(folders.values())]
        self._startup = self.folder / "startup.log"
        environment = _environment(flags)
        if flags.gpu:
            environment |= gpu.dump_variables(self._dumps[0])
        # libtpu writes logs there, even if disabled; its usual folder may belong to another user
        # (pytorch/xla#7816).
        environment["TMPDIR"] = str(self.folder)
        try:
            with self._startup.open("wb") as log:
                self.process = subprocess.Popen(
                    [
                        *(sys.executable, "-P", "-m", "pallas_debug.compiler.worker"),
                        str(self.folder),
                        *(f"{flag}={folder}" for flag, folder in folders.items()),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=environment,
                    start_new_session=True,  # ctrl+c is handled by the parent
                    # The child also holds the folder's lock: it may briefly outlive us.
                    pass_fds=() if self._scratch.lock is None else (self._scratch.lock,),
                )
        except OSError as error:
            self._scratch.remove()
            raise WorkerError(f"the compiler's process could not be started: {error}") from error

    def ask(self, request: CompileRequest, timeout: float) -> tuple[Reply | None, str | None]:
        """Return the reply, or how the process ended instead."""
        overdue = threading.Event()

        def stop() -> None:
            overdue.set()
            self.stop()

        timer = threading.Timer(min(timeout, defaults.MAX_SECONDS), stop)
        timer.daemon = True
        timer.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                write_request(cast(BinaryIO, self.process.stdin), request)
            reply = read_reply(cast(BinaryIO, self.process.stdout))
        except ValueError:  # the pool was closed meanwhile, including the pipes
            reply = None
        finally:
            timer.cancel()
        if reply is not None and not overdue.is_set():
            return reply, None
        code = self._wait()
        if overdue.is_set():
            return None, "timeout"
        return None, signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def startup_log(self) -> bytes:
        return self._startup.read_bytes() if self._startup.exists() else b""

    def clear(self) -> None:
        """Delete the files of the last request."""
        written = (path for folder in self._dumps for path in folder.iterdir())
        for path in [*written, self.folder / layout.LOG]:
            path.unlink(missing_ok=True)

    def kill(self) -> None:
        """End the process and delete its folder."""
        self.stop()
        self._wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._scratch.remove()

    def alive(self) -> bool:
        """Return whether the process is running."""
        return self.process.poll() is None

    @property
    def pid(self) -> int:
        return self.process.pid

    def usable(self) -> bool:
        """Return whether the child is alive and has its files."""
        return self.alive() and all(folder.is_dir() for folder in self._dumps)

    def disown(self) -> None:
        """Release the child in a forked process: its pipe must close when its parent ends."""
        for pipe in (self.process.stdin, self.process.stdout):
            # Not the buffer: a parent thread may hold its lock, with a partial request in it.
            cast(Any, pipe).raw.close()
        self._scratch.disown()
        self.process.returncode = 0  # nothing to wait for in this process

    def stop(self) -> None:
        """Kill the process; `ask` then returns."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def _wait(self) -> int:
        """Return the exit code of a process that closed its pipes, killing it if it lingers."""
        try:
            return self.process.wait(timeout=_LINGER)
        except subprocess.TimeoutExpired:
            self.stop()
            return self.process.wait()


def _environment(flags: ChildFlags) -> dict[str, str]:
    """Environment variables of all children."""
    environment = dict(os.environ) | _QUIET
    environment.pop("XLA_FLAGS", None)  # meant for the program, not for libtpu
    if flags.gpu:
        environment |= gpu.environment()
    environment["LIBTPU_INIT_ARGS"] = " ".join(
        # The worker adds those that name a folder.
        [*user_flags(), *MOSAIC_FLAGS, *flags.arguments]
    )
    ours = str(Path(__file__).parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(
        [ours, *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    return environment


def key_of(flags: ChildFlags) -> Hashable:
    """Return everything that a child reads on startup."""
    environment = _environment(flags)
    for name in ("TMPDIR", "PYTEST_CURRENT_TEST"):  # irrelevant to a child
        environment.pop(name, None)
    directory = None
    if user_flags():  # these may name files relative to it
        with contextlib.suppress(FileNotFoundError):  # the directory was deleted
            directory = Path.cwd()
    return sys.executable, directory, frozenset(environment.items()), flags.key


def scratch(*folders: str) -> Scratch:
    """Create a folder for the files of a compilation, with these subfolders."""
    try:
        made = Scratch(Path(tempfile.gettempdir()), PREFIX)
        for folder in folders:
            (made.path / folder).mkdir()
    except OSError as error:
        raise WorkerError(
            f"the compiler's process has nowhere to write: {error}. "
            "Set TMPDIR to a directory that is writable and has space."
        ) from error
    return made


def user_flags() -> list[str]:
    """Flags for libtpu in the user's environment, without a dump directory, which we set.

    libtpu accepts `--flag=value`, `--flag value` and a single dash, splits at white space and does
    not support quotes.
    """
    flags: list[str] = []
    words = iter(os.environ.get("LIBTPU_INIT_ARGS", "").split())
    for word in words:
        if word.lstrip("-") == _DUMP_TO:
            next(words, None)
        elif word.lstrip("-").partition("=")[0] != _DUMP_TO:
            flags.append(word)
    return flags
