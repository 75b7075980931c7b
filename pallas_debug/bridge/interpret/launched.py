"""Evidence that a kernel ran to completion: being lowered is not enough.

A kernel in an untaken branch is lowered with its program. The hook notes which kernel a thread is
lowering; the last callbacks that the checks and TPU interpret mode insert into the program report
that kernel when they run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from pallas_debug.bridge.active import ActiveStack, ThreadValue

Tokens = tuple[str, ...]
"""Kernel digests, outermost first: an interpreter may lower a kernel as several others."""

_tokens = ThreadValue[Tokens](())
_listeners: ActiveStack[Callable[[str], None]] = ActiveStack()


def lowering(token: object | None) -> contextlib.AbstractContextManager[None]:
    """Mark this token's kernel as being lowered in this thread; None is a no-op."""
    return _tokens.setting(current() if token is None else (*current(), str(token)))


def current() -> Tokens:
    """Return the kernels that this thread is lowering."""
    return _tokens.value


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
