"""-o pallas_stop_after does not end XLA's compilation, and says so."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import pytest
from pallas_debug_pytest.compile_time import CompileTime

from pallas_debug.session import compile_time


@jax.jit
def unrolled(x: Any) -> Any:
    for i in range(60):
        x = jnp.sin(x) * jnp.cos(x) + jnp.tanh(x[::-1] * (1.0 + i)) @ x
    return x


def lines(limit: float, work: Any) -> tuple[list[str], str]:
    """The notices of the summary, and what is written to standard error meanwhile."""
    noted: list[str] = []
    read, write = os.pipe()
    plugin = CompileTime(limit, noted.append)
    os.dup2(write, plugin._stderr)
    item = cast(pytest.Item, SimpleNamespace(nodeid="test_x.py::test_bomb"))
    running = plugin.pytest_runtest_protocol(item)
    next(running)
    work()
    with pytest.raises(StopIteration):
        running.send(None)
    plugin.pytest_unconfigure()
    os.close(write)
    with os.fdopen(read) as file:
        return noted, file.read()


def test_a_compilation_longer_than_the_limit() -> None:
    x = jax.ShapeDtypeStruct((64, 64), "float32")
    lowered = unrolled.lower(x)
    (noted,), written = lines(0.05, lowered.compile)
    assert noted.startswith("test_x.py::test_bomb: XLA compiled for ")
    assert noted.endswith(
        " s. pallas_stop_after=0.05 stops kernels that run, not the compiler: call the kernel "
        "with smaller arguments, or replace loops that Python unrolls by a `fori_loop`"
    )
    assert written.count("pallas-debug: test_x.py::test_bomb: after ") == 1
    assert written.endswith(
        "XLA is compiling. pallas_stop_after=0.05 stops kernels that run, not the compiler\n"
    )


def test_a_test_that_compiles_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_time, "SHORTEST", 0.001)
    assert lines(0.001, lambda: time.sleep(0.05)) == ([], "")
    assert lines(60.0, lambda: jax.jit(lambda x: x + 2)(1)) == ([], "")
