"""Sweeps on a Dask cluster: a scheduler and two workers, each a process of its own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

import pallas_debug
from pallas_debug import defaults
from pallas_debug.errors import CannotRunError
from pallas_debug.sweeps.dask import DaskWorkers

pytest.importorskip("distributed", reason="distributed is not installed (extra dask)")

X = jax.ShapeDtypeStruct((64, 128), "float32")

# The client's threads outlive its connection by a moment, and warn of what they were doing.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Cluster:
    """A scheduler and two workers."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "scheduler.json"
        where = ["--scheduler-file", str(self._file)]
        self.scheduler = self._start(
            folder, "scheduler", *where, "--host", "127.0.0.1", "--port", "0"
        )
        self.workers = [
            self._start(folder, "worker", *where, "--nthreads", "1", "--name", name)
            for name in ("one", "two")
        ]

    def _start(self, folder: Path, kind: str, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "distributed.cli.dask_" + kind, "--no-dashboard", *words]
        with (folder / f"{kind}.log").open("ab") as log:
            return subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)

    @property
    def address(self) -> str:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with contextlib.suppress(OSError, ValueError, KeyError):
                return str(json.loads(self._file.read_text())["address"])
            time.sleep(0.1)
        pytest.fail("the scheduler did not start")

    def stop(self) -> None:
        for process in (*self.workers, self.scheduler):
            process.terminate()
        for process in (*self.workers, self.scheduler):
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    yield made
    made.stop()


@pytest.fixture
def workers(cluster: Cluster) -> Iterator[DaskWorkers]:
    made = connected(cluster)
    yield made
    made.shutdown()


def connected(cluster: Cluster) -> DaskWorkers:
    """A client of a cluster whose workers have started: a sweep waits 10 s for the first one."""
    workers = DaskWorkers(cluster.address)
    workers._client.wait_for_workers(1, timeout=120)
    return workers


@pytest.mark.slow
def test_sweep_on_a_cluster(workers: DaskWorkers, swept_module: Any, tmp_path: Path) -> None:
    over = {"block": [8, 12, 64]}
    found = pallas_debug.sweep(
        swept_module.scale, over=over, args=(X,), to=tmp_path, executor=workers
    )
    assert found.ok
    assert [r.setting["block"] for r in found.results] == ["64", "8", "12"]
    assert [r.failure.stage for r in found.results if r.failure] == ["lowering"]
    # The workers see the directory, and wrote to it.
    names = [kernel.name for kernel in pallas_debug.open_dumps(tmp_path).kernels()]
    assert sorted(names) == sorted(k for r in found.results for k in r.kernels)


@pytest.mark.slow
def test_workers_that_die(workers: DaskWorkers, swept_module: Any, tmp_path: Path) -> None:
    over = {"block": [64], "mode": ["ok", "die"]}
    found = pallas_debug.sweep(
        swept_module.scale, over=over, args=(X,), to=tmp_path, executor=workers
    )
    first, died = found.results
    assert first.ok
    assert died.failure is not None
    assert (died.failure.stage, died.failure.type) == ("worker", "KilledWorker")
    assert "every worker that tried it died" in died.failure.message
    assert found.undecided == (died,)


@pytest.mark.slow
def test_scheduler_goes_away(swept_module: Any, tmp_path: Path) -> None:
    """Then the sweep ends with what it has, and continues elsewhere."""
    over = {"block": [8, 16, 32, 64], "mode": ["slow"]}
    cluster = Cluster(tmp_path)
    workers = connected(cluster)

    def kill(done: int, of: int) -> None:
        if done:
            cluster.scheduler.kill()

    try:
        found = pallas_debug.sweep(
            swept_module.scale,
            over=over,
            args=(X,),
            to=tmp_path / "dumps",
            executor=workers,
            progress=kill,
        )
    finally:
        workers.shutdown()
        cluster.stop()
    assert 1 <= len(found.results) < 4
    assert len(found.results) + len(found.unfinished) == 4
    (problem,) = found.problems
    assert problem == (
        f"the Dask scheduler at {cluster.address} is gone or dropped the sweep. Start it again, "
        "then run the same sweep again: it continues"
    )
    continued = pallas_debug.sweep(
        swept_module.scale, over=over, args=(X,), to=tmp_path / "dumps", jobs=2
    )
    assert continued.ok
    cached = {r.label for r in continued.results if r.is_cached}
    assert cached >= {r.label for r in found.results}


def test_no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "DASK_TIMEOUT", 0.5)
    with pytest.raises(CannotRunError) as caught:
        DaskWorkers("tcp://127.0.0.1:9")
    message = str(caught.value)
    assert message.startswith("no Dask scheduler answers at tcp://127.0.0.1:9 (OSError: Timed out")
    assert "`dask worker ADDRESS --nthreads 1`, or check the address" in message


def test_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(CannotRunError) as caught:
        DaskWorkers("tcp://127.0.0.1:9")
    assert str(caught.value) == (
        "a sweep on Dask needs the package distributed, which is not installed: "
        "pip install 'pallas-debug[dask]'"
    )


@pytest.mark.slow
def test_cluster_without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that loses all its workers, as its client sees it."""
    workers = DaskWorkers.__new__(DaskWorkers)
    workers._address, workers._alone_since = "tcp://here:8786", None

    class Client:
        status = "running"

        def scheduler_info(self, n_workers: int) -> dict[str, Any]:
            return {"workers": {}}

    workers._client = Client()
    monkeypatch.setattr(defaults, "DASK_TIMEOUT", 0.05)
    assert workers.problem() is None
    threading.Event().wait(0.1)
    assert workers.problem() == (
        "the Dask scheduler at tcp://here:8786 has had no worker for 0 s. Start one with `dask "
        "worker tcp://here:8786 --nthreads 1`, then run the same sweep again: it continues"
    )
    Client.status = "closed"
    assert "is gone or dropped the sweep" in str(workers.problem())
