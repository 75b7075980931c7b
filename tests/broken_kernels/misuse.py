"""Calls that jax itself rejects, mostly during tracing."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels.broken import BrokenKernel, Refusal

F32 = jnp.float32
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))
HBM = pl.BlockSpec(memory_space=pl.ANY)


def captured_constant(x: jax.Array) -> jax.Array:
    weights = jnp.arange(128, dtype=F32)

    # An array from outside is no operand of the kernel.
    def scale(x_ref: jax.Ref, out_ref: jax.Ref) -> None:  # FAULT
        out_ref[...] = x_ref[...] * weights

    return pl.pallas_call(scale, out_shape=x)(x)


def captured_constant_repaired(x: jax.Array) -> jax.Array:
    def scale(x_ref: jax.Ref, weights_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...] * weights_ref[...]

    weights = jnp.arange(128, dtype=F32)[None, :]
    return pl.pallas_call(scale, out_shape=x)(x, weights)


def index_map_captures_constant(x: jax.Array) -> jax.Array:
    def copy(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...]

    order = jnp.array([1, 0])
    # The index map runs before each grid point: what it needs must be scalar prefetch.
    gather = pl.BlockSpec((8, 128), lambda i: (order[i], 0))  # FAULT
    return pl.pallas_call(copy, out_shape=x, grid=(2,), in_specs=[gather], out_specs=ROWS)(x)


def index_map_captures_constant_repaired(x: jax.Array) -> jax.Array:
    def copy(order_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...]

    order = jnp.array([1, 0])
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(2,),
        in_specs=[pl.BlockSpec((8, 128), lambda i, order: (order[i], 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i, order: (i, 0)),
    )
    return pl.pallas_call(copy, out_shape=x, grid_spec=spec)(order, x)


def index_map_of_wrong_arity(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...] * 2

    # The block has two dimensions, the index map gives one.
    rows = pl.BlockSpec((8, 128), lambda i: (i,))  # FAULT
    return pl.pallas_call(double, out_shape=x, grid=(2,), in_specs=[rows], out_specs=ROWS)(x)


def index_map_of_too_few_arguments(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...] * 2

    # The grid has two axes, the index map takes one.
    rows = pl.BlockSpec((8, 128), lambda i: (i, 0))  # FAULT
    out = pl.BlockSpec((8, 128), lambda i, j: (i, j))
    return pl.pallas_call(double, out_shape=x, grid=(2, 1), in_specs=[rows], out_specs=out)(x)


def block_of_wrong_rank(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...] * 2

    # The array has two dimensions, the block three.
    block = pl.BlockSpec((1, 8, 128), lambda i: (0, i, 0))  # FAULT
    return pl.pallas_call(double, out_shape=x, grid=(2,), in_specs=[block], out_specs=ROWS)(x)


def double_repaired(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...] * 2

    return pl.pallas_call(double, out_shape=x, grid=(2,), in_specs=[ROWS], out_specs=ROWS)(x)


def store_of_wrong_dtype(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        # The output is bfloat16; a store does not convert.
        out_ref[...] = x_ref[...].astype(F32) * 2  # FAULT

    return pl.pallas_call(double, out_shape=x)(x)


def store_of_wrong_dtype_repaired(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = (x_ref[...].astype(F32) * 2).astype(out_ref.dtype)

    return pl.pallas_call(double, out_shape=x)(x)


def store_of_wrong_shape(x: jax.Array) -> jax.Array:
    def sum_rows(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        # Without keepdims the sum has one dimension, the output two.
        out_ref[...] = x_ref[...].sum(axis=0)  # FAULT

    return pl.pallas_call(sum_rows, out_shape=jax.ShapeDtypeStruct((1, 128), F32))(x)


def store_of_wrong_shape_repaired(x: jax.Array) -> jax.Array:
    def sum_rows(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...].sum(axis=0, keepdims=True)

    return pl.pallas_call(sum_rows, out_shape=jax.ShapeDtypeStruct((1, 128), F32))(x)


def kernel_returns_value(x: jax.Array) -> jax.Array:
    # A kernel has refs to store to, and returns nothing.
    def double(x_ref: jax.Ref, out_ref: jax.Ref) -> jax.Array:  # FAULT
        return x_ref[...] * 2

    return pl.pallas_call(double, out_shape=x)(x)


def kernel_returns_value_repaired(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...] * 2

    return pl.pallas_call(double, out_shape=x)(x)


def scalar_store_to_vmem(x: jax.Array) -> jax.Array:
    def total(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        # A scalar lives in another memory than a vector.
        out_ref[0, 0] = jnp.sum(x_ref[...])  # FAULT

    return pl.pallas_call(total, out_shape=jax.ShapeDtypeStruct((1, 1), F32))(x)


def scalar_store_to_vmem_repaired(x: jax.Array) -> jax.Array:
    def total(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[0, 0] = jnp.sum(x_ref[...])

    smem = pl.BlockSpec(memory_space=pltpu.SMEM)
    return pl.pallas_call(total, out_shape=jax.ShapeDtypeStruct((1, 1), F32), out_specs=smem)(x)


def direct_hbm_access(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        # x stays in HBM, where the core cannot load from.
        out_ref[...] = x_ref[...] * 2  # FAULT

    return pl.pallas_call(double, out_shape=x, in_specs=[HBM])(x)


def direct_hbm_access_repaired(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, tile_ref: jax.Ref) -> None:
        pltpu.sync_copy(x_ref, tile_ref)
        out_ref[...] = tile_ref[...] * 2

    tile = pltpu.VMEM((8, 128), F32)
    return pl.pallas_call(double, out_shape=x, in_specs=[HBM], scratch_shapes=[tile])(x)


X = (jax.ShapeDtypeStruct((8, 128), F32),)
TWO_BLOCKS = (jax.ShapeDtypeStruct((16, 128), F32),)

KERNELS = (
    BrokenKernel(
        fault="CapturedConstant",
        summary="A kernel uses an array from outside that is not among its operands.",
        function=captured_constant,
        repaired=captured_constant_repaired,
        reference=lambda x: x * jnp.arange(128, dtype=F32),
        args=X,
        refused=(
            Refusal("trace", "captures constants [f32[128]]. You should pass them as inputs"),
        ),
    ),
    BrokenKernel(
        fault="CapturedConstant",
        summary="An index map uses an array that is not scalar prefetch.",
        function=index_map_captures_constant,
        repaired=index_map_captures_constant_repaired,
        reference=lambda x: jnp.roll(x, 8, axis=0),
        args=TWO_BLOCKS,
        refused=(Refusal("trace", "must not capture constants"),),
    ),
    BrokenKernel(
        fault="IndexMapArity",
        summary="An index map gives fewer block indices than the block has dimensions.",
        function=index_map_of_wrong_arity,
        repaired=double_repaired,
        reference=lambda x: x * 2,
        args=TWO_BLOCKS,
        refused=(Refusal("trace", "must return 2 values to match block_shape"),),
    ),
    BrokenKernel(
        fault="IndexMapArity",
        summary="An index map takes fewer arguments than the grid has axes.",
        function=index_map_of_too_few_arguments,
        repaired=double_repaired,
        reference=lambda x: x * 2,
        args=TWO_BLOCKS,
        refused=(Refusal("trace", "takes 1 positional argument but 2 were given"),),
    ),
    BrokenKernel(
        fault="BlockRank",
        summary="A block has more dimensions than its array.",
        function=block_of_wrong_rank,
        repaired=double_repaired,
        reference=lambda x: x * 2,
        args=TWO_BLOCKS,
        refused=(
            Refusal(
                "trace", "must have the same number of dimensions as the array shape (16, 128)"
            ),
        ),
    ),
    BrokenKernel(
        fault="StoreDtype",
        summary="A float32 value is stored to a bfloat16 output.",
        function=store_of_wrong_dtype,
        repaired=store_of_wrong_dtype_repaired,
        reference=lambda x: x * 2,
        args=(jax.ShapeDtypeStruct((16, 128), jnp.bfloat16),),
        refused=(
            Refusal("trace", "Invalid dtype for `swap`. Ref dtype: bfloat16. Value dtype: float32"),
        ),
    ),
    BrokenKernel(
        fault="StoreShape",
        summary="A value of one dimension is stored to an output of two.",
        function=store_of_wrong_shape,
        repaired=store_of_wrong_shape_repaired,
        reference=lambda x: x.sum(axis=0, keepdims=True),
        args=X,
        refused=(Refusal("trace", "Invalid shape for `swap`. Ref shape: (1, 128)"),),
    ),
    BrokenKernel(
        fault="KernelReturnsValue",
        summary="The kernel returns its result where it should store it.",
        function=kernel_returns_value,
        repaired=kernel_returns_value_repaired,
        reference=lambda x: x * 2,
        args=X,
        refused=(Refusal("trace", "should return None. It returns a PyTree"),),
    ),
    BrokenKernel(
        fault="ScalarStoreToVmem",
        summary="A scalar is stored to an output in VMEM.",
        function=scalar_store_to_vmem,
        repaired=scalar_store_to_vmem_repaired,
        reference=lambda x: x.sum().reshape(1, 1),
        args=X,
        refused=(Refusal("lowering", "Cannot store scalars to VMEM"),),
    ),
    BrokenKernel(
        fault="DirectHbmAccess",
        summary="A ref in HBM is loaded from without a copy.",
        function=direct_hbm_access,
        repaired=direct_hbm_access_repaired,
        reference=lambda x: x * 2,
        args=X,
        refused=(Refusal("lowering", "Loads are only allowed on VMEM and SMEM references"),),
    ),
)
