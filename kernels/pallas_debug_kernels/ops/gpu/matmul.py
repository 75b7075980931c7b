"""Matrix product for Hopper: copies by TMA ahead of products by the tensor cores of a warpgroup."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from ..._arguments import check_dtype, check_ndim, check_same_dtype
from ...spec import Spec

IN_FLIGHT = 1
"""Products that run while the next blocks are waited for."""


def hopper_matmul_kernel(
    x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref, out_smem: jax.Ref, *, block_k: int, steps: int
) -> None:
    """Compute one block of `x @ y`; x and y are whole, in global memory."""
    block_m, block_n = out_smem.shape
    rows = pl.ds(lax.axis_index("m") * block_m, block_m)
    columns = pl.ds(lax.axis_index("n") * block_n, block_n)

    def multiply(acc_ref: jax.Ref) -> jax.Array:
        def step(_: object, x_smem: jax.Ref, y_smem: jax.Ref) -> None:
            plgpu.wgmma(acc_ref, x_smem, y_smem)
            plgpu.wgmma_wait(IN_FLIGHT)

        block = partial(plgpu.BlockSpec, transforms=_tiles(x_ref), delay_release=IN_FLIGHT)
        plgpu.emit_pipeline(
            step,
            grid=(x_ref.shape[1] // block_k,),
            in_specs=[
                block((block_m, block_k), lambda k: (0, k)),
                block((block_k, block_n), lambda k: (k, 0)),
            ],
            max_concurrent_steps=steps,
        )(x_ref.at[rows], y_ref.at[:, columns])
        product: jax.Array = acc_ref[...]
        return product

    acc = pl.run_scoped(multiply, plgpu.WGMMAAccumulatorRef((block_m, block_n), jnp.float32))
    out_smem[...] = acc.astype(out_smem.dtype)
    plgpu.commit_smem()  # TMA reads what was stored before
    plgpu.copy_smem_to_gmem(out_smem, out_ref.at[rows, columns])
    plgpu.wait_smem_to_gmem(0)


def _tiles(array: jax.Ref | jax.Array) -> tuple[object, ...]:
    """Layout of shared memory that the tensor cores read: tiles of 8 rows of 128 bytes."""
    columns = 128 // jnp.dtype(array.dtype).itemsize
    return plgpu.TilingTransform((8, columns)), plgpu.SwizzleTransform(128)


@partial(jax.jit, static_argnames=("block_m", "block_n", "block_k", "steps"))
def hopper_matmul(
    x: jax.Array,
    y: jax.Array,
    *,
    block_m: int = 128,
    block_n: int = 128,
    block_k: int = 64,
    steps: int = 4,
) -> jax.Array:
    """Compute `x @ y` on a Hopper GPU, accumulated in float32.

    Args:
      x, y: `[m, k]` and `[k, n]`, float16 or bfloat16.
      block_m: a multiple of 64 that divides m.
      block_n: a multiple of 64 that divides n; at most 256.
      block_k: a multiple of 64 that divides k.
      steps: blocks of x and y that are in shared memory at once.
    """
    check_ndim("hopper_matmul", "x", x, ("m", "k"))
    check_ndim("hopper_matmul", "y", y, ("k", "n"))
    check_dtype("hopper_matmul", "x", x, ("float16", "bfloat16"))
    check_same_dtype("hopper_matmul", "y", y, "x", x)
    (m, k), n = x.shape, y.shape[1]
    for name, block, size in (("m", block_m, m), ("n", block_n, n), ("k", block_k, k)):
        if block % 64 or size % block:
            raise ValueError(
                f"hopper_matmul: block_{name} is {block}. It must be a multiple of 64 that divides "
                f"{name}, which is {size}."
            )

    def kernel(*refs: jax.Ref) -> None:
        hopper_matmul_kernel(*refs, block_k=block_k, steps=steps)

    call = plgpu.kernel(
        kernel,
        kernel_name="hopper_matmul",
        out_type=jax.ShapeDtypeStruct((m, n), x.dtype),
        scratch_types=[plgpu.SMEM((block_m, block_n), x.dtype, transforms=_tiles(x))],
        grid=(m // block_m, n // block_n),
        grid_names=("m", "n"),
    )
    out: jax.Array = call(x, y)
    return out


def hopper_matmul_reference(x: jax.Array, y: jax.Array, **blocks: int) -> jax.Array:
    """Compute `x @ y` in float32. Blocks are ignored."""
    del blocks
    out: jax.Array = jnp.dot(x, y, preferred_element_type=jnp.float32)
    return out.astype(x.dtype)


def _spec(name: str, tag: str, size: int, dtype: object, **blocks: int) -> Spec:
    x = jax.ShapeDtypeStruct((size, size), dtype)
    return Spec(name=name, tags=(tag,), args=(x, x), kwargs=blocks)


SPECS = (
    _spec("f16", "small", 256, jnp.float16),
    _spec("bf16", "small", 128, jnp.bfloat16, block_m=64, block_n=64),
    _spec("one_block", "edge", 64, jnp.float16, block_m=64, block_n=64),
    _spec("f16_4096", "bench", 4096, jnp.float16),
)
