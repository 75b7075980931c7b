"""Reference of `matmul` in plain jax.numpy, and its argument sets."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from ...spec import Spec


def matmul_reference(
    x: jax.Array,
    y: jax.Array,
    *,
    activation: str | None = None,
    block_m: int = 0,
    block_n: int = 0,
    block_k: int = 0,
) -> jax.Array:
    """Compute `activation(x @ y)` for `[m, k]` and `[k, n]` in float32 (int8: int32).

    The block sizes are ignored; they are accepted so that one spec fits both kernel and reference.
    """
    del block_m, block_n, block_k
    is_integer = x.dtype == jnp.int8
    acc_dtype = jnp.int32 if is_integer else jnp.float32
    product = jnp.matmul(
        x.astype(acc_dtype), y.astype(acc_dtype), precision=lax.Precision.HIGHEST
    )  # [m, n]
    return _activate(product, activation).astype(acc_dtype if is_integer else x.dtype)


def _activate(z: jax.Array, activation: str | None) -> jax.Array:
    match activation:
        case "relu":
            z = jax.nn.relu(z)
        case "silu":
            z = jax.nn.silu(z)
        case "gelu":
            z = jax.nn.gelu(z, approximate=True)
    return z


def _spec(
    name: str, tag: str, mnk: tuple[int, int, int], dtype: DTypeLike, **kwargs: object
) -> Spec:
    m, n, k = mnk
    x = jax.ShapeDtypeStruct((m, k), dtype)
    y = jax.ShapeDtypeStruct((k, n), dtype)
    not_on = ("v4",) if dtype == jnp.int8 else ()  # the MXU of v4 has no int8
    return Spec(name=name, tags=(tag,), args=(x, y), kwargs=kwargs, not_on=not_on)


_BLOCKS = {"block_m": 64, "block_n": 128, "block_k": 128}

SPECS = (
    _spec("f32", "small", (128, 256, 256), jnp.float32, **_BLOCKS),
    _spec("bf16", "small", (128, 256, 256), jnp.bfloat16, **_BLOCKS),
    _spec("int8", "small", (128, 256, 256), jnp.int8, **_BLOCKS),
    _spec("f32_relu", "small", (64, 128, 256), jnp.float32, activation="relu", **_BLOCKS),
    _spec("bf16_silu", "small", (64, 128, 256), jnp.bfloat16, activation="silu", **_BLOCKS),
    _spec("f32_gelu", "small", (64, 128, 256), jnp.float32, activation="gelu", **_BLOCKS),
    _spec("int8_relu", "small", (64, 128, 256), jnp.int8, activation="relu", **_BLOCKS),
    _spec("one_element", "edge", (1, 1, 1), jnp.float32),
    _spec("one_ragged_block", "edge", (5, 7, 3), jnp.bfloat16),
    _spec("ragged_f32", "edge", (70, 200, 300), jnp.float32, **_BLOCKS),
    _spec("ragged_bf16", "edge", (70, 200, 300), jnp.bfloat16, activation="gelu", **_BLOCKS),
    _spec("ragged_int8", "edge", (70, 200, 300), jnp.int8, **_BLOCKS),
    _spec("f32_2048", "bench", (2048, 2048, 2048), jnp.float32),
    _spec("bf16_4096", "bench", (4096, 4096, 4096), jnp.bfloat16),
    _spec("bf16_4096_silu", "bench", (4096, 4096, 4096), jnp.bfloat16, activation="silu"),
    _spec("int8_4096", "bench", (4096, 4096, 4096), jnp.int8),
)
