"""Wrong values, which no compiler reports, only checks and interpreters."""

from __future__ import annotations

from pallas_debug.explain.catalogue.record import JAX, PALLAS, entry

ENTRIES = (
    entry(
        "uninitialized",
        title="memory is read before it is written",
        cause="scratch and outputs hold whatever was in memory before until they are written",
        advice="write it at the first step: @pl.when(pl.program_id(axis) == 0)",
        kinds=("UninitializedRead",),
    ),
    entry(
        "output-not-written",
        title="part of an output is never written",
        cause="no store reaches it, each store is conditional, or the grid has too few steps",
        advice="write every block at every grid point; count steps with pl.cdiv",
        kinds=("OutputNotWritten",),
    ),
    entry(
        "unseeded-random-bits",
        title="random bits are drawn from an unseeded generator",
        cause="each core has its own generator, which keeps the state of earlier programs: a "
        "kernel must seed it, at each grid point of a parallel grid axis",
        advice="call pltpu.prng_seed first, with a different number at each grid point; it takes "
        "at most two numbers",
        kinds=("UnseededRandomBits",),
    ),
    entry(
        "overwritten-read",
        title="an aliased operand is read after being overwritten",
        cause="input_output_aliases makes the input and the output share one array: later grid "
        "points read what earlier ones wrote",
        advice="give both the same index map, keep the data that is still needed in scratch, or "
        "do not alias them",
        kinds=("OverwrittenRead",),
    ),
    entry(
        "padding",
        title="the padding of a ragged last block reaches a result",
        cause="the part of a block past the end of the array is arbitrary, not zero",
        advice="mask with jnp.where(broadcasted_iota < n, x, 0) before a sum, and both factors "
        "before a product",
        kinds=("PaddingRead",),
        links=(PALLAS + "grid_blockspec.html", JAX + "22370"),
    ),
    entry(
        "false-hint",
        title="pl.multiple_of or pltpu.annotate makes a false claim",
        cause="the compiler trusts the claim: it reads the tile that the multiple implies, and "
        "moves or repeats loads as the annotation allows",
        advice="correct the number, or load the aligned tile and shift it with pltpu.roll; remove "
        "the annotation",
        kinds=("FalseHint",),
    ),
    entry(
        "nan",
        title="an operation produces a NaN from operands without one",
        cause="0/0, inf - inf, inf * 0, or the logarithm of a negative number; in attention, "
        "usually a fully masked row",
        advice="guard the divisor, subtract the maximum before exp, or mask with a large finite "
        "number instead of -inf",
        kinds=("NanProduced",),
    ),
    entry(
        "infinity",
        title="an operation produces an infinity from finite operands",
        cause="the result is larger than its dtype can hold, or a divisor is 0",
        advice="subtract the maximum before exp, scale the operands, or use a wider dtype",
        kinds=("InfinityProduced",),
    ),
    entry(
        "division-by-zero",
        title="integers are divided by zero",
        cause="no exception is raised: the result is -1 or arbitrary",
        advice="divide by jnp.where(n == 0, 1, n), and select the result",
        kinds=("DivisionByZero",),
    ),
    entry(
        "integer-overflow",
        title="integer arithmetic wraps around",
        cause="the exact result does not fit the dtype: no exception is raised, and the result is "
        "a different number",
        advice="accumulate in int32 with preferred_element_type=jnp.int32, widen before the "
        "arithmetic, or compute in uint32 if wrapping is intended",
        kinds=("IntegerOverflow",),
    ),
    entry(
        "narrowing",
        title="a cast changes a value that the new dtype cannot hold",
        cause="an integer loses its upper bits, or is rounded to a float and used as an integer; "
        "the result of casting an out-of-range float differs between chips",
        advice="clip before the cast, or keep the wider dtype",
        kinds=("NarrowingLoss",),
    ),
    entry(
        "check-failed",
        title="a check in the kernel failed",
        cause="its condition is false at a grid point",
        advice="look at the values and the grid point; `pallas-debug dump --switch assertions` "
        "compiles debug checks into the kernel",
        kinds=("CheckFailed",),
    ),
    entry(
        "value-mismatch",
        title="a result differs from the reference's",
        cause="the kernel, or the code around it, computes something different",
        advice="start with the first grid point and the pattern",
        kinds=("ValueMismatch",),
    ),
    entry(
        "low-precision-product",
        title="a TPU rounds the float32 operands of a product, and a result is far off",
        cause="at default precision, the MXU multiplies float32 in one pass, rounded to bfloat16; "
        "on a CPU the same product is exact to float32",
        advice="pass precision=jax.lax.Precision.HIGHEST to products whose operands need more "
        "than 8 bits: indices, counts, running sums, logarithms",
        kinds=("LowPrecisionProduct",),
    ),
)
