"""Arithmetic in more bits than the operands have."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .slow import SlowKernel

F32, BF16 = jnp.float32, jnp.bfloat16


def _scores(kernel: object, q: jax.Array, k: jax.Array) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((q.shape[0], k.shape[1]), BF16),
        grid=(q.shape[0] // 128,),
        in_specs=[
            pl.BlockSpec((128, 256), lambda i: (i, 0)),
            pl.BlockSpec((256, 128), lambda i: (0, 0)),
        ],
        out_specs=pl.BlockSpec((128, 128), lambda i: (i, 0)),
    )(q, k)


def upcast_before_product(q: jax.Array, k: jax.Array) -> jax.Array:
    """bf16 blocks are converted to f32 before they are multiplied."""

    def kernel(q_ref: jax.Ref, k_ref: jax.Ref, out_ref: jax.Ref) -> None:
        q = q_ref[...].astype(F32)
        k = k_ref[...].astype(F32)
        out = jnp.dot(q, k, precision=lax.Precision.HIGHEST)  # SLOW
        out_ref[...] = out.astype(BF16)

    return _scores(kernel, q, k)


def upcast_before_product_remedied(q: jax.Array, k: jax.Array) -> jax.Array:
    def kernel(q_ref: jax.Ref, k_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out = jnp.dot(q_ref[...], k_ref[...], preferred_element_type=F32)
        out_ref[...] = out.astype(BF16)

    return _scores(kernel, q, k)


def _smoothed(kernel: object, x: jax.Array) -> jax.Array:
    block = pl.BlockSpec((128, 512), lambda i: (i, 0))
    return pl.pallas_call(
        kernel, out_shape=x, grid=(x.shape[0] // 128,), in_specs=[block], out_specs=block
    )(x)


def rounded_in_between(x: jax.Array) -> jax.Array:
    """Each operation rounds its result to bf16, and the next one converts it back to f32."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        x = x_ref[...]
        for _ in range(24):
            x = (x.astype(F32) * 0.75 + 0.25).astype(BF16)  # SLOW
        out_ref[...] = x

    return _smoothed(kernel, x)


def rounded_in_between_remedied(x: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        x = x_ref[...].astype(F32)
        for _ in range(24):
            x = x * 0.75 + 0.25
        out_ref[...] = x.astype(BF16)

    return _smoothed(kernel, x)


def _rows_by(kernel: object, x: jax.Array, w: jax.Array, dtype: jnp.dtype) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((x.shape[0], w.shape[1]), dtype),
        grid=(x.shape[0] // 256,),
        in_specs=[
            pl.BlockSpec((256, x.shape[1]), lambda i: (i, 0)),
            pl.BlockSpec(w.shape, lambda i: (0, 0)),
        ],
        out_specs=pl.BlockSpec((256, w.shape[1]), lambda i: (i, 0)),
    )(x, w)


def integers_as_floats(x: jax.Array, w: jax.Array) -> jax.Array:
    """int8 blocks are converted to f32 before they are multiplied."""

    def kernel(x_ref: jax.Ref, w_ref: jax.Ref, out_ref: jax.Ref) -> None:
        x, w = x_ref[...].astype(F32), w_ref[...].astype(F32)
        out_ref[...] = jnp.dot(x, w, preferred_element_type=F32)  # SLOW

    return _rows_by(kernel, x, w, F32)


def integers_as_floats_remedied(x: jax.Array, w: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, w_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out = jnp.dot(x_ref[...], w_ref[...], preferred_element_type=jnp.int32)
        out_ref[...] = out.astype(F32)

    return _rows_by(kernel, x, w, F32)


def _by_weights(x: jax.Array, w: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, w_ref: jax.Ref, out_ref: jax.Ref) -> None:
        w = w_ref[...].astype(BF16)  # SLOW
        out_ref[...] = jnp.dot(x_ref[...], w, preferred_element_type=F32)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((x.shape[0], w.shape[1]), F32),
        grid=(w.shape[1] // 256,),
        in_specs=[
            pl.BlockSpec(x.shape, lambda j: (0, 0)),
            pl.BlockSpec((w.shape[0], 256), lambda j: (0, j)),
        ],
        out_specs=pl.BlockSpec((x.shape[0], 256), lambda j: (0, j)),
    )(x, w)


def weights_in_f32(x: jax.Array, w: jax.Array) -> jax.Array:
    """Weights are fetched in f32, and rounded to bf16 before they are multiplied."""
    return _by_weights(x, w)


def weights_in_f32_remedied(x: jax.Array, w: jax.Array) -> jax.Array:
    return _by_weights(x, w)


def experts_in_f32(experts: jax.Array, x: jax.Array, w: jax.Array) -> jax.Array:
    """A table lists the expert of each block of tokens; its weights are rounded in the kernel."""

    def kernel(_: jax.Ref, x_ref: jax.Ref, w_ref: jax.Ref, out_ref: jax.Ref) -> None:
        w = w_ref[...].astype(BF16)  # SLOW
        out_ref[...] = jnp.dot(x_ref[...], w, preferred_element_type=F32).astype(BF16)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((x.shape[0], w.shape[2]), BF16),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(experts.shape[0],),
            in_specs=[
                pl.BlockSpec((64, x.shape[1]), lambda i, _: (i, 0)),
                pl.BlockSpec((None, *w.shape[1:]), lambda i, experts: (experts[i], 0, 0)),
            ],
            out_specs=pl.BlockSpec((64, w.shape[2]), lambda i, _: (i, 0)),
        ),
    )(experts % w.shape[0], x, w)


def _all_steps(kernel: object, x: jax.Array) -> jax.Array:
    """Every step works on the same block, so that computation decides."""
    whole = pl.BlockSpec(x.shape, lambda i: (0, 0))
    return pl.pallas_call(kernel, out_shape=x, grid=(16,), in_specs=[whole], out_specs=whole)(x)


def divided_by_norms(x: jax.Array) -> jax.Array:
    """Divides by square roots."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        x = x_ref[...]
        out_ref[...] = x / jnp.sqrt(x * x + 1.0)  # SLOW

    return _all_steps(kernel, x)


def divided_by_norms_remedied(x: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        x = x_ref[...]
        out_ref[...] = x * lax.rsqrt(x * x + 1.0)

    return _all_steps(kernel, x)


def roots_as_powers(x: jax.Array) -> jax.Array:
    """Takes roots by powers."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = jnp.power(jnp.abs(x_ref[...]) + 1.0, 1.5)  # SLOW

    return _all_steps(kernel, x)


def roots_as_powers_remedied(x: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        x = jnp.abs(x_ref[...]) + 1.0
        out_ref[...] = x * jnp.sqrt(x)

    return _all_steps(kernel, x)


def _scaled(x: jax.Array, kind: jnp.dtype) -> jax.Array:
    """Scales an array, and rounds the result to bf16."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        scaled = (x_ref[...].astype(F32) * 1.5).astype(BF16)
        out_ref[...] = scaled.astype(out_ref.dtype)  # SLOW

    block = pl.BlockSpec((512, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, kind),
        grid=(x.shape[0] // 512,),
        in_specs=[block],
        out_specs=block,
    )(x)


def results_in_f32(x: jax.Array) -> jax.Array:
    """Rounds results to bf16, and writes them in f32."""
    return _scaled(x, F32)


def results_in_f32_remedied(x: jax.Array) -> jax.Array:
    return _scaled(x, BF16)


def _selected(x: jax.Array, mask: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, mask_ref: jax.Ref, out_ref: jax.Ref) -> None:
        is_kept = mask_ref[...].astype(jnp.int32) != 0  # SLOW
        out_ref[0] = jnp.where(is_kept, x_ref[0], jnp.zeros((), x.dtype))

    heads, rows, columns = x.shape
    block = pl.BlockSpec((1, 256, columns), lambda i, head: (head, i, 0))
    return pl.pallas_call(
        kernel,
        out_shape=x,
        grid=(rows // 256, heads),
        in_specs=[block, pl.BlockSpec((256, columns), lambda i, head: (i, 0))],
        out_specs=block,
    )(x, mask)


def mask_in_int32(x: jax.Array, mask: jax.Array) -> jax.Array:
    """A number of 32 bits is fetched for each value that is kept or not."""
    return _selected(x, mask)


def mask_in_int32_remedied(x: jax.Array, mask: jax.Array) -> jax.Array:
    return _selected(x, mask)


def sigmoid_by_division(x: jax.Array) -> jax.Array:
    """x times its sigmoid, as it is often written."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        x = x_ref[...]
        out_ref[...] = x / (1.0 + jnp.exp(-x))  # SLOW

    return _all_steps(kernel, x)


def sigmoid_by_division_remedied(x: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        x = x_ref[...]
        out_ref[...] = x * (0.5 + 0.5 * jnp.tanh(0.5 * x))

    return _all_steps(kernel, x)


KERNELS = (
    SlowKernel(
        advice="wide-operand",
        summary="Weights of experts that are fetched in f32 and used in bf16.",
        function=experts_in_f32,
        remedied=experts_in_f32,
        rearrange=lambda experts, x, w: (experts, x, w.astype(BF16)),
        args=(
            jax.ShapeDtypeStruct((16,), jnp.int32),
            jax.ShapeDtypeStruct((1024, 512), BF16),
            jax.ShapeDtypeStruct((8, 512, 1024), F32),
        ),
        parts=(
            "32.0 MiB in total, if each step needs a different block",
            "which is possible for weights",
        ),
    ),
    SlowKernel(
        advice="wide-operand",
        summary="Results that are rounded to bf16 and written in f32.",
        function=results_in_f32,
        remedied=results_in_f32_remedied,
        helper=_scaled,
        args=(jax.ShapeDtypeStruct((8192, 512), BF16),),
        parts=("out_ref is written in f32, 16.0 MiB in total", "make out_ref a bf16 array"),
    ),
    SlowKernel(
        advice="wide-mask",
        summary="A mask in int32.",
        function=mask_in_int32,
        remedied=mask_in_int32_remedied,
        helper=_selected,
        rearrange=lambda x, mask: (x, (mask != 0).astype(jnp.int8)),
        args=(
            jax.ShapeDtypeStruct((1, 4096, 1024), BF16),
            jax.ShapeDtypeStruct((4096, 1024), jnp.int32),
        ),
        parts=(
            "16.0 MiB in total, although it is only compared with a constant",
            "store it in int8",
        ),
    ),
    SlowKernel(
        advice="arithmetic",
        summary="Divisions by square roots.",
        function=divided_by_norms,
        remedied=divided_by_norms_remedied,
        args=(jax.ShapeDtypeStruct((256, 512), F32),),
        parts=("for 128 registers", "multiply by lax.rsqrt"),
    ),
    SlowKernel(
        advice="arithmetic",
        summary="Powers that are roots.",
        function=roots_as_powers,
        remedied=roots_as_powers_remedied,
        args=(jax.ShapeDtypeStruct((256, 512), F32),),
        parts=("exponent 1.5", "x * jnp.sqrt(x)"),
    ),
    SlowKernel(
        advice="arithmetic",
        summary="A sigmoid by a division.",
        function=sigmoid_by_division,
        remedied=sigmoid_by_division_remedied,
        args=(jax.ShapeDtypeStruct((256, 512), F32),),
        parts=("a sigmoid computed by an exponential and a division", "jnp.tanh(0.5 * x)"),
        targets=("v5e",),
    ),
    SlowKernel(
        advice="wide-product",
        summary="A product in f32 of operands that were int8.",
        function=integers_as_floats,
        remedied=integers_as_floats_remedied,
        args=(
            jax.ShapeDtypeStruct((1024, 1024), jnp.int8),
            jax.ShapeDtypeStruct((1024, 512), jnp.int8),
        ),
        parts=("two operands that were int8", "preferred_element_type=jnp.int32"),
        targets=("v5e",),
    ),
    SlowKernel(
        advice="wide-operand",
        summary="Weights that are fetched in f32 and used in bf16.",
        function=weights_in_f32,
        remedied=weights_in_f32_remedied,
        helper=_by_weights,
        rearrange=lambda x, w: (x, w.astype(BF16)),
        args=(jax.ShapeDtypeStruct((64, 1024), BF16), jax.ShapeDtypeStruct((1024, 2048), F32)),
        parts=(
            "w_ref is fetched in f32, 8.0 MiB in total",
            "store it in bf16, which is possible for weights",
        ),
    ),
    SlowKernel(
        advice="rounding",
        summary="Values that are rounded to bf16 and converted back between operations.",
        function=rounded_in_between,
        remedied=rounded_in_between_remedied,
        args=(jax.ShapeDtypeStruct((1024, 512), BF16),),
        parts=("unless the rounding is intended", "converted back to f32"),
    ),
    SlowKernel(
        advice="wide-product",
        summary="A product in f32 of operands that were bf16.",
        function=upcast_before_product,
        remedied=upcast_before_product_remedied,
        args=(
            jax.ShapeDtypeStruct((1024, 256), BF16),
            jax.ShapeDtypeStruct((256, 128), BF16),
        ),
    ),
)
