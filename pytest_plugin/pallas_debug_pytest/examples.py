"""Support for tests that hypothesis or unittest runs, where a judgement after the test is too late.

hypothesis: each example is judged as it ends, so that failures are shrunk. unittest: a test that is
expected to fail is judged as it ends, because unittest decides then whether it failed.

Imports neither jax nor hypothesis: a test that hypothesis runs has an attribute `hypothesis`.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import pallas_debug


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


@contextlib.contextmanager
def judged_if_expected_to_fail(item: pytest.Item, judge: Callable[[], None]) -> Iterator[None]:
    """Call `judge` at the end of a test of unittest that is an `expectedFailure`.

    A no-op for any other test.
    """
    test = getattr(item, "obj", None)
    case = getattr(test, "__self__", None)
    expected = "__unittest_expecting_failure__"
    if not (getattr(test, expected, False) or getattr(case, expected, False)):
        yield
        return
    judged = _then(test, judge)  # type: ignore[arg-type]
    item.obj = judged  # type: ignore[attr-defined]
    setattr(case, item.name, judged)  # unittest looks a coroutine function up in its instance
    try:
        yield
    finally:
        item.obj = test  # type: ignore[attr-defined]


def _then(test: Callable[..., Any], judge: Callable[[], None]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(test):

        @functools.wraps(test)
        async def awaited(*args: Any, **kwargs: Any) -> None:
            await test(*args, **kwargs)
            judge()

        return awaited

    @functools.wraps(test)
    def called(*args: Any, **kwargs: Any) -> None:
        test(*args, **kwargs)
        judge()

    return called


def notes_of(error: BaseException) -> str:
    """hypothesis's notes on a failing example, without lines of pallas-debug.

    hypothesis lists lines that only failing examples run, and our lines that record a failure are
    among them.
    """
    notes = [note for note in getattr(error, "__notes__", ()) if note]
    lines = "\n".join(notes).splitlines()
    listed = [line for line in lines if _LISTED.fullmatch(line)]
    theirs = [line for line in listed if not line.strip().startswith(_OURS)]
    kept = lines
    if len(theirs) < len(listed):
        left_out = {*listed}.difference(theirs)
        kept = [line for line in lines if line not in left_out and "(and " not in line[:16]]
    if listed and not theirs:
        begins = next((i for i, line in enumerate(kept) if line == "Explanation:"), len(kept))
        kept = [line for i, line in enumerate(kept) if i < begins or not line.startswith(_HEADS)]
    return "\n".join(kept)


_LISTED = re.compile(r" +\S.*\.py:\d+")
_HEADS = ("Explanation:", "    These lines")
_OURS = tuple(f"{Path(file).parent}{os.sep}" for file in (pallas_debug.__file__, __file__))


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
            except Exception as error:
                stopped(error)
                raise
            judge()
        return result

    return example
