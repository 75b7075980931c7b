"""Our own contexts in jax's cache keys: functions jitted in one are not reused in another."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax

_made: list[Any] = []


def make() -> Any:
    """Create a context; its value is None unless it is set, in one thread or in all threads."""
    made = jax.make_user_context(None)
    _made.append(made)
    return made


@contextlib.contextmanager
def neutral() -> Iterator[None]:
    """Reset all of them in this thread, for programs that do not depend on any."""
    with contextlib.ExitStack() as stack:
        for context in _made:
            stack.enter_context(context(None))
        yield
