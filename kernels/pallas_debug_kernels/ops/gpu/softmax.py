"""Softmax of rows with Triton, a row per block of threads."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from ..._arguments import check_dtype, check_ndim
from ...spec import Spec


def triton_softmax_kernel(x_ref: jax.Ref, out_ref: jax.Ref, *, features: int) -> None:
    """Compute the softmax of a row; both refs are `[1, features]`."""
    columns = jnp.arange(pl.next_power_of_2(features))  # Triton has no other sizes
    mask = columns < features
    x = plt.load(x_ref.at[0, columns], mask=mask, other=-jnp.inf).astype(jnp.float32)
    exp = jnp.exp(x - jnp.max(x))
    plt.store(out_ref.at[0, columns], (exp / jnp.sum(exp)).astype(out_ref.dtype), mask=mask)


@partial(jax.jit, static_argnames=("num_warps",))
def triton_softmax(x: jax.Array, *, num_warps: int = 4) -> jax.Array:
    """Compute the softmax of the rows of `x` in float32.

    Args:
      x: `[rows, features]`, float32, float16 or bfloat16.
      num_warps: warps of 32 threads that share a row; a power of 2.
    """
    check_ndim("triton_softmax", "x", x, ("rows", "features"))
    check_dtype("triton_softmax", "x", x, ("float32", "float16", "bfloat16"))
    rows, features = x.shape
    row = pl.BlockSpec((1, features), lambda i: (i, jnp.int32(0)))
    call = pl.pallas_call(
        partial(triton_softmax_kernel, features=features),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(rows,),
        in_specs=[row],
        out_specs=row,
        compiler_params=plt.CompilerParams(num_warps=num_warps),
        name="triton_softmax",
    )
    out: jax.Array = call(x)
    return out


def triton_softmax_reference(x: jax.Array, *, num_warps: int = 0) -> jax.Array:
    """Compute the softmax of the rows of `x` in float32. `num_warps` is ignored."""
    del num_warps
    out: jax.Array = jax.nn.softmax(x.astype(jnp.float32), axis=-1)
    return out.astype(x.dtype)


def _spec(name: str, tag: str, shape: tuple[int, int], dtype: object) -> Spec:
    return Spec(name=name, tags=(tag,), args=(jax.ShapeDtypeStruct(shape, dtype),))


SPECS = (
    _spec("f32", "small", (16, 1000), jnp.float32),
    _spec("bf16", "small", (16, 256), jnp.bfloat16),
    _spec("one_element", "edge", (1, 1), jnp.float32),
    _spec("f32_8k_1k", "bench", (8192, 1024), jnp.float32),
)
