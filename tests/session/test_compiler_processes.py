"""Compiler processes that sessions share, started before there is a kernel."""

from __future__ import annotations

import atexit
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from pallas_debug_kernels import vector_add

import pallas_debug
from pallas_debug.compiler import pool
from pallas_debug.compiler.children import Children

VECTOR = jax.ShapeDtypeStruct((1024,), jnp.float32)


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Iterator[Children]:
    """What sessions share in this test alone."""
    own: Children = Children(keeps_idle=True)
    monkeypatch.setattr(pool, "_shared", lambda: own)
    yield own
    own.close()
    atexit.unregister(own.close)


@pytest.mark.slow
def test_calls_in_a_row_load_libtpu_once(children: Children, tmp_path: Path) -> None:
    seen = []
    for size in (1024, 2048):
        x = jax.ShapeDtypeStruct((size,), jnp.float32)
        (dumped,) = pallas_debug.dump(vector_add, x, x, targets="v5e", to=tmp_path, jobs=1)
        assert dumped.ok
        seen.append(children.pids())
    how = {"targets": "v6e", "engines": "compile", "to": tmp_path}  # with the same stages
    verdict = pallas_debug.verify(vector_add, VECTOR, VECTOR, **how)
    assert verdict.ok
    decorated = pallas_debug.debug(vector_add, to=tmp_path, targets="v5p", jobs=1, quiet=True)
    decorated(jnp.ones(1024), jnp.ones(1024))
    seen.append(children.pids())
    assert len(seen[0]) == 1
    assert seen == [seen[0]] * 3


@pytest.mark.slow
def test_a_compiler_starts_while_a_function_is_traced(children: Children, tmp_path: Path) -> None:
    """Except where the dump directory may have all of its kernels."""

    def waits(x: jax.Array) -> jax.Array:
        end = time.monotonic() + (60 if is_expected else 0.5)
        while not children.pids() and time.monotonic() < end:
            time.sleep(0.01)
        started.append(bool(children.pids()))
        return vector_add(x, x)

    started: list[bool] = []
    is_expected = True
    pallas_debug.dump(waits, VECTOR, targets="v5e", to=tmp_path)
    pallas_debug.verify(waits, VECTOR, targets="v5e", engines="compile")
    assert all(started)
    children.close()
    started.clear()
    is_expected = False
    (dumped,) = pallas_debug.dump(waits, VECTOR, targets="v5e", to=tmp_path)
    assert dumped.compilation("v5e").cached
    pallas_debug.verify(waits, VECTOR, targets="v5e", engines="static")
    assert not any(started)
    assert children.pids() == []
