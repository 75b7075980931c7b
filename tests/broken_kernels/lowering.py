"""Operations, dtypes and layouts that jax or the TPU compiler rejects, or that abort it."""

import jax
import jax.numpy as jnp
from called import called
from jax import lax
from jax.experimental import pallas as pl
from pallas_debug_kernels.broken import Refusal

from .record import fault

F32, I32 = jnp.float32, jnp.int32
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))
X = jax.ShapeDtypeStruct((8, 128), F32)
ROWS_16 = jax.ShapeDtypeStruct((16, 128), F32)


def refused(message, stage="lowering"):
    return (Refusal(stage, message),)


@fault(
    "UnsupportedPrimitive",
    "jnp.cumsum is used in a kernel.",
    lambda x: jnp.cumsum(x, axis=1),
    X,
    refused=refused("Unimplemented primitive in Pallas TPU lowering for tc: cumsum"),
)
@called()
def cumulative_sum(x_ref, out_ref, repaired=False):
    if repaired:
        row = lax.broadcasted_iota(I32, (128, 128), 0)
        triangle = (row <= lax.broadcasted_iota(I32, (128, 128), 1)).astype(F32)
        out_ref[...] = jnp.dot(x_ref[...], triangle, precision=lax.Precision.HIGHEST)
    else:
        # There is no such operation on the TPU's core.
        out_ref[...] = jnp.cumsum(x_ref[...], axis=1)  # FAULT


@fault(
    "UnsupportedPrimitive",
    "jnp.sort is used in a kernel.",
    lambda x: x.max(axis=1, keepdims=True),
    X,
    refused=refused("Unimplemented primitive in Pallas TPU lowering for tc: sort"),
)
@called(jax.ShapeDtypeStruct((8, 1), F32))
def sort_rows(x_ref, out_ref, repaired=False):
    if repaired:
        out_ref[...] = x_ref[...].max(axis=1, keepdims=True)
    else:
        # Sorting is left to XLA.
        out_ref[...] = jnp.sort(x_ref[...], axis=1)[:, 127:]  # FAULT


@fault(
    "UnsupportedPrimitive",
    "A lax.scan in a kernel stacks outputs.",
    lambda x: jnp.cumsum(x, axis=0),
    X,
    refused=refused("Scan with 1 extensive output(s) is not supported"),
)
@called()
def scan_with_outputs(x_ref, out_ref, repaired=False):
    def add(total, r):
        total = total + x_ref[pl.ds(r, 1), :]
        if repaired:
            out_ref[pl.ds(r, 1), :] = total
        return total, total

    start = jnp.zeros((1, 128), F32)
    if repaired:
        lax.fori_loop(0, 8, lambda r, total: add(total, r)[0], start)
        return
    # A loop on the core has a carry, and no stacked outputs.
    _, sums = lax.scan(add, start, jnp.arange(8))  # FAULT
    out_ref[...] = sums[:, 0, :]


@fault(
    "UnsupportedGather",
    "Rows of a block are gathered by a vector of indices.",
    lambda index, x: x[index[0, :8]],
    jax.ShapeDtypeStruct((1, 128), I32),
    ROWS_16,
    values={0: [3, 1, 4, 15, 5, 9, 2, 6] + [0] * 120},
    refused=refused("Only take_along_axis-like gathers supported"),
)
@called(X)
def gather_rows(index_ref, x_ref, out_ref, repaired=False):
    if repaired:
        row = lax.broadcasted_iota(I32, (16, 128), 0)
        one_hot = (row == index_ref[...]).astype(F32)  # [16, 128], one column per row wanted
        rows = lax.dot_general(
            one_hot, x_ref[...], (((0,), (0,)), ((), ())), precision=lax.Precision.HIGHEST
        )  # [128, 128]
        out_ref[...] = rows[:8]
    else:
        # A vector of row numbers is a gather of any shape, and the core has none.
        out_ref[...] = x_ref[...][index_ref[0, :8]]  # FAULT


@fault(
    "UnsupportedDtype",
    "A block of float16 is loaded.",
    lambda x: x.astype(F32) * 2,
    jax.ShapeDtypeStruct((16, 128), jnp.float16),
    refused=refused("Invalid vector type for load", "compile"),
)
def float16_block(x, *, repaired=False):
    def double(x_ref, out_ref):
        # The TPU has bfloat16, and no float16.
        out_ref[...] = x_ref[...].astype(F32) * 2  # FAULT

    return pl.pallas_call(double, out_shape=ROWS_16)(x.astype(F32) if repaired else x)


PRODUCT = jax.ShapeDtypeStruct((128, 128), I32)


@fault(
    "UnsupportedDtype",
    "Matrices of int8 are multiplied, which v4 cannot do.",
    lambda x, y: jnp.dot(x, y, preferred_element_type=I32),
    *[jax.ShapeDtypeStruct((128, 128), jnp.int8)] * 2,
    refused=(
        Refusal(
            "compile",
            "E2001: CompileTimeMosaicUnsupportedRhsType: Unsupported matmul RHS type",
            targets=("v4",),
        ),
    ),
    targets=("v5e", "v4"),
)
@called(PRODUCT)
def int8_matmul(x_ref, y_ref, out_ref, repaired=False):
    x, y = x_ref[...], y_ref[...]
    if repaired:  # products and sums of int8 this small are exact in float32
        x, y = x.astype(jnp.bfloat16), y.astype(jnp.bfloat16)
    # v4 multiplies no int8.
    product = jnp.dot(x, y, preferred_element_type=F32 if repaired else I32)  # FAULT
    out_ref[...] = product.astype(I32)


@fault(
    "UnsupportedDtype",
    "Matrices of uint8 are multiplied.",
    lambda x, y: jnp.dot(x, y, preferred_element_type=I32),
    *[jax.ShapeDtypeStruct((128, 128), jnp.uint8)] * 2,
    refused=refused("Unsigned integer dtype uint8 is not supported for dot_general"),
)
@called(PRODUCT)
def uint8_matmul(x_ref, y_ref, out_ref, repaired=False):
    x, y = x_ref[...], y_ref[...]
    if repaired:
        x, y = x.astype(I32).astype(F32), y.astype(I32).astype(F32)
    # The matrix unit would take the bytes for signed ones.
    product = jnp.dot(x, y, preferred_element_type=F32 if repaired else I32)  # FAULT
    out_ref[...] = product.astype(I32)


@fault(
    "UnsupportedCast",
    "bfloat16 is cast to float16.",
    lambda x: x.astype(F32),
    jax.ShapeDtypeStruct((16, 128), jnp.bfloat16),
    refused=refused("Unsupported cast: bfloat16 -> float16"),
)
@called(ROWS_16)
def bfloat16_to_float16(x_ref, out_ref, repaired=False):
    x = x_ref[...]
    if not repaired:
        # Two ways to be half as long as float32: the TPU casts neither to the other.
        x = x.astype(jnp.float16)  # FAULT
    out_ref[...] = x.astype(F32)


@fault(
    "InvalidOperation",
    "An iota of float32 is asked for.",
    lambda x: x * jnp.arange(128, dtype=F32),
    X,
    refused=refused("'tpu.iota' op result #0 must be vector of integer or index values"),
)
@called()
def float_iota(x_ref, out_ref, repaired=False):
    # The core counts in integers.
    iota = lax.broadcasted_iota(I32 if repaired else F32, x_ref.shape, 1)  # FAULT
    out_ref[...] = x_ref[...] * iota.astype(F32)


@fault(
    "InvalidOperation",
    "A slice starts at a quotient, which is a float.",
    lambda x: x,
    ROWS_16,
    refused=refused("'arith.index_cast' op operand #0 must be"),
)
@called(grid=(2,), in_specs=[pl.BlockSpec((16, 128), lambda i: (0, 0))], out_specs=ROWS)
def float_offset(x_ref, out_ref, repaired=False):
    rows = pl.program_id(0) * x_ref.shape[0]
    start = rows // 2 if repaired else rows / 2
    # A quotient of integers is a float, and no place in memory.
    out_ref[...] = x_ref[pl.ds(start, 8), :]  # FAULT


@fault(
    "UnsupportedShapeCast",
    "A block is reshaped across lanes that are not whole tiles.",
    lambda x: x.reshape(16, 60),
    jax.ShapeDtypeStruct((8, 120), F32),
    refused=(Refusal("compile", "infer-vector-layout: unsupported shape cast", before="0.0.50"),),
)
def flatten(x, *, repaired=False):
    shape = (8, 120) if repaired else (16, 60)

    def flatten_rows(x_ref, out_ref):
        # The last dimension of a vector is spread over lanes: 120 of them do not make 60.
        out_ref[...] = x_ref[...].reshape(shape)  # FAULT

    out = jax.ShapeDtypeStruct(shape, F32)
    return pl.pallas_call(flatten_rows, out_shape=out)(x).reshape(16, 60)


@fault(
    "CompilerAbort",
    "A row of booleans is turned into a column.",
    lambda x, y: jnp.where(y[0, :32, None] > 0, x, 0.0),
    jax.ShapeDtypeStruct((32, 128), F32),
    X,
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
)
def mask_as_column(x, y, *, repaired=False):
    def keep_rows(x_ref, y_ref, out_ref):
        if repaired:
            out_ref[...] = jnp.where(y_ref[...] > 0, x_ref[...], 0.0)
        else:
            mask = y_ref[0, :32] > 0
            # A row of booleans becomes a column: libtpu 0.0.50 dies of it.
            out_ref[...] = jnp.where(mask[:, None], x_ref[...], 0.0)  # FAULT

    return pl.pallas_call(keep_rows, out_shape=x)(x, y[0, :32, None] if repaired else y)


@fault(
    "X64IndexMap",
    "An index map returns an int64 under x64.",
    lambda x: x * 2,
    ROWS_16,
    x64=True,
    refused=refused("failed to legalize operation 'func.return'", "compile"),
)
def x64_index_map(x, *, repaired=False):
    def double(x_ref, out_ref):
        out_ref[...] = x_ref[...] * 2

    return pl.pallas_call(
        double,
        out_shape=x,
        grid=(2,),
        # Under x64 a Python 0 is an int64, and the TPU's index maps return int32.
        in_specs=[pl.BlockSpec((8, 128), lambda i: (i, jnp.int32(0) if repaired else 0))],  # FAULT
        out_specs=pl.BlockSpec((8, 128), lambda i: (i, jnp.int32(0))),
    )(x)
