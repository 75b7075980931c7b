"""Parts of a jaxpr that its text leaves out, although they distinguish kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pallas_debug.bridge import primitives
from pallas_debug.bridge.jaxcompat import jax_core
from pallas_debug.bridge.jaxprs import nested


def cores(jaxprs: Sequence[Any]) -> str:
    """Cores that semaphores are signalled on, which jax does not print; empty if there are none."""
    return "".join(f"{found}\n" for jaxpr in jaxprs for found in _cores(jaxpr, {}))


def _cores(jaxpr: Any, numbers: dict[Any, int]) -> Iterator[str]:
    """A core for each signal that names one: a number, or where its variable is defined.

    Args:
      numbers: of variables, in the order of their definition.
    """
    for variable in (*jaxpr.constvars, *jaxpr.invars):
        numbers[variable] = len(numbers)
    for eqn in jaxpr.eqns:
        for variable in eqn.outvars:
            numbers[variable] = len(numbers)
        if eqn.primitive.name == "semaphore_signal":
            core = primitives.form(eqn).core
            if core is not None:
                at = core.val if isinstance(core, jax_core.Literal) else f"%{numbers.get(core)}"
                yield f"semaphore_signal on core {at}"
        for inner in nested.within(eqn.params):
            yield from _cores(inner.jaxpr, numbers)
