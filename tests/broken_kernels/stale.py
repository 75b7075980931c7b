"""Scratch that holds what another block left, or nothing: right in the first block, then wrong."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels.broken import BrokenKernel

F32, I32 = jnp.float32, jnp.int32
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))
TILE = pltpu.VMEM((8, 128), F32)


def zeroed_at_the_start_of_the_grid(x: jax.Array, y: jax.Array) -> jax.Array:
    def matmul(x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref, acc_ref: jax.Ref) -> None:
        # Zeroed for the first output block alone: every other one begins with the sum before it.
        is_first = (pl.program_id(0) == 0) & (pl.program_id(1) == 0) & (pl.program_id(2) == 0)

        @pl.when(is_first)
        def _start() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=F32)  # FAULT
        out_ref[...] = acc_ref[...]

    return _matmul(matmul, x, y)


def zeroed_at_the_start_of_the_grid_repaired(x: jax.Array, y: jax.Array) -> jax.Array:
    def matmul(x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref, acc_ref: jax.Ref) -> None:
        @pl.when(pl.program_id(2) == 0)
        def _start() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=F32)
        out_ref[...] = acc_ref[...]

    return _matmul(matmul, x, y)


def _matmul(kernel: object, x: jax.Array, y: jax.Array) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((16, 256), F32),
        grid=(2, 2, 2),
        in_specs=[
            pl.BlockSpec((8, 128), lambda i, j, k: (i, k)),
            pl.BlockSpec((128, 128), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((8, 128), lambda i, j, k: (i, j)),
        scratch_shapes=[TILE],
    )(x, y)


def rows_of_the_longer_sequence(lengths: jax.Array, x: jax.Array) -> jax.Array:
    def sum_rows(lengths_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref, rows_ref: jax.Ref) -> None:
        def keep(row: jax.Array, _: None) -> None:
            rows_ref[pl.ds(row, 1), :] = x_ref[pl.ds(row, 1), :]

        # Rows past the length keep those of the sequence before, which was longer.
        lax.fori_loop(0, lengths_ref[pl.program_id(0)], keep, None)
        out_ref[...] = jnp.broadcast_to(
            rows_ref[...].sum(axis=0, keepdims=True),  # FAULT
            (8, 128),
        )

    return _sum_valid_rows(sum_rows, lengths, x)


def rows_of_the_longer_sequence_repaired(lengths: jax.Array, x: jax.Array) -> jax.Array:
    def sum_rows(lengths_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref, rows_ref: jax.Ref) -> None:
        def keep(row: jax.Array, _: None) -> None:
            rows_ref[pl.ds(row, 1), :] = x_ref[pl.ds(row, 1), :]

        rows_ref[...] = jnp.zeros_like(rows_ref)
        lax.fori_loop(0, lengths_ref[pl.program_id(0)], keep, None)
        out_ref[...] = jnp.broadcast_to(rows_ref[...].sum(axis=0, keepdims=True), (8, 128))

    return _sum_valid_rows(sum_rows, lengths, x)


def _sum_valid_rows(kernel: object, lengths: jax.Array, x: jax.Array) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=x,
        grid=(2,),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), ROWS],
        out_specs=ROWS,
        scratch_shapes=[TILE],
    )(lengths, x)


def sum_of_valid_rows(lengths: jax.Array, x: jax.Array) -> jax.Array:
    rows = x.reshape(2, 8, 128)
    is_valid = jnp.arange(8)[None, :, None] < lengths[:, None, None]
    sums = jnp.where(is_valid, rows, 0).sum(axis=1, keepdims=True)
    return jnp.broadcast_to(sums, rows.shape).reshape(x.shape)


def counts_zeroed_for_nonempty_sequences(lengths: jax.Array, x: jax.Array) -> jax.Array:
    def count(lengths_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref, counts_ref: jax.Ref) -> None:
        # The first sequence is empty, so that nothing sets the counts. Whether that shows depends on
        # what an interpreter fills memory with: integers hold no NaN.
        @pl.when(lengths_ref[pl.program_id(0)] > 0)
        def _start() -> None:
            counts_ref[...] = x_ref[...]

        out_ref[...] = jnp.minimum(counts_ref[...], lengths_ref[pl.program_id(0)])  # FAULT

    return _counts(count, lengths, x)


def counts_zeroed_for_nonempty_sequences_repaired(lengths: jax.Array, x: jax.Array) -> jax.Array:
    def count(lengths_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref, counts_ref: jax.Ref) -> None:
        is_empty = lengths_ref[pl.program_id(0)] == 0
        counts_ref[...] = jnp.where(is_empty, 0, x_ref[...])
        out_ref[...] = jnp.minimum(counts_ref[...], lengths_ref[pl.program_id(0)])

    return _counts(count, lengths, x)


def _counts(kernel: object, lengths: jax.Array, x: jax.Array) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=x,
        grid=(2,),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), ROWS],
        out_specs=ROWS,
        scratch_shapes=[pltpu.VMEM((8, 128), I32)],
    )(lengths, x)


def counts_reference(lengths: jax.Array, x: jax.Array) -> jax.Array:
    length = jnp.repeat(lengths, 8)[:, None]
    return jnp.where(length == 0, 0, jnp.minimum(x, length))


def offset_carried_over_parallel_rows(x: jax.Array) -> jax.Array:
    def number_rows(x_ref: jax.Ref, out_ref: jax.Ref, offset_ref: jax.Ref) -> None:
        i, j = pl.program_id(0), pl.program_id(1)

        @pl.when((i == 0) & (j == 0))
        def _start() -> None:
            offset_ref[0] = 0

        # Row 1 of the grid may begin on another core, whose SMEM holds nothing yet. One core alone
        # computes the right numbers.
        out_ref[...] = x_ref[...] + offset_ref[0]  # FAULT
        offset_ref[0] += 1

    return _number(number_rows, x, ("parallel", "arbitrary"))


def offset_carried_over_parallel_rows_repaired(x: jax.Array) -> jax.Array:
    def number_rows(x_ref: jax.Ref, out_ref: jax.Ref, offset_ref: jax.Ref) -> None:
        offset_ref[0] = pl.program_id(0) * pl.num_programs(1) + pl.program_id(1)
        out_ref[...] = x_ref[...] + offset_ref[0]

    return _number(number_rows, x, ("parallel", "arbitrary"))


def _number(kernel: object, x: jax.Array, semantics: tuple[str, ...]) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=x,
        grid=(2, 2),
        in_specs=[pl.BlockSpec((8, 128), lambda i, j: (2 * i + j, 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i, j: (2 * i + j, 0)),
        scratch_shapes=[pltpu.SMEM((1,), I32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=semantics),
    )(x)


MATRICES = (jax.ShapeDtypeStruct((16, 256), F32), jax.ShapeDtypeStruct((256, 256), F32))
LENGTHS = jax.ShapeDtypeStruct((2,), I32)
KERNELS = (
    BrokenKernel(
        fault="ValueMismatch",
        summary="The sum of a matrix product is zeroed at the start of the grid alone.",
        function=zeroed_at_the_start_of_the_grid,
        repaired=zeroed_at_the_start_of_the_grid_repaired,
        reference=lambda x, y: jnp.dot(x, y),
        args=MATRICES,
        hint="carried",
    ),
    BrokenKernel(
        fault="ValueMismatch",
        summary="Rows past the length of a sequence are those of the sequence before.",
        function=rows_of_the_longer_sequence,
        repaired=rows_of_the_longer_sequence_repaired,
        reference=sum_of_valid_rows,
        args=(LENGTHS, jax.ShapeDtypeStruct((16, 128), F32)),
        values={0: (8, 5)},
        hint="carried",
    ),
    BrokenKernel(
        fault="UninitializedRead",
        summary="Integers in scratch are set for sequences that are not empty, and always read.",
        function=counts_zeroed_for_nonempty_sequences,
        repaired=counts_zeroed_for_nonempty_sequences_repaired,
        reference=counts_reference,
        args=(LENGTHS, jax.ShapeDtypeStruct((16, 128), I32)),
        values={0: (0, 3)},
    ),
    BrokenKernel(
        fault="UninitializedRead",
        summary="A number in SMEM is carried over a parallel grid axis.",
        function=offset_carried_over_parallel_rows,
        repaired=offset_carried_over_parallel_rows_repaired,
        reference=lambda x: x + jnp.repeat(jnp.arange(4, dtype=I32), 8)[:, None],
        args=(jax.ShapeDtypeStruct((32, 128), I32),),
    ),
)
