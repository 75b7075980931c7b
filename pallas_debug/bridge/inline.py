"""Emission within a lowering rule, of a function or a host callback, and its removal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pallas_debug.bridge.jaxcompat import callback_lib, mlir, mlir_ir


def lowered(
    context: Any, function: Callable[..., Any], avals_in: Any, avals_out: Any, nodes: Sequence[Any]
) -> list[Any]:
    """Lower a function where the rule is called, and return its results."""
    inner = context.replace(
        avals_in=tuple(avals_in),
        avals_out=tuple(avals_out),
        tokens_in=mlir.TokenSet(),
        tokens_out=None,
    )
    lower = mlir.lower_fun(function, multiple_results=True)
    return [node for nodes in lower(inner, *nodes) for node in _nodes(nodes)]


def called_back(
    context: Any,
    function: Callable[..., Any],
    nodes: Sequence[Any],
    avals_in: Sequence[Any],
    avals_out: Sequence[Any] = (),
) -> Sequence[Any]:
    """Emit a host callback with these values; under `shard_map`, it is called once per device."""
    inner = context.replace(
        avals_in=tuple(avals_in), avals_out=tuple(avals_out), tokens_in=None, tokens_out=None
    )
    place = context.module_context.axis_context
    results, _, _ = callback_lib.emit_python_callback(
        inner,
        function,
        None,
        list(nodes),
        list(avals_in),
        list(avals_out),
        has_side_effect=True,
        returns_token=False,
        sharding=callback_lib._callback_op_sharding(place, None, list(avals_out)),
    )
    found: Sequence[Any] = results
    return found


def _nodes(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (tuple, list)) else [value]


def undoing(context: Any) -> Callable[[], None]:
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
