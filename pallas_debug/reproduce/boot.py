"""Confinement of a child process before it runs a script: resource limits, and a separate network.

Run as `python -I boot.py CPU_SECONDS PARENT MODE FILE`; imports only the standard library. It
replaces itself with the interpreter that runs FILE, which inherits the limits.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

MEMORY = 8 * 2**30
"""Maximum bytes of data of a child; libtpu needs 0.3 GiB for a small kernel."""

FILE_SIZE = 16 * 2**20
"""Maximum bytes of a file that a child writes, including its output."""

OPEN_FILES = 256
"""Maximum number of open files of a child."""

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000


def main() -> None:
    cpu_seconds, parent, *command = sys.argv[1:]
    _limit(resource.RLIMIT_DATA, MEMORY)
    _limit(resource.RLIMIT_FSIZE, FILE_SIZE)
    _limit(resource.RLIMIT_NOFILE, OPEN_FILES)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_CPU, int(cpu_seconds))
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if os.getppid() != int(parent):  # the parent died before PDEATHSIG was set
        os._exit(1)
    _leave_network(libc)
    os.execv(sys.executable, [sys.executable, "-I", "-X", "utf8", *command])


def _limit(kind: int, value: int) -> None:
    """Lower a limit, but never raise one."""
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def _leave_network(libc: ctypes.CDLL) -> None:
    """Enter an empty network namespace, if users may create one; many containers forbid it."""
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        return
    for file, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with contextlib.suppress(OSError):
            Path("/proc/self", file).write_text(text)


if __name__ == "__main__":
    main()
