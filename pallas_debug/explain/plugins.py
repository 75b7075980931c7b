"""Explanations registered by other distributions, loaded at the first failure."""

from __future__ import annotations

import contextlib
import functools
import warnings

from pallas_debug.errors import PallasDebugError, PluginWarning
from pallas_debug.model import Explanation


@functools.cache
def explanations() -> tuple[Explanation, ...]:
    """Explanations of installed plugins; a broken plugin is skipped with a warning."""
    from pallas_debug.hooks import installed_explanations

    return installed_explanations(_warn)


def _warn(problem: PallasDebugError) -> None:
    with contextlib.suppress(PluginWarning):  # `-W error` must not fail a compilation
        warnings.warn(str(problem), PluginWarning, stacklevel=2)
