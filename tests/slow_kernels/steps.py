"""Work that every grid step does again."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .slow import SlowKernel

F32, BF16 = jnp.float32, jnp.bfloat16
ROWS, LONG, COLUMNS = 256, 512, 128


def _angles(rows: int = ROWS, first: jax.Array | int = 0) -> jax.Array:
    row = (first + lax.broadcasted_iota(jnp.int32, (rows, COLUMNS), 0)).astype(F32)
    column = lax.broadcasted_iota(jnp.int32, (rows, COLUMNS), 1).astype(F32)
    return row * jnp.exp(-0.07 * column)


def _all_steps(kernel: object, *arrays: jax.Array) -> jax.Array:
    """Every step works on the same blocks, so that computation decides."""
    whole = pl.BlockSpec((ROWS, COLUMNS), lambda i: (0, 0))
    return pl.pallas_call(
        kernel, out_shape=arrays[0], grid=(64,), in_specs=[whole] * len(arrays), out_specs=whole
    )(*arrays)


def cosines_in_every_step(x: jax.Array) -> jax.Array:
    """Multiplies a block by the same table, which is computed in every step."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        angles = _angles()
        out_ref[...] = x_ref[...] * jnp.cos(angles)  # SLOW

    return _all_steps(kernel, x)


def cosines_in_every_step_remedied(x: jax.Array, table: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, table_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...] * table_ref[...]

    return _all_steps(kernel, x, table)


def _rotated(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    return x * cos + pltpu.roll(x, COLUMNS // 2, 1) * sin


def rotated_by_angles(x: jax.Array) -> jax.Array:
    """Rotates each head by angles that only depend on the position."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        angles = _angles(LONG, pl.program_id(0) * LONG)
        cos, sin = jnp.cos(angles), jnp.sin(angles)  # SLOW
        out_ref[0] = _rotated(x_ref[0], cos, sin)

    heads, rows, _ = x.shape
    block = pl.BlockSpec((1, LONG, COLUMNS), lambda i, head: (head, i, 0))
    return pl.pallas_call(
        kernel, out_shape=x, grid=(rows // LONG, heads), in_specs=[block], out_specs=block
    )(x)


def rotated_by_angles_remedied(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, cos_ref: jax.Ref, sin_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[0] = _rotated(x_ref[0], cos_ref[...], sin_ref[...])

    heads, rows, _ = x.shape
    block = pl.BlockSpec((1, LONG, COLUMNS), lambda i, head: (head, i, 0))
    table = pl.BlockSpec((LONG, COLUMNS), lambda i, head: (i, 0))
    return pl.pallas_call(
        kernel,
        out_shape=x,
        grid=(rows // LONG, heads),
        in_specs=[block, table, table],
        out_specs=block,
    )(x, cos, sin)


def _with_tables(x: jax.Array) -> tuple[jax.Array, ...]:
    angles = _angles(x.shape[1])
    return x, jnp.cos(angles), jnp.sin(angles)


def _mixed(x: jax.Array, w: jax.Array, *, is_normalised: bool, once: bool = False) -> jax.Array:
    """Product with a softmax of weights, of which `w` are the logarithms, or the result."""

    def softmax(w_ref: jax.Ref) -> jax.Array:
        return jax.nn.softmax(w_ref[...].astype(F32), axis=0).astype(BF16)  # SLOW

    def kernel(x_ref: jax.Ref, w_ref: jax.Ref, out_ref: jax.Ref, *kept: jax.Ref) -> None:
        if once:
            (kept_ref,) = kept

            @pl.when(pl.program_id(0) == 0)
            def _() -> None:
                kept_ref[...] = softmax(w_ref)

            weights = kept_ref[...]
        else:
            weights = w_ref[...] if is_normalised else softmax(w_ref)
        out_ref[...] = jnp.dot(x_ref[...], weights, preferred_element_type=F32)

    rows = pl.BlockSpec((128, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((x.shape[0], w.shape[1]), F32),
        grid=(x.shape[0] // 128,),
        in_specs=[rows, pl.BlockSpec(w.shape, lambda i: (0, 0))],
        out_specs=pl.BlockSpec((128, w.shape[1]), lambda i: (i, 0)),
        scratch_shapes=[pltpu.VMEM(w.shape, BF16)] * once,
    )(x, w)


def mixed_by_softmax(x: jax.Array, w: jax.Array) -> jax.Array:
    """Each step computes the same softmax."""
    return _mixed(x, w, is_normalised=False)


def mixed_by_softmax_remedied(x: jax.Array, w: jax.Array) -> jax.Array:
    return _mixed(x, w, is_normalised=True)


def mixed_by_softmax_once(x: jax.Array, w: jax.Array) -> jax.Array:
    """The softmax is computed in the first step."""
    return _mixed(x, w, is_normalised=False, once=True)


def _causal(q: jax.Array, k: jax.Array, v: jax.Array, *, skips: bool) -> jax.Array:
    """Attention in blocks of 512, of which those above the diagonal are masked, or left out."""
    size = 512

    def kernel(
        q_ref: jax.Ref, k_ref: jax.Ref, v_ref: jax.Ref, out_ref: jax.Ref, *state: jax.Ref
    ) -> None:
        highest, total, out = state
        i, j = pl.program_id(0), pl.program_id(1)

        @pl.when(j == 0)
        def _start() -> None:
            highest[...] = jnp.full_like(highest, -1e30)
            total[...] = jnp.zeros_like(total)
            out[...] = jnp.zeros_like(out)

        def add() -> None:
            scores = lax.dot_general(
                q_ref[...], k_ref[...], (((1,), (1,)), ((), ())), preferred_element_type=F32
            )
            row = i * size + lax.broadcasted_iota(jnp.int32, scores.shape, 0)
            column = j * size + lax.broadcasted_iota(jnp.int32, scores.shape, 1)
            scores = lax.select(column <= row, scores, jnp.full_like(scores, -1e30))  # SLOW
            above = jnp.maximum(highest[...], jnp.max(scores, axis=1, keepdims=True))
            p, scale = jnp.exp(scores - above), jnp.exp(highest[...] - above)
            total[...] = total[...] * scale + jnp.sum(p, axis=1, keepdims=True)
            product = jnp.dot(p.astype(BF16), v_ref[...], preferred_element_type=F32)
            out[...] = out[...] * scale + product
            highest[...] = above

        pl.when(j <= i)(add) if skips else add()

        @pl.when(j == pl.num_programs(1) - 1)
        def _end() -> None:
            out_ref[...] = (out[...] / total[...]).astype(BF16)

    rows = pl.BlockSpec((size, q.shape[1]), lambda i, j: (i, 0))
    columns = pl.BlockSpec((size, q.shape[1]), lambda i, j: (jnp.minimum(j, i) if skips else j, 0))
    return pl.pallas_call(
        kernel,
        out_shape=q,
        grid=(q.shape[0] // size, k.shape[0] // size),
        in_specs=[rows, columns, columns],
        out_specs=rows,
        scratch_shapes=[
            *[pltpu.VMEM((size, 1), F32)] * 2,
            pltpu.VMEM((size, q.shape[1]), F32),
        ],
    )(q, k, v)


def causal_in_every_step(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Blocks above the diagonal are computed, and masked as a whole."""
    return _causal(q, k, v, skips=False)


def causal_in_every_step_remedied(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return _causal(q, k, v, skips=True)


def _loss(x: jax.Array, w: jax.Array, t: jax.Array, columns: int) -> jax.Array:
    """The cross entropy of 256 rows, over blocks of the vocabulary."""

    def kernel(
        x_ref: jax.Ref, w_ref: jax.Ref, t_ref: jax.Ref, out_ref: jax.Ref, *state: jax.Ref
    ) -> None:
        highest, total, chosen = state
        j = pl.program_id(0)

        @pl.when(j == 0)
        def _start() -> None:
            highest[...] = jnp.full_like(highest, -jnp.inf)
            total[...] = jnp.zeros_like(total)
            chosen[...] = jnp.zeros_like(chosen)

        scores = jnp.dot(x_ref[...], w_ref[...], preferred_element_type=F32)
        peak = jnp.maximum(highest[...], jnp.max(scores, axis=1, keepdims=True))
        rescaled = total[...] * jnp.exp(highest[...] - peak)
        total[...] = rescaled + jnp.sum(jnp.exp(scores - peak), axis=1, keepdims=True)
        highest[...] = peak
        column = lax.broadcasted_iota(jnp.int32, scores.shape, 1) + j * columns
        own = jnp.where(column == t_ref[...], scores, 0)
        chosen[...] += jnp.sum(own, axis=1, keepdims=True)

        @pl.when(j == pl.num_programs(0) - 1)
        def _end() -> None:
            out_ref[...] = highest[...] + jnp.log(total[...]) - chosen[...]

    rows = pl.BlockSpec((256, 1), lambda j: (0, 0))
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((256, 1), F32),
        grid=(w.shape[1] // columns,),
        in_specs=[
            pl.BlockSpec(x.shape, lambda j: (0, 0)),
            pl.BlockSpec((w.shape[0], columns), lambda j: (0, j)),  # SLOW
            rows,
        ],
        out_specs=rows,
        scratch_shapes=[pltpu.VMEM((256, 1), F32)] * 3,
    )(x, w, t)


def loss_over_few_columns(x: jax.Array, w: jax.Array, t: jax.Array) -> jax.Array:
    """Most of a step is work on columns of one value per row, however many columns it adds."""
    return _loss(x, w, t, 128)


def loss_over_few_columns_remedied(x: jax.Array, w: jax.Array, t: jax.Array) -> jax.Array:
    return _loss(x, w, t, 1024)


KERNELS = (
    SlowKernel(
        advice="small-blocks",
        summary="A loss over 128 columns at a time.",
        function=loss_over_few_columns,
        remedied=loss_over_few_columns_remedied,
        helper=_loss,
        args=(
            jax.ShapeDtypeStruct((256, 512), BF16),
            jax.ShapeDtypeStruct((512, 4096), BF16),
            jax.ShapeDtypeStruct((256, 1), jnp.int32),
        ),
        parts=("work that would not grow with the blocks", "(512, 1024) for w_ref"),
    ),
    SlowKernel(
        advice="masked-steps",
        summary="Causal attention that computes the blocks above the diagonal.",
        function=causal_in_every_step,
        remedied=causal_in_every_step_remedied,
        helper=_causal,
        args=(jax.ShapeDtypeStruct((2048, 128), BF16),) * 3,
        parts=("at 6 of 16 grid points, the mask is false everywhere", "k_ref, v_ref stay"),
    ),
    SlowKernel(
        advice="step-invariant",
        summary="A table of cosines that each grid step computes again.",
        function=cosines_in_every_step,
        remedied=cosines_in_every_step_remedied,
        rearrange=lambda x: (x, jnp.cos(_angles())),
        args=(jax.ShapeDtypeStruct((ROWS, COLUMNS), F32),),
        parts=("each of the 64 grid steps", "of 128 KiB"),
    ),
    SlowKernel(
        advice="same-block",
        summary="A softmax of weights that each grid step computes again.",
        function=mixed_by_softmax,
        remedied=mixed_by_softmax_remedied,
        helper=_mixed,
        rearrange=lambda x, w: (x, jax.nn.softmax(w.astype(F32), axis=0).astype(BF16)),
        args=(jax.ShapeDtypeStruct((1024, 512), BF16), jax.ShapeDtypeStruct((512, 512), BF16)),
        parts=(
            "works only on w_ref, whose block stays the same for 8 steps",
            "in the first of the 8 steps",
        ),
    ),
    SlowKernel(
        advice="step-invariant",
        summary="Angles of positions that are computed again for each head.",
        function=rotated_by_angles,
        remedied=rotated_by_angles_remedied,
        rearrange=_with_tables,
        args=(jax.ShapeDtypeStruct((8, 2048, COLUMNS), F32),),
        parts=(
            "each of the 32 grid steps recomputes values that depend only on axis 0 of the grid",
            "only depends on axis 0 of the grid, in blocks of 512 KiB",
            "in the first of 8 steps",
        ),
    ),
)
