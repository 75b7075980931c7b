"""Kernels decoded for the machine, with the arrays of their calls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pallas_debug
from pallas_debug.bridge.lowering import hook
from pallas_debug.bridge.programs.launch import Launch, launch
from pallas_debug.machine import run
from pallas_debug.machine.shadow.memory import MemorySanitizer
from pallas_debug.model import Finding
from pallas_debug.session import Options, Session

Arrays = list[list[np.ndarray]]

UNITS = 2
"""Units in the last place of the largest entry by which floats of two runs may differ."""


def decoded(function: Callable[..., Any], args: Sequence[Any]) -> Launch:
    """The only kernel that a function calls."""
    session = Session(Options(chip="v5e", interpret="off"))
    with session, session.collecting() as captures, hook.stubbed():
        jax.jit(function).lower(*args)
    (captured,) = captures
    return launch(captured)


def ran(function: Callable[..., Any], *args: Any) -> Any:
    """Results of a function whose kernels run in mode `machine`."""
    with pallas_debug.interpret("machine"):
        return jax.block_until_ready(function(*args))


def arrays_of(call: Launch, args: Sequence[Any]) -> Arrays:
    """What each device is given: its share of the rows."""
    devices = int(np.prod(list(call.mesh.values()), dtype=int))
    return [[np.split(np.asarray(x), devices)[i] for x in args] for i in range(devices)]


def calls_of(function: Callable[..., Any], args: Sequence[Any]) -> list[tuple[Launch, Arrays]]:
    """All kernels that a function calls on one device, with what it first passes to them."""
    session = Session(Options(interpret="machine", targets=(), chip="v5e", keeps_call=1))
    with session, contextlib.suppress(RuntimeError):  # if it is stopped
        jax.block_until_ready(jax.jit(function)(*args))
    assert session.calls is not None
    kept = session.calls.arrays
    found = [
        (launch(captured), kept[captured.kernel.digest][0])
        for captured in session.captures
        if captured.kernel.digest in kept
    ]
    assert found
    return found


def passed(function: Callable[..., Any], args: Sequence[Any]) -> tuple[Launch, Arrays]:
    """The only kernel that a function calls, on one device, with what it passes to it."""
    call = decoded(function, args)
    given = [operand for operand in call.operands if operand.kind in ("prefetch", "input")]
    if [operand.array for operand in given] == [np.shape(x) for x in args]:
        return call, arrays_of(call, args)
    ((call, arrays),) = calls_of(function, args)
    return call, arrays


def sanitized(call: Launch, arrays: Arrays) -> tuple[tuple[Finding, ...], MemorySanitizer]:
    """What the sanitizer of memory finds in a run, and the sanitizer."""
    sanitizer = MemorySanitizer(call, arrays)
    return run.run(call, arrays, observers=[sanitizer]).findings, sanitizer


def found(function: Callable[..., Any], *args: Any) -> tuple[Finding, ...]:
    """What the sanitizer of memory finds in the only kernel that a function calls."""
    return sanitized(*passed(function, args))[0]


def require_close(got: Any, want: Any, units: float = UNITS) -> None:
    """Fail unless arrays are equal, floats up to units in the last place of the largest entry."""
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if not jnp.issubdtype(b.dtype, jnp.floating):
            np.testing.assert_array_equal(a, b)
            continue
        x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
        largest = np.max(np.abs(y), initial=0, where=np.isfinite(y))
        unit = float(jnp.finfo(b.dtype).eps) * 2.0 ** np.floor(np.log2(largest or 1))
        np.testing.assert_allclose(x, y, rtol=0, atol=units * unit)
