"""Tests of hypothesis: each example is judged as it ends, so that hypothesis shrinks what fails.

Imports neither jax nor hypothesis: a test that hypothesis runs has an attribute `hypothesis`.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest


@contextlib.contextmanager
def judged_one_by_one(
    item: pytest.Item,
    apart: Callable[[], AbstractContextManager[None]],
    judge: Callable[[], None],
    stopped: Callable[[Exception], None],
) -> Iterator[None]:
    """Run each example of a test within `apart()`, and call `judge` after each that returns.

    A no-op for a test that hypothesis does not run.

    Args:
      stopped: called with an exception of an example; may raise another.
    """
    handle = getattr(getattr(item, "obj", None), "hypothesis", None)
    inner = getattr(handle, "inner_test", None)
    if not callable(inner):
        yield
        return
    with_judgement = _judged(inner, apart, judge, stopped)
    handle.inner_test = with_judgement  # type: ignore[union-attr]
    try:
        yield
    finally:
        handle.inner_test = inner  # type: ignore[union-attr]


def _judged(
    inner: Callable[..., Any],
    apart: Callable[[], AbstractContextManager[None]],
    judge: Callable[[], None],
    stopped: Callable[[Exception], None],
) -> Callable[..., Any]:
    @functools.wraps(inner)
    def example(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        with apart():
            try:
                result = inner(*args, **kwargs)
                judge()
            except Exception as error:
                stopped(error)
                raise
        return result

    return example
