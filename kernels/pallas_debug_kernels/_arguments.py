"""Validation of arguments, before a kernel is traced.

Every error is a ValueError that names the argument, its value, and what is allowed.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

LANES = 128


def sublanes(dtype: DTypeLike) -> int:
    """Return the rows of a native tile: 8 for 32-bit dtypes, 16 for 16-bit, 32 for 8-bit."""
    itemsize: int = jnp.dtype(dtype).itemsize
    return 32 // itemsize


class SegmentIds(NamedTuple):
    """Ids, int32: a query sees only keys with its own id (in its own batch entry, if any)."""

    q: jax.Array  # [q_seq] or [batch, q_seq]
    kv: jax.Array  # [kv_seq] or [batch, kv_seq]


def check_ndim(operation: str, name: str, array: jax.Array, dims: Sequence[str]) -> None:
    """Check that `array` has one non-empty dimension for each of `dims`."""
    if array.ndim != len(dims):
        raise ValueError(
            f"{operation}: {name} has shape {array.shape}. "
            f"It must have {len(dims)} dimension{'s' * (len(dims) > 1)}: [{', '.join(dims)}]."
        )
    check_not_empty(operation, name, array, dims)


def check_not_empty(operation: str, name: str, array: jax.Array, dims: Sequence[str]) -> None:
    """Check that `array` has at least one dimension, and none of size 0."""
    if array.ndim == 0:
        raise ValueError(
            f"{operation}: {name} has shape (). "
            f"It must have at least 1 dimension: [{', '.join(dims)}]."
        )
    if 0 in array.shape:
        raise ValueError(
            f"{operation}: {name} has shape {array.shape}. "
            f"Each dimension of [{', '.join(dims)}] must be at least 1."
        )


def check_dtype(operation: str, name: str, array: jax.Array, dtypes: Sequence[str]) -> None:
    """Check that the dtype of `array` is one of `dtypes`."""
    if array.dtype.name not in dtypes:
        raise ValueError(
            f"{operation}: {name} has dtype {array.dtype.name}. It must be {either(dtypes)}."
        )


def check_same_dtype(
    operation: str, name: str, array: jax.Array, like_name: str, like: jax.Array
) -> None:
    """Check that `array` has the dtype of `like`."""
    if array.dtype != like.dtype:
        raise ValueError(
            f"{operation}: {name} has dtype {array.dtype.name}. "
            f"It must be {like.dtype.name}, the dtype of {like_name}."
        )


def checked_block(
    operation: str, name: str, block: int, *, multiple: int, dim: str, size: int
) -> int:
    """Return the block size to use along dimension `dim`, which has `size` elements.

    A TPU block must be a multiple of the tile, or span the dimension.
    """
    if isinstance(block, bool) or not isinstance(block, int):
        raise ValueError(f"{operation}: {name} is {block!r}. It must be an int.")
    if block >= size:
        return size
    if block < 1 or block % multiple:
        near = max(multiple, block // multiple * multiple)
        raise ValueError(
            f"{operation}: {name} is {block}. "
            f"It must be a positive multiple of {multiple}, or at least {dim}, which is {size}. "
            f"Try {name}={near}."
        )
    return block


def divisor_block(
    operation: str, name: str, block: int, *, multiple: int, dim: str, size: int
) -> int:
    """Like `checked_block`, but for kernels that need whole blocks: `block` must divide `size`."""
    block = checked_block(operation, name, block, multiple=multiple, dim=dim, size=size)
    if size % block:
        fitting = [b for b in range(multiple, block, multiple) if size % b == 0]
        raise ValueError(
            f"{operation}: {name} is {block}. It must divide {dim}, which is {size}. "
            f"Try {name}={fitting[-1] if fitting else size}."
        )
    return block


def either(options: Sequence[str]) -> str:
    """Join `options` as in "a, b or c"."""
    *rest, last = options
    return f"{', '.join(rest)} or {last}" if rest else last
