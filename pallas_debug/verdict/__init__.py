"""`verify`: all engines on a function's kernels, one table, each fault reported once.

Floor 3, above the engines. `run.py` runs the engines of `engines.py` and merges their findings;
the other modules format the verdict as text (`text.py`), for code scanning (`sarif.py`) or for a
workflow log (`github.py`). Only `run.py` and `engines.py` import jax.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pallas_debug.verdict.result import Engine as Engine
from pallas_debug.verdict.result import Outcome as Outcome
from pallas_debug.verdict.result import Status as Status
from pallas_debug.verdict.result import Verdict as Verdict

if TYPE_CHECKING:
    from pallas_debug.verdict.run import Request as Request
    from pallas_debug.verdict.run import verify as verify
    from pallas_debug.verdict.run import verify_program as verify_program

__all__ = ["Engine", "Outcome", "Request", "Status", "Verdict", "verify", "verify_program"]


def __getattr__(name: str) -> Any:
    if name not in ("Request", "verify", "verify_program"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pallas_debug.verdict import run

    return getattr(run, name)
