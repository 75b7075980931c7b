"""A module of small kernels, right and wrong, for the child runs of this room."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence

import pytest

KERNELS = """
import jax, jax.numpy as jnp, pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

X = jnp.ones((16, 128))
OUT = jax.ShapeDtypeStruct((8, 128), jnp.float32)

def call(body, *args, **kwargs):
    return pl.pallas_call(body, **{"out_shape": OUT, **kwargs})(*args)

@jax.jit
def rows(start):
    def rows(start_ref, x_ref, o_ref):
        o_ref[...] = x_ref[pl.ds(start_ref[0], 8), :]
    return call(rows, jnp.array([start]), X)

@jax.jit
def log(x):
    def log(x_ref, o_ref):
        o_ref[...] = jnp.log(x_ref[...])
    return call(log, x)

@jax.jit
def count(n):
    def count(n_ref, o_ref):
        def body(i, _):
            pl.debug_print("i = {}", i)
            return 0
        jax.lax.fori_loop(0, n_ref[0], body, 0)
        o_ref[...] = jnp.zeros_like(o_ref)
    return call(count, jnp.array([n]))

@jax.jit
def raced(x):
    def raced(x_ref, o_ref):
        o_ref[...] = x_ref[...]
    return call(
        raced, x, grid=(2,),
        in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )

@jax.jit
def generation(x):
    def generation(x_ref, o_ref):
        o_ref[...] = x_ref[...] * pltpu.get_tpu_info().generation
    return call(generation, x)

BAD = -X[:8]
GOOD = X[:8]
"""

Child = Callable[..., pytest.RunResult]

SESSIONS = """
import json, os, pathlib, sys
import pytest

here = pathlib.Path.cwd()
unchanged = dict(os.environ)
for run in json.loads((here / "sessions.json").read_text()):
    os.environ.update(run["environment"])
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        file = os.open(f"{run['name']}.{stream.name.strip('<>')}", os.O_WRONLY | os.O_CREAT)
        os.dup2(file, stream.fileno())
        os.close(file)
    code = int(pytest.main(run["arguments"]))
    (here / f"{run['name']}.code").write_text(str(code))
    os.environ.clear()
    os.environ.update(unchanged)
    for name, module in list(sys.modules.items()):
        if here in pathlib.Path(getattr(module, "__file__", None) or "/").parents:
            del sys.modules[name]  # its kernels are made anew, and its tests rewritten
"""

Sessions = Callable[..., list[pytest.RunResult]]


@pytest.fixture
def sessions(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Sessions:
    """Runs pytest several times in one child process, whose start with jax is most of the time.

    Each run is a pair: its arguments, and what its environment has beside ours. For what each run
    decides anew, such as how it reads an option. What a process must be fresh for has a `child`.
    """
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")

    def run(*wanted: tuple[Sequence[str], Mapping[str, str]]) -> list[pytest.RunResult]:
        runs = [
            {
                "name": f"session-{n}",
                "arguments": [f"--basetemp={pytester.path / f'session-{n}'}", *arguments],
                "environment": environment,
            }
            for n, (arguments, environment) in enumerate(wanted)
        ]
        (pytester.path / "sessions.json").write_text(json.dumps(runs))
        done = pytester.run(sys.executable, "-c", SESSIONS, timeout=240)
        assert done.ret == 0, done.stderr.str()
        results = []
        for n, session in enumerate(wanted):
            code, out, err = (
                (pytester.path / f"session-{n}.{kind}").read_text()
                for kind in ("code", "stdout", "stderr")
            )
            sys.stdout.write(f"{session}\n{out}\n{err}\n")  # shown where the test fails
            results.append(pytest.RunResult(int(code), out.splitlines(), err.splitlines(), 0.0))
        return results

    return run


ChildFiles = Callable[[str], None]


@pytest.fixture
def child_files(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> ChildFiles:
    """Writes `kernels.py`, and a test file of this text."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(kernels=KERNELS)

    def write(tests: str) -> None:
        path = pytester.makepyfile(test_it=tests)
        path.write_text("from kernels import *\n" + path.read_text())

    return write


@pytest.fixture
def child(pytester: pytest.Pytester, child_files: ChildFiles) -> Child:
    """Runs pytest in a child process on `kernels.py` and a test file of this text."""

    def run(tests: str, *arguments: str) -> pytest.RunResult:
        child_files(tests)
        return pytester.runpytest_subprocess(*arguments, timeout=240)

    return run
