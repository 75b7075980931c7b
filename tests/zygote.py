"""Zygote: a process with jax and pallas_debug imported that forks children in place of new Pythons.

A Python that imports jax and pallas_debug spends 1.5 to 2 s of CPU before it does anything; a fork
of one that has imported them takes some 10 ms. `Zygote.python` is the start of a command line that
stands for `sys.executable`: what runs it (`subprocess`, `bash`, `pytester`) sees a process with the
output, exit status and reactions to signals of the child. The parts:

- `zygote_start.py`, the stand-in, passes its arguments, environment, directory, umask, ignored
  signals and standard streams through a socket, and waits.
- The zygote, one per test process, started with the first stand-in. It has no threads, no backend
  of jax, no libtpu and no compiler processes, imports nothing after its start, and only forks. It
  ends with the test process.
- The child, in a session of its own: it takes over what it was passed, and then runs a module,
  script or `-c` text as `__main__`, as Python does. It is killed when its stand-in dies. The
  compiler processes that it starts are forks of the zygote, too.

A child differs from a fresh process in that modules are already imported. So the stand-in starts
Python itself wherever that could matter:

- the environment differs in a variable that was read while the zygote imported its modules, or
  that Python, jax or the C library read (`JAX_PLATFORMS` and `PYTHONPATH` are carried over);
- a directory that comes first on `sys.path` has a module with the name of an imported one;
- Python has options other than `-c`, `-m`, `-P` and `-u`.

Tests of lazy imports, start-up time, a missing jax, signals during start-up, resource limits or a
terminal use a real start: the fixture `real_command`, or `sys.executable`.
"""

from __future__ import annotations

import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

START = Path(__file__).with_name("zygote_start.py")

SERVER = Path(__file__).with_name("zygote_server.py")


class Zygote:
    """One process's zygote, seen from that process; started with its first use."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        # Entries of PYTHONPATH are a child's own.
        self._environment = {k: v for k, v in environment.items() if k != "PYTHONPATH"}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def python(self) -> list[str]:
        """The start of a command line: what `[sys.executable]` is without a zygote."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="zygote-")
            self._process = self._start()
        return self._stand_in

    @property
    def executable(self) -> str:
        """The same as one file, for what starts a Python by its path."""
        command = shlex.join(self.python)
        assert self._folder is not None
        script = Path(self._folder.name, "python")
        if not script.exists():
            script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            script.chmod(0o755)
        return str(script)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def refusals(self) -> list[str]:
        """Why stand-ins started Python itself, oldest first."""
        if self._folder is None or not self._refusals.exists():
            return []
        return self._refusals.read_text().splitlines()

    def stop(self) -> None:
        if self._process is not None and self._folder is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()  # children that still run are killed
            self._process.wait()
            self._folder.cleanup()
            self._process = self._folder = None

    @property
    def _stand_in(self) -> list[str]:
        return [sys.executable, "-I", "-S", str(START), self._address, sys.executable]

    @property
    def _refusals(self) -> Path:
        return Path(self._address).with_name("refusals")

    @property
    def _address(self) -> str:
        assert self._folder is not None
        return str(Path(self._folder.name, "socket"))

    def _start(self) -> subprocess.Popen[bytes]:
        # Connections wait in the listener until the zygote has imported everything.
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self._address)
            listener.listen(64)
            server = [sys.executable, str(SERVER), str(listener.fileno()), str(self._refusals)]
            return subprocess.Popen(
                [*server, *self._stand_in],
                env=self._environment,
                pass_fds=[listener.fileno()],
                stdin=subprocess.PIPE,  # its end says that this process is gone
                stdout=subprocess.DEVNULL,
            )
