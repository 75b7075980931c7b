"""Products of a few rows in each iteration of a loop, or in each grid step."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .slow import SlowKernel

F32, BF16 = jnp.float32, jnp.bfloat16


def _of_heads(kernel: object, x: jax.Array, w: jax.Array) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((w.shape[0], x.shape[0], w.shape[2]), F32),
        grid=(x.shape[0] // 256,),
        in_specs=[
            pl.BlockSpec((256, x.shape[1]), lambda i: (i, 0)),
            pl.BlockSpec(w.shape, lambda i: (0, 0, 0)),
        ],
        out_specs=pl.BlockSpec((w.shape[0], 256, w.shape[2]), lambda i: (0, i, 0)),
    )(x, w)


def heads_of_few_rows(x: jax.Array, w: jax.Array) -> jax.Array:
    """Each iteration multiplies 16 rows by the weights of all heads, on one line."""

    def kernel(x_ref: jax.Ref, w_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def rows(i: jax.Array, _: None) -> None:
            at = pl.ds(pl.multiple_of(i * 16, 16), 16)
            for head in range(w_ref.shape[0]):
                out_ref[head, at, :] = jnp.dot(  # SLOW
                    x_ref[at, :], w_ref[head], preferred_element_type=F32
                )

        lax.fori_loop(0, x_ref.shape[0] // 16, rows, None)

    return _of_heads(kernel, x, w)


def heads_of_few_rows_remedied(x: jax.Array, w: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, w_ref: jax.Ref, out_ref: jax.Ref) -> None:
        for head in range(w_ref.shape[0]):
            out_ref[head] = jnp.dot(x_ref[...], w_ref[head], preferred_element_type=F32)

    return _of_heads(kernel, x, w)


def _of_rows(kernel: object, x: jax.Array, w: jax.Array) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((x.shape[0], w.shape[0]), F32),
        grid=(x.shape[0] // 32,),
        in_specs=[
            pl.BlockSpec((32, x.shape[1]), lambda i: (i, 0)),
            pl.BlockSpec(w.shape, lambda i: (0, 0)),
        ],
        out_specs=pl.BlockSpec((32, w.shape[0]), lambda i: (i, 0)),
    )(x, w)


def rows_times_matrix(x: jax.Array, w: jax.Array) -> jax.Array:
    """Each iteration multiplies the matrix by one row, element by element, and sums."""

    def kernel(x_ref: jax.Ref, w_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def one(i: jax.Array, _: None) -> None:
            row = x_ref[pl.ds(i, 1), :]
            out_ref[pl.ds(i, 1), :] = jnp.sum(w_ref[...] * row, axis=1)[None, :]  # SLOW

        lax.fori_loop(0, x_ref.shape[0], one, None)

    return _of_rows(kernel, x, w)


def rows_times_matrix_remedied(x: jax.Array, w: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, w_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = lax.dot_general(
            x_ref[...],
            w_ref[...],
            (((1,), (1,)), ((), ())),
            precision=lax.Precision.HIGHEST,
            preferred_element_type=F32,
        )

    return _of_rows(kernel, x, w)


def _outer(kernel: object, x: jax.Array, y: jax.Array) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((x.shape[1], y.shape[1]), F32),
        grid=(y.shape[1] // 256,),
        in_specs=[
            pl.BlockSpec(x.shape, lambda j: (0, 0)),
            pl.BlockSpec((y.shape[0], 256), lambda j: (0, j)),
        ],
        out_specs=pl.BlockSpec((x.shape[1], 256), lambda j: (0, j)),
    )(x, y)


def columns_times_rows(x: jax.Array, y: jax.Array) -> jax.Array:
    """Each iteration adds the product of a column and a row; their sum is spilled."""

    def kernel(x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def add(k: jax.Array, total: jax.Array) -> jax.Array:
            return total + x_ref[k][:, None] * y_ref[pl.ds(k, 1), :]  # SLOW

        out_ref[...] = lax.fori_loop(0, x_ref.shape[0], add, jnp.zeros(out_ref.shape, F32))

    return _outer(kernel, x, y)


def columns_times_rows_remedied(x: jax.Array, y: jax.Array) -> jax.Array:
    """`x` is passed transposed: else each step would transpose it, for which the MXU waits."""

    def kernel(x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = lax.dot_general(
            x_ref[...],
            y_ref[...],
            (((1,), (0,)), ((), ())),
            precision=lax.Precision.HIGHEST,
            preferred_element_type=F32,
        )

    columns, width = x.shape[0], y.shape[1]
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((columns, width), F32),
        grid=(width // 256,),
        in_specs=[
            pl.BlockSpec(x.shape, lambda j: (0, 0)),
            pl.BlockSpec((y.shape[0], 256), lambda j: (0, j)),
        ],
        out_specs=pl.BlockSpec((columns, 256), lambda j: (0, j)),
    )(x, y)


def recurrent(x: jax.Array, w: jax.Array, *, ahead: bool) -> jax.Array:
    """A recurrence with a product of its inputs, in each iteration or before the loop.

    The iterations wait for the other product, of what the iteration before computed.
    """

    def kernel(x_ref: jax.Ref, w_ref: jax.Ref, out_ref: jax.Ref, given: jax.Ref) -> None:
        def product(rows: jax.Array, which: int) -> jax.Array:
            return jnp.dot(rows, w_ref[which], preferred_element_type=F32)

        if ahead:
            given[...] = product(x_ref[...].reshape(-1, 128), 0).reshape(given.shape)

        def step(t: jax.Array, h: jax.Array) -> jax.Array:
            h = product(h.astype(BF16), 1)
            h = jnp.tanh(h + (given[t] if ahead else product(x_ref[t], 0)))
            out_ref[t] = h
            return h

        lax.fori_loop(0, x_ref.shape[0], step, jnp.zeros(x_ref.shape[1:], F32))

    block = pl.BlockSpec((64, 16, 128), lambda i: (i, 0, 0))
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, F32),
        grid=(x.shape[0] // 64,),
        in_specs=[block, pl.BlockSpec(w.shape, lambda i: (0, 0, 0))],
        out_specs=block,
        scratch_shapes=[pltpu.VMEM((64, 16, 128), F32)],
    )(x, w)


def _wide(x: jax.Array, w: jax.Array, u: jax.Array, *, ahead: bool) -> jax.Array:
    def kernel(
        x_ref: jax.Ref, w_ref: jax.Ref, u_ref: jax.Ref, out_ref: jax.Ref, given: jax.Ref
    ) -> None:
        if ahead:
            rows = x_ref[...].reshape(-1, x_ref.shape[2])
            made = jnp.dot(rows, w_ref[...], preferred_element_type=F32)
            given[...] = made.reshape(given.shape)

        def step(t: jax.Array, h: jax.Array) -> jax.Array:
            if ahead:
                new = given[t]
            else:
                new = jnp.dot(x_ref[t], w_ref[...], preferred_element_type=F32)  # SLOW
            h = jnp.tanh(new + jnp.dot(h.astype(BF16), u_ref[...], preferred_element_type=F32))
            out_ref[t] = h
            return h

        lax.fori_loop(0, x_ref.shape[0], step, jnp.zeros(out_ref.shape[1:], F32))

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((x.shape[0], x.shape[1], u.shape[1]), F32),
        grid=(x.shape[0] // 64,),
        in_specs=[
            pl.BlockSpec((64, *x.shape[1:]), lambda i: (i, 0, 0)),
            pl.BlockSpec(w.shape, lambda i: (0, 0)),
            pl.BlockSpec(u.shape, lambda i: (0, 0)),
        ],
        out_specs=pl.BlockSpec((64, x.shape[1], u.shape[1]), lambda i: (i, 0, 0)),
        scratch_shapes=[pltpu.VMEM((64, x.shape[1], u.shape[1]), F32)],
    )(x, w, u)


def wide_inputs_of_a_recurrence(x: jax.Array, w: jax.Array, u: jax.Array) -> jax.Array:
    """The matrix for the inputs is 8 times as large as that of the recurrence."""
    return _wide(x, w, u, ahead=False)


def wide_inputs_of_a_recurrence_remedied(x: jax.Array, w: jax.Array, u: jax.Array) -> jax.Array:
    return _wide(x, w, u, ahead=True)


def _decoded(q: jax.Array, k: jax.Array, v: jax.Array, steps_per_head: int) -> jax.Array:
    """Attention of the next token's rows to all keys, of which 8 query heads share a head."""
    heads, length, dim = k.shape

    def kernel(q_ref: jax.Ref, k_ref: jax.Ref, v_ref: jax.Ref, out_ref: jax.Ref) -> None:
        contracted = (((1,), (1,)), ((), ()))
        scores = lax.dot_general(  # SLOW
            *(q_ref[0], k_ref[0], contracted), preferred_element_type=F32
        )
        p = jnp.exp(scores - jnp.max(scores, axis=1, keepdims=True))
        found = jnp.dot(p.astype(BF16), v_ref[0], preferred_element_type=F32)
        out_ref[0] = (found / jnp.sum(p, axis=1, keepdims=True)).astype(BF16)

    rows = q.reshape(heads * steps_per_head, -1, dim)
    block = pl.BlockSpec((1, *rows.shape[1:]), lambda i: (i, 0, 0))
    keys = pl.BlockSpec((1, length, dim), lambda i: (i // steps_per_head, 0, 0))
    out = pl.pallas_call(
        kernel,
        out_shape=rows,
        grid=(rows.shape[0],),
        in_specs=[block, keys, keys],
        out_specs=block,
    )(rows, k, v)
    return out.reshape(q.shape)


def decoded_row_by_row(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Each grid step takes one query head, of 8 that attend to the same keys."""
    return _decoded(q, k, v, steps_per_head=8)


def decoded_row_by_row_remedied(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return _decoded(q, k, v, steps_per_head=1)


def _decoded_in_blocks(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Attention to blocks of keys, whose results a step passes on to the next in scratch."""
    heads, groups, rows, dim = q.shape
    size = 1024

    def kernel(q_ref: jax.Ref, k_ref: jax.Ref, v_ref: jax.Ref, out_ref: jax.Ref, *kept: jax.Ref):
        max_ref, sum_ref, total_ref = kept
        j = pl.program_id(2)

        @pl.when(j == 0)
        def _() -> None:
            max_ref[...] = jnp.full_like(max_ref, -1e30)
            sum_ref[...] = jnp.zeros_like(sum_ref)
            total_ref[...] = jnp.zeros_like(total_ref)

        contracted = (((1,), (1,)), ((), ()))
        scores = lax.dot_general(  # SLOW
            *(q_ref[0, 0], k_ref[0], contracted), preferred_element_type=F32
        )
        largest = jnp.maximum(max_ref[...], jnp.max(scores, axis=1, keepdims=True))
        p, scale = jnp.exp(scores - largest), jnp.exp(max_ref[...] - largest)
        sum_ref[...] = sum_ref[...] * scale + jnp.sum(p, axis=1, keepdims=True)
        found = jnp.dot(p.astype(BF16), v_ref[0], preferred_element_type=F32)
        total_ref[...] = total_ref[...] * scale + found
        max_ref[...] = largest

        @pl.when(j == pl.num_programs(2) - 1)
        def _() -> None:
            out_ref[0, 0] = (total_ref[...] / sum_ref[...]).astype(BF16)

    block = pl.BlockSpec((1, 1, rows, dim), lambda h, g, j: (h, g, 0, 0))
    keys = pl.BlockSpec((1, size, dim), lambda h, g, j: (h, j, 0))
    return pl.pallas_call(
        kernel,
        out_shape=q,
        grid=(heads, groups, k.shape[1] // size),
        in_specs=[block, keys, keys],
        out_specs=block,
        scratch_shapes=[pltpu.VMEM((rows, n), F32) for n in (1, 1, dim)],
    )(q, k, v)


def decoded_row_by_row_in_blocks(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Each query head goes through all keys, of which it fetches every block again."""
    return _decoded_in_blocks(q, k, v)


def decoded_row_by_row_in_blocks_remedied(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    heads, groups, rows, dim = q.shape
    together = q.reshape(heads, 1, groups * rows, dim)
    return _decoded_in_blocks(together, k, v).reshape(q.shape)


def _by_rows(kernel: object, x: jax.Array, y: jax.Array) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((x.shape[0], y.shape[0]), F32),
        grid=(x.shape[0] // 64,),
        in_specs=[
            pl.BlockSpec((64, x.shape[1]), lambda i: (i, 0)),
            pl.BlockSpec(y.shape, lambda i: (0, 0)),
        ],
        out_specs=pl.BlockSpec((64, y.shape[0]), lambda i: (i, 0)),
    )(x, y)


def distances_of_pairs(x: jax.Array, y: jax.Array) -> jax.Array:
    """Squared distances of all rows to each other, in three dimensions."""

    def kernel(x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref) -> None:
        difference = x_ref[...][:, None, :] - y_ref[...][None, :, :]
        out_ref[...] = jnp.sum(difference * difference, axis=-1)  # SLOW

    return _by_rows(kernel, x, y)


def distances_of_pairs_remedied(x: jax.Array, y: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def product(a: jax.Array, b: jax.Array) -> jax.Array:
            contracted = (((1,), (1,)), ((), ()))
            highest = lax.Precision.HIGHEST
            return lax.dot_general(a, b, contracted, highest, preferred_element_type=F32)

        x, y = x_ref[...], y_ref[...]
        columns = product(jnp.ones((1, y.shape[1]), F32), y * y)
        out_ref[...] = jnp.sum(x * x, axis=1, keepdims=True) - 2 * product(x, y) + columns

    return _by_rows(kernel, x, y)


def products_of_pairs(x: jax.Array, y: jax.Array) -> jax.Array:
    """Products of all rows of bf16 with each other, in three dimensions."""

    def kernel(x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref) -> None:
        x, y = x_ref[...].astype(F32), y_ref[...].astype(F32)
        out_ref[...] = jnp.sum(x[:, None, :] * y[None, :, :], axis=-1)  # SLOW

    return _by_rows(kernel, x, y)


def products_of_pairs_remedied(x: jax.Array, y: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref) -> None:
        contracted = (((1,), (1,)), ((), ()))
        out_ref[...] = lax.dot_general(
            x_ref[...], y_ref[...], contracted, preferred_element_type=F32
        )

    return _by_rows(kernel, x, y)


KERNELS = (
    SlowKernel(
        advice="broadcast-product",
        summary="Distances of all rows to each other on the vector unit.",
        function=distances_of_pairs,
        remedied=distances_of_pairs_remedied,
        args=(jax.ShapeDtypeStruct((256, 64), F32), jax.ShapeDtypeStruct((128, 64), F32)),
        parts=("all 64 by 128 pairs of rows, of 64 elements", "|x|² - 2 x·y + |y|²"),
    ),
    SlowKernel(
        advice="broadcast-product",
        summary="Products of all rows with each other on the vector unit.",
        function=products_of_pairs,
        remedied=products_of_pairs_remedied,
        args=(jax.ShapeDtypeStruct((256, 128), BF16), jax.ShapeDtypeStruct((128, 128), BF16)),
        parts=("multiplies all 64 by 128 pairs", "of bf16, with preferred_element_type"),
    ),
    SlowKernel(
        advice="thin-steps",
        summary="Attention of one query row in each grid step, to keys that 8 steps share.",
        function=decoded_row_by_row,
        remedied=decoded_row_by_row_remedied,
        helper=_decoded,
        args=(
            jax.ShapeDtypeStruct((32, 128), BF16),
            *(jax.ShapeDtypeStruct((4, 2048, 128), BF16),) * 2,
        ),
        parts=("1 row of q_ref by blocks of k_ref and v_ref that 8 steps", "the work of 8"),
    ),
    SlowKernel(
        advice="thin-steps",
        summary="Attention of one query head after another to the same blocks of keys.",
        function=decoded_row_by_row_in_blocks,
        remedied=decoded_row_by_row_in_blocks_remedied,
        helper=_decoded_in_blocks,
        args=(
            jax.ShapeDtypeStruct((2, 4, 2, 128), BF16),
            *(jax.ShapeDtypeStruct((2, 4096, 128), BF16),) * 2,
        ),
        parts=("2 rows of q_ref by blocks of k_ref and v_ref that 4 steps", "the work of 4"),
    ),
    SlowKernel(
        advice="thin-product",
        summary="Products of 16 rows in each iteration, by the same matrices, on one line.",
        function=heads_of_few_rows,
        remedied=heads_of_few_rows_remedied,
        args=(
            jax.ShapeDtypeStruct((1024, 256), BF16),
            jax.ShapeDtypeStruct((4, 256, 128), BF16),
        ),
        parts=("loads the same 4 matrices of bf16[256, 128]",),
    ),
    SlowKernel(
        advice="thin-product",
        summary="Products of the inputs of a recurrence, one time after another.",
        function=wide_inputs_of_a_recurrence,
        remedied=wide_inputs_of_a_recurrence_remedied,
        helper=_wide,
        args=tuple(
            jax.ShapeDtypeStruct(shape, BF16)
            for shape in ((128, 16, 1024), (1024, 128), (128, 128))
        ),
        parts=("multiply the rows of all 64 iterations at once, before the loop",),
        targets=("v6e",),
    ),
    SlowKernel(
        advice="vector-product",
        summary="A product of rows with a matrix on the vector unit.",
        function=rows_times_matrix,
        remedied=rows_times_matrix_remedied,
        args=(jax.ShapeDtypeStruct((64, 256), F32), jax.ShapeDtypeStruct((128, 256), F32)),
        parts=("(32, 256) by (256, 128)", "lax.dot_general, of all 32 rows at once"),
    ),
    SlowKernel(
        advice="vector-product",
        summary="A sum of products of columns and rows on the vector unit.",
        function=columns_times_rows,
        remedied=columns_times_rows_remedied,
        rearrange=lambda x, y: (x.T, y),
        args=(jax.ShapeDtypeStruct((64, 256), F32), jax.ShapeDtypeStruct((64, 512), F32)),
        parts=(
            "(256, 64) by (64, 256)",
            "contracted over the dimension that the loop iterates over",
        ),
    ),
)
