"""Lowering of a function in place, by the lowering rule of another operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pallas_debug.bridge.jaxcompat import mlir


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


def _nodes(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (tuple, list)) else [value]
