"""Compilation without the flags that the compiler does not survive.

Where no real libtpu dies, a script in the place of Python does, if it is given the flag.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from pallas_debug import defaults
from pallas_debug.compiler import attempts
from pallas_debug.compiler.attempts import Attempt
from pallas_debug.compiler.pool import Pool, PoolSettings
from pallas_debug.compiler.stages import (
    ESTIMATE_TO,
    LLO_DUMP_TO,
    SPARSE_BUNDLES_TO,
    child_flags,
    parse,
)
from pallas_debug.model import Compilation
from pallas_debug.store import layout

V5E = "v5e:2x2"
OK = Compilation(kernel="add", target="v5e", status="ok", key="0")
FAILED = Compilation(kernel="add", target="v5e", status="failed", key="0")

Module = Callable[[str], bytes]
StandIn = Callable[[str], None]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Replaces Python, for workers, by a script that may continue as Python."""

    def install(script: str) -> None:
        path = tmp_path / "python"
        path.write_text(f'#!/bin/sh\n{script}\nexec {sys.executable} "$@"\n')
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))

    return install


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool(PoolSettings(jobs=1)) as made:
        yield made


def given(flag: str, then: str) -> str:
    return f'case "$*" in *{flag}=*) {then};; esac'


def attempt_at(pool: Pool, module: bytes, stages: str = "estimate") -> tuple[Attempt, set[str]]:
    with attempts.compiled(
        pool, parse(stages), module, topology=V5E, num_devices=1, options={}
    ) as attempt:
        return attempt, set(attempt.files(parse(stages)))


@pytest.mark.slow
def test_a_flag_that_libtpu_does_not_know(
    pool: Pool, module: Module, stand_in: StandIn, tmp_path: Path
) -> None:
    """It says so when it is loaded. The flag is not tried again."""
    started = tmp_path / "started"
    unknown = f"ERROR: Unknown command line flag '{SPARSE_BUNDLES_TO}'"
    refuse = f'sleep 0.3; echo "{unknown}" >&2; exit 1'  # as long as loading libtpu takes
    stand_in(f"echo >>{started}\n" + given(SPARSE_BUNDLES_TO, refuse))
    for _ in range(2):
        attempt, files = attempt_at(pool, module("add"), "bundles")
        assert attempt.outcome.reply is not None
        assert attempt.outcome.reply.error is None
        assert files == set(layout.EXPECTED_FILES)
        (left_out,) = attempt.left_out
        assert (left_out.flags, left_out.cause) == ((SPARSE_BUNDLES_TO,), "refused")
        assert left_out.message == unknown
        assert attempt.missing(parse("bundles"), files, OK) == ()
    assert len(started.read_text().splitlines()) == 2  # with it, and once without


NO_MODEL = "Static LLO profiling of copy.1 failed: no latency model"
"""libtpu's last words on v4, where it dies at the copies that XLA puts before the kernel."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "stages, flag, then, files, cause, message",
    [
        ("estimate", ESTIMATE_TO, "sleep 60", [layout.ESTIMATE], "timeout",
         "the estimate, for which libtpu simulates the whole grid, was not finished after 0.2 s"),
        ("bundles,estimate", ESTIMATE_TO,
         f"echo 'F0101 00:00:00.0 7 a.cc:1] {NO_MODEL}' >&2; kill -ABRT $$", [layout.ESTIMATE],
         "aborted", NO_MODEL),
        ("bundles", LLO_DUMP_TO, "kill -SEGV $$", layout.EXPECTED_FILES, "aborted", None),
    ],
    ids=["too slow", "another operation", "the dump as a whole"],
)  # fmt: skip
def test_what_a_flag_writes_is_missing_where_the_compiler_ends_because_of_it(
    pool: Pool, module: Module, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch,
    stages: str, flag: str, then: str, files: Collection[str], cause: str, message: str | None,
) -> None:  # fmt: skip
    monkeypatch.setattr(defaults, "ESTIMATE_TIMEOUT", 0.2)
    stand_in(given(flag, then))
    attempt, written = attempt_at(pool, module("add"), stages)
    assert attempt.outcome.reply is not None
    assert attempt.outcome.dumps
    assert written == set(layout.EXPECTED_FILES) - set(files)
    missing = attempt.missing(parse(stages), written, OK)
    assert {m.file for m in missing} == set(files)
    assert {(m.cause, m.flag) for m in missing} == {(cause, f"--{flag}")}
    assert message is None or [m.message for m in missing] == [message]


def test_a_kernel_that_the_compiler_never_survives(pool: Pool, stand_in: StandIn) -> None:
    """It is tried without any of the flags before the kernel is blamed."""
    stand_in("echo 'F0101 00:00:00.0 7 a.cc:1] Check failed: x' >&2; kill -ABRT $$")
    attempt, files = attempt_at(pool, b"x", "estimate,llo:post-ra")
    assert attempt.outcome.ended == "SIGABRT"
    assert not files
    (left_out,) = attempt.left_out
    assert set(left_out.flags) == set(child_flags(parse("estimate,llo:post-ra")).names)
    assert (left_out.cause, left_out.message) == ("aborted", "Check failed: x")
    assert attempt.missing(parse("estimate,llo:post-ra"), files, FAILED) == ()


@pytest.mark.parametrize("ended", ["KILL", "TERM"])
def test_a_process_that_was_stopped_from_outside(pool: Pool, stand_in: StandIn, ended: str) -> None:
    """Nothing is known about its flags, so nothing is left out."""
    stand_in(f"kill -{ended} $$")
    attempt, _ = attempt_at(pool, b"x")
    assert attempt.outcome.ended == f"SIG{ended}"
    assert attempt.left_out == ()


def test_a_message_about_a_flag(pool: Pool) -> None:
    """A kernel that does not compile is not compiled again, unless the message names a flag."""
    attempt, _ = attempt_at(pool, b"no module", "bundles")
    assert attempt.outcome.reply is not None
    assert attempt.outcome.reply.error
    assert attempt.left_out == ()
