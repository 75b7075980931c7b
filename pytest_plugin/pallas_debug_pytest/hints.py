"""Hints below failures that the user can fix by an option or by other code. No jax.

Also for runs in which nothing enabled the plugin; nothing is imported unless a test failed with one
of these errors.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from typing import Any

import pytest

from pallas_debug_pytest import options

_NO_TPU = "Only interpret mode is supported on CPU backend"
_VALUE_NEEDED = ("TracerBoolConversionError", "TracerIntegerConversionError")
_PREFIX = "pallas-debug: "


def add(item: pytest.Item, error: BaseException, report: pytest.TestReport) -> None:
    """Append the line to a failed test's report, if there is one for its exception."""
    try:
        line = hint(item, error)
    except Exception as ours:  # noqa: BLE001 - a bug of ours must not end the run
        item.warn(pytest.PytestWarning(f"{_PREFIX}a failure was not explained: {ours!r}"))
        return
    if line is None:
        return
    entries: list[Any] = getattr(getattr(report.longrepr, "reprtraceback", None), "reprentries", [])
    if entries and hasattr(entries[-1], "lines"):
        lines: list[str] = entries[-1].lines
        end = "\n" if lines and lines[-1].endswith("\n") else ""  # as with --tb=native
        lines.append(f"E   {_PREFIX}{line}{end}")
    else:
        report.sections.append(("pallas-debug", line))


def hint(item: pytest.Item, error: BaseException) -> str | None:
    """Return a hint on how to fix an exception of a test."""
    if isinstance(error, ValueError) and _NO_TPU in str(error):
        option = options.named("interpret")
        if options.value(item.config, option) is not None or _is_interpreted(item):
            return None  # switched off on purpose
        return f"with {option.flag}, pytest runs TPU kernels on the CPU"
    if type(error).__name__ in _VALUE_NEEDED and "for pallas_call" in str(error):
        from pallas_debug.findings.explain import explain

        known = explain(str(error))
        return None if known is None else f"{known.title}; {known.advice}"
    if type(error) is AssertionError and not error.args and "jax" in _innermost_file(error):
        from pallas_debug.findings.explain import asserted, explain

        failed = asserted.assertion(error, traced=True)
        known = None if failed is None else explain(failed.headline)
        if failed is not None and known is not None:
            return f"{failed.headline}; {known.advice}"
    return None


def _innermost_file(error: BaseException) -> str:
    frame = error.__traceback__
    file = ""
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        frame = frame.tb_next
    return file


def _is_interpreted(item: pytest.Item) -> bool:
    return any("interpret" in mark.kwargs for mark in item.iter_markers("pallas"))
