"""Tracing of a function with abstract arguments to find its kernels, without running it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import jax

from pallas_debug.bridge import chip, jaxcompat, patches
from pallas_debug.bridge.jaxcompat import mlir
from pallas_debug.bridge.jaxprs import arrays
from pallas_debug.bridge.lowering import hook
from pallas_debug.model import Target

_R = TypeVar("_R")


def lower_for_kernels(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    target: Target,
) -> bool:
    """Trace and lower `function` for a target, so that the hook sees its kernels.

    Arrays and `ShapeDtypeStruct`s among the arguments are traced, other arguments are passed
    unchanged: `dump(f, x, block=128)` needs no static arguments.

    Returns:
      Whether code has queried its chip, so that tracing for another chip may produce other kernels.
    """
    call, given = arrays.of_arrays(function, args, kwargs)
    avals = [_abstract(leaf) for leaf in given]
    with chip.answering(target), chip.listening(), hook.stubbed(), hook.without_caches():
        jax.jit(call).trace(*avals).lower(lowering_platforms=(target.platform,))
        # What code gets from a mesh of GPUs is not noticed.
        return chip.was_asked() is not None or target.platform == "cuda"


def lower_labelled(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], target: Target
) -> bytes:
    """Lower the whole of `function` for a TPU, with its kernels labelled.

    Returns:
      StableHLO bytecode. Callbacks are left out.
    """
    call, given = arrays.of_arrays(function, args, kwargs)
    avals = [_abstract(leaf) for leaf in given]
    with chip.answering(target), hook.labelled(), hook.without_caches():
        lowered = jax.jit(call).trace(*avals).lower(lowering_platforms=("tpu",))
        return mlir.module_to_bytecode(lowered.compiler_ir("stablehlo"))  # type: ignore[no-any-return]


def jaxpr_of(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], target: Target
) -> tuple[Any, Sequence[Any], list[Any]]:
    """Trace a function as for a target; return its jaxpr, its constants and its arrays."""
    call, given = arrays.of_arrays(function, args, kwargs)
    shapes = [jax.ShapeDtypeStruct(leaf.shape, arrays.canonical(leaf.dtype)) for leaf in given]
    own_lines = patches.installed(patches.LINES)  # of kernels of a gradient
    with chip.answering(target), hook.without_caches(), own_lines:
        jaxpr, consts = jaxcompat.opened(jax.make_jaxpr(call)(*shapes))
    return jaxpr, consts, given


def is_traced(args: Any) -> bool:
    """Return whether any argument is a tracer: the call is within jit, vmap, grad or the like."""
    return any(_is_tracer(leaf) for leaf in jax.tree.leaves(args))


def copied(
    args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Copy the arrays of the arguments, for a function that may donate its buffers."""

    def copy(leaf: Any) -> Any:
        return leaf.copy() if isinstance(leaf, jax.Array) and not _is_tracer(leaf) else leaf

    return jax.tree.map(copy, (tuple(args), dict(kwargs)))  # type: ignore[no-any-return]


def _is_tracer(leaf: Any) -> bool:
    return isinstance(leaf, jax.core.Tracer)


def block_until_ready(result: _R) -> _R:
    """Return `result` once all its arrays have been computed."""
    return cast(_R, jax.block_until_ready(result))


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = getattr(leaf, "sharding", None)
    if sharding is not None and len(sharding.device_set) == 1:
        sharding = None
    return jax.ShapeDtypeStruct(leaf.shape, arrays.canonical(leaf.dtype), sharding=sharding)
