"""Values of few lanes that are reduced, and reductions of few columns at a time."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .slow import SlowKernel

F32, BF16 = jnp.float32, jnp.bfloat16


def _whole(kernel: object, out: tuple[int, ...], *arrays: jax.Array) -> jax.Array:
    """Every step works on the same blocks, so that computation decides."""
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(out, F32),
        grid=(16,),
        in_specs=[pl.BlockSpec(a.shape, lambda i: (0, 0)) for a in arrays],
        out_specs=pl.BlockSpec(out, lambda i: (0, 0)),
    )(*arrays)


def softmax_of_few_lanes(x: jax.Array) -> jax.Array:
    """Each row has 16 elements, which fill 16 of 128 lanes."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        x = x_ref[...]  # SLOW
        p = jnp.exp(x - jnp.max(x, axis=1, keepdims=True))
        out_ref[...] = p / jnp.sum(p, axis=1, keepdims=True)

    return _whole(kernel, x.shape, x)


def softmax_of_few_lanes_remedied(x: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        x = x_ref[...]
        p = jnp.exp(x - jnp.max(x, axis=0, keepdims=True))
        out_ref[...] = p / jnp.sum(p, axis=0, keepdims=True)

    return _whole(kernel, x.shape, x).T


def routed(x: jax.Array, w: jax.Array) -> jax.Array:
    """The product of tokens and 8 experts fills 8 of 128 lanes."""

    def kernel(x_ref: jax.Ref, w_ref: jax.Ref, out_ref: jax.Ref) -> None:
        scores = jnp.dot(x_ref[...], w_ref[...], preferred_element_type=F32)  # SLOW
        p = jnp.exp(scores - jnp.max(scores, axis=1, keepdims=True))
        out_ref[...] = p / jnp.sum(p, axis=1, keepdims=True)

    return _whole(kernel, (x.shape[0], w.shape[1]), x, w)


def routed_remedied(x: jax.Array, w: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, w_ref: jax.Ref, out_ref: jax.Ref) -> None:
        scores = lax.dot_general(
            w_ref[...], x_ref[...], (((1,), (1,)), ((), ())), preferred_element_type=F32
        )
        p = jnp.exp(scores - jnp.max(scores, axis=0, keepdims=True))
        out_ref[...] = p / jnp.sum(p, axis=0, keepdims=True)

    return _whole(kernel, (w.shape[0], x.shape[0]), x, w).T


def _logsumexp(x: jax.Array, columns: int) -> jax.Array:
    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def step(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            highest, total = carry
            part = x_ref[:, pl.ds(pl.multiple_of(i * columns, columns), columns)]
            above = jnp.maximum(highest, jnp.max(part, axis=1, keepdims=True))  # SLOW
            total = total * jnp.exp(highest - above)
            return above, total + jnp.sum(jnp.exp(part - above), axis=1, keepdims=True)

        start = jnp.full((128, 1), -1e30, F32), jnp.zeros((128, 1), F32)
        highest, total = lax.fori_loop(0, x_ref.shape[1] // columns, step, start)
        out_ref[...] = jnp.broadcast_to(highest + jnp.log(total), (128, 128))

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((x.shape[0], 128), F32),
        grid=(x.shape[0] // 128,),
        in_specs=[pl.BlockSpec((128, x.shape[1]), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((128, 128), lambda i: (i, 0)),
    )(x)


def rescaled_often(x: jax.Array) -> jax.Array:
    """Each iteration takes 128 columns, and waits for their maximum and their sum."""
    return _logsumexp(x, 128)


def rescaled_often_remedied(x: jax.Array) -> jax.Array:
    return _logsumexp(x, 512)


def _attention(q: jax.Array, k: jax.Array, v: jax.Array, columns: int) -> jax.Array:
    rows, width = q.shape[0] // 4, q.shape[1]

    def kernel(
        q_ref: jax.Ref, k_ref: jax.Ref, v_ref: jax.Ref, out_ref: jax.Ref, *state: jax.Ref
    ) -> None:
        highest, total, out = state
        highest[...] = jnp.full_like(highest, -1e30)
        total[...] = jnp.zeros_like(total)
        out[...] = jnp.zeros_like(out)

        @pl.loop(0, k_ref.shape[0] // columns)
        def _(i: jax.Array) -> None:
            part = pl.ds(pl.multiple_of(i * columns, columns), columns)
            scores = lax.dot_general(
                q_ref[...], k_ref[part, :], (((1,), (1,)), ((), ())), preferred_element_type=F32
            )
            before = highest[...]
            above = jnp.maximum(before, jnp.max(scores, axis=1, keepdims=True))  # SLOW
            p = jnp.exp(scores - above)
            scale = jnp.exp(before - above)
            total[...] = total[...] * scale + jnp.sum(p, axis=1, keepdims=True)
            product = jnp.dot(p.astype(BF16), v_ref[part, :], preferred_element_type=F32)
            out[...] = out[...] * scale + product
            highest[...] = above

        out_ref[...] = (out[...] / total[...]).astype(BF16)

    block = pl.BlockSpec((rows, width), lambda i: (i, 0))
    whole = pl.BlockSpec(k.shape, lambda i: (0, 0))
    return pl.pallas_call(
        kernel,
        out_shape=q,
        grid=(4,),
        in_specs=[block, whole, whole],
        out_specs=block,
        scratch_shapes=[
            *[pltpu.VMEM((rows, 1), F32)] * 2,
            pltpu.VMEM((rows, width), F32),
        ],
    )(q, k, v)


def attention_over_narrow_slices(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """The state of the softmax is in scratch, and rescaled for every 128 keys."""
    return _attention(q, k, v, 128)


def attention_over_narrow_slices_remedied(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return _attention(q, k, v, 512)


def _by_blocks(kernel: object, x: jax.Array, *others: jax.Array) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=x,
        grid=(x.shape[0] // 128,),
        in_specs=[
            pl.BlockSpec((128, x.shape[1]), lambda i: (i, 0)),
            *(pl.BlockSpec(other.shape, lambda i: (0, 0)) for other in others),
        ],
        out_specs=pl.BlockSpec((128, x.shape[1]), lambda i: (i, 0)),
    )(x, *others)


def groups_of_lanes(x: jax.Array) -> jax.Array:
    """A group norm whose groups are a dimension of their own."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        x = x_ref[...].reshape(128, 8, 16)
        x = x - jnp.mean(x, axis=(0, 2), keepdims=True)  # SLOW
        scale = jax.lax.rsqrt(jnp.mean(x * x, axis=(0, 2), keepdims=True) + 1e-5)
        out_ref[...] = (x * scale).reshape(128, 128)

    return _by_blocks(kernel, x)


def groups_of_lanes_remedied(x: jax.Array) -> jax.Array:
    lane = jnp.arange(128) // 16
    groups = (lane[:, None] == lane[None, :]).astype(F32) / (16 * 128)

    def kernel(x_ref: jax.Ref, groups_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def mean(x: jax.Array) -> jax.Array:
            rows = jnp.sum(x, axis=0, keepdims=True)
            return jnp.dot(rows, groups_ref[...], precision=jax.lax.Precision.HIGHEST)

        x = x_ref[...]
        x = x - mean(x)
        out_ref[...] = x * jax.lax.rsqrt(mean(x * x) + 1e-5)

    return _by_blocks(kernel, x, groups)


def _scanned(x: jax.Array, decay: jax.Array, b: jax.Array, turned: bool) -> jax.Array:
    """A scan whose state has 256 channels of 16 elements."""
    length, channels = x.shape
    size = b.shape[1]

    def kernel(x_ref: jax.Ref, decay_ref: jax.Ref, b_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def step(t: jax.Array, state: jax.Array) -> jax.Array:
            row = pl.ds(t, 1)
            if turned:
                state = state * decay_ref[row, :] + x_ref[row, :] * b_ref[t]
                out_ref[row, :] = jnp.sum(state, axis=0, keepdims=True)
            else:
                decays, columns = (ref[row, :].reshape(channels, 1) for ref in (decay_ref, x_ref))
                state = state * decays + columns * b_ref[row, :]  # SLOW
                out_ref[row, :] = jnp.sum(state, axis=1).reshape(1, channels)
            return state

        start = jnp.zeros((size, channels) if turned else (channels, size), F32)
        jax.lax.fori_loop(0, length, step, start)

    return pl.pallas_call(kernel, out_shape=x)(x, decay, b)


def states_of_few_columns(x: jax.Array, decay: jax.Array, b: jax.Array) -> jax.Array:
    """The state has its channels in rows."""
    return _scanned(x, decay, b, turned=False)


def states_of_few_columns_remedied(x: jax.Array, decay: jax.Array, b: jax.Array) -> jax.Array:
    return _scanned(x, decay, b, turned=True)


def _sorted(x: jax.Array, axis: int) -> jax.Array:
    """A bitonic network on blocks of 128 by 128."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        x = x_ref[...]
        place = lax.broadcasted_iota(jnp.int32, x.shape, axis)
        size = x.shape[axis]
        for length in (2**n for n in range(1, size.bit_length())):
            distance = length // 2
            while distance:
                is_upper = (place & distance) != 0
                above, below = (pltpu.roll(x, n, axis) for n in (distance, size - distance))  # SLOW
                other = jnp.where(is_upper, above, below)
                keeps_less = ((place & length) == 0) != is_upper
                x = jnp.where(keeps_less, jnp.minimum(x, other), jnp.maximum(x, other))
                distance //= 2
        out_ref[...] = x

    block = pl.BlockSpec((128, 128), lambda i: (i, 0) if axis else (0, i))
    return pl.pallas_call(
        kernel, out_shape=x, grid=(x.size // 128**2,), in_specs=[block], out_specs=block
    )(x)


def sorted_along_lanes(x: jax.Array) -> jax.Array:
    """Each step of the network rotates all registers along the lanes, twice."""
    return _sorted(x, 1)


def sorted_along_lanes_remedied(x: jax.Array) -> jax.Array:
    return _sorted(x, 0).T


def _sparse(x: jax.Array, axis: int) -> jax.Array:
    """Squares above a threshold that is found by Newton's method, whose sum is 1."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        x = x_ref[...]
        threshold = jnp.max(x, axis, keepdims=True) - 1
        for _ in range(16):
            above = jnp.maximum(x - threshold, 0)
            excess = jnp.sum(above * above, axis, keepdims=True) - 1  # SLOW
            threshold += excess / (2 * jnp.sum(above, axis, keepdims=True))
        out_ref[...] = jnp.maximum(x - threshold, 0) ** 2

    block = pl.BlockSpec((256, 128), lambda i: (i, 0))
    if not axis:
        block = pl.BlockSpec((128, 256), lambda i: (0, i))
    return pl.pallas_call(
        kernel, out_shape=x, grid=(x.size // (256 * 128),), in_specs=[block], out_specs=block
    )(x)


def sums_of_lanes_again(x: jax.Array) -> jax.Array:
    """Each iteration sums all registers over the lanes, twice, and needs the previous sums."""
    return _sparse(x, 1)


def sums_of_lanes_again_remedied(x: jax.Array) -> jax.Array:
    return _sparse(x, 0).T


def _first_largest(x: jax.Array, axis: int) -> jax.Array:
    """Places of the first largest of 128 values, of 1024 groups in each step."""
    groups = x.shape[1 - axis]

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        values = x_ref[...]
        largest = jnp.max(values, axis=axis, keepdims=True)
        place = lax.broadcasted_iota(jnp.int32, values.shape, axis)
        place = jnp.where(values == largest, place, 128)
        out_ref[...] = jnp.min(place, axis=axis, keepdims=True)

    def block(size: int) -> pl.BlockSpec:
        if axis:
            return pl.BlockSpec((1024, size), lambda i: (i, 0))
        return pl.BlockSpec((size, 1024), lambda i: (0, i))

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((groups, 1) if axis else (1, groups), jnp.int32),
        grid=(groups // 1024,),
        in_specs=[block(128)],
        out_specs=block(1),
    )(x).reshape(-1)


def first_largest_of_lanes(x: jax.Array) -> jax.Array:
    """Two reductions along the lanes; along rows, the steps only wait for copies."""
    return _first_largest(x, 1)


def first_largest_of_lanes_remedied(x: jax.Array) -> jax.Array:
    return _first_largest(x, 0)


def _filtered(x: jax.Array, *, is_moved_once: bool) -> jax.Array:
    """Weighted sum of 3 by 3 neighbours."""
    images, rows, columns = x.shape[0], x.shape[1] - 8, x.shape[2] - 128

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref, *moved: jax.Ref) -> None:
        total = jnp.zeros((rows, columns), F32)
        for j in range(3):
            if is_moved_once:
                moved[0][...] = x_ref[0, :, j : j + columns]
            for i in range(3):
                if is_moved_once:
                    part = moved[0][i : i + rows, :]
                else:
                    part = x_ref[0, i : i + rows, j : j + columns]  # SLOW
                total += (0.1 * (3 * i + j + 1)) * part
        out_ref[0] = total

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((images, rows, columns), F32),
        grid=(images,),
        in_specs=[pl.BlockSpec((1, *x.shape[1:]), lambda n: (n, 0, 0))],
        out_specs=pl.BlockSpec((1, rows, columns), lambda n: (n, 0, 0)),
        scratch_shapes=[pltpu.VMEM((x.shape[1], columns), F32)] * is_moved_once,
    )(x)


def filtered_by_slices(x: jax.Array) -> jax.Array:
    """Each of 9 slices is moved to the first lane by itself."""
    return _filtered(x, is_moved_once=False)


def filtered_by_slices_remedied(x: jax.Array) -> jax.Array:
    return _filtered(x, is_moved_once=True)


KERNELS = (
    SlowKernel(
        advice="across-lanes",
        summary="A sort of rows of 128 values, by rotations along the lanes.",
        function=sorted_along_lanes,
        remedied=sorted_along_lanes_remedied,
        helper=_sorted,
        rearrange=lambda x: (x.T,),
        args=(jax.ShapeDtypeStruct((512, 128), F32),),
        parts=("rotates 896 registers along the lanes", "transpose the arrays outside the kernel"),
    ),
    SlowKernel(
        advice="across-lanes",
        summary="Sums over the lanes, each of which needs the one before.",
        function=sums_of_lanes_again,
        remedied=sums_of_lanes_again_remedied,
        helper=_sparse,
        rearrange=lambda x: (x.T,),
        args=(jax.ShapeDtypeStruct((1024, 128), F32),),
        parts=("reduces or rotates 1,056 registers along the lanes", "transposing takes about"),
    ),
    SlowKernel(
        advice="narrow-values",
        summary="A group norm of groups of 16 lanes.",
        function=groups_of_lanes,
        remedied=groups_of_lanes_remedied,
        args=(jax.ShapeDtypeStruct((512, 128), F32),),
        parts=("f32[128, 8, 16] fill 16 of 128 lanes", "sum groups of 16 of them by a product"),
    ),
    SlowKernel(
        advice="narrow-values",
        summary="A scan whose state has 16 columns.",
        function=states_of_few_columns,
        remedied=states_of_few_columns_remedied,
        helper=_scanned,
        rearrange=lambda x, decay, b: (x, decay, b.reshape(*b.shape, 1)),
        args=(*(jax.ShapeDtypeStruct((16, 256), F32),) * 2, jax.ShapeDtypeStruct((16, 16), F32)),
        parts=("f32[256, 16] fill 16 of 128 lanes", "keep (16, 256) in the loop's carry"),
        targets=("v6e",),
    ),
    SlowKernel(
        advice="narrow-block",
        summary="A softmax over rows of 16 elements.",
        function=softmax_of_few_lanes,
        remedied=softmax_of_few_lanes_remedied,
        rearrange=lambda x: (x.T,),
        args=(jax.ShapeDtypeStruct((1024, 16), F32),),
        parts=("it takes 128 vector registers instead of 16", "(16, 1024)"),
    ),
    SlowKernel(
        advice="narrow-product",
        summary="A softmax over the 8 columns of a product.",
        function=routed,
        remedied=routed_remedied,
        rearrange=lambda x, w: (x, w.T),
        args=(jax.ShapeDtypeStruct((1024, 256), BF16), jax.ShapeDtypeStruct((256, 8), BF16)),
        parts=("(1024, 8) fills 8 of 128 lanes", "for a result of (8, 1024)"),
    ),
    SlowKernel(
        advice="narrow-slices",
        summary="A sum of exponentials that is rescaled for each 128 columns.",
        function=rescaled_often,
        remedied=rescaled_often_remedied,
        helper=_logsumexp,
        args=(jax.ShapeDtypeStruct((512, 4096), F32),),
        parts=("each of the 32 iterations reduces 128 columns", "process 512 columns"),
    ),
    SlowKernel(
        advice="narrow-slices",
        summary="Attention that takes 128 keys at a time.",
        function=attention_over_narrow_slices,
        remedied=attention_over_narrow_slices_remedied,
        helper=_attention,
        args=(
            jax.ShapeDtypeStruct((1024, 128), BF16),
            *[jax.ShapeDtypeStruct((2048, 128), BF16)] * 2,
        ),
        parts=("each of the 16 iterations reduces 128 columns", "process 512 columns"),
    ),
    SlowKernel(
        advice="across-lanes",
        summary="The first of the largest lanes, by two reductions.",
        function=first_largest_of_lanes,
        remedied=first_largest_of_lanes_remedied,
        rearrange=lambda x: (x.T,),
        args=(jax.ShapeDtypeStruct((8192, 128), F32),),
        parts=("reduces or rotates 256 registers along the lanes",),
        targets=("v5e",),
    ),
    SlowKernel(
        advice="shifted-slices",
        summary="A sum over neighbours, each of which is moved along the lanes.",
        function=filtered_by_slices,
        remedied=filtered_by_slices_remedied,
        helper=_filtered,
        args=(jax.ShapeDtypeStruct((8, 264, 640), F32),),
        parts=(
            "6 slices of x_ref begin at 2 different lanes",
            "in 960 rotations, where 320 would do",
            "shifted[...] = x_ref[..., 1 : 513]",
        ),
    ),
)
