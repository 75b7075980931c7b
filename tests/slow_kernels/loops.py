"""Inner loops that do too little, or too much, at a time."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .slow import SlowKernel

F32, BF16 = jnp.float32, jnp.bfloat16


def _rows(kernel: object, x: jax.Array, rows: int) -> jax.Array:
    spec = pl.BlockSpec((rows, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        kernel, out_shape=x, grid=(x.shape[0] // rows,), in_specs=[spec], out_specs=spec
    )(x)


def whole_block_carried(x: jax.Array, w: jax.Array) -> jax.Array:
    """A loop carries 128 vector registers' worth of data, twice what there are."""

    def kernel(x_ref: jax.Ref, w_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def add(i: jax.Array, total: jax.Array) -> jax.Array:
            return total * x_ref[...] + w_ref[pl.ds(i, 1), :]  # SLOW

        out_ref[...] = lax.fori_loop(0, w_ref.shape[0], add, jnp.zeros_like(out_ref))

    return _weighted(kernel, x, w)


def whole_block_carried_remedied(x: jax.Array, w: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, w_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def part(j: jax.Array, _: None) -> None:
            rows = pl.ds(pl.multiple_of(j * 32, 32), 32)

            def add(i: jax.Array, total: jax.Array) -> jax.Array:
                return total * x_ref[rows, :] + w_ref[pl.ds(i, 1), :]

            zeros = jnp.zeros((32, out_ref.shape[1]), F32)
            out_ref[rows, :] = lax.fori_loop(0, w_ref.shape[0], add, zeros, unroll=8)

        lax.fori_loop(0, out_ref.shape[0] // 32, part, None)

    return _weighted(kernel, x, w)


def _weighted(kernel: object, x: jax.Array, w: jax.Array) -> jax.Array:
    spec = pl.BlockSpec((256, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        kernel,
        out_shape=x,
        grid=(x.shape[0] // 256,),
        in_specs=[spec, pl.BlockSpec(w.shape, lambda i: (0, 0))],
        out_specs=spec,
    )(x, w)


def row_by_row(x: jax.Array) -> jax.Array:
    """One row at a time: one sublane of eight does work."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def row(r: jax.Array, _: None) -> None:
            out_ref[pl.ds(r, 1), :] = x_ref[pl.ds(r, 1), :] * 2.0 + 1.0  # SLOW

        lax.fori_loop(0, x_ref.shape[0], row, None)

    return _rows(kernel, x, 256)


def row_by_row_remedied(x: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def tile(i: jax.Array, _: None) -> None:
            rows = pl.ds(pl.multiple_of(i * 64, 64), 64)
            out_ref[rows, :] = x_ref[rows, :] * 2.0 + 1.0

        lax.fori_loop(0, x_ref.shape[0] // 64, tile, None)

    return _rows(kernel, x, 256)


def scalar_scale(x: jax.Array) -> jax.Array:
    """A table in SMEM is processed an entry at a time, by the scalar unit."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def entry(i: jax.Array, _: None) -> None:
            out_ref[0, i] = x_ref[0, i] * 2.0 + 1.0  # SLOW

        lax.fori_loop(0, 1024, entry, None)

    spec = pl.BlockSpec((1, 1024), lambda i: (0, i), memory_space=pltpu.SMEM)
    return pl.pallas_call(kernel, out_shape=x, grid=(4,), in_specs=[spec], out_specs=spec)(x)


def scalar_scale_remedied(x: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...] * 2.0 + 1.0

    spec = pl.BlockSpec((1, 1024), lambda i: (0, i))
    return pl.pallas_call(kernel, out_shape=x, grid=(4,), in_specs=[spec], out_specs=spec)(x)


def mask_in_every_iteration(q: jax.Array, k: jax.Array) -> jax.Array:
    """Only the last columns need a mask, and every iteration computes and applies it."""

    def kernel(q_ref: jax.Ref, k_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = jnp.zeros_like(out_ref)

        def add(j: jax.Array, _: None) -> None:
            k = k_ref[:, pl.ds(pl.multiple_of(j * 128, 128), 128)]
            scores = jnp.dot(q_ref[...], k, preferred_element_type=F32)
            columns = lax.broadcasted_iota(jnp.int32, scores.shape, 1) + j * 128
            rows = lax.broadcasted_iota(jnp.int32, scores.shape, 0)
            valid = columns + rows < 900
            pltpu.store(out_ref, out_ref[...] + scores, mask=valid)  # SLOW

        lax.fori_loop(0, 8, add, None)

    return _scores(kernel, q, k)


def mask_in_every_iteration_remedied(q: jax.Array, k: jax.Array) -> jax.Array:
    def kernel(q_ref: jax.Ref, k_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = jnp.zeros_like(out_ref)

        def scores(j: jax.Array) -> jax.Array:
            k = k_ref[:, pl.ds(pl.multiple_of(j * 128, 128), 128)]
            return jnp.dot(q_ref[...], k, preferred_element_type=F32)

        def add(j: jax.Array, _: None) -> None:
            out_ref[...] += scores(j)

        lax.fori_loop(0, 6, add, None)
        for j in (6, 7):
            columns = lax.broadcasted_iota(jnp.int32, (128, 128), 1) + j * 128
            rows = lax.broadcasted_iota(jnp.int32, (128, 128), 0)
            out_ref[...] += jnp.where(columns + rows < 900, scores(j), 0.0)

    return _scores(kernel, q, k)


def _scores(kernel: object, q: jax.Array, k: jax.Array) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((q.shape[0], 128), F32),
        grid=(q.shape[0] // 128,),
        in_specs=[
            pl.BlockSpec((128, q.shape[1]), lambda i: (i, 0)),
            pl.BlockSpec(k.shape, lambda i: (0, 0)),
        ],
        out_specs=pl.BlockSpec((128, 128), lambda i: (i, 0)),
    )(q, k)


def norm_of_each_row(x: jax.Array, w: jax.Array) -> jax.Array:
    """Rows are normalised one by one, each with the same weights."""

    def kernel(x_ref: jax.Ref, w_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def row(i: jax.Array, _: None) -> None:
            x = x_ref[pl.ds(i, 1), :]
            out_ref[pl.ds(i, 1), :] = x * lax.rsqrt(jnp.mean(x * x) + 1e-6) * w_ref[...]  # SLOW

        lax.fori_loop(0, x_ref.shape[0], row, None)

    return _weighted(kernel, x, w)


def norm_of_each_row_remedied(x: jax.Array, w: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, w_ref: jax.Ref, out_ref: jax.Ref) -> None:
        x = x_ref[...]
        mean = jnp.mean(x * x, axis=1, keepdims=True)
        out_ref[...] = x * lax.rsqrt(mean + 1e-6) * w_ref[...]

    return _weighted(kernel, x, w)


def _product(kernel: object, x: jax.Array, w: jax.Array) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((x.shape[0], w.shape[1]), F32),
        grid=(x.shape[0] // 128,),
        in_specs=[
            pl.BlockSpec((128, x.shape[1]), lambda i: (i, 0)),
            pl.BlockSpec(w.shape, lambda i: (0, 0)),
        ],
        out_specs=pl.BlockSpec((128, w.shape[1]), lambda i: (i, 0)),
    )(x, w)


def product_of_few_rows(x: jax.Array, w: jax.Array) -> jax.Array:
    """The weights are loaded into the MXU again for every 8 rows."""

    def kernel(x_ref: jax.Ref, w_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def rows(i: jax.Array, _: None) -> None:
            at = pl.ds(pl.multiple_of(i * 8, 8), 8)
            out_ref[at, :] = jnp.dot(x_ref[at, :], w_ref[...])  # SLOW

        lax.fori_loop(0, 16, rows, None)

    return _product(kernel, x, w)


def product_of_few_rows_remedied(x: jax.Array, w: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, w_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = jnp.dot(x_ref[...], w_ref[...])

    return _product(kernel, x, w)


def _gathered(table: jax.Array, unroll: int) -> jax.Array:
    def kernel(ids_ref: jax.Ref, table_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def row(i: jax.Array, _: None) -> None:
            out_ref[pl.ds(i, 1), :] = table_ref[pl.ds(ids_ref[i], 1), :]  # SLOW

        lax.fori_loop(0, out_ref.shape[0], row, None, unroll=unroll)

    spec = pl.BlockSpec((256, 128), lambda i, _: (i, 0))
    grid_spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1, grid=(4,), in_specs=[spec], out_specs=spec
    )
    ids = (jnp.arange(256, dtype=jnp.int32) * 37) % 256
    return pl.pallas_call(kernel, out_shape=table, grid_spec=grid_spec)(ids, table)


def rows_gathered(table: jax.Array) -> jax.Array:
    """Rows are gathered one in each iteration, at places that are read from SMEM."""
    return _gathered(table, 1)


def rows_gathered_remedied(table: jax.Array) -> jax.Array:
    return _gathered(table, 8)


def _sum_of_squares(kernel: object, x: jax.Array, space: object) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((1,), F32),
        in_specs=[pl.BlockSpec(memory_space=space)],
        out_specs=pl.BlockSpec(memory_space=pltpu.SMEM),
    )(x)


def squares_in_smem(x: jax.Array) -> jax.Array:
    """The scalar unit sums squares, without a grid."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def add(i: jax.Array, total: jax.Array) -> jax.Array:
            return total + x_ref[i] * x_ref[i]  # SLOW

        out_ref[0] = lax.fori_loop(0, x_ref.shape[0], add, jnp.float32(0))

    return _sum_of_squares(kernel, x, pltpu.SMEM)


def squares_in_smem_remedied(x: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        x = x_ref[...]
        out_ref[0] = jnp.sum(x * x)

    return _sum_of_squares(kernel, x, pltpu.VMEM)


def _mixed(x: jax.Array, logits: jax.Array, is_once: bool) -> jax.Array:
    def kernel(x_ref: jax.Ref, logits_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def weights() -> jax.Array:
            return jax.nn.softmax(logits_ref[...], axis=1).astype(BF16)

        once = weights() if is_once else None

        def mix(i: jax.Array, _: None) -> None:
            rows = pl.ds(pl.multiple_of(i * 64, 64), 64)
            w = weights() if once is None else once
            out_ref[rows, :] = jnp.dot(x_ref[rows, :], w, preferred_element_type=F32)

        lax.fori_loop(0, x_ref.shape[0] // 64, mix, None, unroll=4)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, F32),
        grid=(2,),
        in_specs=[
            pl.BlockSpec((1024, 128), lambda i: (i, 0)),
            pl.BlockSpec((128, 128), lambda i: (0, 0)),
        ],
        out_specs=pl.BlockSpec((1024, 128), lambda i: (i, 0)),
    )(x, logits)


def softmax_in_every_iteration(x: jax.Array, logits: jax.Array) -> jax.Array:
    """The weights of a mixture are computed again for every 64 rows."""
    return _mixed(x, logits, is_once=False)


def softmax_in_every_iteration_remedied(x: jax.Array, logits: jax.Array) -> jax.Array:
    return _mixed(x, logits, is_once=True)


X = jax.ShapeDtypeStruct((1024, 512), F32)


def _softmax(x: jax.Array, unroll: int) -> jax.Array:
    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def tile(i: jax.Array, _: None) -> None:
            rows = pl.ds(pl.multiple_of(i * 8, 8), 8)
            x = x_ref[rows, :]
            terms = jnp.exp(x - jnp.max(x, axis=1, keepdims=True))
            out_ref[rows, :] = terms / jnp.sum(terms, axis=1, keepdims=True)  # SLOW

        lax.fori_loop(0, x_ref.shape[0] // 8, tile, None, unroll=unroll)

    return _rows(kernel, x, 256)


def softmax_of_8_rows(x: jax.Array) -> jax.Array:
    """Each iteration waits for two reductions over lanes, and nothing runs beside it."""
    return _softmax(x, unroll=1)


def softmax_of_8_rows_remedied(x: jax.Array) -> jax.Array:
    return _softmax(x, unroll=4)


def _above(x: jax.Array, s: jax.Array, *, ahead: bool) -> jax.Array:
    def kernel(x_ref: jax.Ref, s_ref: jax.Ref, out_ref: jax.Ref) -> None:
        given = jnp.broadcast_to(s_ref[...], (32, 128)) if ahead else None

        def add(j: jax.Array, total: jax.Array) -> jax.Array:
            x = x_ref[:, pl.ds(pl.multiple_of(j * 128, 128), 128)]
            least = s_ref[...] if given is None else given
            return total + jnp.maximum(x - least, 0.0)  # SLOW

        zeros = jnp.zeros((32, 128), jnp.float32)
        out_ref[...] = lax.fori_loop(0, x_ref.shape[1] // 128, add, zeros)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((x.shape[0], 128), jnp.float32),
        grid=(x.shape[0] // 32,),
        in_specs=[
            pl.BlockSpec((32, x.shape[1]), lambda i: (i, 0)),
            pl.BlockSpec((32, 1), lambda i: (i, 0)),
        ],
        out_specs=pl.BlockSpec((32, 128), lambda i: (i, 0)),
    )(x, s)


def column_repeated_each_time(x: jax.Array, s: jax.Array) -> jax.Array:
    """Each iteration repeats the column along the lanes, and waits for it."""
    return _above(x, s, ahead=False)


def column_repeated_each_time_remedied(x: jax.Array, s: jax.Array) -> jax.Array:
    return _above(x, s, ahead=True)


def _normalized_with_sums(x: jax.Array, rows: int) -> jax.Array:
    def kernel(x_ref: jax.Ref, o_ref: jax.Ref, sums_ref: jax.Ref) -> None:
        def body(i: jax.Array, sums: jax.Array) -> jax.Array:
            at = pl.ds(i * rows, rows)
            shifted = x_ref[at, :] - x_ref[at, :].mean(1, keepdims=True)
            found = shifted * lax.rsqrt((shifted * shifted).mean(1, keepdims=True) + 1e-5)
            o_ref[at, :] = found  # SLOW
            return sums + found.reshape(rows // 8, 8, -1).sum(0)

        sums_ref[...] = lax.fori_loop(0, 256 // rows, body, jnp.zeros((8, 512)))

    block = pl.BlockSpec((256, 512), lambda i: (i, 0))
    sums = jax.ShapeDtypeStruct((x.shape[0] // 32, 512), F32)
    found = pl.pallas_call(
        kernel,
        out_shape=(x, sums),
        grid=(x.shape[0] // 256,),
        in_specs=[block],
        out_specs=(block, pl.BlockSpec((8, 512), lambda i: (i, 0))),
    )(x)
    return jnp.concatenate(found)


def normalized_8_rows_with_sums(x: jax.Array) -> jax.Array:
    """Each iteration of a loop normalises 8 rows, and adds them to sums."""
    return _normalized_with_sums(x, 8)


def normalized_8_rows_with_sums_remedied(x: jax.Array) -> jax.Array:
    return _normalized_with_sums(x, 32)


KERNELS = (
    SlowKernel(
        advice="thin-product",
        summary="A product of 8 rows in each iteration, by the same matrix.",
        function=product_of_few_rows,
        remedied=product_of_few_rows_remedied,
        args=(jax.ShapeDtypeStruct((512, 256), F32), jax.ShapeDtypeStruct((256, 256), F32)),
        parts=("8 rows", "f32[256, 256]", "before the loop"),
    ),
    SlowKernel(
        advice="spills",
        summary="A block that does not fit into the vector registers is processed at once.",
        function=whole_block_carried,
        remedied=whole_block_carried_remedied,
        args=(jax.ShapeDtypeStruct((1024, 512), F32), jax.ShapeDtypeStruct((32, 512), F32)),
    ),
    SlowKernel(
        advice="row-loop",
        summary="A loop over single rows.",
        function=row_by_row,
        remedied=row_by_row_remedied,
        args=(X,),
    ),
    SlowKernel(
        advice="scalar-loop",
        summary="Arithmetic on single entries in SMEM.",
        function=scalar_scale,
        remedied=scalar_scale_remedied,
        args=(jax.ShapeDtypeStruct((1, 4096), F32),),
    ),
    SlowKernel(
        advice="mask",
        summary="A store with a mask in each iteration.",
        function=mask_in_every_iteration,
        remedied=mask_in_every_iteration_remedied,
        args=(jax.ShapeDtypeStruct((1024, 128), BF16), jax.ShapeDtypeStruct((128, 1024), BF16)),
    ),
    SlowKernel(
        advice="row-loop",
        summary="A loop that normalises single rows.",
        function=norm_of_each_row,
        remedied=norm_of_each_row_remedied,
        args=(X, jax.ShapeDtypeStruct((1, 512), F32)),
    ),
    SlowKernel(
        advice="row-loop",
        summary="A gather of single rows.",
        function=rows_gathered,
        remedied=rows_gathered_remedied,
        args=(jax.ShapeDtypeStruct((1024, 128), F32),),
        parts=("with unroll=8",),
    ),
    SlowKernel(
        advice="scalar-loop",
        summary="A sum of single numbers in SMEM.",
        function=squares_in_smem,
        remedied=squares_in_smem_remedied,
        args=(jax.ShapeDtypeStruct((1024,), F32),),
        parts=("only combines its number with the previous ones", "reduce them as a whole vector"),
    ),
    SlowKernel(
        advice="invariant",
        summary="A softmax in a loop that does not change it.",
        function=softmax_in_every_iteration,
        remedied=softmax_in_every_iteration_remedied,
        args=(jax.ShapeDtypeStruct((2048, 128), BF16), jax.ShapeDtypeStruct((128, 128), F32)),
    ),
    SlowKernel(
        advice="short-iterations",
        summary="A softmax of 8 rows at a time.",
        function=softmax_of_8_rows,
        helper=_softmax,
        remedied=softmax_of_8_rows_remedied,
        args=(jax.ShapeDtypeStruct((1024, 256), F32),),
        parts=("each of the 32 iterations takes", "or pass unroll=4 to the loop"),
    ),
    SlowKernel(
        advice="short-iterations",
        summary="8 rows at a time that are normalised, and added to sums.",
        function=normalized_8_rows_with_sums,
        helper=_normalized_with_sums,
        remedied=normalized_8_rows_with_sums_remedied,
        args=(jax.ShapeDtypeStruct((1024, 512), F32),),
        parts=("each of the 32 iterations takes", "or pass unroll=4 to the loop"),
    ),
    SlowKernel(
        advice="invariant",
        summary="A column that each iteration repeats along the lanes.",
        function=column_repeated_each_time,
        remedied=column_repeated_each_time_remedied,
        helper=_above,
        args=(
            jax.ShapeDtypeStruct((128, 8192), jnp.float32),
            jax.ShapeDtypeStruct((128, 1), jnp.float32),
        ),
        parts=("the same column of 32 rows", "jnp.broadcast_to(…, (32, 128))"),
    ),
)
