"""Tools to see, check and understand Pallas TPU kernels, on any machine.

Importing this package imports neither jax nor anything else that is slow to load: public names are
imported lazily.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from pallas_debug._version import __version__ as __version__

if TYPE_CHECKING:
    from pallas_debug import explain as explain
    from pallas_debug._api.check import check as check
    from pallas_debug._api.compare import compare as compare
    from pallas_debug._api.compile import compile as compile
    from pallas_debug._api.debug import debug as debug
    from pallas_debug._api.dump import dump as dump
    from pallas_debug._api.interpret import interpret as interpret
    from pallas_debug._api.search import arguments as arguments
    from pallas_debug._api.search import search as search
    from pallas_debug._api.stats import stats as stats
    from pallas_debug._api.sweep import sweep as sweep
    from pallas_debug._api.verify import verify as verify
    from pallas_debug.stepper import step as step
    from pallas_debug.store import open_dumps as open_dumps

_HOMES = {
    "arguments": "pallas_debug._api.search",
    "check": "pallas_debug._api.check",
    "compare": "pallas_debug._api.compare",
    "compile": "pallas_debug._api.compile",
    "debug": "pallas_debug._api.debug",
    "dump": "pallas_debug._api.dump",
    "interpret": "pallas_debug._api.interpret",
    "open_dumps": "pallas_debug.store",
    "search": "pallas_debug._api.search",
    "stats": "pallas_debug._api.stats",
    "step": "pallas_debug.stepper",
    "sweep": "pallas_debug._api.sweep",
    "verify": "pallas_debug._api.verify",
}

_MODULES = {"explain": "pallas_debug.explain"}

__all__ = ["__version__", *_HOMES, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name not in _HOMES:
        known = sys.modules[__name__]
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message, name=name, obj=known)  # lets Python suggest similar names
    if _HOMES[name].startswith(("pallas_debug._api.", "pallas_debug.stepper")):
        from pallas_debug.installed import require_jax

        require_jax(f"pallas_debug.{name}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
