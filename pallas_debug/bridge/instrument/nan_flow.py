"""NaN propagation within a region: which arrays expose a NaN produced upstream.

A NaN operand of an addition makes the sum NaN. To know only whether there is any NaN, it is enough
to check the arrays that nothing else is computed from: a few late ones instead of every step on the
way. A region is straight-line code, so anything computed from an array is computed whenever the
array itself is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp
from jax._src import core as jax_core

KEEPS_NAN = {
    *("add", "sub", "mul", "div", "add_any", "neg", "square", "integer_pow", "dot_general"),
    *("exp", "exp2", "log", "sqrt", "rsqrt", "abs", "reduce_sum", "convert_element_type"),
    *("broadcast_in_dim", "reshape", "transpose", "squeeze", "expand_dims", "concatenate", "copy"),
}
"""Primitives whose result contains a NaN whenever an operand does, in XLA for the CPU.

Maxima are not included: XLA may drop a NaN there (`xla_cpu_enable_fast_min_max`).
"""

_WIDE_ENOUGH = ("float16", "bfloat16", "float32", "float64")
"""Dtypes that preserve a NaN; some narrower ones cannot represent it."""


class NanFlow:
    """NaN-propagating equations of one region."""

    def __init__(self) -> None:
        self._steps: list[tuple[list[Any], Any]] = []

    def follow(self, eqn: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Record an evaluated equation."""
        if not _keeps_nan(eqn, inputs, outputs):
            return
        traced = [x for x in inputs if isinstance(x, jax_core.Tracer) and x is not outputs[0]]
        self._steps.append((traced, outputs[0]))

    def ends(self, arrays: Iterable[Any]) -> list[Any]:
        """Return the arrays whose NaNs are not exposed by another one of them."""
        asked = {id(array): array for array in arrays}
        shown: set[int] = set()
        for inputs, output in reversed(self._steps):
            if id(output) in asked or id(output) in shown:
                shown.update(map(id, inputs))
        return [array for key, array in asked.items() if key not in shown]


def is_clean_constant(eqn: Any) -> bool:
    """Whether an equation only fills an array with a constant that is not NaN."""
    return eqn.primitive.name == "broadcast_in_dim" and all(
        isinstance(atom, jax_core.Literal) and bool(atom.val == atom.val) for atom in eqn.invars
    )


def _keeps_nan(eqn: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
    name = eqn.primitive.name
    if name not in KEEPS_NAN or str(jnp.result_type(outputs[0])) not in _WIDE_ENOUGH:
        return False
    if name == "integer_pow" and eqn.params["y"] == 0:
        return False
    return all(jnp.size(x) for x in (*inputs, *outputs))
