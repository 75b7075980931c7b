"""Delivery of findings of jax's interpreters to the innermost observer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pallas_debug.bridge.interpret import interpret, tpu_interpret
from pallas_debug.checks.observer import RunObserver
from pallas_debug.model import Finding

_observers: list[object] = []
"""Stack of active observers, one entry for each `reporting`."""


@contextlib.contextmanager
def reporting(
    observer: RunObserver, *, hang_after: float, stop_after: float | None
) -> Iterator[None]:
    """Send findings of TPU interpret mode to an observer, unless an inner observer takes them.

    Args:
      hang_after, stop_after: limits of a run in seconds, see `tpu_interpret.reporting`.
    """
    token = object()

    def found(finding: Finding) -> None:
        if _observers[-1:] == [token]:
            observer.found(finding)

    _observers.append(token)
    try:
        with tpu_interpret.reporting(
            found, hang_after=hang_after, stop_after=stop_after, copies=observer
        ):
            yield
    finally:
        _observers.remove(token)


def wait_for_runs() -> None:
    """Wait for interpreted kernels that this thread started, and raise their exceptions."""
    if _observers:
        interpret.wait_for_runs()
