"""Operations, dtypes and layouts that jax or the TPU compiler rejects, or that abort it."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from pallas_debug_kernels.broken import BrokenKernel, Refusal

F32 = jnp.float32
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))


def cumulative_sum(x: jax.Array) -> jax.Array:
    def cumsum_rows(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        # There is no such operation on the TPU's core.
        out_ref[...] = jnp.cumsum(x_ref[...], axis=1)  # FAULT

    return pl.pallas_call(cumsum_rows, out_shape=x)(x)


def cumulative_sum_repaired(x: jax.Array) -> jax.Array:
    def cumsum_rows(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        row = lax.broadcasted_iota(jnp.int32, (128, 128), 0)
        column = lax.broadcasted_iota(jnp.int32, (128, 128), 1)
        triangle = (row <= column).astype(F32)
        out_ref[...] = jnp.dot(x_ref[...], triangle, precision=lax.Precision.HIGHEST)

    return pl.pallas_call(cumsum_rows, out_shape=x)(x)


def sort_rows(x: jax.Array) -> jax.Array:
    def largest_of_rows(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        # Sorting is left to XLA.
        out_ref[...] = jnp.sort(x_ref[...], axis=1)[:, 127:]  # FAULT

    return pl.pallas_call(largest_of_rows, out_shape=jax.ShapeDtypeStruct((8, 1), F32))(x)


def sort_rows_repaired(x: jax.Array) -> jax.Array:
    def largest_of_rows(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...].max(axis=1, keepdims=True)

    return pl.pallas_call(largest_of_rows, out_shape=jax.ShapeDtypeStruct((8, 1), F32))(x)


def scan_with_outputs(x: jax.Array) -> jax.Array:
    def running_sum(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def add(total: jax.Array, r: jax.Array) -> tuple[jax.Array, jax.Array]:
            total = total + x_ref[pl.ds(r, 1), :]
            return total, total

        # A loop on the core has a carry, and no stacked outputs.
        _, sums = lax.scan(add, jnp.zeros((1, 128), F32), jnp.arange(8))  # FAULT
        out_ref[...] = sums[:, 0, :]

    return pl.pallas_call(running_sum, out_shape=x)(x)


def scan_with_outputs_repaired(x: jax.Array) -> jax.Array:
    def running_sum(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def add(r: jax.Array, total: jax.Array) -> jax.Array:
            total = total + x_ref[pl.ds(r, 1), :]
            out_ref[pl.ds(r, 1), :] = total
            return total

        lax.fori_loop(0, 8, add, jnp.zeros((1, 128), F32))

    return pl.pallas_call(running_sum, out_shape=x)(x)


def gather_rows(index: jax.Array, x: jax.Array) -> jax.Array:
    def gather(index_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        # A vector of row numbers is a gather of any shape, and the core has none.
        out_ref[...] = x_ref[...][index_ref[0, :8]]  # FAULT

    return pl.pallas_call(gather, out_shape=jax.ShapeDtypeStruct((8, 128), F32))(index, x)


def gather_rows_repaired(index: jax.Array, x: jax.Array) -> jax.Array:
    def gather(index_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        row = lax.broadcasted_iota(jnp.int32, (16, 128), 0)
        one_hot = (row == index_ref[...]).astype(F32)  # [16, 128], one column per row wanted
        rows = lax.dot_general(
            one_hot, x_ref[...], (((0,), (0,)), ((), ())), precision=lax.Precision.HIGHEST
        )  # [128, 128]
        out_ref[...] = rows[:8]

    return pl.pallas_call(gather, out_shape=jax.ShapeDtypeStruct((8, 128), F32))(index, x)


def float16_block(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        # The TPU has bfloat16, and no float16.
        out_ref[...] = x_ref[...].astype(F32) * 2  # FAULT

    return pl.pallas_call(double, out_shape=jax.ShapeDtypeStruct((16, 128), F32))(x)


def float16_block_repaired(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...] * 2

    return pl.pallas_call(double, out_shape=jax.ShapeDtypeStruct((16, 128), F32))(x.astype(F32))


def int8_matmul(x: jax.Array, y: jax.Array) -> jax.Array:
    def matmul(x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref) -> None:
        # v4 multiplies no int8.
        out_ref[...] = jnp.dot(x_ref[...], y_ref[...], preferred_element_type=jnp.int32)  # FAULT

    return pl.pallas_call(matmul, out_shape=jax.ShapeDtypeStruct((128, 128), jnp.int32))(x, y)


def int8_matmul_repaired(x: jax.Array, y: jax.Array) -> jax.Array:
    def matmul(x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref) -> None:
        # Products and sums of int8 this small are exact in float32.
        x, y = x_ref[...].astype(jnp.bfloat16), y_ref[...].astype(jnp.bfloat16)
        out_ref[...] = jnp.dot(x, y, preferred_element_type=F32).astype(jnp.int32)

    return pl.pallas_call(matmul, out_shape=jax.ShapeDtypeStruct((128, 128), jnp.int32))(x, y)


def uint8_matmul(x: jax.Array, y: jax.Array) -> jax.Array:
    def matmul(x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref) -> None:
        # The matrix unit would take the bytes for signed ones.
        out_ref[...] = jnp.dot(x_ref[...], y_ref[...], preferred_element_type=jnp.int32)  # FAULT

    return pl.pallas_call(matmul, out_shape=jax.ShapeDtypeStruct((128, 128), jnp.int32))(x, y)


def uint8_matmul_repaired(x: jax.Array, y: jax.Array) -> jax.Array:
    def matmul(x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref) -> None:
        x, y = (ref[...].astype(jnp.int32).astype(F32) for ref in (x_ref, y_ref))
        out_ref[...] = jnp.dot(x, y, preferred_element_type=F32).astype(jnp.int32)

    return pl.pallas_call(matmul, out_shape=jax.ShapeDtypeStruct((128, 128), jnp.int32))(x, y)


def bfloat16_to_float16(x: jax.Array) -> jax.Array:
    def widen(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        # Two ways to be half as long as float32: the TPU casts neither to the other.
        out_ref[...] = x_ref[...].astype(jnp.float16).astype(F32)  # FAULT

    return pl.pallas_call(widen, out_shape=jax.ShapeDtypeStruct((16, 128), F32))(x)


def bfloat16_to_float16_repaired(x: jax.Array) -> jax.Array:
    def widen(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...].astype(F32)

    return pl.pallas_call(widen, out_shape=jax.ShapeDtypeStruct((16, 128), F32))(x)


def float_iota(x: jax.Array) -> jax.Array:
    def ramp(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        # The core counts in integers.
        out_ref[...] = x_ref[...] * lax.broadcasted_iota(F32, x_ref.shape, 1)  # FAULT

    return pl.pallas_call(ramp, out_shape=x)(x)


def float_iota_repaired(x: jax.Array) -> jax.Array:
    def ramp(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...] * lax.broadcasted_iota(jnp.int32, x_ref.shape, 1).astype(F32)

    return pl.pallas_call(ramp, out_shape=x)(x)


def float_offset(x: jax.Array) -> jax.Array:
    def copy_halves(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        # A quotient of integers is a float, and no place in memory.
        out_ref[...] = x_ref[pl.ds(pl.program_id(0) * x_ref.shape[0] / 2, 8), :]  # FAULT

    return _copy_halves(copy_halves, x)


def float_offset_repaired(x: jax.Array) -> jax.Array:
    def copy_halves(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[pl.ds(pl.program_id(0) * x_ref.shape[0] // 2, 8), :]

    return _copy_halves(copy_halves, x)


def _copy_halves(kernel: object, x: jax.Array) -> jax.Array:
    whole = pl.BlockSpec((16, 128), lambda i: (0, 0))
    return pl.pallas_call(kernel, out_shape=x, grid=(2,), in_specs=[whole], out_specs=ROWS)(x)


def flatten(x: jax.Array) -> jax.Array:
    def flatten_rows(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        # The last dimension of a vector is spread over lanes: 120 of them do not make 60.
        out_ref[...] = x_ref[...].reshape(16, 60)  # FAULT

    return pl.pallas_call(flatten_rows, out_shape=jax.ShapeDtypeStruct((16, 60), F32))(x)


def flatten_repaired(x: jax.Array) -> jax.Array:
    def copy(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...]

    return pl.pallas_call(copy, out_shape=x)(x).reshape(16, 60)


def mask_as_column(x: jax.Array, y: jax.Array) -> jax.Array:
    def keep_rows(x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref) -> None:
        mask = y_ref[0, :32] > 0
        # A row of booleans becomes a column: libtpu 0.0.50 dies of it.
        out_ref[...] = jnp.where(mask[:, None], x_ref[...], 0.0)  # FAULT

    return pl.pallas_call(keep_rows, out_shape=x)(x, y)


def mask_as_column_repaired(x: jax.Array, y: jax.Array) -> jax.Array:
    def keep_rows(x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = jnp.where(y_ref[...] > 0, x_ref[...], 0.0)

    column = y[0, :32, None]  # [32, 1]
    return pl.pallas_call(keep_rows, out_shape=x)(x, column)


def x64_index_map(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...] * 2

    return pl.pallas_call(
        double,
        out_shape=x,
        grid=(2,),
        # Under x64 a Python 0 is an int64, and the TPU's index maps return int32.
        in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],  # FAULT
        out_specs=pl.BlockSpec((8, 128), lambda i: (i, jnp.int32(0))),
    )(x)


def x64_index_map_repaired(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...] * 2

    rows = pl.BlockSpec((8, 128), lambda i: (i, jnp.int32(0)))
    return pl.pallas_call(double, out_shape=x, grid=(2,), in_specs=[rows], out_specs=rows)(x)


X = (jax.ShapeDtypeStruct((8, 128), F32),)

KERNELS = (
    BrokenKernel(
        fault="UnsupportedPrimitive",
        summary="jnp.cumsum is used in a kernel.",
        function=cumulative_sum,
        repaired=cumulative_sum_repaired,
        reference=lambda x: jnp.cumsum(x, axis=1),
        args=X,
        refused=(
            Refusal("lowering", "Unimplemented primitive in Pallas TPU lowering for tc: cumsum"),
        ),
    ),
    BrokenKernel(
        fault="UnsupportedPrimitive",
        summary="jnp.sort is used in a kernel.",
        function=sort_rows,
        repaired=sort_rows_repaired,
        reference=lambda x: x.max(axis=1, keepdims=True),
        args=X,
        refused=(
            Refusal("lowering", "Unimplemented primitive in Pallas TPU lowering for tc: sort"),
        ),
    ),
    BrokenKernel(
        fault="UnsupportedPrimitive",
        summary="A lax.scan in a kernel stacks outputs.",
        function=scan_with_outputs,
        repaired=scan_with_outputs_repaired,
        reference=lambda x: jnp.cumsum(x, axis=0),
        args=X,
        refused=(Refusal("lowering", "Scan with 1 extensive output(s) is not supported"),),
    ),
    BrokenKernel(
        fault="UnsupportedGather",
        summary="Rows of a block are gathered by a vector of indices.",
        function=gather_rows,
        repaired=gather_rows_repaired,
        reference=lambda index, x: x[index[0, :8]],
        args=(jax.ShapeDtypeStruct((1, 128), jnp.int32), jax.ShapeDtypeStruct((16, 128), F32)),
        values={0: [3, 1, 4, 15, 5, 9, 2, 6] + [0] * 120},
        refused=(Refusal("lowering", "Only take_along_axis-like gathers supported"),),
    ),
    BrokenKernel(
        fault="UnsupportedDtype",
        summary="A block of float16 is loaded.",
        function=float16_block,
        repaired=float16_block_repaired,
        reference=lambda x: x.astype(F32) * 2,
        args=(jax.ShapeDtypeStruct((16, 128), jnp.float16),),
        refused=(Refusal("compile", "Invalid vector type for load"),),
    ),
    BrokenKernel(
        fault="UnsupportedDtype",
        summary="Matrices of int8 are multiplied, which v4 cannot do.",
        function=int8_matmul,
        repaired=int8_matmul_repaired,
        reference=lambda x, y: jnp.dot(x, y, preferred_element_type=jnp.int32),
        args=(jax.ShapeDtypeStruct((128, 128), jnp.int8),) * 2,
        refused=(
            Refusal(
                "compile",
                "E2001: CompileTimeMosaicUnsupportedRhsType: Unsupported matmul RHS type",
                targets=("v4",),
            ),
        ),
        targets=("v5e", "v4"),
    ),
    BrokenKernel(
        fault="UnsupportedDtype",
        summary="Matrices of uint8 are multiplied.",
        function=uint8_matmul,
        repaired=uint8_matmul_repaired,
        reference=lambda x, y: jnp.dot(x, y, preferred_element_type=jnp.int32),
        args=(jax.ShapeDtypeStruct((128, 128), jnp.uint8),) * 2,
        refused=(
            Refusal("lowering", "Unsigned integer dtype uint8 is not supported for dot_general"),
        ),
    ),
    BrokenKernel(
        fault="UnsupportedCast",
        summary="bfloat16 is cast to float16.",
        function=bfloat16_to_float16,
        repaired=bfloat16_to_float16_repaired,
        reference=lambda x: x.astype(F32),
        args=(jax.ShapeDtypeStruct((16, 128), jnp.bfloat16),),
        refused=(Refusal("lowering", "Unsupported cast: bfloat16 -> float16"),),
    ),
    BrokenKernel(
        fault="InvalidOperation",
        summary="An iota of float32 is asked for.",
        function=float_iota,
        repaired=float_iota_repaired,
        reference=lambda x: x * jnp.arange(128, dtype=F32),
        args=X,
        refused=(
            Refusal(
                "lowering", "'tpu.iota' op result #0 must be vector of integer or index values"
            ),
        ),
    ),
    BrokenKernel(
        fault="InvalidOperation",
        summary="A slice starts at a quotient, which is a float.",
        function=float_offset,
        repaired=float_offset_repaired,
        reference=lambda x: x,
        args=(jax.ShapeDtypeStruct((16, 128), F32),),
        refused=(Refusal("lowering", "'arith.index_cast' op operand #0 must be"),),
    ),
    BrokenKernel(
        fault="UnsupportedShapeCast",
        summary="A block is reshaped across lanes that are not whole tiles.",
        function=flatten,
        repaired=flatten_repaired,
        reference=lambda x: x.reshape(16, 60),
        args=(jax.ShapeDtypeStruct((8, 120), F32),),
        refused=(
            Refusal("compile", "infer-vector-layout: unsupported shape cast", before="0.0.50"),
        ),
    ),
    BrokenKernel(
        fault="CompilerAbort",
        summary="A row of booleans is turned into a column.",
        function=mask_as_column,
        repaired=mask_as_column_repaired,
        reference=lambda x, y: jnp.where(y[0, :32, None] > 0, x, 0.0),
        args=(jax.ShapeDtypeStruct((32, 128), F32), jax.ShapeDtypeStruct((8, 128), F32)),
        refused=(
            Refusal("compile", "infer-vector-layout: unsupported shape cast", before="0.0.50"),
            Refusal(
                "compile",
                "Check failed: rem == 0 (1024 vs. 0)",
                since="0.0.50",
                before="0.0.52",
                aborts=True,
            ),
            Refusal("compile", "non-noop i1 reshape is unsupported", since="0.0.52"),
        ),
    ),
    BrokenKernel(
        fault="X64IndexMap",
        summary="An index map returns an int64 under x64.",
        function=x64_index_map,
        repaired=x64_index_map_repaired,
        reference=lambda x: x * 2,
        args=(jax.ShapeDtypeStruct((16, 128), F32),),
        x64=True,
        refused=(Refusal("compile", "failed to legalize operation 'func.return'"),),
    ),
)
