"""Locks between processes: holders, waiting times, and file systems without locks."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from pallas_debug.errors import CannotRunError
from pallas_debug.model import Kernel
from pallas_debug.store import Store, locks
from pallas_debug.store.locks import Waiting

HOLDER = """
import sys, time
from pathlib import Path
from pallas_debug.model import Kernel
from pallas_debug.store import Store
kernel = Kernel(name="softmax", digest="0123456789abcdef" * 4, primitive="p")
with Store(Path(sys.argv[1])).claim(kernel, "v5e"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def held(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock of the kernel for v5e."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_the_user_is_told_of_a_lock(
    tmp_path: Path, kernel: Kernel, held: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "NOTIFY_AFTER", 0.0)
    messages: list[str] = []
    store = Store(tmp_path, waiting=Waiting(timeout=0.2, warn=messages.append))
    with pytest.raises(CannotRunError) as error, store.claim(kernel, "v5e"):
        pass
    lock = tmp_path / ".locks" / "012-v5e.lock"
    assert messages == [
        f"compiling add for v5e waits for another process that holds the same lock, {lock}; "
        "waiting ends after 0.2 s"
    ]
    assert str(error.value) == (
        f"compiling add for v5e was not attempted: another process holds the lock {lock}, and did "
        "not release it within 0.2 s. Let that process finish, or end it if it hangs, and run "
        "again; or wait longer with --timeout (--pallas-timeout in pytest)."
    )
    with store.claim(kernel, "v6e"):
        pass


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path, kernel: Kernel) -> None:
    """A directory that somebody else made must not have us write to other files."""
    lock = tmp_path / ".locks" / "012-v5e.lock"
    lock.parent.mkdir()
    (tmp_path / "precious").write_text("precious")
    lock.symlink_to(tmp_path / "precious")
    with pytest.raises(CannotRunError), Store(tmp_path).claim(kernel, "v5e"):
        pass
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks(
    tmp_path: Path, kernel: Kernel, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    messages: list[str] = []
    store = Store(tmp_path, waiting=Waiting(warn=messages.append))
    for target in ("v5e", "v6e", "v5e"):
        with store.claim(kernel, target):
            pass
    for version in ("one", "two"):
        store.put_kernel(kernel, jaxpr=version, source=None)
    assert (store.folder(kernel) / "jaxpr.txt").read_text() == "two"
    assert list((tmp_path / ".tmp").iterdir()) == []
    assert messages == [
        f"{tmp_path} is on a file system without locks ({os.strerror(number)}): other processes "
        "may compile the same kernels at the same time. That costs time and damages nothing"
    ]
