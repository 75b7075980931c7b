"""In which arrays of a region a NaN of another one shows.

A NaN in an operand of an addition is one in the sum. Where all that matters is whether there is any
NaN, it is enough to look at the arrays that nothing else is computed from: few and late ones,
instead of every step on the way there. A region is code without branches: what is computed of an
array in one is computed whenever that array is.
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
"""Primitives of which any NaN in an operand is one somewhere in the result, in XLA for the CPU.

Not maxima: XLA can be told to lose a NaN there (`xla_cpu_enable_fast_min_max`).
"""

_WIDE_ENOUGH = ("float16", "bfloat16", "float32", "float64")
"""Dtypes in which a NaN stays one; some of the narrower have none."""


class NanFlow:
    """The equations of one region, as far as a NaN passes through them."""

    def __init__(self) -> None:
        self._steps: list[tuple[list[Any], Any]] = []

    def follow(self, eqn: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """An equation was evaluated."""
        if not _keeps_nan(eqn, inputs, outputs):
            return
        traced = [x for x in inputs if isinstance(x, jax_core.Tracer) and x is not outputs[0]]
        self._steps.append((traced, outputs[0]))

    def ends(self, arrays: Iterable[Any]) -> list[Any]:
        """Those of the arrays of which no NaN shows in another one of them."""
        asked = {id(array): array for array in arrays}
        shown: set[int] = set()
        for inputs, output in reversed(self._steps):
            if id(output) in asked or id(output) in shown:
                shown.update(map(id, inputs))
        return [array for key, array in asked.items() if key not in shown]


def is_clean_constant(eqn: Any) -> bool:
    """Whether an equation does no more than fill an array with a number."""
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
