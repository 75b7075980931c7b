"""Exceptions injected at every boundary: the program keeps its result, a verdict shows `?`.

The faults are rows of one table: what is patched, and the text of the resulting problem. Each row
raises one of several exceptions.
"""

from __future__ import annotations

import errno
import importlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pallas_debug_kernels import vector_add

import pallas_debug
from pallas_debug import guards
from pallas_debug._api import debug as api
from pallas_debug.errors import CannotRunError, InternalError, PallasDebugError
from pallas_debug.session import Options, Session
from pallas_debug.verdict import Verdict

X = np.arange(1024, dtype=np.float32)
VECTOR = jax.ShapeDtypeStruct((1024,), jnp.float32)

EXCEPTIONS: tuple[Exception, ...] = (
    RuntimeError("a bug"),
    OSError(errno.ENOSPC, "No space left on device"),
    MemoryError("too large"),
    RecursionError("too deep"),
    AssertionError("never"),
    OSError(errno.EIO, "Input/output error"),
    KeyError("gone"),
)


@dataclass(frozen=True)
class Fault:
    """One place at which something of ours raises.

    Attributes:
      owner, name: what is patched; an attribute of a class after a colon.
      doing: what the problem says was being done.
      is_kept: whether the kernel's folder is written all the same.
    """

    owner: str
    name: str
    doing: str
    is_kept: bool = True

    def __str__(self) -> str:
        return f"{self.owner.rpartition('.')[2]}-{self.name}"


CAPTURE = Fault(
    "pallas_debug.bridge.capture.capture", "capture", "capturing kernel `vector_add`", is_kept=False
)
FAULTS = (
    CAPTURE,
    Fault(
        "pallas_debug.bridge.capture.capture", "_text", "printing the jaxpr of kernel `vector_add`"
    ),
    Fault("pallas_debug.bridge.capture.capture", "_source", "finding the first line of kernel"),
    Fault("pallas_debug.bridge.capture.capture", "_file_text", "reading the source of kernel"),
    Fault("pallas_debug.bridge.jaxprs.lines", "calling", "finding the callers of kernel"),
    Fault("pallas_debug.bridge.unparse", "program_of", "writing kernel `vector_add` as a program"),
    Fault("pallas_debug.session.queue", "block_map", "mapping the blocks of kernel"),
    Fault("pallas_debug.store.writer:Store", "put_kernel", "writing kernel", is_kept=False),
    Fault(
        "pallas_debug.bridge.interpret.interpret",
        "lowering",
        "adapting a kernel to its interpret mode",
    ),
    Fault(
        "pallas_debug.bridge.lowering.hook", "_without_outer_line", "keeping the lines of a kernel"
    ),
    Fault("pallas_debug.session.session:Session", "_keep", "keeping kernel", is_kept=False),
    Fault("pallas_debug.session.session:Session", "ran", "recording which kernels ran"),
    Fault("pallas_debug.compiler.pool:Pool", "close", "stopping the compiler processes"),
    Fault("pallas_debug.session.session:Session", "wait", "waiting for compilations"),
    Fault("pallas_debug._api.debug", "_report", "printing what was dumped"),
)


class Injected:
    """Patches one place; counts how often it was reached."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.reached: set[str] = set()

    def __call__(self, fault: Fault, error: Exception) -> None:
        module, _, attribute = fault.owner.partition(":")
        owner: Any = importlib.import_module(module)
        owner = getattr(owner, attribute) if attribute else owner

        def fail(*_: Any, **__: Any) -> Any:
            self.reached.add(fault.name)
            raise error

        self._monkeypatch.setattr(owner, fault.name, fail)


@pytest.fixture
def inject(monkeypatch: pytest.MonkeyPatch) -> Injected:
    monkeypatch.setattr(api, "_printed", set())
    return Injected(monkeypatch)


def words(error: Exception, doing: str) -> list[str]:
    """What a problem has to say of an exception."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return [doing, "the disk is full", "Free some space and run it again.", "at fault."]
    if isinstance(error, MemoryError):
        return [doing, "the machine is out of memory (too large)", "Free some memory and run it"]
    place = "(please report it: " + type(error).__name__ + " at "
    return [
        f"internal error in pallas-debug while {doing}",
        place,
        f": {error})",
        "Your program is not at fault.",
    ]


@pytest.mark.parametrize(
    "fault, error", [*zip(FAULTS, itertools.cycle(EXCEPTIONS), strict=False)], ids=str
)
def test_a_decorated_function_keeps_its_result(
    fault: Fault,
    error: Exception,
    inject: Injected,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    inject(fault, error)
    decorated = pallas_debug.debug(targets="", to=tmp_path)(vector_add)
    np.testing.assert_array_equal(decorated(X, X), 2 * X)
    assert inject.reached
    output = capfd.readouterr().err
    for sentence in words(error, fault.doing):
        assert sentence in output
    assert "Traceback" not in output
    assert "plugin's authors" not in output
    assert bool(list(tmp_path.glob("vector_add-*/kernel.json"))) is fault.is_kept


def test_a_function_runs_without_a_session_that_cannot_be_started(
    inject: Injected, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fault = Fault("pallas_debug.bridge.patches", "_install", "starting a session")
    inject(fault, RuntimeError("a bug"))
    decorated = pallas_debug.debug(targets="", interpret="hlo", to=tmp_path)(lambda x: x + 1)
    np.testing.assert_array_equal(decorated(X), X + 1)
    assert inject.reached
    assert "internal error in pallas-debug while starting a session" in capfd.readouterr().err


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_what_stops_the_program_passes(
    stop: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pallas_debug.bridge.capture import capture

    def interrupt(*_: Any) -> Any:
        raise stop

    monkeypatch.setattr(capture, "capture", interrupt)
    with pytest.raises(stop), Session(Options(interpret="hlo")):
        jax.jit(vector_add).lower(VECTOR, VECTOR)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        CAPTURE,
        Fault("pallas_debug.session.session:Session", "_keep", "keeping kernel `vector_add`"),
        Fault("pallas_debug.compiler.job:Jobs", "key", "compiling kernel `vector_add` for v5e"),
        Fault("pallas_debug.store.writer:Store", "claim", "compiling kernel `vector_add` for v5e"),
    ],
    ids=str,
)
def test_a_dump_that_lacks_a_compilation_raises(
    fault: Fault, inject: Injected, tmp_path: Path
) -> None:
    inject(fault, RuntimeError("a bug"))
    with pytest.raises(InternalError) as raised:
        pallas_debug.dump(vector_add, VECTOR, VECTOR, to=tmp_path)
    assert f"internal error in pallas-debug while {fault.doing}" in str(raised.value)
    assert raised.value.place is not None
    assert raised.value.place.startswith("pallas_debug/")
    assert raised.value.boundary in ("capture", "lower", "store")


# Verdicts.

JUDGED = {
    "static": Fault("pallas_debug.verdict.engines", "analyze", "asking `static` about"),
    "machine": Fault(
        "pallas_debug.verdict.interpreted", "sanitized", "asking `machine` about `vector_add`"
    ),
    "compile": Fault(
        "pallas_debug.compiler.job:Jobs", "key", "compiling kernel `vector_add` for v5e"
    ),
    "values": Fault(
        "pallas_debug.verdict.compared", "values", "asking `values` about `vector_add`"
    ),
}


def statuses(verdict: Verdict) -> dict[str, str]:
    return {o.column: o.status for o in verdict.outcomes if o.kernel}


@pytest.mark.parametrize("engine", JUDGED)
def test_an_engine_that_raises_leaves_a_cell_that_says_so(engine: str, inject: Injected) -> None:
    fault, error = JUDGED[engine], EXCEPTIONS[engine == "compile"]
    inject(fault, error)
    asked = f"static,{engine}"
    reference = {"reference": jnp.add} if engine == "values" else {}
    verdict = pallas_debug.verify(vector_add, X, X, targets="v5e", engines=asked, **reference)
    assert inject.reached
    column = "v5e" if engine == "compile" else engine
    others = {} if engine == "static" else {"static": "ok"}
    assert statuses(verdict) == {**others, column: "unjudged"}
    (outcome,) = verdict.unjudged
    for sentence in words(error, fault.doing):
        assert sentence.rstrip(".") in (outcome.reason or "")
    assert not verdict.ok
    last = str(verdict).splitlines()[-1]
    assert last.startswith(f"vector_add: 1 of {len(others) + 1} judgement")
    assert f"not made ({column}: " in last
    end = "nothing is known about its kernels" if not others else "by the rest"
    assert last.endswith(end if reference else f"{end}; values not judged (no reference)")
    with pytest.raises(pallas_debug.errors.VerificationFailed, match="not made"):
        verdict.throw()


# pytest, in child runs.

TESTS = """
import numpy as np
from pallas_debug_kernels import vector_add
X = np.arange(1024, dtype=np.float32)

def test_sum():
    np.testing.assert_array_equal(vector_add(X, X), 2 * X)

def test_no_kernel():
    pass
"""

FAILING = """
def fail(*args, **kwargs):
    raise RuntimeError("a bug")

def pytest_configure(config):
    {patch}
"""

CANNOT_START = """
from pallas_debug.session import Session

def fail(*args):
    raise RuntimeError("a bug")

Session.__enter__ = fail
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "patch, options, missing",
    [
        (
            "from pallas_debug_pytest import watcher, listener\n"
            "    watcher.Watcher._add_to = watcher.Watcher._record = fail\n"
            "    listener.Listener._findings = listener.Listener._kernels = fail",
            ["--pallas-interpret=hlo"],
            0,
        ),
        (
            "from pallas_debug.bridge.capture import capture\n    capture.capture = fail",
            ["--pallas-check", "-n", "2"],
            1,
        ),
        (
            "from pallas_debug.compiler import job\n    job.Jobs.key = fail",
            ["--pallas-dump", "--pallas-target=v5e,v6e"],
            2,
        ),
    ],
    ids=["report", "check", "dump"],
)
def test_a_run_of_pytest(
    run_pytest: Callable[..., pytest.RunResult],
    pytester: pytest.Pytester,
    patch: str,
    options: list[str],
    missing: int,
) -> None:
    pytester.makepyfile(test_it=TESTS)
    pytester.makeconftest(FAILING.format(patch=patch))
    result = run_pytest(*options)
    result.assert_outcomes(passed=2)
    result.stdout.no_fnmatch_line("*INTERNALERROR*")
    text = result.stdout.str()
    assert "internal error in pallas-debug while" in text
    assert text.count("\nNOT JUDGED: vec") == missing
    if not missing:
        assert result.ret == pytest.ExitCode.OK
        assert text.count("problem: internal error in pallas-debug while") >= 4
        return
    assert result.ret == 3
    noun = "requested judgement was" if missing == 1 else "requested judgements were"
    assert f"{missing} {noun} not made: the absence of findings there proves nothing" in text


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["here", "xdist"])
def test_a_run_that_cannot_start_says_that_its_tests_ran_without_it(
    run_pytest: Callable[..., pytest.RunResult],
    pytester: pytest.Pytester,
    options: tuple[str, ...],
) -> None:
    pytester.makepyfile(
        test_it="import jax, pytest\n\n"
        "@pytest.mark.skipif(jax.default_backend() != 'tpu', reason='no TPU')\n"
        "def test_chip():\n    pass\n"
    )
    pytester.makepyfile(broken=CANNOT_START)
    result = run_pytest(
        "-p", "broken", "--pallas-interpret", "--override-ini=pallas_pretend=v6e", *options
    )
    result.assert_outcomes(skipped=1)
    assert result.ret == 3
    message = "internal error in pallas-debug while opening the session of the run"
    result.stdout.fnmatch_lines(
        [
            f"NOT JUDGED: the whole run: {message} (please report it: RuntimeError at *",
        ]
    )
    result.stdout.no_fnmatch_line("problem: *")
    if not options:  # xdist's controller prints its header before a worker starts
        result.stdout.no_fnmatch_line("*answer as v6e*")
        result.stdout.fnmatch_lines(["pallas-debug *: not started, *; the tests run without it"])


# The guard itself.


def test_what_a_guard_makes_of_an_exception() -> None:
    known = CannotRunError("no libtpu")
    assert guards.problem_of(known, "lower", "compiling") is known
    bug = guards.problem_of(RuntimeError(), "store", "writing")
    assert isinstance(bug, InternalError)
    assert (bug.boundary, bug.place) == ("store", None)
    assert str(bug) == (
        "internal error in pallas-debug while writing (please report it: RuntimeError: "
        "no message). Your program is not at fault."
    )
    exhausted = guards.problem_of(OSError(errno.EMFILE, "Too many"), "store", "writing")
    assert not isinstance(exhausted, InternalError)
    assert str(exhausted) == (
        "writing failed: this process has too many open files ([Errno 24] Too many). Raise the "
        "limit (ulimit -n) and run it again. Neither your program nor its kernels are at fault."
    )


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("again")


def test_a_guard_survives_a_broken_exception_and_a_broken_report(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def refuse(problem: PallasDebugError) -> None:
        raise MemoryError

    with guards.guarded("report", "telling", refuse):
        raise Unspeakable
    output = capfd.readouterr().err
    assert "while telling" in output
    assert "its message cannot be read: RuntimeError" in output
