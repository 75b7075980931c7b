"""Evidence that a kernel ran to completion, which its lowering alone is not.

A kernel in an untaken branch is lowered with its program. The hook notes which kernel a thread is
lowering; the last callbacks that the checks and TPU interpret mode insert into the program report
that kernel when they run.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

Tokens = tuple[str, ...]
"""Kernel digests, outermost first: an interpreter may lower one kernel as several others."""

_lock = threading.Lock()
_local = threading.local()
_listeners: tuple[Callable[[str], None], ...] = ()


@contextlib.contextmanager
def lowering(token: object | None) -> Iterator[None]:
    """Mark this token's kernel as being lowered in this thread; None is a no-op."""
    before = current()
    _local.tokens = before if token is None else (*before, str(token))
    try:
        yield
    finally:
        _local.tokens = before


def current() -> Tokens:
    """Return the kernels that this thread is lowering."""
    tokens: Tokens = getattr(_local, "tokens", ())
    return tokens


def notify(tokens: Tokens) -> None:
    """Notify listeners that these kernels ran to completion."""
    for listener in _listeners:
        for token in tokens:
            listener(token)


@contextlib.contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Call `listener` with the digest of every kernel that runs to completion, in any thread.

    It is called within the user's program and must not raise.
    """
    global _listeners
    with _lock:
        _listeners = (*_listeners, listener)
    try:
        yield
    finally:
        with _lock:
            _listeners = tuple(known for known in _listeners if known is not listener)
