"""Tests that XLA compiles for longer than -o pallas_stop_after, which does not limit that.

Imported by `run.py` if that option is given.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator

import pytest

from pallas_debug.session.compile_time import watching_compiler
from pallas_debug_pytest.listener import NAME


class CompileTime:
    """Names such tests: in a line on standard error while XLA compiles, and in the summary."""

    def __init__(self, limit: float, notify: Callable[[str], None]) -> None:
        self._limit = limit
        self._notify = notify
        self._stderr = os.dup(2)  # pytest captures the descriptor itself while a test runs

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        why = f"pallas_stop_after={self._limit:g} stops kernels that run, not the compiler"

        def late(seconds: float) -> None:
            message = f"{item.nodeid}: after {seconds:,.0f} s, XLA is compiling. {why}"
            os.write(self._stderr, f"\n{NAME}: {message}\n".encode())

        with watching_compiler(self._limit, late) as durations:
            result = yield
        if (total := sum(durations)) >= self._limit:
            self._notify(
                f"{item.nodeid}: XLA compiled for {total:,.0f} s. {why}: call the kernel with "
                "smaller arguments, or replace loops that Python unrolls by a `fori_loop`"
            )
        return result

    def pytest_unconfigure(self) -> None:
        os.close(self._stderr)
