"""Worker processes: their death, time limit and end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest

from pallas_debug.errors import DumpDirectoryError
from pallas_debug.store.writer import open_store
from pallas_debug.sweeps.workers import LocalWorkers, SettingTimeout, WorkerDied


@pytest.fixture
def workers() -> Iterator[LocalWorkers]:
    made = LocalWorkers(1, timeout=3.5, preload="pallas_debug.store.writer")
    yield made
    made.shutdown(cancel_futures=True)


@pytest.mark.slow
def test_one_process_dies_and_another_hangs(workers: LocalWorkers) -> None:
    first = workers.submit(os.getpid)
    died = workers.submit(os._exit, 7)
    killed = workers.submit(signal.raise_signal, signal.SIGKILL)
    hung = workers.submit(time.sleep, 1000)
    raised = workers.submit(int, "x")
    unwritable = workers.submit(open_store, "/dev/null/dumps")
    last = workers.submit(os.getpid)
    assert first.result() != os.getpid()
    with pytest.raises(WorkerDied) as ended:
        died.result()
    assert str(ended.value) == "the worker process that ran it died (exit code 7)"
    with pytest.raises(WorkerDied) as ended:
        killed.result()
    assert str(ended.value) == "the worker process that ran it died (SIGKILL)"
    with pytest.raises(SettingTimeout) as overdue:
        hung.result()
    assert str(overdue.value) == (
        "it took longer than 4 s, and its process was killed; allow more with --timeout"
    )
    with pytest.raises(RuntimeError, match="ValueError: invalid literal for int"):
        raised.result()
    with pytest.raises(DumpDirectoryError, match="cannot dump to /dev/null/dumps: it is a file"):
        unwritable.result()
    assert last.result() not in (os.getpid(), first.result())


def test_end_in_the_middle(workers: LocalWorkers) -> None:
    assert workers.submit(abs, -1).result() == 1
    (pid,) = workers.pids()
    hung, waiting = workers.submit(time.sleep, 1000), workers.submit(abs, -1)
    while not hung.running():
        time.sleep(0.01)
    workers.shutdown(cancel_futures=True)
    with pytest.raises(WorkerDied):
        hung.result()
    with pytest.raises(CancelledError):
        waiting.result()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_process_that_cannot_start() -> None:
    workers = LocalWorkers(1, timeout=5, preload="no_such_module_anywhere")
    future = workers.submit(abs, -1)
    with pytest.raises(WorkerDied) as ended:
        future.result()
    workers.shutdown()
    assert "a worker process ended during startup (exit code 1). Either it cannot import what" in (
        str(ended.value)
    )
    assert "put that under `if __name__ == '__main__':`" in str(ended.value)


def test_ctrl_c_is_for_the_parent(workers: LocalWorkers) -> None:
    (pid,) = {workers.submit(os.getpid).result()}
    os.kill(pid, signal.SIGINT)
    assert workers.submit(os.getpid).result() == pid
