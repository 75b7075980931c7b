"""Products of whole numbers in float32, whose operands a TPU rounds to bfloat16.

Offsets, counts and indices are often summed or selected by a product and cast back to integers,
where every bit counts. bfloat16 represents whole numbers up to 256.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from pallas_debug.bridge.jaxprs import nested
from pallas_debug.bridge.jaxprs.bfloat16_products import as_bfloat16, is_rounded_on_tpu
from pallas_debug.bridge.programs import units

_KEEPS_WHOLE = {
    *("round", "floor", "ceil", "add", "sub", "neg", "max", "min", "clamp", "select_n", "reshape"),
    *("squeeze", "expand_dims", "transpose", "broadcast_in_dim", "slice", "concatenate", "copy"),
}
"""Primitives between a product of whole numbers and the cast to an integer."""


def cast_to_integers(eqns: Sequence[Any]) -> frozenset[int]:
    """Numbers of the products that a TPU rounds and whose results become integers in a unit."""
    wanted: set[Any] = set()
    found = set()
    for i in reversed(range(len(eqns))):
        eqn = eqns[i]
        name, results = eqn.primitive.name, eqn.outvars
        if name == "convert_element_type" and jnp.issubdtype(results[0].aval.dtype, jnp.integer):
            wanted.update(nested.variables(eqn.invars))
        elif not wanted.isdisjoint(results):
            if is_rounded_on_tpu(eqn):
                found.add(i)
            elif name in _KEEPS_WHOLE:
                wanted.update(nested.variables(eqn.invars))
    return frozenset(found)


def loses_bits(inputs: Sequence[Any]) -> Any:
    """Return a traced bool: whether all operands are whole numbers, some not exact in bfloat16."""
    whole = [jnp.all(x == jnp.floor(x)) for x in inputs]
    lost = [jnp.any(x != as_bfloat16(x)) for x in inputs]
    return jnp.all(jnp.array(whole)) & jnp.any(jnp.array(lost))


def rounded(eqn: Any, inputs: Sequence[Any]) -> np.ndarray[Any, Any] | None:
    """Return a product of whole numbers as computed on a TPU; None if it loses no bits."""
    if not loses_bits(list(map(jnp.asarray, inputs))):
        return None
    given = [as_bfloat16(jnp.asarray(x)) for x in inputs]
    return np.asarray(units.bound(eqn, given)[0])
