"""Kernels captured without being run or lowered."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import pytest

from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.lowering import hook
from pallas_debug.session import Options, Session

Captures = Callable[..., list[Capture]]


@pytest.fixture(scope="session")
def captures() -> Captures:
    """Gives the kernels of `function(*args)`; arguments may be shapes."""

    def capture(
        function: Callable[..., Any], args: Iterable[Any], *, x64: bool = False
    ) -> list[Capture]:
        session = Session(Options(chip="v5e", interpret="off"))
        with session, session.collecting() as collected, hook.stubbed(), jax.enable_x64(x64):
            jax.jit(function).lower(*args)
        return collected

    return capture
