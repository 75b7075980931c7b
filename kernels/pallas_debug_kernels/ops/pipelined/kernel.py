"""Manual double buffering: two slots in VMEM, a DMA into one while the core works on the other.

Every DMA that is started is waited for once, by a copy of the same shape on the same semaphore.
"""
# mypy: disable-error-code="untyped-decorator"
# pl.when runs the function that it decorates and returns nothing.

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ..._arguments import check_dtype, check_ndim, divisor_block, sublanes

SLOTS = 2

_HBM = pl.BlockSpec(memory_space=pl.ANY)


def dma_copy_kernel(
    x_ref: jax.Ref,  # [rows, cols] in HBM
    out_ref: jax.Ref,  # [rows, cols] in HBM
    slots_ref: jax.Ref,  # [2, block_rows, cols]
    read_sems: jax.Ref,  # [2]
    write_sems: jax.Ref,  # [2]
) -> None:
    """Write block `step`, and read the next one into the other slot as soon as it is free."""
    step, num_steps = pl.program_id(0), pl.num_programs(0)

    def read(i: jax.Array) -> Any:
        slot = lax.rem(i, jnp.int32(SLOTS))
        block = _block(i, slots_ref.shape[1], x_ref.shape[0])
        return pltpu.make_async_copy(x_ref.at[block], slots_ref.at[slot], read_sems.at[slot])

    def write(i: jax.Array) -> Any:
        slot = lax.rem(i, jnp.int32(SLOTS))
        block = _block(i, slots_ref.shape[1], x_ref.shape[0])
        return pltpu.make_async_copy(slots_ref.at[slot], out_ref.at[block], write_sems.at[slot])

    @pl.when(step == 0)
    def _first() -> None:
        read(step).start()

    read(step).wait()
    write(step).start()

    @pl.when(step > 0)
    def _free_the_other_slot() -> None:
        write(step - 1).wait()

    @pl.when(step + 1 < num_steps)
    def _next() -> None:
        read(step + 1).start()

    @pl.when(step + 1 == num_steps)
    def _last() -> None:
        write(step).wait()


def _block(i: jax.Array, block: int, size: int) -> slice | pl.Slice:
    """Return the elements of block `i` along a dimension of `size`."""
    return slice(None) if block == size else pl.ds(i * block, block)


@partial(jax.jit, static_argnames=("block_rows",))
def launch(x: jax.Array, *, block_rows: int) -> jax.Array:
    """Run the kernel once per block; its slots and semaphores persist across the whole grid."""
    rows, cols = x.shape
    copy = pl.pallas_call(
        dma_copy_kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(rows // block_rows,),
        in_specs=[_HBM],
        out_specs=_HBM,
        scratch_shapes=[
            pltpu.VMEM((SLOTS, block_rows, cols), x.dtype),
            pltpu.SemaphoreType.DMA((SLOTS,)),
            pltpu.SemaphoreType.DMA((SLOTS,)),
        ],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
        cost_estimate=pl.CostEstimate(flops=0, transcendentals=0, bytes_accessed=2 * x.nbytes),
        name="dma_copy",
    )
    out: jax.Array = copy(x)
    return out


DTYPES = ("float32", "bfloat16", "int32")


def dma_copy(x: jax.Array, *, block_rows: int = 256) -> jax.Array:
    """Copy `x` through VMEM, reading the next block while the last one is written.

    Args:
      x: float32, bfloat16 or int32 `[rows, cols]`.
      block_rows: rows per DMA: a multiple of 8 (bfloat16: 16) that divides `rows`, or at least
        `rows`.

    Returns:
      `[rows, cols]`, with the dtype of `x`.

    Raises:
      ValueError: for any other shape, dtype or block size.
    """
    check_ndim("dma_copy", "x", x, ("rows", "cols"))
    check_dtype("dma_copy", "x", x, DTYPES)
    block = divisor_block(
        "dma_copy",
        "block_rows",
        block_rows,
        multiple=sublanes(x.dtype),
        dim="rows",
        size=x.shape[0],
    )
    out: jax.Array = launch(x, block_rows=block)
    return out
