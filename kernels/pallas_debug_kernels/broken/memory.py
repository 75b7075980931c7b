"""Kernels that request more on-chip memory than available."""
# mypy: disable-error-code="no-any-return,untyped-decorator"

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from .record import BrokenKernel, Refusal

F32 = jnp.float32


def blocks_over_the_limit(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...] * 2

    # 8 MiB, twice for the input and twice for the output: the default limit of v5e is 16 MiB.
    rows = pl.BlockSpec((512, 4096), lambda i: (i, 0))  # FAULT
    return pl.pallas_call(double, out_shape=x, grid=(2,), in_specs=[rows], out_specs=rows)(x)


def blocks_over_the_limit_repaired(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...] * 2

    rows = pl.BlockSpec((128, 4096), lambda i: (i, 0))
    return pl.pallas_call(double, out_shape=x, grid=(8,), in_specs=[rows], out_specs=rows)(x)


KERNELS = (
    BrokenKernel(
        fault="VmemOverflow",
        summary="The double-buffered blocks exceed a kernel's share of VMEM.",
        function=blocks_over_the_limit,
        repaired=blocks_over_the_limit_repaired,
        reference=lambda x: x * 2,
        args=(jax.ShapeDtypeStruct((1024, 4096), F32),),
        refused=(
            Refusal("compile", "E1001: CompileTimeScopedVmemOom", targets=("v5e", "v5p")),
            Refusal(
                "compile",
                "Used 32.00M of 16.00M vmem. Exceeded vmem capacity by 16.00M",
                targets=("v4",),
            ),
        ),
        targets=("v5e", "v4", "v5p", "v6e"),
    ),
)
