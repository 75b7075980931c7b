"""Conditions of the checks, from operations that every core supports, and index formatting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_debug.bridge.jaxcompat import indexing, jax_core
from pallas_debug.bridge.jaxprs.params import memory_space
from pallas_debug.findings.regions import slice_text


def is_nan(value: Any) -> Any:
    """Mask of the NaNs in an array of floats."""
    value = wide(value)
    return value != value


def wide(value: Any) -> Any:
    """Widen narrow numbers to 32 bits, because not every core can compare them."""
    dtype = jnp.result_type(value)
    if dtype.itemsize < 4:
        return value.astype("float32" if jnp.issubdtype(dtype, jnp.floating) else "int32")
    return value


def is_float(value: Any) -> bool:
    """Return whether a value holds floats of any width."""
    return bool(jnp.issubdtype(jnp.result_type(value), jnp.floating))


def has_bad_constant(is_bad: Callable[[Any], Any], inputs: Sequence[Any]) -> bool:
    """Return whether a constant in the program text already satisfies `is_bad`.

    Evaluated by numpy: jax cannot run operations while it traces the inside of a `shard_map`.
    """
    constants = (x for x in inputs if not isinstance(x, jax_core.Tracer) and is_float(x))
    return any(bool(np.any(is_bad(np.asarray(x)))) for x in constants)


def is_infinite(value: Any) -> Any:
    """Mask of the infinities of either sign in an array of floats."""
    value = wide(value)
    size = np.abs(value) if isinstance(value, np.ndarray) else lax.abs(value)
    return size == np.float32(np.inf)


def is_outside(start: Any, last: int) -> Any:
    """Return whether an index is negative or greater than `last`, computed in its own dtype."""
    dtype = jnp.result_type(start)
    limits = jnp.iinfo(dtype)
    above = start > np.array(last, dtype) if last < limits.max else lax.full_like(start, 0, bool)
    return above if limits.min == 0 else (start < np.array(0, dtype)) | above


def kept_dtype(value: Any) -> str:
    """Dtype in which a recorded scalar is read back."""
    dtype = jnp.result_type(value)
    if dtype == jnp.bool_:
        return "bool"
    if jnp.issubdtype(dtype, jnp.floating):
        return "float32"
    return "uint32" if dtype == jnp.uint32 else "int32"


def dims(transform: Any) -> tuple[str, ...]:
    """Format each index of an access; `…` for one known only at run time."""
    texts = []
    for index in transform.indices:
        is_slice = isinstance(index, indexing.Slice)
        start, size = (index.start, index.size) if is_slice else (index, 1)
        if isinstance(start, jax_core.Tracer) or jnp.ndim(start):
            texts.append("…")
        else:
            texts.append(
                slice_text(int(start), size, index.stride) if is_slice else f"{int(start)}"
            )
    return tuple(texts)


def space(aval: Any, default: str) -> str:
    name = memory_space(aval)
    return default if name == "default" else name
