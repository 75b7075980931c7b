"""The same with `pltpu.emit_pipeline`, which creates the slots, semaphores and DMAs itself."""
# mypy: disable-error-code="untyped-decorator"
# pl.when runs the function that it decorates and returns nothing.

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AbstractDevice, AbstractMesh

from .kernel import multiply

_SOME_TPU = AbstractMesh((), (), abstract_device=AbstractDevice("TPU v5 lite", 1, "tpu"))
_HBM = pl.BlockSpec(memory_space=pl.ANY)


def pipelined_copy_kernel(
    x_ref: jax.Ref,  # [rows, cols] in HBM
    out_ref: jax.Ref,  # [rows, cols] in HBM
    *,
    block_rows: int,
) -> None:
    """Copy the rows block by block."""
    rows, cols = x_ref.shape
    block = pl.BlockSpec((block_rows, cols), lambda i: (i, jnp.int32(0)))
    pipeline = pltpu.emit_pipeline(
        copy_block, grid=(rows // block_rows,), in_specs=[block], out_specs=[block]
    )
    with _traceable():
        pipeline(x_ref, out_ref)


def copy_block(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
    """Copy one block; both refs are `[block_rows, cols]`."""
    out_ref[...] = x_ref[...]


def pipelined_matmul_kernel(
    x_ref: jax.Ref,  # [m, k] in HBM
    y_ref: jax.Ref,  # [k, n] in HBM
    out_ref: jax.Ref,  # [m, n] in HBM
    acc_ref: jax.Ref,  # [block_m, block_n], float32
    *,
    block_k: int,
) -> None:
    """Iterate over the blocks, with k innermost to keep the accumulator."""
    (m, k), n = x_ref.shape, y_ref.shape[1]
    block_m, block_n = acc_ref.shape
    pipeline = pltpu.emit_pipeline(
        partial(add_term, acc_ref=acc_ref),
        grid=(m // block_m, n // block_n, k // block_k),
        in_specs=[
            pl.BlockSpec((block_m, block_k), lambda i, j, step: (i, step)),
            pl.BlockSpec((block_k, block_n), lambda i, j, step: (step, j)),
        ],
        out_specs=[pl.BlockSpec((block_m, block_n), lambda i, j, step: (i, j))],
    )
    with _traceable():
        pipeline(x_ref, y_ref, out_ref)


def add_term(
    x_ref: jax.Ref,  # [block_m, block_k]
    y_ref: jax.Ref,  # [block_k, block_n]
    out_ref: jax.Ref,  # [block_m, block_n]
    *,
    acc_ref: jax.Ref,  # [block_m, block_n], float32
) -> None:
    """Add one term of the sum over k blocks; the last one writes the output block."""
    step = pl.program_id(2)
    last_step = pl.num_programs(2) - 1

    @pl.when(step == 0)
    def _start() -> None:
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += multiply(x_ref[...], y_ref[...])  # [block_m, block_n]

    @pl.when(step == last_step)
    def _finish() -> None:
        out_ref[...] = acc_ref[...].astype(out_ref.dtype)


@contextmanager
def _traceable() -> Iterator[None]:
    """Provide what emit_pipeline needs while tracing: 32-bit ints, and a chip (any from v4 on)."""
    with ExitStack() as stack:
        stack.enter_context(jax.enable_x64(False))
        if not pltpu.is_tpu_device():
            stack.enter_context(jax.sharding.use_abstract_mesh(_SOME_TPU))
        yield


@partial(jax.jit, static_argnames=("block_rows",))
def launch_copy(x: jax.Array, *, block_rows: int) -> jax.Array:
    """Run the kernel once: the grid is inside it."""
    copy = pl.pallas_call(
        partial(pipelined_copy_kernel, block_rows=block_rows),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[_HBM],
        out_specs=_HBM,
        cost_estimate=pl.CostEstimate(flops=0, transcendentals=0, bytes_accessed=2 * x.nbytes),
        name="pipelined_copy",
    )
    out: jax.Array = copy(x)
    return out


@partial(jax.jit, static_argnames=("blocks",))
def launch_matmul(x: jax.Array, y: jax.Array, *, blocks: tuple[int, int, int]) -> jax.Array:
    """Run the kernel once: the grid (m, n, k) is inside it."""
    (m, k), n = x.shape, y.shape[1]
    block_m, block_n, block_k = blocks
    matmul = pl.pallas_call(
        partial(pipelined_matmul_kernel, block_k=block_k),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        in_specs=[_HBM, _HBM],
        out_specs=_HBM,
        scratch_shapes=[pltpu.VMEM((block_m, block_n), jnp.float32)],
        cost_estimate=pl.CostEstimate(
            flops=2 * m * n * k,
            transcendentals=0,
            bytes_accessed=(m * k * (n // block_n) + k * n * (m // block_m) + m * n)
            * x.dtype.itemsize,
        ),
        name="pipelined_matmul",
    )
    out: jax.Array = matmul(x, y)
    return out
