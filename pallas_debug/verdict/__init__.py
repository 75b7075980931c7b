"""`verify`: all engines on a function's kernels, one table, each fault reported once.

Floor 3, above the engines. `run.py` runs the engines of `engines.py` on a function and merges their
findings, `program.py` on the calls that a program makes; other modules format the verdict as text
(`text.py`), for code scanning (`sarif.py`) or for a workflow log (`github.py`). Only those that run
engines import jax.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pallas_debug.verdict.result import Engine as Engine
from pallas_debug.verdict.result import Outcome as Outcome
from pallas_debug.verdict.result import Status as Status
from pallas_debug.verdict.result import Verdict as Verdict

if TYPE_CHECKING:
    from pallas_debug.verdict.program import verify_program as verify_program
    from pallas_debug.verdict.run import Request as Request
    from pallas_debug.verdict.run import verify as verify

__all__ = ["Engine", "Outcome", "Request", "Status", "Verdict", "verify", "verify_program"]


def __getattr__(name: str) -> Any:
    if name not in ("Request", "verify", "verify_program"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pallas_debug.verdict import program, run

    return getattr(program if name == "verify_program" else run, name)
