"""Advice below failures that the user can fix by an option or by other code. No jax.

Also for runs in which nothing enabled the plugin; nothing is imported unless a test failed with one
of these errors.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
import traceback

import pytest

from pallas_debug_pytest import options

_NO_TPU = "Only interpret mode is supported on CPU backend"
_JAX = re.compile(r"[/\\]jax[/\\]_src[/\\]")
_PALLAS = re.compile(r"[/\\]jax[/\\](_src|experimental)[/\\]pallas[/\\]")
_NAME = "pallas-debug"


def add(item: pytest.Item, error: BaseException, report: pytest.TestReport) -> None:
    """Add a line to a failed test's report, if there is one for its exception."""
    try:
        line = hint(item, error)
    except Exception as ours:  # noqa: BLE001 - a bug of ours must not end the run
        item.warn(pytest.PytestWarning(f"pallas-debug: a failure was not explained: {ours!r}"))
        return
    if line is not None:  # above the rest, whose last line is the next command
        others = [words for name, words in report.sections if name == _NAME]
        report.sections[:] = [section for section in report.sections if section[0] != _NAME]
        report.sections.append((_NAME, "\n".join([line, *others])))


def hint(item: pytest.Item, error: BaseException) -> str | None:
    """Return a hint on how to fix an exception of a test."""
    if isinstance(error, ValueError) and _NO_TPU in str(error):
        option = options.named("interpret")
        marked = any("interpret" in mark.kwargs for mark in item.iter_markers("pallas"))
        if marked or options.value(item.config, option) is not None:
            return None  # switched off on purpose
        return f"with {option.flag}, pytest runs TPU kernels on the CPU"
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    is_of_pallas = any(_PALLAS.search(file) for file in files)
    if not is_of_pallas and not (files and _JAX.search(files[-1])):
        return None  # of the test's own code, whatever its text
    from pallas_debug.explain import TOPICS, explain

    known = explain(str(error), in_context=is_of_pallas)
    if known is None or known.id not in {entry.id for entry in TOPICS["Calls"]}:
        return None
    return f"{known.title}; {known.advice}"
