"""Data moved between lanes and sublanes: relayouts, transposes, and reductions."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .slow import SlowKernel

F32, BF16 = jnp.float32, jnp.bfloat16


def row_maxima_along_lanes(x: jax.Array, w: jax.Array) -> jax.Array:
    """The running maximum of each row is kept as a vector along lanes."""

    def kernel(x_ref: jax.Ref, w_ref: jax.Ref, out_ref: jax.Ref, m_ref: jax.Ref) -> None:
        m_ref[...] = jnp.full(m_ref.shape, -jnp.inf, F32)

        def step(i: jax.Array, _: None) -> None:
            x = x_ref[...] * w_ref[pl.ds(i, 1), :]
            m = jnp.maximum(m_ref[0, :], jnp.max(x, axis=1))  # SLOW
            m_ref[0, :] = m
            out_ref[...] = x - m[:, None]

        lax.fori_loop(0, w_ref.shape[0], step, None)

    return _per_rows(kernel, x, w, pltpu.VMEM((1, 256), F32))


def row_maxima_along_lanes_remedied(x: jax.Array, w: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, w_ref: jax.Ref, out_ref: jax.Ref, m_ref: jax.Ref) -> None:
        m_ref[...] = jnp.full(m_ref.shape, -jnp.inf, F32)

        def step(i: jax.Array, _: None) -> None:
            x = x_ref[...] * w_ref[pl.ds(i, 1), :]
            m = jnp.maximum(m_ref[...], jnp.max(x, axis=1, keepdims=True))
            m_ref[...] = m
            out_ref[...] = x - m

        lax.fori_loop(0, w_ref.shape[0], step, None)

    return _per_rows(kernel, x, w, pltpu.VMEM((256, 128), F32))


def _per_rows(kernel: object, x: jax.Array, w: jax.Array, scratch: object) -> jax.Array:
    rows = pl.BlockSpec((256, 128), lambda i: (i, 0))
    return pl.pallas_call(
        kernel,
        out_shape=x,
        grid=(x.shape[0] // 256,),
        in_specs=[rows, pl.BlockSpec(w.shape, lambda i: (0, 0))],
        out_specs=rows,
        scratch_shapes=[scratch],
    )(x, w)


def transposed_operand(x: jax.Array, y: jax.Array) -> jax.Array:
    """`x` arrives transposed, and each grid step transposes its block again."""

    def kernel(x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref) -> None:
        x = x_ref[...].T  # SLOW
        y = y_ref[:, pl.ds(pl.multiple_of(pl.program_id(1) * 128, 128), 128)]
        out_ref[...] = jnp.dot(x, y, preferred_element_type=F32).astype(BF16)

    return _matmul(kernel, x, y, pl.BlockSpec((256, 512), lambda i, j: (0, i)))


def transposed_operand_remedied(x: jax.Array, y: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref) -> None:
        y = y_ref[:, pl.ds(pl.multiple_of(pl.program_id(1) * 128, 128), 128)]
        out_ref[...] = jnp.dot(x_ref[...], y, preferred_element_type=F32).astype(BF16)

    return _matmul(kernel, x.T, y, pl.BlockSpec((512, 256), lambda i, j: (i, 0)))


def _matmul(kernel: object, x: jax.Array, y: jax.Array, x_spec: pl.BlockSpec) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((512, 4096), BF16),
        grid=(1, 32),
        in_specs=[x_spec, pl.BlockSpec((256, 4096), lambda i, j: (0, 0))],
        out_specs=pl.BlockSpec((512, 128), lambda i, j: (i, j)),
    )(x, y)


def lane_sums_in_the_loop(x: jax.Array, w: jax.Array) -> jax.Array:
    """Each iteration sums over the lanes, where one sum after the loop would do."""

    def kernel(x_ref: jax.Ref, w_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def step(i: jax.Array, total: jax.Array) -> jax.Array:
            x = jnp.maximum(x_ref[...], w_ref[pl.ds(i, 1), :])
            return total + jnp.sum(x * x, axis=1, keepdims=True)  # SLOW

        total = lax.fori_loop(0, w_ref.shape[0], step, jnp.zeros((64, 1), F32))
        out_ref[...] = jnp.broadcast_to(total, out_ref.shape)

    return _sum_of_squares(kernel, x, w)


def lane_sums_in_the_loop_remedied(x: jax.Array, w: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, w_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def step(i: jax.Array, total: jax.Array) -> jax.Array:
            x = jnp.maximum(x_ref[...], w_ref[pl.ds(i, 1), :])
            return total + x * x

        total = lax.fori_loop(0, w_ref.shape[0], step, jnp.zeros((64, 128), F32))
        out_ref[...] = jnp.broadcast_to(jnp.sum(total, axis=1, keepdims=True), out_ref.shape)

    return _sum_of_squares(kernel, x, w)


def _sum_of_squares(kernel: object, x: jax.Array, w: jax.Array) -> jax.Array:
    rows = pl.BlockSpec((64, 128), lambda i: (i, 0))
    return pl.pallas_call(
        kernel,
        out_shape=x,
        grid=(x.shape[0] // 64,),
        in_specs=[rows, pl.BlockSpec(w.shape, lambda i: (0, 0))],
        out_specs=rows,
    )(x, w)


def _row_maxima(x: jax.Array, is_whole: bool) -> jax.Array:
    def kernel(x_ref: jax.Ref, out_ref: jax.Ref, m_ref: jax.Ref) -> None:
        m_ref[...] = jnp.full_like(m_ref, -jnp.inf)

        @pl.loop(0, x_ref.shape[1] // 128)
        def _(i: jax.Array) -> None:
            x = x_ref[:, pl.ds(pl.multiple_of(i * 128, 128), 128)]
            if is_whole:
                m_ref[...] = jnp.maximum(m_ref[...], x)
            else:
                m_ref[...] = jnp.maximum(m_ref[...], jnp.max(x, axis=1, keepdims=True))  # SLOW

        out_ref[...] = jnp.broadcast_to(jnp.max(m_ref[...], axis=1, keepdims=True), out_ref.shape)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((x.shape[0], 128), F32),
        grid=(x.shape[0] // 64,),
        in_specs=[pl.BlockSpec((64, x.shape[1]), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((64, 128), lambda i: (i, 0)),
        scratch_shapes=[pltpu.VMEM((64, 128), F32)],
    )(x)


def lane_maxima_in_scratch(x: jax.Array) -> jax.Array:
    """Each iteration reduces over lanes, and keeps the maximum in scratch."""
    return _row_maxima(x, is_whole=False)


def lane_maxima_in_scratch_remedied(x: jax.Array) -> jax.Array:
    return _row_maxima(x, is_whole=True)


def _row_places(x: jax.Array, is_whole: bool) -> jax.Array:
    """The column of each row's maximum; elementwise, of the iteration first."""
    rows, width = 64, 256
    shape = (rows, width) if is_whole else (rows, 1)

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def later(
            i: jax.Array, carried: tuple[jax.Array, jax.Array]
        ) -> tuple[jax.Array, jax.Array]:
            highest, place = carried
            x = x_ref[:, pl.ds(pl.multiple_of(i * width, width), width)]
            if is_whole:
                return jnp.maximum(highest, x), jnp.where(x > highest, i, place)
            own = jnp.max(x, axis=1, keepdims=True)
            at = jnp.argmax(x, axis=1, keepdims=True).astype(jnp.int32) + i * width  # SLOW
            return jnp.maximum(highest, own), jnp.where(own > highest, at, place)

        first = jnp.full(shape, -jnp.inf, F32), jnp.zeros(shape, jnp.int32)
        highest, place = lax.fori_loop(0, x_ref.shape[1] // width, later, first)
        if is_whole:
            column = place * width + lax.broadcasted_iota(jnp.int32, shape, 1)
            is_highest = highest == jnp.max(highest, axis=1, keepdims=True)
            place = jnp.min(jnp.where(is_highest, column, x.shape[1]), axis=1, keepdims=True)
        out_ref[...] = jnp.broadcast_to(place, out_ref.shape)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((x.shape[0], 128), jnp.int32),
        grid=(x.shape[0] // rows,),
        in_specs=[pl.BlockSpec((rows, x.shape[1]), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((rows, 128), lambda i: (i, 0)),
    )(x)


def places_in_every_iteration(x: jax.Array) -> jax.Array:
    """Each iteration finds the maximum of its lanes and its place."""
    return _row_places(x, is_whole=False)


def places_in_every_iteration_remedied(x: jax.Array) -> jax.Array:
    return _row_places(x, is_whole=True)


def columns_one_by_one(x: jax.Array) -> jax.Array:
    """A running sum along lanes, of single columns."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        total = jnp.zeros((x_ref.shape[0], 1), F32)
        for column in range(x_ref.shape[1]):
            total = total + x_ref[:, column : column + 1]  # SLOW
            out_ref[:, column : column + 1] = total

    return _in_rows(kernel, x)


def columns_one_by_one_remedied(x: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        row, column = (lax.broadcasted_iota(jnp.int32, (128, 128), n) for n in (0, 1))
        out_ref[...] = jnp.dot(
            x_ref[...], (row <= column).astype(F32), precision=lax.Precision.HIGHEST
        )

    return _in_rows(kernel, x)


def _in_rows(kernel: object, x: jax.Array) -> jax.Array:
    block = pl.BlockSpec((64, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        kernel, out_shape=x, grid=(x.shape[0] // 64,), in_specs=[block], out_specs=block
    )(x)


def _all_steps(kernel: object, x: jax.Array) -> jax.Array:
    """Every step works on the same block, so that computation decides."""
    shape = (1, x.shape[2])
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(shape, F32),
        grid=(16,),
        in_specs=[pl.BlockSpec(x.shape, lambda i: (0, 0, 0))],
        out_specs=pl.BlockSpec(shape, lambda i: (0, 0)),
    )(x)


def row_sums_in_the_loop(x: jax.Array) -> jax.Array:
    """Sums over rows in each iteration."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def add(i: jax.Array, total: jax.Array) -> jax.Array:
            return total + jnp.sum(x_ref[i], axis=0, keepdims=True)  # SLOW

        out_ref[...] = lax.fori_loop(0, 32, add, jnp.zeros((1, x.shape[2]), F32))

    return _all_steps(kernel, x)


def row_sums_in_the_loop_remedied(x: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def add(i: jax.Array, total: jax.Array) -> jax.Array:
            return total + x_ref[i]

        total = lax.fori_loop(0, 32, add, jnp.zeros(x.shape[1:], F32), unroll=8)
        out_ref[...] = jnp.sum(total, axis=0, keepdims=True)

    return _all_steps(kernel, x)


def _scores(kernel: object, q: jax.Array, k: jax.Array) -> jax.Array:
    whole = pl.BlockSpec(q.shape, lambda i: (0, 0))
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((q.shape[0], k.shape[0]), F32),
        grid=(16,),
        in_specs=[whole, whole],
        out_specs=pl.BlockSpec((q.shape[0], k.shape[0]), lambda i: (0, 0)),
    )(q, k)


def transposed_product(q: jax.Array, k: jax.Array) -> jax.Array:
    """Scores of keys and queries, transposed."""

    def kernel(q_ref: jax.Ref, k_ref: jax.Ref, out_ref: jax.Ref) -> None:
        scores = lax.dot_general(
            k_ref[...], q_ref[...], (((1,), (1,)), ((), ())), preferred_element_type=F32
        )
        out_ref[...] = jnp.exp(scores).T  # SLOW

    return _scores(kernel, q, k)


def transposed_product_remedied(q: jax.Array, k: jax.Array) -> jax.Array:
    def kernel(q_ref: jax.Ref, k_ref: jax.Ref, out_ref: jax.Ref) -> None:
        scores = lax.dot_general(
            q_ref[...], k_ref[...], (((1,), (1,)), ((), ())), preferred_element_type=F32
        )
        out_ref[...] = jnp.exp(scores)

    return _scores(kernel, q, k)


def _rotary(kernel: object, x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Every step works on the same blocks, so that computation decides."""
    block = pl.BlockSpec(x.shape, lambda i: (0, 0))
    return pl.pallas_call(kernel, out_shape=x, grid=(16,), in_specs=[block] * 3, out_specs=block)(
        x, cos, sin
    )


def halves_stored_apart(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotary embeddings that compute on each half of 64 lanes."""

    def kernel(x_ref: jax.Ref, cos_ref: jax.Ref, sin_ref: jax.Ref, out_ref: jax.Ref) -> None:
        lower, upper = x_ref[:, :64], x_ref[:, 64:]
        cos, sin = cos_ref[:, :64], sin_ref[:, :64]
        out_ref[:, :64] = lower * cos - upper * sin  # SLOW
        out_ref[:, 64:] = upper * cos + lower * sin

    return _rotary(kernel, x, cos, sin)


def halves_swapped(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotary embeddings by a concatenation of both halves."""

    def kernel(x_ref: jax.Ref, cos_ref: jax.Ref, sin_ref: jax.Ref, out_ref: jax.Ref) -> None:
        x = x_ref[...]
        swapped = jnp.concatenate([-x[:, 64:], x[:, :64]], axis=1)  # SLOW
        out_ref[...] = x * cos_ref[...] + swapped * sin_ref[...]

    return _rotary(kernel, x, cos, sin)


def halves_remedied(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, cos_ref: jax.Ref, sin_ref: jax.Ref, out_ref: jax.Ref) -> None:
        x = x_ref[...]
        out_ref[...] = x * cos_ref[...] + pltpu.roll(x, 64, 1) * sin_ref[...]

    return _rotary(kernel, x, cos, sin)


def heads_of_64_lanes(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotary embeddings of two heads in each register, whose halves have 32 lanes."""

    def kernel(x_ref: jax.Ref, cos_ref: jax.Ref, sin_ref: jax.Ref, out_ref: jax.Ref) -> None:
        for head in range(2):
            at = slice(head * 64, head * 64 + 64)
            x = x_ref[:, at]
            swapped = jnp.concatenate([-x[:, 32:], x[:, :32]], axis=1)  # SLOW
            out_ref[:, at] = x * cos_ref[:, at] + swapped * sin_ref[:, at]

    return _rotary(kernel, x, cos, sin)


def heads_of_64_lanes_remedied(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, cos_ref: jax.Ref, sin_ref: jax.Ref, out_ref: jax.Ref) -> None:
        x = x_ref[...]
        is_lower = lax.broadcasted_iota(jnp.int32, x.shape, 1) % 64 < 32
        swapped = jnp.where(is_lower, pltpu.roll(x, 96, 1), pltpu.roll(x, 32, 1))
        out_ref[...] = x * cos_ref[...] + swapped * sin_ref[...]

    return _rotary(kernel, x, cos, sin)


def _with_signs(
    x: jax.Array, cos: jax.Array, sin: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    return x, cos, jnp.where(jnp.arange(128) % 64 < 32, -sin, sin)


def _of_full_width(
    x: jax.Array, cos: jax.Array, sin: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    cos, sin = cos[:, :64], sin[:, :64]
    return x, jnp.concatenate([cos, cos], axis=1), jnp.concatenate([-sin, sin], axis=1)


KERNELS = (
    SlowKernel(
        advice="half-lanes",
        summary="Rotary embeddings of two halves of 64 lanes.",
        function=halves_stored_apart,
        remedied=halves_remedied,
        rearrange=_of_full_width,
        args=(jax.ShapeDtypeStruct((512, 128), F32),) * 3,
        parts=("halves of 64 lanes", "pltpu.roll(x, 64, 1) * sin"),
    ),
    SlowKernel(
        advice="half-lanes",
        summary="Rotary embeddings that concatenate the halves.",
        function=halves_swapped,
        remedied=halves_remedied,
        rearrange=lambda x, cos, sin: (x, cos, sin.at[:, :64].multiply(-1)),
        args=(jax.ShapeDtypeStruct((512, 128), F32),) * 3,
        parts=("halves of 64 lanes",),
        targets=("v5e",),
    ),
    SlowKernel(
        advice="half-lanes",
        summary="Rotary embeddings of heads of 64 lanes.",
        function=heads_of_64_lanes,
        remedied=heads_of_64_lanes_remedied,
        rearrange=_with_signs,
        args=(jax.ShapeDtypeStruct((512, 128), F32),) * 3,
        parts=("2 such values in each register", "lane % 64 < 32, pltpu.roll(x, 96, 1)"),
    ),
    SlowKernel(
        advice="transpose",
        summary="A product that is transposed.",
        function=transposed_product,
        remedied=transposed_product_remedied,
        args=(jax.ShapeDtypeStruct((512, 128), jnp.bfloat16),) * 2,
        parts=("the result of a product (512x512 f32)", "lax.dot_general(right, left, (((1,)"),
    ),
    SlowKernel(
        advice="lane-reduction",
        summary="Sums over rows in each iteration of a loop, which are only added up.",
        function=row_sums_in_the_loop,
        remedied=row_sums_in_the_loop_remedied,
        args=(jax.ShapeDtypeStruct((32, 32, 512), F32),),
        parts=("8 rows of a register", "whole vectors of (32, 512)"),
    ),
    SlowKernel(
        advice="relayout",
        summary="A column of maxima is stored as a row, and read back as one.",
        function=row_maxima_along_lanes,
        remedied=row_maxima_along_lanes_remedied,
        args=(jax.ShapeDtypeStruct((1024, 128), F32), jax.ShapeDtypeStruct((16, 128), F32)),
    ),
    SlowKernel(
        advice="transpose",
        summary="The left operand of a matrix product is transposed in every grid step.",
        function=transposed_operand,
        remedied=transposed_operand_remedied,
        args=tuple(jax.ShapeDtypeStruct((256, n), BF16) for n in (512, 4096)),
        targets=("v5e",),
        parts=("unless it is stored that way, this takes about", "cycles per call and saves about"),
    ),
    SlowKernel(
        advice="lane-reduction",
        summary="A sum over lanes in each iteration of a loop.",
        function=lane_sums_in_the_loop,
        remedied=lane_sums_in_the_loop_remedied,
        args=(jax.ShapeDtypeStruct((512, 128), F32), jax.ShapeDtypeStruct((64, 128), F32)),
    ),
    SlowKernel(
        advice="lane-reduction",
        summary="A maximum over lanes in each iteration, kept in scratch.",
        function=lane_maxima_in_scratch,
        remedied=lane_maxima_in_scratch_remedied,
        args=(jax.ShapeDtypeStruct((512, 2048), F32),),
    ),
    SlowKernel(
        advice="lane-reduction",
        summary="The place of a maximum over lanes, found in each iteration.",
        function=places_in_every_iteration,
        remedied=places_in_every_iteration_remedied,
        helper=_row_places,
        args=(jax.ShapeDtypeStruct((256, 4096), F32),),
        parts=("finds the largest value over lanes and its place", "once after the loop"),
    ),
    SlowKernel(
        advice="relayout",
        summary="Single columns that move to lane 0 and back.",
        function=columns_one_by_one,
        remedied=columns_one_by_one_remedied,
        args=(jax.ShapeDtypeStruct((128, 128), F32),),
        parts=("f32[64, 1]", "instead of single columns"),
    ),
)
