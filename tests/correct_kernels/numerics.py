"""Precision and random bits."""

import jax
import jax.numpy as jnp
import numpy as np
from called import called
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .record import equals, normal, table

F32, BF16 = jnp.float32, jnp.bfloat16
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))


def _product(x, y):
    return jnp.dot(x, y, preferred_element_type=F32).astype(BF16)


@equals(_product, normal(16, 256, dtype=BF16), normal(256, 128, dtype=BF16))
@called(
    jax.ShapeDtypeStruct((16, 128), BF16),
    grid=(1, 2),
    in_specs=[
        pl.BlockSpec((16, 128), lambda i, k: (i, k)),
        pl.BlockSpec((128, 128), lambda i, k: (k, 0)),
    ],
    out_specs=pl.BlockSpec((16, 128), lambda i, k: (i, 0)),
    scratch_shapes=[pltpu.VMEM((16, 128), F32)],
)
def product_of_bfloat16_summed_in_float32(x_ref, y_ref, out_ref, acc_ref):
    @pl.when(pl.program_id(1) == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=F32)

    @pl.when(pl.program_id(1) == 1)
    def _():
        out_ref[...] = acc_ref[...].astype(BF16)


def _rms_norm(x, weight):
    x = x.astype(F32)
    scale = jax.lax.rsqrt((x * x).mean(1, keepdims=True) + 1e-6)
    return (x * scale * weight.astype(F32)).astype(BF16)


@equals(_rms_norm, normal(16, 128, dtype=BF16), normal(1, 128, dtype=BF16))
@called(like=0)
def rms_norm_of_bfloat16(x_ref, weight_ref, out_ref):
    x = x_ref[...].astype(F32)
    scale = jax.lax.rsqrt((x * x).mean(1, keepdims=True) + 1e-6)
    out_ref[...] = (x * scale * weight_ref[...].astype(F32)).astype(BF16)


@equals(lambda x: jax.nn.gelu(x), normal(16, 128) * 10)
@called(grid=(2,), block=ROWS)
def gelu(x_ref, out_ref):
    """Of large arguments too, for which the exponential is zero or one."""
    x = x_ref[...]
    inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    out_ref[...] = 0.5 * x * (1 + jnp.tanh(inner))


@equals(lambda x: 1 / (1 + np.exp(-np.clip(x, -80, None))), normal(16, 128) * 10)
@called()
def sigmoid(x_ref, out_ref):
    out_ref[...] = 1.0 / (1.0 + jnp.exp(-x_ref[...]))


@equals(lambda x: x.astype(BF16).astype(F32), normal(16, 128))
@called()
def rounded_to_bfloat16_and_back(x_ref, out_ref):
    out_ref[...] = x_ref[...].astype(BF16).astype(F32)


@equals(lambda seed, x: x, table(7), normal(16, 128))
@called(grid=(2,), in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), ROWS], out_specs=ROWS)
def noise_added_and_taken_away(seed_ref, x_ref, out_ref):
    """The same seed gives the same bits, as where a backward pass draws a mask again."""
    pltpu.prng_seed(seed_ref[0] + pl.program_id(0))
    first = pltpu.prng_random_bits((8, 128))
    pltpu.prng_seed(seed_ref[0] + pl.program_id(0))
    second = pltpu.prng_random_bits((8, 128))
    out_ref[...] = jnp.where(first == second, x_ref[...], 0.0)


@equals(lambda seed, x: np.full((2,), 1, np.int32), table(7), normal(16, 128))
def dropout_keeps_about_half(seed, x):
    """The caller looks at the rate alone, as it does not know the bits."""

    def kernel(seed_ref, x_ref, out_ref, kept_ref):
        pltpu.prng_seed(seed_ref[0], pl.program_id(0))
        keep = pltpu.prng_random_bits((8, 128)) >= 0
        out_ref[...] = jnp.where(keep, x_ref[...] * 2, 0.0)
        rate = jnp.mean(keep.astype(F32))
        kept_ref[pl.program_id(0)] = ((rate > 0.3) & (rate < 0.7)).astype(jnp.int32)

    smem = pl.BlockSpec(memory_space=pltpu.SMEM)
    _, kept = pl.pallas_call(
        kernel,
        out_shape=(x, jax.ShapeDtypeStruct((2,), jnp.int32)),
        grid=(2,),
        in_specs=[smem, ROWS],
        out_specs=(ROWS, smem),
    )(seed, x)
    return kept
