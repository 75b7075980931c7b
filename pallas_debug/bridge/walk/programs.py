"""The jaxpr of a whole program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from pallas_debug.bridge import chip, jaxcompat, patches
from pallas_debug.bridge.jaxprs import arrays
from pallas_debug.bridge.lowering import hook
from pallas_debug.model import Target


def traced(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], target: Target
) -> tuple[Any, Sequence[Any], list[Any]]:
    """Trace a function as for a target; return its jaxpr, its constants and its arrays."""
    call, given = arrays.of_arrays(function, args, kwargs)
    shapes = [jax.ShapeDtypeStruct(leaf.shape, arrays.canonical(leaf.dtype)) for leaf in given]
    own_lines = patches.installed(patches.LINES)  # of kernels of a gradient
    with chip.answering(target), hook.without_caches(), own_lines:
        jaxpr, consts = jaxcompat.opened(jax.make_jaxpr(call)(*shapes))
    return jaxpr, consts, given
