"""Products in a loop, of a few rows in each of its iterations."""

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


KERNELS = (
    SlowKernel(
        advice="thin-product",
        summary="Products of 16 rows in each iteration, by the same matrices, on one line.",
        function=heads_of_few_rows,
        remedied=heads_of_few_rows_remedied,
        args=(
            jax.ShapeDtypeStruct((1024, 256), BF16),
            jax.ShapeDtypeStruct((4, 256, 128), BF16),
        ),
        says=("loads the same 4 matrices of bf16[256, 128]",),
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
        says=("multiply the rows of all 64 iterations at once, before the loop",),
        targets=("v6e",),
    ),
    SlowKernel(
        advice="vector-product",
        summary="A product of rows with a matrix on the vector unit.",
        function=rows_times_matrix,
        remedied=rows_times_matrix_remedied,
        args=(jax.ShapeDtypeStruct((64, 256), F32), jax.ShapeDtypeStruct((128, 256), F32)),
        says=("(32, 256) by (256, 128)", "lax.dot_general, of all 32 rows at once"),
    ),
    SlowKernel(
        advice="vector-product",
        summary="A sum of products of columns and rows on the vector unit.",
        function=columns_times_rows,
        remedied=columns_times_rows_remedied,
        rearrange=lambda x, y: (x.T, y),
        args=(jax.ShapeDtypeStruct((64, 256), F32), jax.ShapeDtypeStruct((64, 512), F32)),
        says=("(256, 64) by (64, 256)", "contracted over what the loop counts"),
    ),
)
