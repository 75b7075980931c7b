"""Compiler processes that serve, refuse, abort, hang and are killed, leaving nothing behind.

libtpu really compiles here. `SIGSTOP` stands for a compiler that hangs.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pallas_debug.compiler import children
from pallas_debug.compiler.pool import Pool, PoolSettings, RequestOutcome
from pallas_debug.errors import WorkerError
from pallas_debug.store import raw

Module = Callable[[str], bytes]
Wait = Callable[[Callable[[], bool]], None]
IsRunning = Callable[[int], bool]

V5E = "v5e:2x2"


@pytest.mark.parametrize("topology", ["v4:2x2x1", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1"])
def test_one_child_serves_many(shared: Pool, module: Module, topology: str) -> None:
    seen = set()
    for name in ("add", "misaligned", "add"):
        with shared.compile(module(name), topology=topology) as outcome:
            assert outcome.reply is not None
            assert (outcome.reply.error is None) == (name == "add")
            (compile_,) = raw.compiles(outcome.dumps)
            assert compile_.kernel == name
        seen |= set(shared.pids())
    assert len(seen) == 1


@pytest.mark.parametrize(
    "topology, num_devices, message",
    [
        (
            "v5e:2x2",
            8,
            "the kernel is partitioned for 8 devices, but v5e:2x2 has 4; use a larger topology as "
            "the target",
        ),
        ("v9:2x2", 1, "v9"),
        ("v5e:99x99", 1, "libtpu has no topology v5e:99x99: INVALID_ARGUMENT: Topology layout"),
        ("v5e:99x99", 1, ". Name another target; `pallas-debug doctor --targets` lists them"),
    ],
)
def test_topologies_that_will_not_do(
    shared: Pool, module: Module, topology: str, num_devices: int, message: str
) -> None:
    before = shared.pids()
    with shared.compile(module("add"), topology=topology, num_devices=num_devices) as outcome:
        assert outcome.reply is not None
        assert outcome.reply.error
        assert message in outcome.reply.error
        assert outcome.reply.is_of_target
        assert outcome.dumps == ()
    assert before in ([], shared.pids())


@pytest.mark.parametrize("data", [b"", b"no module", b"ML\xefR\x00\x00", b"x" * 1_000_000])
def test_what_is_no_module(shared: Pool, data: bytes) -> None:
    with shared.compile(data, topology=V5E) as outcome:
        assert outcome.reply is not None
        assert outcome.reply.error


def test_options(shared: Pool, module: Module) -> None:
    with shared.compile(module("add"), topology=V5E, options={"no_such": "1"}) as outcome:
        assert outcome.reply is not None
        assert "No such compile option: 'no_such'" in str(outcome.reply.error)
    with shared.compile(
        module("add"), topology=V5E, options={"xla_tpu_enable_log_recorder": "true"}
    ) as outcome:
        assert outcome.reply is not None
        assert outcome.reply.error is None


def test_a_child_aborts(shared: Pool, module: Module, refusal: str | None) -> None:
    with shared.compile(module("aborting"), topology=V5E) as outcome:
        log = outcome.log.decode(errors="replace")
        if refusal is None:
            assert (outcome.reply, outcome.ended) == (None, "SIGABRT")
            assert "Check failed: rem == 0 (1024 vs. 0)" in log
        else:
            assert outcome.reply is not None
            assert refusal in str(outcome.reply.error)
        (compile_,) = raw.compiles(outcome.dumps)
        assert compile_.passes[-1].name == "infer-vector-layout"
    with shared.compile(module("add"), topology=V5E) as outcome:
        assert outcome.reply is not None
        assert outcome.reply.error is None


@pytest.mark.slow
def test_a_child_is_killed_at_work(shared: Pool, module: Module, wait_until: Wait) -> None:
    pid = warm(shared, module)
    found = stopped_at_work(shared, module, wait_until)
    os.kill(pid, signal.SIGKILL)
    (outcome,) = found()
    assert (outcome.reply, outcome.ended) == (None, "SIGKILL")
    assert outcome.dumps == ()
    assert warm(shared, module) != pid


def test_a_module_larger_than_a_pipe_at_a_child_that_hangs(
    shared: Pool, module: Module, wait_until: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm(shared, module)
    monkeypatch.setattr(shared, "settings", replace(shared.settings, timeout=0.5))
    (outcome,) = stopped_at_work(shared, lambda _: b"x" * 1_000_000, wait_until)()
    assert (outcome.reply, outcome.ended) == (None, "timeout")


def test_a_child_answers_with_nonsense(module: Module, tmp_path: Path) -> None:
    """Only a stand-in for Python can make it: the worker itself does not."""
    stand_in = tmp_path / "python"
    stand_in.write_text("#!/bin/sh\nread line\necho what do you want\n")
    stand_in.chmod(0o755)
    with Pool(PoolSettings(jobs=1)) as pool, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(stand_in))
        with (
            pytest.raises(WorkerError, match=r"sent an invalid reply: b'what do you want\\n' \("),
            pool.compile(module("add"), topology=V5E),
        ):
            pass
        assert pool.pids() == []


@pytest.mark.parametrize(
    "script, ended",
    [("exit 3", "exit code 3"), ("exit 0", "exit code 0"), ("kill -SEGV $$", "SIGSEGV")],
)
def test_a_child_ends_without_a_word(tmp_path: Path, script: str, ended: str) -> None:
    stand_in = tmp_path / "python"
    stand_in.write_text(f"#!/bin/sh\necho its words >&2\n{script}\n")
    stand_in.chmod(0o755)
    with Pool(PoolSettings(jobs=1)) as pool, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(stand_in))
        with pool.compile(b"x", topology=V5E) as outcome:
            assert (outcome.reply, outcome.ended) == (None, ended)
            assert outcome.log == b"its words\n"


def test_no_child_can_be_started(temporary: Path) -> None:
    with Pool(PoolSettings(jobs=1)) as pool, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", "/nowhere/python")
        with (
            pytest.raises(WorkerError) as error,
            pool.compile(b"x", topology=V5E),
        ):
            pass
    assert str(error.value) == (
        "the compiler's process could not be started: "
        "[Errno 2] No such file or directory: '/nowhere/python'"
    )
    assert list(temporary.iterdir()) == []


def test_nowhere_to_write(temporary: Path) -> None:
    temporary.rmdir()
    with (
        Pool(PoolSettings(jobs=1)) as pool,
        pytest.raises(WorkerError) as error,
        pool.compile(b"x", topology=V5E),
    ):
        pass
    message = str(error.value)
    assert message.startswith(
        "the compiler's process has nowhere to write: [Errno 2] No such file or directory: "
    )
    assert message.endswith(". Set TMPDIR to a directory that is writable and has space.")


# The end.


@pytest.mark.slow
def test_nothing_is_left(
    temporary: Path,
    module: Module,
    is_running: IsRunning,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two at once, in a folder whose name libtpu would split, and not a word of libtpu's."""
    monkeypatch.setattr(children, "WORTH_A_CHILD", -1.0)
    with Pool(PoolSettings(jobs=2)) as pool:
        barrier = threading.Barrier(2)
        outcomes = []

        def work() -> None:
            with pool.compile(module("add"), topology=V5E) as outcome:
                barrier.wait(60)
                outcomes.append((outcome, len(outcome.dumps)))

        for future in [pool.submit(work) for _ in range(2)]:
            future.result()
        pids = pool.pids()
        assert len(pids) == 2
        assert all(o.reply is not None and o.reply.error is None for o, _ in outcomes)
        assert all(files > 15 for _, files in outcomes)
        assert len(list(temporary.iterdir())) == 2
    assert pool.pids() == []
    assert not any(map(is_running, pids))
    assert list(temporary.iterdir()) == []
    assert capfd.readouterr() == ("", "")
    assert any(b"TPU" in o.log for o, _ in outcomes)
    pool.close()
    with pytest.raises(WorkerError, match="was stopped"), pool.compile(b"x", topology=V5E):
        pass
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_a_second_child_is_started_only_where_it_pays(
    module: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(requests: int) -> int:
        def work() -> None:
            with pool.compile(module("add"), topology=V5E):
                pass

        with Pool(PoolSettings(jobs=2)) as pool:
            for future in [pool.submit(work) for _ in range(requests)]:
                future.result()
            return len(pool.pids())

    assert started(4) == 1
    monkeypatch.setattr(children, "WORTH_A_CHILD", 0.0)
    assert started(4) == 2


@pytest.mark.parametrize("kind", [KeyboardInterrupt, ValueError])
def test_an_exception_stops_it(
    temporary: Path,
    module: Module,
    wait_until: Wait,
    is_running: IsRunning,
    kind: type[BaseException],
) -> None:
    """A kernel that was being compiled has no result; in no case one that says it crashed."""
    problems = []

    def work() -> None:
        try:
            with pool.compile(module("add"), topology=V5E) as outcome:
                problems.append(outcome)
        except WorkerError as error:
            problems.append(str(error))

    with pytest.raises(kind), Pool(PoolSettings(jobs=1)) as pool:  # noqa: PT012
        futures = [pool.submit(work) for _ in range(3)]
        wait_until(lambda: bool(pool.pids()))
        (pid,) = pool.pids()
        os.kill(pid, signal.SIGSTOP)
        raise kind
    assert problems == ["the pool of compiler processes was stopped"] * 2  # one more than children
    assert [f.cancelled() for f in futures] == [False, False, True]
    assert not is_running(pid)
    assert list(temporary.iterdir()) == []


# Flags.


@pytest.mark.slow
def test_the_users_flags(module: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are honoured, all but a Mosaic dump directory: that is ours to set."""
    mosaic, llo = tmp_path / "mosaic", tmp_path / "llo"
    mosaic.mkdir()
    llo.mkdir()
    monkeypatch.setenv(
        "LIBTPU_INIT_ARGS",
        f"--xla_mosaic_dump_to={mosaic} --xla_jf_dump_to={llo} --xla_mosaic_dump_to {mosaic} "
        "--xla_jf_dump_llo_text=true",
    )
    with Pool(PoolSettings(jobs=1)) as pool:  # noqa: SIM117
        with pool.compile(module("add"), topology=V5E) as outcome:
            assert outcome.reply is not None
            assert outcome.reply.error is None
            assert len(outcome.dumps) > 15
    assert list(mosaic.iterdir()) == []
    assert any("final_bundles" in path.name for path in llo.iterdir())


@pytest.mark.slow
def test_flags_of_xla_are_the_programs_alone(
    module: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--no_such_flag")
    with Pool(PoolSettings(jobs=1)) as pool:
        warm(pool, module)


def warm(pool: Pool, module: Module) -> int:
    """Compile something; the only child's process id."""
    with pool.compile(module("add"), topology=V5E) as outcome:
        assert outcome.reply is not None, outcome
        assert outcome.reply.error is None
    (pid,) = pool.pids()
    return pid


def stopped_at_work(
    pool: Pool, module: Module, wait_until: Wait
) -> Callable[[], list[RequestOutcome]]:
    """Give a request to the only child, which is stopped; call for the outcomes."""
    found: list[RequestOutcome] = []

    def work() -> None:
        with pool.compile(module("add"), topology=V5E) as outcome:
            found.append(outcome)

    (pid,) = pool.pids()
    os.kill(pid, signal.SIGSTOP)
    future = pool.submit(work)
    wait_until(lambda: bool(pool.pids(at_work=True)))

    def outcomes() -> list[RequestOutcome]:
        future.result()
        return found

    return outcomes
