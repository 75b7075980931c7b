"""Operands of a function's kernels that may be the same array: forward dataflow, nothing runs.

Each value has the set of arrays that it may be, or be a part of. Operations that only move elements
propagate this set; all others create a new array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from pallas_debug.bridge.jaxprs import nested
from pallas_debug.bridge.lowering import hook
from pallas_debug.bridge.walk.dataflow import programs
from pallas_debug.bridge.walk.dataflow.dependence import (
    FlowValue,
    JaxprWalk,
    ProgramPlace,
    names_of,
)
from pallas_debug.model import Target

Arrays = frozenset[str]

_MOVES = frozenset(
    {
        *("all_gather", "all_to_all", "bitcast_convert_type", "broadcast_in_dim", "concatenate"),
        *("convert_element_type", "copy", "copy_p", "device_put", "dynamic_slice"),
        *("dynamic_update_slice", "gather", "optimization_barrier", "pad", "ppermute"),
        *("reduce_precision", "reshape", "rev", "scatter", "select_n", "sharding_constraint"),
        *("slice", "sort", "split", "squeeze", "stop_gradient", "transpose"),
    }
)
"""Primitives whose results may consist of elements of their operands."""


def operand_arrays(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], target: Target
) -> dict[str, list[list[Arrays]]]:
    """Arrays that the operands of each call of a kernel may be, by the kernel's digest.

    The set of an operand is empty if nothing is known about it, as for an array that is closed
    over. Arguments that are the same object are the same array, and so are NumPy's views of one
    buffer.
    """
    leaves = jax.tree.leaves((tuple(args), dict(kwargs)))
    given = [frozenset({str(_memory(leaves[i]))}) for i in programs.traced_leaves(args, kwargs)]
    program = _Operands()
    program.run(programs.traced(function, args, kwargs, target)[0], given, ProgramPlace())
    return program.calls


def _memory(array: Any) -> int:
    """Identity of an array, or of the NumPy array that it is a view of."""
    while isinstance(array, np.ndarray) and isinstance(array.base, np.ndarray):
        array = array.base
    return id(array)


class _Operands(JaxprWalk):
    """A whole program, up to its kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, list[list[Arrays]]] = {}
        self._kept: list[Any] = []

    def other(self, eqn: Any, inputs: list[FlowValue], place: ProgramPlace) -> Sequence[FlowValue]:
        if eqn.primitive in hook.PRIMITIVES.values():
            found = [names_of([value]) for value in inputs]
            self.calls.setdefault(programs.digest(eqn), []).append(found)
            return list(self._new(eqn))
        if eqn.primitive.name in _MOVES:
            return [names_of(inputs)] * len(eqn.outvars)
        for inner in nested.within(eqn.params):
            opened = nested.opened(inner)[0]
            is_same = len(opened.invars) == len(inputs)
            everything = [names_of(inputs)] * len(opened.invars)
            results = self.run(inner, inputs if is_same else everything, place)
            if is_same and len(results) == len(eqn.outvars):
                return results
            return [names_of([*inputs, *results])] * len(eqn.outvars)
        return list(self._new(eqn))

    def _new(self, eqn: Any) -> Iterator[Arrays]:
        self._kept.append(eqn)  # so that no other object gets its identity
        for number in range(len(eqn.outvars)):
            yield frozenset({f"{id(eqn)}.{number}"})
