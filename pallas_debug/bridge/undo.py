"""Removal of what a lowering rule has emitted before it failed, so that another one can follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax._src.lib.mlir import ir


def mark(context: Any) -> Callable[[], None]:
    """Return a function that removes all that is emitted from now on.

    A rule emits operations where it is called, and functions at the end of the module. Whole ones
    stay, since jax may call them again; those that it did not get to the end of are invalid.
    """
    block = ir.InsertionPoint.current.block
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
    except ir.MLIRError:
        return False
