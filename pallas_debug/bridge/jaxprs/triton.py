"""Operations of Pallas's Triton back end in a jaxpr, without importing the back end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax

from pallas_debug.bridge import jaxcompat
from pallas_debug.bridge.jaxcompat import indexing, pallas_primitives, triton_primitives
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
    if eqn.primitive not in (pallas_primitives.load_p, pallas_primitives.swap_p):
        return False
    _, transforms, *rest = jax.tree.unflatten(eqn.params["args_tree"], eqn.invars)
    return (
        (eqn.primitive is pallas_primitives.load_p and rest[-1] is not None)
        or any(eqn.params.get(n) for n in ("cache_modifier", "eviction_policy", "is_volatile"))
        or any(isinstance(t, indexing.NDIndexer) and t.int_indexer_shape for t in transforms)
    )
