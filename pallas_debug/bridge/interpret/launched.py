"""Evidence that a kernel ran to its end: lowering one says nothing about whether it ever runs.

A kernel in a branch that is not taken is lowered with its program. The hook notes which kernel a
thread lowers; the last callbacks that the checks and TPU interpret mode leave in the program then
report that kernel when they are called.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

Tokens = tuple[str, ...]
"""Digests of kernels, outermost first: an interpreter may lower one kernel as several others."""

_lock = threading.Lock()
_local = threading.local()
_listeners: tuple[Callable[[str], None], ...] = ()


@contextlib.contextmanager
def lowering(token: object | None) -> Iterator[None]:
    """In this thread, the kernel of this token is being lowered; None changes nothing."""
    before = current()
    _local.tokens = before if token is None else (*before, str(token))
    try:
        yield
    finally:
        _local.tokens = before


def current() -> Tokens:
    """The kernels that this thread is lowering."""
    tokens: Tokens = getattr(_local, "tokens", ())
    return tokens


def notify(tokens: Tokens) -> None:
    """These kernels ran to their end."""
    for listener in _listeners:
        for token in tokens:
            listener(token)


@contextlib.contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Call `listener` with the digest of every kernel that runs to its end, in any thread.

    The listener must not raise: it is called within the user's program.
    """
    global _listeners
    with _lock:
        _listeners = (*_listeners, listener)
    try:
        yield
    finally:
        with _lock:
            _listeners = tuple(known for known in _listeners if known is not listener)
