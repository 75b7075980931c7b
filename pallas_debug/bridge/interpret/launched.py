"""Evidence that a kernel ran to completion: being lowered is not enough.

A kernel in an untaken branch is lowered with its program. The hook notes which kernel a thread is
lowering; the last callbacks that the checks and TPU interpret mode insert into the program report
that kernel when they run.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from pallas_debug.bridge.active import ActiveStack

Tokens = tuple[str, ...]
"""Kernel digests, outermost first: an interpreter may lower a kernel as several others."""

_local = threading.local()
_listeners: ActiveStack[Callable[[str], None]] = ActiveStack()


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


def listening(listener: Callable[[str], None]) -> contextlib.AbstractContextManager[None]:
    """Call `listener` with the digest of every kernel that runs to completion, in any thread.

    It is called within the user's program and must not raise.
    """
    return _listeners.adding(listener)
