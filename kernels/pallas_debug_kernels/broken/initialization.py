"""Reads of uninitialised memory."""
# mypy: disable-error-code="no-any-return,untyped-decorator"

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .record import BrokenKernel

F32 = jnp.float32
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))
TOTAL = pl.BlockSpec((8, 128), lambda i: (0, 0))
SUM = jax.ShapeDtypeStruct((8, 128), F32)


def accumulator_never_zeroed(x: jax.Array) -> jax.Array:
    def sum_blocks(x_ref: jax.Ref, out_ref: jax.Ref, acc_ref: jax.Ref) -> None:
        # VMEM scratch starts with whatever the last kernel left there.
        acc_ref[...] += x_ref[...]  # FAULT

        @pl.when(pl.program_id(0) == pl.num_programs(0) - 1)
        def _finish() -> None:
            out_ref[...] = acc_ref[...]

    return pl.pallas_call(
        sum_blocks,
        out_shape=SUM,
        grid=(4,),
        in_specs=[ROWS],
        out_specs=TOTAL,
        scratch_shapes=[pltpu.VMEM((8, 128), F32)],
    )(x)


def accumulator_never_zeroed_repaired(x: jax.Array) -> jax.Array:
    def sum_blocks(x_ref: jax.Ref, out_ref: jax.Ref, acc_ref: jax.Ref) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _start() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += x_ref[...]

        @pl.when(pl.program_id(0) == pl.num_programs(0) - 1)
        def _finish() -> None:
            out_ref[...] = acc_ref[...]

    return pl.pallas_call(
        sum_blocks,
        out_shape=SUM,
        grid=(4,),
        in_specs=[ROWS],
        out_specs=TOTAL,
        scratch_shapes=[pltpu.VMEM((8, 128), F32)],
    )(x)


X = (jax.ShapeDtypeStruct((32, 128), F32),)

KERNELS = (
    BrokenKernel(
        fault="UninitializedRead",
        summary="An accumulator in scratch is updated before it is initialised.",
        function=accumulator_never_zeroed,
        repaired=accumulator_never_zeroed_repaired,
        reference=lambda x: x.reshape(4, 8, 128).sum(axis=0),
        args=X,
    ),
)
