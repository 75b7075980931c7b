"""Evidence table: reports of each engine for each broken kernel and its repaired twin.

A row is computed when a test first needs it, at most once per test run: the workers of pytest-xdist
share the rows as files. Nothing persists between runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:  # most folders of tests need no jax
    import numpy as np
    from broken_kernels import BrokenKernel, JaxEngine

    from pallas_debug.model import Failure, Finding, Gap

T = TypeVar("T")

TARGETS = ("v5e", "v4", "v5p", "v6e", "tpu7x")
HANG_AFTER = 1.0
"""Seconds before the interpreter looks for a deadlock."""


@dataclass(frozen=True, kw_only=True)
class Ran:
    """Outcome of a kernel in an interpreter.

    Attributes:
      error: message of what was raised.
      printed: what was written to standard output.
      gaps: parts of the kernel that the checks could not judge.
    """

    value: np.ndarray | None = None
    error: str | None = None
    printed: str = ""
    findings: tuple[Finding, ...] = ()
    gaps: tuple[Gap, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """Outcome of a compilation: why jax refuses to trace it, or the failures by target."""

    error: str | None = None
    failures: dict[str, Failure | None] = field(default_factory=dict)


class Evidence:
    """Rows by kernel, twin and engine, kept in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows: dict[str, Any] = {}

    def native(self, kernel: BrokenKernel, engine: JaxEngine, *, repaired: bool = False) -> Ran:
        """jax's own interpreter."""
        return self._row("native", kernel, repaired, engine, lambda: run(kernel, repaired, engine))

    def compiled(self, kernel: BrokenKernel, *, repaired: bool = False) -> Compiled:
        """Compilations for each of `kernel.targets`."""
        return self._row(
            "compiled",
            kernel,
            repaired,
            "",
            lambda: compile_(kernel, repaired),
        )

    def _row(
        self, table: str, kernel: BrokenKernel, repaired: bool, engine: str, make: Callable[[], T]
    ) -> T:
        name = f"{table}-{kernel.name}{'-repaired' * repaired}-{engine}"
        if name not in self._rows:
            with _locked(self._folder / f"{name}.lock"):
                path = self._folder / f"{name}.pickle"
                if not path.exists():
                    path.write_bytes(pickle.dumps(make()))
                self._rows[name] = pickle.loads(path.read_bytes())
        row: T = self._rows[name]
        return row


@pytest.fixture(scope="session")
def evidence(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Evidence:
    """The evidence table of this test run."""
    folder = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        folder = folder.parent
    (folder / "evidence").mkdir(exist_ok=True)
    return Evidence(folder / "evidence")


def run(kernel: BrokenKernel, repaired: bool, engine: JaxEngine) -> Ran:
    from jax.experimental.pallas import tpu as pltpu

    try:
        with pltpu.force_tpu_interpret_mode(_mode(engine)):
            return _ran(kernel, repaired)
    finally:
        pltpu.reset_tpu_interpret_mode_state()


def compile_(kernel: BrokenKernel, repaired: bool) -> Compiled:
    import jax

    from pallas_debug.bridge.lowering import trace
    from pallas_debug.session import Options, Session

    targets = tuple(name for name in TARGETS if name in kernel.targets)
    function = kernel.repaired if repaired else kernel.function
    # A session for each kernel: all of them share the compiler of this process, and one that stayed
    # open would capture and compile the kernels of every later test.
    with Session(Options(dumps=None, targets=targets, interpret="off", jobs=1)) as session:
        with jax.enable_x64(kernel.x64), session.collecting() as captures:
            try:
                trace.lower_for_kernels(function, kernel.args, {}, session.targets[0])
            except (TypeError, ValueError) as error:
                return Compiled(error=str(error))
        session.request(captures, session.targets)
    assert session.problems == []
    (captured,) = captures
    (dump,) = (d for d in session.dumps if d.kernel.digest == captured.kernel.digest)
    return Compiled(failures={c.target: c.failure for c in dump.compilations})


def _ran(kernel: BrokenKernel, repaired: bool) -> Ran:
    import jax
    import numpy as np
    from jax._src import dispatch

    function = kernel.repaired if repaired else kernel.function
    value = error = None
    with _quick_to_compile(), jax.enable_x64(kernel.x64), _printed() as printed:
        try:
            value = np.asarray(jax.jit(function)(*kernel.make_args()))
        except Exception as raised:  # noqa: BLE001 - tests look at it
            error = str(raised)
            # jax would raise what the other devices raised in the next call.
            dispatch.runtime_tokens.clear()
        return Ran(value=value, error=error, printed=printed())


def _mode(engine: JaxEngine) -> Any:
    from jax.experimental.pallas import tpu as pltpu

    modes = {
        "hlo": lambda: True,
        "tpu": pltpu.InterpretParams,
        "tpu_races": lambda: pltpu.InterpretParams(
            detect_races=True,
            num_cores_or_threads=2,
            # jax draws each copy's clock at random from those that the cores leave over; with the
            # usual two of them every second race between two copies goes unseen.
            vector_clock_size=1024,
        ),
    }
    return modes[engine]()


@contextlib.contextmanager
def _quick_to_compile() -> Iterator[None]:
    """Without XLA's optimisations: on such small arrays they take longer than the run."""
    import jax

    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


@contextlib.contextmanager
def _printed() -> Iterator[Callable[[], str]]:
    """Standard output of this process, at the level of Python and of the file descriptor."""
    with tempfile.TemporaryFile("w+") as file, contextlib.redirect_stdout(file):
        saved = os.dup(1)
        os.dup2(file.fileno(), 1)

        def read() -> str:
            file.flush()
            file.seek(0)
            return file.read()

        try:
            yield read
        finally:
            os.dup2(saved, 1)
            os.close(saved)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
