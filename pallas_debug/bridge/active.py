"""State of a context: objects that are active in all threads, values of one thread, and our own
contexts in jax's cache keys.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import jax

T = TypeVar("T")


class ActiveStack(Generic[T]):
    """Active objects, outermost first. Iteration goes over a snapshot."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._all: tuple[T, ...] = ()

    def __iter__(self) -> Iterator[T]:
        return iter(self._all)

    def __bool__(self) -> bool:
        return bool(self._all)

    @property
    def innermost(self) -> T | None:
        found = self._all  # another thread may remove the last one
        return found[-1] if found else None

    def add(self, one: T) -> None:
        with self._lock:
            self._all = (*self._all, one)

    def remove(self, one: T) -> None:
        with self._lock:
            self._all = tuple(other for other in self._all if other is not one)

    @contextlib.contextmanager
    def adding(self, one: T) -> Iterator[None]:
        self.add(one)
        try:
            yield
        finally:
            self.remove(one)


class ThreadValue(threading.local, Generic[T]):
    """A value of each thread, which may be set in a context."""

    def __init__(self, value: T) -> None:
        self.value = value

    @contextlib.contextmanager
    def setting(self, value: T) -> Iterator[None]:
        before, self.value = self.value, value
        try:
            yield
        finally:
            self.value = before


_contexts: list[Any] = []


def user_context() -> Any:
    """Create a context in jax's cache keys: functions jitted in one are not reused in another.

    Its value is None unless it is set, in one thread or in all threads.
    """
    made = jax.make_user_context(None)
    _contexts.append(made)
    return made


@contextlib.contextmanager
def without_user_contexts() -> Iterator[None]:
    """Reset all of them in this thread, for programs that do not depend on any."""
    with contextlib.ExitStack() as stack:
        for context in _contexts:
            stack.enter_context(context(None))
        yield
