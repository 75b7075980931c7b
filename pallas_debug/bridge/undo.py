"""Removal of operations that a lowering rule emitted before it failed, to try another rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pallas_debug.bridge.jaxcompat import mlir_ir


def mark(context: Any) -> Callable[[], None]:
    """Return a function that removes everything emitted from now on.

    A rule emits operations where it is called, and functions at the end of the module. Complete
    functions are kept, because jax may call them again; incomplete ones are invalid.
    """
    block = mlir_ir.InsertionPoint.current.block
    module = context.module_context
    before, functions = len(block.operations), len(module.module.body.operations)

    def undo() -> None:
        for operation in reversed(list(block.operations)[before:]):
            operation.erase()
        for function in reversed(list(module.module.body.operations)[functions:]):
            if not _is_whole(function):
                module.symbol_table.erase(function)

    return undo


def _is_whole(function: Any) -> bool:
    try:
        return bool(function.operation.verify())
    except mlir_ir.MLIRError:
        return False
