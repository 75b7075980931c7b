"""Operations of Pallas's Triton back end in a jaxpr, without importing the back end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pallas_debug.bridge import jaxcompat, primitives
from pallas_debug.bridge.jaxcompat import triton_primitives
from pallas_debug.bridge.jaxprs import nested


def has_operations(jaxprs: Iterable[Any]) -> bool:
    """Return whether any equation is an operation that only Triton has."""
    module = triton_primitives.loaded
    if module is None:  # then no kernel uses them
        return False
    own = nested.primitives_in(module)
    return any(
        eqn.primitive in own or _is_of_triton(eqn)
        for jaxpr in jaxprs
        for eqn in nested.equations(jaxcompat.opened(jaxpr)[0])
    )


def _is_of_triton(eqn: Any) -> bool:
    """Return whether a load or store has arguments that only those of Triton take.

    A TPU's have a mask, but no value for masked elements, no cache policy, and no indices of
    several dimensions.
    """
    if eqn.primitive.name not in ("masked_load", "masked_swap"):
        return False
    access = primitives.form(eqn)
    return (
        access.other is not None
        or any(eqn.params.get(n) for n in ("cache_modifier", "eviction_policy", "is_volatile"))
        or any(indexer.int_indexer_shape for indexer in access.at.indexers)
    )
