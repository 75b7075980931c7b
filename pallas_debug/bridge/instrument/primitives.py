"""Checked primitives, and the number of sites that a kernel needs for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import jax.numpy as jnp
from jax import lax

from pallas_debug.bridge import jaxcompat
from pallas_debug.bridge import primitives as table
from pallas_debug.bridge.jaxcompat import checkify, pallas_primitives
from pallas_debug.bridge.jaxprs import nested
from pallas_debug.bridge.normal_forms import AccessForm, CopyForm, RefChain
from pallas_debug.bridge.primitives import named

MAKES_NAN = named(lambda row: "nan" in row.makes)
"""Primitives that can produce a NaN from operands without one."""

MAKES_INFINITY = named(lambda row: "infinity" in row.makes)
"""Primitives that can produce an infinity from finite operands."""

ARITHMETIC = MAKES_NAN | MAKES_INFINITY

CHECKED = {
    checkify.check_p,
    pallas_primitives.multiple_of_p,
    lax.div_p,
    lax.rem_p,
    lax.dynamic_slice_p,
}


def accessed(
    eqn: Any, inputs: Sequence[Any] | None = None
) -> Iterator[tuple[RefChain, Literal["read", "write"]]]:
    """Yield the parts of refs that an equation accesses.

    Elements that a mask leaves out may be outside: such an access is not checked.

    Args:
      inputs: in place of the equation's operands.
    """
    match table.form(eqn, inputs):
        case AccessForm(mask=None) as access:
            yield access.place, "read" if access.is_load else "write"
        case CopyForm(is_wait=False) as copy:
            yield copy.source, "read"
            yield copy.destination, "write"


def capacity(jaxpr: Any) -> int:
    """Upper bound on the number of sites that a visit finds in a jaxpr, nested ones included."""
    total = 0
    for eqn in jaxpr.eqns:
        if any(accessed(eqn)):
            total += 1 + sum(1 for atom in eqn.invars if _is_index(atom.aval))
        elif eqn.primitive.name in ARITHMETIC or eqn.primitive in CHECKED:
            total += max(4, len(eqn.invars) - 1, getattr(eqn.invars[0].aval, "ndim", 0))
        elif eqn.primitive is lax.while_p:
            # The condition is evaluated once in the loop and once after it.
            total += capacity(jaxcompat.opened(eqn.params["cond_jaxpr"])[0])
        for inner in nested.within(eqn.params):
            total += capacity(inner.jaxpr)
    return total


def _is_index(aval: Any) -> bool:
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and bool(jnp.issubdtype(dtype, jnp.integer))
