"""Kernels that request more on-chip memory than there is."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels.broken import Refusal

from .record import fault

F32 = jnp.float32


@fault(
    "VmemOverflow",
    "Without a grid the arrays as a whole are larger than a kernel's share of VMEM.",
    lambda x: x * 2,
    jax.ShapeDtypeStruct((3072, 1024), F32),
    refused=(
        Refusal("compile", "E1001: CompileTimeScopedVmemOom", targets=("v5e",)),
        Refusal(
            "compile",
            "Used 24.00M of 16.00M vmem. Exceeded vmem capacity by 8.00M",
            targets=("v4",),
        ),
    ),
    targets=("v5e", "v4", "v6e"),
)
def whole_arrays(x, *, repaired=False):
    def double(x_ref, out_ref):
        out_ref[...] = x_ref[...] * 2

    if repaired:
        rows = pl.BlockSpec((256, 1024), lambda i: (i, 0))
        return pl.pallas_call(double, x, grid=(12,), in_specs=[rows], out_specs=rows)(x)
    # Without a grid each array comes as a whole, 24 MiB of them: v5e gives a kernel 16 MiB.
    return pl.pallas_call(double, out_shape=x)(x)  # FAULT


@fault(
    "VmemOverflow",
    "The scratch is larger than the whole VMEM of some chips.",
    lambda x: x * 2,
    jax.ShapeDtypeStruct((1024, 1024), F32),
    refused=(
        Refusal(
            "compile",
            "Allocation (size=83886080) would exceed memory (size=67108864)",
            targets=("v5p", "tpu7x"),
        ),
        Refusal(
            "compile",
            "Allocation (size=83886080) would exceed memory (size=16777216)",
            targets=("v4",),
        ),
    ),
    targets=("v5e", "tpu7x", "v4", "v5p", "v6e"),
)
def scratch_over_the_capacity(x, *, repaired=False):
    def double(x_ref, out_ref, scratch_ref):
        scratch_ref[0] = x_ref[...] * 2
        out_ref[...] = scratch_ref[0]

    tiles = 1 if repaired else 20
    # 80 MiB. To raise the limit helps on v5e and v6e; v4, v5p and tpu7x have no such memory.
    scratch = pltpu.VMEM((tiles, 1024, 1024), F32)  # FAULT
    params = pltpu.CompilerParams(vmem_limit_bytes=None if repaired else 100 * 2**20)
    return pl.pallas_call(double, out_shape=x, scratch_shapes=[scratch], compiler_params=params)(x)


@fault(
    "SmemOverflow",
    "A page table in scalar prefetch is larger than SMEM.",
    lambda table, pages: pages[table[:3]],
    jax.ShapeDtypeStruct((2**19,), jnp.int32),
    jax.ShapeDtypeStruct((4, 8, 128), F32),
    values={0: 3},
    refused=(Refusal("compile", "Allocation (size=2097152) would exceed memory (size=1048576)"),),
)
def page_table_too_large(page_table, pages, *, repaired=False):
    def gather_page(page_table_ref, page_ref, out_ref):
        out_ref[...] = page_ref[...]

    spec = pltpu.PrefetchScalarGridSpec(
        # Half a million entries are 2 MiB, and all of it goes to SMEM, which has 1 MiB.
        num_scalar_prefetch=1,  # FAULT
        grid=(3,),
        in_specs=[pl.BlockSpec((1, 8, 128), lambda i, table: (table[i], 0, 0))],
        out_specs=pl.BlockSpec((1, 8, 128), lambda i, table: (i, 0, 0)),
    )
    out_shape = jax.ShapeDtypeStruct((3, 8, 128), F32)
    call = pl.pallas_call(gather_page, out_shape=out_shape, grid_spec=spec)
    return call(page_table[:3] if repaired else page_table, pages)
