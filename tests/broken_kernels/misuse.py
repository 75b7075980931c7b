"""Calls that jax itself rejects, mostly during tracing."""

import jax
import jax.numpy as jnp
from called import called
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels.broken import Refusal

from .record import fault

F32 = jnp.float32
ROWS = pl.BlockSpec((8, 128), lambda i, *_: (i, 0))
X = jax.ShapeDtypeStruct((8, 128), F32)
TWO_BLOCKS = jax.ShapeDtypeStruct((16, 128), F32)


def refused(message, stage="trace"):
    return (Refusal(stage, message),)


@fault(
    "CapturedConstant",
    "A kernel uses an array from outside that is not among its operands.",
    lambda x: x * jnp.arange(128, dtype=F32),
    X,
    refused=refused("captures constants [f32[128]]. You should pass them as inputs"),
)
def captured_constant(x, *, repaired=False):
    weights = jnp.arange(128, dtype=F32)
    if repaired:

        def scale_by(x_ref, weights_ref, out_ref):
            out_ref[...] = x_ref[...] * weights_ref[...]

        return pl.pallas_call(scale_by, out_shape=x)(x, weights[None])

    # An array from outside is no operand of the kernel.
    def scale(x_ref, out_ref):  # FAULT
        out_ref[...] = x_ref[...] * weights

    return pl.pallas_call(scale, out_shape=x)(x)


@fault(
    "CapturedConstant",
    "An index map uses an array that is not scalar prefetch.",
    lambda x: jnp.roll(x, 8, axis=0),
    TWO_BLOCKS,
    refused=refused("must not capture constants"),
)
def index_map_captures_constant(x, *, repaired=False):
    def copy(*refs):
        x_ref, out_ref = refs[-2:]
        out_ref[...] = x_ref[...]

    order = jnp.array([1, 0])
    if repaired:
        spec = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(2,),
            in_specs=[pl.BlockSpec((8, 128), lambda i, order: (order[i], 0))],
            out_specs=ROWS,
        )
        return pl.pallas_call(copy, out_shape=x, grid_spec=spec)(order, x)
    # The index map runs before each grid point: what it needs must be scalar prefetch.
    gather = pl.BlockSpec((8, 128), lambda i: (order[i], 0))  # FAULT
    return pl.pallas_call(copy, out_shape=x, grid=(2,), in_specs=[gather], out_specs=ROWS)(x)


def doubled(x, rows, repaired, grid=(2,)):
    def double(x_ref, out_ref):
        out_ref[...] = x_ref[...] * 2

    rows = ROWS if repaired else rows
    return pl.pallas_call(double, out_shape=x, grid=grid, in_specs=[rows], out_specs=ROWS)(x)


@fault(
    "IndexMapArity",
    "An index map gives fewer block indices than the block has dimensions.",
    lambda x: x * 2,
    TWO_BLOCKS,
    refused=refused("must return 2 values to match block_shape"),
)
def index_map_of_wrong_arity(x, *, repaired=False):
    # The block has two dimensions, the index map gives one.
    rows = pl.BlockSpec((8, 128), lambda i: (i,))  # FAULT
    return doubled(x, rows, repaired)


@fault(
    "IndexMapArity",
    "An index map takes fewer arguments than the grid has axes.",
    lambda x: x * 2,
    TWO_BLOCKS,
    refused=refused("takes 1 positional argument but 2 were given"),
)
def index_map_of_too_few_arguments(x, *, repaired=False):
    # The grid has two axes, the index map takes one.
    rows = pl.BlockSpec((8, 128), lambda i: (i, 0))  # FAULT
    return doubled(x, rows, repaired, grid=(2, 1))


@fault(
    "BlockRank",
    "A block has more dimensions than its array.",
    lambda x: x * 2,
    TWO_BLOCKS,
    refused=refused("must have the same number of dimensions as the array shape (16, 128)"),
)
def block_of_wrong_rank(x, *, repaired=False):
    # The array has two dimensions, the block three.
    block = pl.BlockSpec((1, 8, 128), lambda i: (0, i, 0))  # FAULT
    return doubled(x, block, repaired)


@fault(
    "StoreDtype",
    "A float32 value is stored to a bfloat16 output.",
    lambda x: x * 2,
    jax.ShapeDtypeStruct((16, 128), jnp.bfloat16),
    refused=refused("Invalid dtype for `swap`. Ref dtype: bfloat16. Value dtype: float32"),
)
@called()
def store_of_wrong_dtype(x_ref, out_ref, repaired=False):
    dtype = out_ref.dtype if repaired else F32
    # The output is bfloat16; a store does not convert.
    out_ref[...] = (x_ref[...].astype(F32) * 2).astype(dtype)  # FAULT


@fault(
    "StoreShape",
    "A value of one dimension is stored to an output of two.",
    lambda x: x.sum(axis=0, keepdims=True),
    X,
    refused=refused("Invalid shape for `swap`. Ref shape: (1, 128)"),
)
@called(jax.ShapeDtypeStruct((1, 128), F32))
def store_of_wrong_shape(x_ref, out_ref, repaired=False):
    # Without keepdims the sum has one dimension, the output two.
    out_ref[...] = x_ref[...].sum(axis=0, keepdims=repaired)  # FAULT


@fault(
    "KernelReturnsValue",
    "The kernel returns its result where it should store it.",
    lambda x: x * 2,
    X,
    refused=refused("should return None. It returns a PyTree"),
)
def kernel_returns_value(x, *, repaired=False):
    # A kernel has refs to store to, and returns nothing.
    def double(x_ref, out_ref):  # FAULT
        out_ref[...] = x_ref[...] * 2
        return None if repaired else out_ref[...]

    return pl.pallas_call(double, out_shape=x)(x)


@fault(
    "ScalarStoreToVmem",
    "A scalar is stored to an output in VMEM.",
    lambda x: x.sum().reshape(1, 1),
    X,
    refused=refused("Cannot store scalars to VMEM", "lowering"),
)
def scalar_store_to_vmem(x, *, repaired=False):
    def total(x_ref, out_ref):
        # A scalar lives in another memory than a vector.
        out_ref[0, 0] = jnp.sum(x_ref[...])  # FAULT

    out = pl.BlockSpec(memory_space=pltpu.SMEM if repaired else pltpu.VMEM)
    return pl.pallas_call(total, out_shape=jax.ShapeDtypeStruct((1, 1), F32), out_specs=out)(x)


@fault(
    "DirectHbmAccess",
    "A ref in HBM is loaded from without a copy.",
    lambda x: x * 2,
    X,
    refused=refused("Loads are only allowed on VMEM and SMEM references", "lowering"),
)
@called(in_specs=[pl.BlockSpec(memory_space=pl.ANY)], scratch_shapes=[pltpu.VMEM((8, 128), F32)])
def direct_hbm_access(x_ref, out_ref, tile_ref, repaired=False):
    if repaired:
        pltpu.sync_copy(x_ref, tile_ref)
        x_ref = tile_ref
    # x stays in HBM, where the core cannot load from.
    out_ref[...] = x_ref[...] * 2  # FAULT
