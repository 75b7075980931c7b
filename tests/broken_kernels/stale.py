"""Scratch that holds what another block left, or nothing: right in the first block, then wrong."""

import jax
import jax.numpy as jnp
from called import called
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .record import fault

F32, I32 = jnp.float32, jnp.int32
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))
TILE = pltpu.VMEM((8, 128), F32)
LENGTHS = jax.ShapeDtypeStruct((2,), I32)
BY_LENGTHS = {
    "grid": (2,),
    "in_specs": [pl.BlockSpec(memory_space=pltpu.SMEM), ROWS],
    "out_specs": ROWS,
}


@fault(
    "ValueMismatch",
    "The sum of a matrix product is zeroed at the start of the grid alone.",
    jnp.dot,
    jax.ShapeDtypeStruct((16, 256), F32),
    jax.ShapeDtypeStruct((256, 256), F32),
    hint="carried",
)
@called(
    jax.ShapeDtypeStruct((16, 256), F32),
    grid=(2, 2, 2),
    in_specs=[
        pl.BlockSpec((8, 128), lambda i, j, k: (i, k)),
        pl.BlockSpec((128, 128), lambda i, j, k: (k, j)),
    ],
    out_specs=pl.BlockSpec((8, 128), lambda i, j, k: (i, j)),
    scratch_shapes=[TILE],
)
def zeroed_at_the_start_of_the_grid(x_ref, y_ref, out_ref, acc_ref, repaired=False):
    is_first = pl.program_id(2) == 0
    if not repaired:
        # Zeroed for the first output block alone: every other one begins with the sum before it.
        is_first &= (pl.program_id(0) == 0) & (pl.program_id(1) == 0)

    @pl.when(is_first)
    def _start():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=F32)  # FAULT
    out_ref[...] = acc_ref[...]


def sum_of_valid_rows(lengths, x):
    rows = x.reshape(2, 8, 128)
    is_valid = jnp.arange(8)[None, :, None] < lengths[:, None, None]
    sums = jnp.where(is_valid, rows, 0).sum(axis=1, keepdims=True)
    return jnp.broadcast_to(sums, rows.shape).reshape(x.shape)


@fault(
    "ValueMismatch",
    "Rows past the length of a sequence are those of the sequence before.",
    sum_of_valid_rows,
    LENGTHS,
    jax.ShapeDtypeStruct((16, 128), F32),
    values={0: (8, 5)},
    hint="carried",
)
@called(**BY_LENGTHS, scratch_shapes=[TILE])
def rows_of_the_longer_sequence(lengths_ref, x_ref, out_ref, rows_ref, repaired=False):
    def keep(row, _):
        rows_ref[pl.ds(row, 1), :] = x_ref[pl.ds(row, 1), :]

    if repaired:
        rows_ref[...] = jnp.zeros_like(rows_ref)
    # Rows past the length keep those of the sequence before, which was longer.
    lax.fori_loop(0, lengths_ref[pl.program_id(0)], keep, None)
    total = rows_ref[...].sum(axis=0, keepdims=True)  # FAULT
    out_ref[...] = jnp.broadcast_to(total, (8, 128))


def counts_reference(lengths, x):
    length = jnp.repeat(lengths, 8)[:, None]
    return jnp.where(length == 0, 0, jnp.minimum(x, length))


@fault(
    "UninitializedRead",
    "Integers in scratch are set for sequences that are not empty, and always read.",
    counts_reference,
    LENGTHS,
    jax.ShapeDtypeStruct((16, 128), I32),
    values={0: (0, 3)},
)
@called(**BY_LENGTHS, scratch_shapes=[pltpu.VMEM((8, 128), I32)])
def counts_zeroed_for_nonempty_sequences(lengths_ref, x_ref, out_ref, counts_ref, repaired=False):
    length = lengths_ref[pl.program_id(0)]
    if repaired:
        counts_ref[...] = jnp.zeros_like(counts_ref)

    # The first sequence is empty, so that nothing sets the counts. Whether that shows depends on
    # what an interpreter fills memory with: integers hold no NaN.
    @pl.when(length > 0)
    def _start():
        counts_ref[...] = x_ref[...]

    out_ref[...] = jnp.minimum(counts_ref[...], length)  # FAULT


@fault(
    "UninitializedRead",
    "A number in SMEM is carried over a parallel grid axis.",
    lambda x: x + jnp.repeat(jnp.arange(4, dtype=I32), 8)[:, None],
    jax.ShapeDtypeStruct((32, 128), I32),
)
@called(
    grid=(2, 2),
    block=pl.BlockSpec((8, 128), lambda i, j: (2 * i + j, 0)),
    scratch_shapes=[pltpu.SMEM((1,), I32)],
    compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
)
def offset_carried_over_parallel_rows(x_ref, out_ref, offset_ref, repaired=False):
    i, j = pl.program_id(0), pl.program_id(1)
    if repaired:
        offset_ref[0] = i * pl.num_programs(1) + j
    else:

        @pl.when((i == 0) & (j == 0))
        def _start():
            offset_ref[0] = 0

    # Row 1 of the grid may begin on another core, whose SMEM holds nothing yet. One core alone
    # computes the right numbers.
    out_ref[...] = x_ref[...] + offset_ref[0]  # FAULT
    offset_ref[0] += 1
