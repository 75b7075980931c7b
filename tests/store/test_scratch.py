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

from pallas_debug.store import locks, scratch
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


def test_an_owner_whose_folder_is_taken_before_it_is_locked_starts_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = locks.open_lock
    swept: list[Path] = []

    def open_and_lose(path: Path) -> int:
        found = opened(path)
        if not swept:
            sweep(tmp_path)
            swept.append(path.parent)
        return found

    monkeypatch.setattr(scratch.locks, "open_lock", open_and_lose)
    made = Scratch(tmp_path)
    assert made.path not in swept
    assert [path.name for path in tmp_path.iterdir()] == [made.path.name]
    made.remove()
    assert list(tmp_path.iterdir()) == []
