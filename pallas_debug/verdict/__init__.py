"""`verify`: all engines on a function's kernels, one table, each fault reported once.

Floor 3, above the engines. `run.py` runs the engines of `engines.py` on a function's or program's
kernels and merges their findings; `formats/` renders the verdict. Only modules that run engines
import jax.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pallas_debug.verdict.result import Engine as Engine
from pallas_debug.verdict.result import Outcome as Outcome
from pallas_debug.verdict.result import Status as Status
from pallas_debug.verdict.result import Verdict as Verdict

if TYPE_CHECKING:
    from pallas_debug.verdict.run import Request as Request
    from pallas_debug.verdict.run import Verifier as Verifier
    from pallas_debug.verdict.run import verify as verify


def __getattr__(name: str) -> Any:
    if name not in ("Request", "Verifier", "verify"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.run"), name)
