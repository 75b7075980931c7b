"""Temporary folders: kept while their owner lives, deleted once it is dead."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import pytest

from pallas_debug.store import locks
from pallas_debug.store.scratch import ABANDONED_AFTER, Scratch, sweep

OWNER = """
import sys, time
from pathlib import Path
from pallas_debug.store.scratch import Scratch
made = Scratch(Path(sys.argv[1]), "ours-")
(made.path / "below").mkdir()
(made.path / "below" / "file").write_text("x")
print(made.path, flush=True)
time.sleep(600)
"""


def made_elsewhere(path: Path, *, old: bool) -> Path:
    """A folder as another kernel's process would leave it."""
    path.mkdir()
    (path / ".lock").write_bytes(b"")
    (path / "file").write_bytes(b"")
    if old:
        age(path)
    return path


def age(path: Path) -> None:
    then = time.time() - ABANDONED_AFTER - 60
    for each in (*path.iterdir(), path):
        os.utime(each, (then, then))


def test_a_folder_is_swept_once_its_owner_is_dead(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        path = Path(process.stdout.readline().strip())
        age(path)
        sweep(tmp_path, "ours-")
        assert (path / "below" / "file").exists()
        process.kill()
        process.wait()
    sweep(tmp_path, "others-")
    assert path.exists()
    sweep(tmp_path, "ours-")
    assert not path.exists()


def test_what_no_lock_can_tell_is_swept_by_age(tmp_path: Path) -> None:
    link = tmp_path / "b000000000000-elsewhere-0-x"
    link.symlink_to(made_elsewhere(tmp_path.with_name("precious"), old=True))
    young = made_elsewhere(tmp_path / "b000000000000-elsewhere-1-x", old=False)
    old = made_elsewhere(tmp_path / "b000000000000-elsewhere-2-x", old=True)
    sweep(tmp_path)
    assert (young.exists(), old.exists()) == (True, False)
    assert (link / "file").exists()


def test_without_locks_age_alone_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    young, old = Scratch(tmp_path), Scratch(tmp_path)
    assert (young.lock, old.lock) == (None, None)
    age(old.path)
    sweep(tmp_path)
    assert (young.path.exists(), old.path.exists()) == (True, False)
