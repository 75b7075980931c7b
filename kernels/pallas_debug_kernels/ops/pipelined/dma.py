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

from .kernel import multiply

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


def dma_matmul_kernel(
    x_ref: jax.Ref,  # [m, k] in HBM
    y_ref: jax.Ref,  # [k, n] in HBM
    out_ref: jax.Ref,  # [block_m, block_n]
    x_slots_ref: jax.Ref,  # [2, block_m, block_k]
    y_slots_ref: jax.Ref,  # [2, block_k, block_n]
    acc_ref: jax.Ref,  # [block_m, block_n], float32
    x_sems: jax.Ref,  # [2]
    y_sems: jax.Ref,  # [2]
) -> None:
    """Multiply the blocks of one slot while the next ones are read into the other."""
    (m, k), n = x_ref.shape, y_ref.shape[1]
    _, block_m, block_k = x_slots_ref.shape
    block_n = out_ref.shape[1]
    num_steps = k // block_k
    rows = _block(pl.program_id(0), block_m, m)
    cols = _block(pl.program_id(1), block_n, n)

    def reads(step: jax.Array) -> tuple[Any, ...]:
        slot, terms = lax.rem(step, jnp.int32(SLOTS)), _block(step, block_k, k)
        return (
            pltpu.make_async_copy(x_ref.at[rows, terms], x_slots_ref.at[slot], x_sems.at[slot]),
            pltpu.make_async_copy(y_ref.at[terms, cols], y_slots_ref.at[slot], y_sems.at[slot]),
        )

    def start(step: jax.Array) -> None:
        for read in reads(step):
            read.start()

    def add_term(step: jax.Array, _: None) -> None:
        @pl.when(step + 1 < num_steps)
        def _next() -> None:
            start(step + 1)

        for read in reads(step):
            read.wait()
        slot = lax.rem(step, jnp.int32(SLOTS))
        acc_ref[...] += multiply(x_slots_ref[slot], y_slots_ref[slot])  # [block_m, block_n]

    start(jnp.int32(0))
    acc_ref[...] = jnp.zeros_like(acc_ref)
    lax.fori_loop(jnp.int32(0), jnp.int32(num_steps), add_term, None)
    out_ref[...] = acc_ref[...].astype(out_ref.dtype)


def _block(i: jax.Array, block: int, size: int) -> slice | pl.Slice:
    """Return the elements of block `i` along a dimension of `size`."""
    return slice(None) if block == size else pl.ds(i * block, block)


@partial(jax.jit, static_argnames=("block_rows",))
def launch_copy(x: jax.Array, *, block_rows: int) -> jax.Array:
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


@partial(jax.jit, static_argnames=("blocks",))
def launch_matmul(x: jax.Array, y: jax.Array, *, blocks: tuple[int, int, int]) -> jax.Array:
    """Run the kernel over the grid (m, n); the kernel itself iterates along k."""
    (m, k), n = x.shape, y.shape[1]
    block_m, block_n, block_k = blocks
    matmul = pl.pallas_call(
        dma_matmul_kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        grid=(m // block_m, n // block_n),
        in_specs=[_HBM, _HBM],
        out_specs=pl.BlockSpec((block_m, block_n), lambda i, j: (i, j)),
        scratch_shapes=[
            pltpu.VMEM((SLOTS, block_m, block_k), x.dtype),
            pltpu.VMEM((SLOTS, block_k, block_n), y.dtype),
            pltpu.VMEM((block_m, block_n), jnp.float32),
            pltpu.SemaphoreType.DMA((SLOTS,)),
            pltpu.SemaphoreType.DMA((SLOTS,)),
        ],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        cost_estimate=pl.CostEstimate(
            flops=2 * m * n * k,
            transcendentals=0,
            bytes_accessed=(m * k * (n // block_n) + k * n * (m // block_m) + m * n)
            * x.dtype.itemsize,
        ),
        name="dma_matmul",
    )
    out: jax.Array = matmul(x, y)
    return out
