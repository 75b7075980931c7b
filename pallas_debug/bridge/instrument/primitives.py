"""Checked primitives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from jax import lax

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


def is_checked(jaxpr: Any) -> bool:
    """Return whether anything in a jaxpr is checked."""
    return any(
        any(accessed(eqn)) or eqn.primitive.name in ARITHMETIC or eqn.primitive in CHECKED
        for eqn in nested.equations(jaxpr)
    )
