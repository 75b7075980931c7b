"""Shared compilation for the threads of a kernel in TPU interpret mode.

With several cores, jax's `thread_map` lowers and compiles the kernel's body once per thread and
launch, all at the same time, which takes half the time of race detection. Here, all threads of a
launch and of later launches share one executable.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import jax
from jax._src import core

_lock = threading.Lock()
_compiled: weakref.WeakKeyDictionary[Any, dict[Any, _Executable]] = weakref.WeakKeyDictionary()


class _Executable:
    """A jaxpr that the first thread compiles while the others wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._call: Any = None

    def get(self, jaxpr: Any, consts: Any, args: Any) -> Any:
        with self._lock:
            if self._call is None:
                run = jax.jit(lambda consts, *args: _evaluate(jaxpr, consts, args))
                self._call = run.lower(consts, *args).compile()
            return self._call


def _evaluate(jaxpr: Any, consts: Any, args: Any) -> None:
    core.eval_jaxpr(jaxpr, consts, *args)


def sharing(by_jax: Callable[..., None]) -> Callable[..., None]:
    """Replacement for `thread_map._run_jaxpr`."""
    return functools.wraps(by_jax)(lambda *args: run_jaxpr(*args))


def run_jaxpr(jaxpr: Any, consts: Any, *args: Any) -> None:
    """Run a thread with the shared executable."""
    key = tuple((x.shape, x.dtype) for x in jax.tree.leaves((consts, args)))
    with _lock:
        executable = _compiled.setdefault(jaxpr, {}).setdefault(key, _Executable())
    executable.get(jaxpr, consts, args)(consts, *args)


def forget() -> None:
    """Free the executables."""
    with _lock:
        _compiled.clear()
