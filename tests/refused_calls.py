"""Calls whose kernels jax or a compiler may refuse."""

from __future__ import annotations

from typing import Any

import jax

from pallas_debug.bridge.lowering import trace
from pallas_debug.model import Failure, Kernel
from pallas_debug.session import Session


def refused(
    session: Session, call: Any, args: Any, target: str, *, x64: bool = False
) -> tuple[Failure | None, Kernel | None]:
    """Why a call is refused, if it is, by the first to do so."""
    targets = [t for t in session.targets if t.name == target]
    try:
        with jax.enable_x64(x64), session.collecting() as captures:
            trace.lower_for_kernels(call, args, {}, targets[0])
    except Exception as error:  # noqa: BLE001 - whatever jax raises
        words = f"{error}\n(in jax/_src/pallas)"
        return Failure(stage="lowering", type=type(error).__name__, message=words), None
    (captured,) = captures
    session.queue.request(captures, targets)
    session.wait()
    (dump,) = (d for d in session.dumps if d.kernel.digest == captured.kernel.digest)
    return dump.compilation(target).failure, dump.kernel
