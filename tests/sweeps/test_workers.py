"""Worker processes: their start, death and end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool

import pytest

from pallas_debug.errors import DumpDirectoryError
from pallas_debug.store.writer import open_store
from pallas_debug.sweeps.workers import LocalWorkers


@pytest.fixture
def workers() -> Iterator[LocalWorkers]:
    made = LocalWorkers(1)
    yield made
    made.kill()


def test_a_dump_directory_that_cannot_be_written_is_raised_as_in_this_process(
    workers: LocalWorkers,
) -> None:
    with pytest.raises(DumpDirectoryError, match="cannot dump to /dev/null/dumps: it is a file"):
        workers.submit(open_store, "/dev/null/dumps").result()


def test_end_in_the_middle(workers: LocalWorkers) -> None:
    pid = workers.submit(os.getpid).result()
    hung = workers.submit(time.sleep, 1000)
    while not hung.running():
        time.sleep(0.01)
    workers.kill()
    with pytest.raises(BrokenProcessPool):
        hung.result()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_ctrl_c_is_for_the_parent(workers: LocalWorkers) -> None:
    (pid,) = {workers.submit(os.getpid).result()}
    os.kill(pid, signal.SIGINT)
    assert workers.submit(os.getpid).result() == pid
