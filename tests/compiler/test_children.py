"""Child processes shared by the pools of one process: their assignment and lifetime.

libtpu really compiles here. `SIGSTOP` stands for a compilation that takes long.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from pallas_debug.compiler import children as children_module
from pallas_debug.compiler import pool as pool_module
from pallas_debug.compiler.children import Children, Lease
from pallas_debug.compiler.pool import Pool, PoolSettings
from pallas_debug.errors import WorkerError

Module = Callable[[str], bytes]
Wait = Callable[[Callable[[], bool]], None]
IsRunning = Callable[[int], bool]

V5E = "v5e:2x2"


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Iterator[Children]:
    """What pools share in this test alone."""
    own: Children = Children(keeps_idle=True)
    monkeypatch.setattr(pool_module, "_shared", lambda: own)
    yield own
    own.close()
    atexit.unregister(own.close)


@pytest.fixture
def shared_pool(children: object) -> Callable[[int], Pool]:
    return lambda jobs: Pool(PoolSettings(jobs=jobs), shared=True)


SharedPool = Callable[[int], Pool]


def compiled(pool: Pool, module: Module) -> None:
    with pool.compile(module("add"), topology=V5E) as outcome:
        assert outcome.reply is not None, outcome
        assert outcome.reply.error is None


def together(pool: Pool, module: Module, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have two children at work at once; their process ids."""
    barrier = threading.Barrier(2)

    def work() -> None:
        with pool.compile(module("add"), topology=V5E):
            barrier.wait(60)

    with monkeypatch.context() as patch:
        patch.setattr(children_module, "WORTH_A_CHILD", -1.0)
        for future in [pool.submit(work) for _ in range(2)]:
            future.result()
    pids = pool.pids()
    assert len(pids) == 2
    return pids


@pytest.mark.slow
def test_one_child_serves_pools_in_turn_and_at_once(
    shared_pool: SharedPool, module: Module, temporary: Path
) -> None:
    with shared_pool(1) as first:
        compiled(first, module)
        before = first.pids()
        with shared_pool(1) as second:
            compiled(second, module)
            compiled(first, module)
            assert first.pids(at_work=True) == second.pids(at_work=True) == []
    with shared_pool(1) as third:
        compiled(third, module)
        assert third.pids() == before
    assert len(before) == 1
    assert len(list(temporary.iterdir())) == 1  # the child's, which lives on
    with pytest.raises(WorkerError, match="was stopped"):
        compiled(first, module)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [("LIBTPU_INIT_ARGS", "--xla_tpu_scoped_vmem_limit_kib=8192"), ("TPU_MIN_LOG_LEVEL", "1")],
)
def test_a_child_of_another_environment_is_not_used(
    shared_pool: SharedPool,
    module: Module,
    monkeypatch: pytest.MonkeyPatch,
    change: tuple[str, str],
) -> None:
    """Nor kept where there would be more children than any pool asked for."""
    with shared_pool(1) as pool:
        compiled(pool, module)
        before = pool.pids()
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "no concern of the compiler's")
    with shared_pool(1) as pool:
        compiled(pool, module)
        assert pool.pids() == before
    monkeypatch.setenv(*change)
    with shared_pool(1) as pool:
        compiled(pool, module)
        (pid,) = pool.pids()
        assert [pid] != before
        assert change[1] in Path(f"/proc/{pid}/environ").read_text()


@pytest.mark.slow
def test_a_pool_uses_no_more_children_than_it_asked_for(
    shared_pool: SharedPool, module: Module, monkeypatch: pytest.MonkeyPatch, wait_until: Wait
) -> None:
    with shared_pool(2) as large:
        pids = together(large, module, monkeypatch)
    with shared_pool(1) as small:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        futures = [small.submit(lambda: compiled(small, module)) for _ in range(2)]
        wait_until(lambda: bool(small.pids(at_work=True)))
        with pytest.raises(TimeoutError):
            futures[1].result(timeout=0.5)
        assert len(small.pids(at_work=True)) == 1
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        for future in futures:
            future.result()
        assert sorted(small.pids()) == sorted(pids)


@pytest.mark.slow
def test_stopping_a_pool_leaves_the_work_of_others_alone(
    shared_pool: SharedPool,
    module: Module,
    monkeypatch: pytest.MonkeyPatch,
    wait_until: Wait,
    is_running: IsRunning,
) -> None:
    with shared_pool(2) as other:
        pids = together(other, module, monkeypatch)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        going_on = other.submit(lambda: compiled(other, module))
        wait_until(lambda: bool(other.pids(at_work=True)))
        (others,) = other.pids(at_work=True)
        with pytest.raises(KeyboardInterrupt), shared_pool(2) as pool:  # noqa: PT012
            stopped = pool.submit(lambda: compiled(pool, module))
            wait_until(lambda: bool(pool.pids(at_work=True)))
            (its,) = pool.pids(at_work=True)
            raise KeyboardInterrupt
        assert isinstance(stopped.exception(), WorkerError)
        assert {its, others} == set(pids)
        assert not is_running(its)
        assert is_running(others)
        os.kill(others, signal.SIGCONT)
        going_on.result()
        assert other.pids() == [others]


@pytest.mark.slow
def test_stopping_the_last_pool_leaves_nothing(
    shared_pool: SharedPool, module: Module, is_running: IsRunning, temporary: Path
) -> None:
    with pytest.raises(KeyboardInterrupt), shared_pool(1) as pool:  # noqa: PT012
        compiled(pool, module)
        (pid,) = pool.pids()
        raise KeyboardInterrupt
    assert not is_running(pid)
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_a_child_whose_folder_was_deleted_is_replaced(
    shared_pool: SharedPool, module: Module, temporary: Path
) -> None:
    with shared_pool(1) as pool:
        compiled(pool, module)
        before = pool.pids()
    (folder,) = temporary.iterdir()
    shutil.rmtree(folder)
    with shared_pool(1) as pool:
        compiled(pool, module)
        assert len(pool.pids()) == 1
        assert pool.pids() != before


# The end of the process, and forks of it.

START = """
import os, signal, sys, time
from pathlib import Path
from pallas_debug.compiler.pool import Pool, PoolSettings

def compiled(pool):
    with pool.compile(Path(sys.argv[1]).read_bytes(), topology="v5e:2x2") as outcome:
        assert outcome.reply.error is None, outcome
    return pool.pids()

with Pool(PoolSettings(jobs=1), shared=True) as pool:
    (pid,) = compiled(pool)
"""

ENDS = START + "print(pid)"

FORKS = (
    START
    + """
first, second = Pool(PoolSettings(jobs=1), shared=True), Pool(PoolSettings(jobs=1), shared=True)
assert first.submit(lambda: compiled(first)).result() == [pid]
os.kill(pid, signal.SIGSTOP)
under_way = second.submit(lambda: compiled(second))  # whose thread holds the lock of a pipe
while not second.pids(at_work=True):
    time.sleep(0.01)
time.sleep(0.2)
if (forked := os.fork()) == 0:
    assert first.pids() == []
    (own,) = first.submit(lambda: compiled(first)).result()
    assert own != pid and compiled(second) == [own]
    Path("own").write_text(str(own))
    sys.exit(0)
assert os.waitpid(forked, 0)[1] == 0
os.kill(pid, signal.SIGCONT)
assert under_way.result() == [pid]
assert compiled(second) == [pid]
print(pid)
"""
)

SLEEPS = (
    START
    + """
if (forked := os.fork()) == 0:
    time.sleep(600)
print(pid, forked, flush=True)
time.sleep(600)
"""
)


@pytest.fixture
def module_file(module: Module, tmp_path: Path) -> Path:
    path = tmp_path / "module"
    path.write_bytes(module("add"))
    return path


def broken_children(*, alive: bool) -> tuple[list[Any], Children, Lease]:
    """Of children that have ended, or lost their files, by the time they are asked for anything."""
    started: list[Any] = []

    def start() -> Any:
        child = Mock(key=None, taken=0.0, idle_since=0.0, served=0, pid=0)
        child.configure_mock(**{"alive.return_value": alive, "usable.return_value": False})
        started.append(child)
        return child

    return started, Children(keeps_idle=False), Lease(jobs=1, key=lambda: None, start=start)


def test_a_child_that_ends_at_once_is_asked_how() -> None:
    started, children, lease = broken_children(alive=False)
    assert [children.take(lease)] == started


def test_a_child_that_loses_its_files_at_once() -> None:
    started, children, lease = broken_children(alive=True)
    with pytest.raises(WorkerError) as raised:
        children.take(lease)
    assert len(started) == 1
    assert str(raised.value) == (
        "the temporary files of the compiler's process were deleted as soon as it was started. "
        "Something on this machine may clean up its temporary folder; set TMPDIR to one that is "
        "left alone."
    )
    assert not lease.held


@pytest.mark.slow
def test_children_end_with_the_process(
    module_file: Path, temporary: Path, is_running: IsRunning
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDS, str(module_file)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not is_running(int(done.stdout))
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_a_forked_process_starts_its_own(
    module_file: Path, temporary: Path, is_running: IsRunning
) -> None:
    """And ends them when it ends, without a word on what it got from its parent."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", FORKS, str(module_file)],
        capture_output=True,
        text=True,
        check=False,
        cwd=module_file.parent,
    )
    assert done.returncode == 0, done.stderr
    assert "ResourceWarning" not in done.stderr
    assert "Traceback" not in done.stderr
    assert not is_running(int(done.stdout))
    assert not is_running(int((module_file.parent / "own").read_text()))
    assert list(temporary.iterdir()) == []


def test_no_orphans_when_the_parent_is_killed_and_its_fork_lives_on(
    module_file: Path, temporary: Path, wait_until: Wait, is_running: IsRunning
) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", SLEEPS, str(module_file)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    try:
        pid, forked = map(int, parent.stdout.readline().split())
        assert is_running(pid)
        parent.kill()
        parent.wait()
        wait_until(lambda: not is_running(pid))
        assert is_running(forked)
        assert list(temporary.iterdir()) == []
    finally:
        parent.kill()
        parent.stdout.close()
        os.kill(forked, signal.SIGKILL)
