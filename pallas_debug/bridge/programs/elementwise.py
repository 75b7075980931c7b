"""Primitives that jax lowers only in Mosaic, in terms of others: packing and rounding."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from pallas_debug.bridge.jaxcompat import dtypes

_WORD = 32


def pack(*xs: Any, packed_dtype: Any) -> Any:
    """Pack an element of each array into one word, the first in the lowest bits.

    Args:
      xs: arrays of the same shape, as many as fit: float32 with `packed_dtype` bfloat16, or
        integers, whose lowest bits are used.

    Returns:
      Array of the same shape, of unsigned integers with the bits of the sources.
    """
    bits = dtypes.itemsize_bits(packed_dtype)
    words = [_word(x.astype(packed_dtype)) for x in xs]
    packed = sum((word << (bits * i) for i, word in enumerate(words)), jnp.uint32(0))
    return packed.astype(f"uint{dtypes.itemsize_bits(xs[0].dtype)}")


def unpack(x: Any, *, index: int, packed_dtype: Any, unpacked_dtype: Any) -> Any:
    """Return element `index` of each word, counted from the lowest bits, with its sign."""
    bits = dtypes.itemsize_bits(packed_dtype)
    top = (_word(x) >> (bits * index)) << (_WORD - bits)
    if jnp.issubdtype(packed_dtype, jnp.floating):
        return lax.bitcast_convert_type(top, jnp.float32)  # bfloat16: the upper half of a float32
    if jnp.issubdtype(packed_dtype, jnp.signedinteger):
        top = lax.bitcast_convert_type(top, jnp.int32)
    return (top >> (_WORD - bits)).astype(unpacked_dtype)


def stochastic_round(x: Any, random_bits: Any, *, target_dtype: Any) -> Any:
    """Round float32 to one of its two neighbours, with a higher probability for the closer one.

    The highest random bits decide; which bits a TPU uses is not documented.
    """
    dropped = jnp.finfo(jnp.float32).nmant - jnp.finfo(target_dtype).nmant
    word = lax.bitcast_convert_type(x, jnp.uint32)
    word = (word + (random_bits >> (_WORD - dropped))) >> dropped << dropped
    rounded = lax.bitcast_convert_type(word, jnp.float32)
    return jnp.where(jnp.isfinite(x), rounded, x).astype(target_dtype)


def _word(x: Any) -> Any:
    """Bits of each element in the lowest bits of a word, with zeros above."""
    bits = dtypes.itemsize_bits(x.dtype)
    if jnp.issubdtype(x.dtype, jnp.floating):
        x = lax.bitcast_convert_type(x, f"uint{bits}")
    wide = x.astype(jnp.uint32 if jnp.issubdtype(x.dtype, jnp.unsignedinteger) else jnp.int32)
    return lax.bitcast_convert_type(wide, jnp.uint32) << (_WORD - bits) >> (_WORD - bits)
