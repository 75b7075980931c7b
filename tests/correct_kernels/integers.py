"""Integer arithmetic that wraps around, and integers packed into others."""

import jax
import jax.numpy as jnp
import numpy as np
from called import called
from jax import lax
from jax.experimental import pallas as pl

from .record import equals, integers

I32 = jnp.int32
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))
WORDS = integers(0, 2**32, 16, 128, dtype=np.uint32)


def _xorshift_signed(x):
    x = x ^ (x << np.int32(13))
    x = x ^ (x.view(np.uint32) >> np.uint32(17)).view(np.int32)
    return x ^ (x << np.int32(5))


@equals(_xorshift_signed, WORDS.view(np.int32))
@called(grid=(2,), block=ROWS)
def xorshift_of_signed_integers(x_ref, out_ref):
    state = x_ref[...]
    state ^= state << 13
    state ^= lax.shift_right_logical(state, 17)
    state ^= state << 5
    out_ref[...] = state


@equals(
    lambda x: np.concatenate([((x >> s) & 255).astype(np.float32) for s in (0, 8, 16, 24)]), WORDS
)
def unpack_four_bytes(x):
    def kernel(x_ref, out_ref):
        for i in range(4):
            byte = (x_ref[...] >> (8 * i)) & 255
            out_ref[i] = byte.astype(I32).astype(jnp.float32)

    out = jax.ShapeDtypeStruct((4, 16, 128), jnp.float32)
    return pl.pallas_call(kernel, out_shape=out)(x).reshape(64, 128)


@equals(
    lambda x, y: np.minimum(x.astype(np.int32) + y, 255).astype(np.uint8),
    integers(0, 256, 32, 128, dtype=np.uint8),
    integers(0, 256, 32, 128, dtype=np.uint8)[::-1].copy(),
)
@called(like=0)
def saturating_sum_of_bytes(x_ref, y_ref, out_ref):
    total = x_ref[...].astype(I32) + y_ref[...].astype(I32)
    out_ref[...] = jnp.minimum(total, 255).astype(jnp.uint8)
