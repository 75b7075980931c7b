"""Lowering of a script that defines a kernel, in this process and without libtpu.

This executes the script. Scripts with a dump's program are lowered only in a confined process, by
`reproduce/worker.py`.
"""

from __future__ import annotations

import contextlib
import io
import logging
from typing import Any

from pallas_debug.bridge.jaxcompat import mlir
from pallas_debug.bridge.lowering import hook, lower


def lowered(script: str) -> bytes:
    """Return the StableHLO bytecode of a script's function `lowered`.

    Args:
      script: text of a vetted module, which is executed.

    Raises:
      LoweringFailed: the script raised any exception.
    """
    bytecode: bytes = mlir.module_to_bytecode(_run(script).compiler_ir("stablehlo"))
    return bytecode


def mosaic(script: str) -> str:
    """Return the text of the kernel's own module before any pass; otherwise like `lowered`."""
    found: list[str] = []
    with lower.collecting_mosaic(found):
        _run(script)
    return "\n".join(found)


def _run(script: str) -> Any:
    namespace: dict[str, Any] = {"__name__": "reproduced"}
    # jax logs an error for a copy that is described but never started, as in some reduced kernels.
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with hook.unwatched(), contextlib.redirect_stdout(io.StringIO()):
            exec(compile(script, "reproduce.py", "exec"), namespace)
            return namespace["lowered"]()
    except Exception as error:
        raise lower.LoweringFailed(lower.failure_of(error)) from error
    finally:
        logging.disable(before)
