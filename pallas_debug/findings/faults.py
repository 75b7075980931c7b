"""Fault kinds: name, severity, and which engines detect each with what certainty.

The names are public: findings, JSON, suppressions and `expect_finding` use them. Imports nothing
from this package, so that `model.py` can use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import Literal

Judge = Literal[
    "trace",
    "static",
    "compile",
    "machine",
    "checks",
    "print formats",
    "reference",
]
"""Engine that reports a finding: jax tracing the call, the static analysis, jax's lowering and
libtpu, the kernel machine, checks in a compiled kernel, the rules for `debug_print`, the comparison
with a reference."""


class Severity(IntEnum):
    """Severity of a fault, worst first."""

    UNSUPPORTED = 0
    """The compiler rejects a construct or crashes on it."""
    REFUSED = 1
    """No executable for another reason: an invalid call, not enough memory."""
    STOPS = 2
    """The compiler crashes, or the program never finishes."""
    BOUNDS = 3
    """Memory outside the operand is read or written."""
    ORDER = 4
    """The result depends on an order that nothing guarantees."""
    UNDEFINED = 5
    """Uninitialised memory is used."""
    VALUES = 6
    """A value is wrong or not finite."""
    MINOR = 7
    """The result is less precise, or an engine cannot judge it."""


class Sure(StrEnum):
    """Degree of certainty of an engine about a fault."""

    PROVED = "proved"
    """It happens in every run with these shapes and tables."""
    SEEN = "seen"
    """It happened in this run."""
    INFERRED = "inferred"
    """It follows from what happened; the line may be that of a consequence."""
    REFUSED = "refused"
    """jax or the compiler reports it."""


_PROVED: dict[Judge, Sure] = {"static": Sure.PROVED}
_COMPILE: dict[Judge, Sure] = {"compile": Sure.REFUSED}
_TRACE: dict[Judge, Sure] = {"trace": Sure.REFUSED}
_MACHINE: dict[Judge, Sure] = {"machine": Sure.SEEN}
_CHECKED: dict[Judge, Sure] = {"checks": Sure.SEEN}
_UNSUPPORTED = _PROVED | _COMPILE
_WITNESSED = _CHECKED | _PROVED


class Fault(StrEnum):
    """A kind of fault in a kernel.

    Attributes:
      severity: how bad it is.
      judges: engines that detect it and how certain each is, the most informative witness first.
      summary: what happens, in one line.
    """

    _value_: str
    severity: Severity
    judges: Mapping[Judge, Sure]
    summary: str

    def __new__(
        cls, name: str, severity: Severity, judges: Mapping[Judge, Sure], summary: str
    ) -> Fault:
        member = str.__new__(cls, name)
        member._value_ = name
        member.severity, member.judges, member.summary = severity, judges, summary
        return member

    @classmethod
    def _missing_(cls, value: object) -> Fault | None:
        """Look up a fault by a name from records of schema 1."""
        return FORMER.get(value) if isinstance(value, str) else None

    # Faults that prevent compilation
    UNSUPPORTED_PRIMITIVE = (
        *("UnsupportedPrimitive", Severity.UNSUPPORTED, _UNSUPPORTED),
        "an operation has no lowering for the TPU",
    )
    UNSUPPORTED_GATHER = (
        *("UnsupportedGather", Severity.UNSUPPORTED, _UNSUPPORTED),
        "a gather is not along a single axis",
    )
    UNSUPPORTED_SHAPE_CAST = (
        *("UnsupportedShapeCast", Severity.UNSUPPORTED, _UNSUPPORTED),
        "a reshape moves data in a way the compiler does not support",
    )
    UNSUPPORTED_LAYOUT = (
        *("UnsupportedLayout", Severity.UNSUPPORTED, _COMPILE),
        "the compiler has no layout for an operation",
    )
    UNSUPPORTED_DTYPE = (
        *("UnsupportedDtype", Severity.UNSUPPORTED, _UNSUPPORTED),
        "a dtype is not supported by the operation or the chip",
    )
    UNSUPPORTED_CAST = (
        *("UnsupportedCast", Severity.UNSUPPORTED, _UNSUPPORTED),
        "the TPU has no cast between two dtypes",
    )
    UNSUPPORTED_CHECK = (
        *("UnsupportedCheck", Severity.UNSUPPORTED, _UNSUPPORTED),
        "`checkify.check` inside a kernel",
    )
    INVALID_OPERATION = (
        *("InvalidOperation", Severity.UNSUPPORTED, _UNSUPPORTED),
        "an operation mixes incompatible types",
    )
    UNALIGNED_DMA = (
        *("UnalignedDma", Severity.UNSUPPORTED, _UNSUPPORTED),
        "a copy takes part of a tile",
    )
    UNPROVEN_ALIGNMENT = (
        *("UnprovenAlignment", Severity.UNSUPPORTED, _UNSUPPORTED),
        "the compiler cannot prove that an offset is a multiple of the tile",
    )
    DIRECT_HBM_ACCESS = (
        *("DirectHbmAccess", Severity.UNSUPPORTED, _UNSUPPORTED),
        "HBM is loaded from or stored to without a copy",
    )
    SCALAR_STORE_TO_VMEM = (
        *("ScalarStoreToVmem", Severity.UNSUPPORTED, _UNSUPPORTED),
        "a scalar is stored to VMEM",
    )
    BLOCK_SHAPE_TILING = (
        *("BlockShapeTiling", Severity.UNSUPPORTED, _UNSUPPORTED),
        "a block shape does not fit the tiles of the memory",
    )
    X64_INDEX_MAP = (
        *("X64IndexMap", Severity.UNSUPPORTED, _UNSUPPORTED),
        "an index map returns 64-bit integers",
    )
    ZERO_SIZE_OPERAND = (
        *("ZeroSizeOperand", Severity.UNSUPPORTED, _UNSUPPORTED),
        "an operand has no elements",
    )
    VMEM_OVERFLOW = (
        *("VmemOverflow", Severity.REFUSED, _UNSUPPORTED),
        "the kernel needs more VMEM than its limit or the chip allows",
    )
    SMEM_OVERFLOW = (
        *("SmemOverflow", Severity.REFUSED, _UNSUPPORTED),
        "the kernel needs more SMEM than the chip has",
    )
    REMOVED_NAME = (
        *("RemovedName", Severity.REFUSED, _PROVED | _TRACE),
        "a name of Pallas that the installed jax does not have",
    )
    CAPTURED_CONSTANT = (
        *("CapturedConstant", Severity.REFUSED, _TRACE),
        "the kernel closes over an array",
    )
    STORE_DTYPE = (
        *("StoreDtype", Severity.REFUSED, _TRACE),
        "a value is stored to a ref of another dtype",
    )
    STORE_SHAPE = (
        *("StoreShape", Severity.REFUSED, _TRACE),
        "a value is stored to a slice of another shape",
    )
    KERNEL_RETURNS_VALUE = (
        *("KernelReturnsValue", Severity.REFUSED, _TRACE),
        "the kernel function returns a value",
    )
    INDEX_MAP_ARITY = (
        *("IndexMapArity", Severity.REFUSED, _TRACE),
        "an index map takes or returns the wrong number of indices",
    )
    BLOCK_RANK = (
        *("BlockRank", Severity.REFUSED, _TRACE),
        "a block and its array differ in rank",
    )
    TRACE_ERROR = (
        *("TraceError", Severity.REFUSED, _TRACE),
        "jax failed to trace the call",
    )
    LOWERING_ERROR = (
        *("LoweringError", Severity.REFUSED, _COMPILE),
        "jax failed to lower the kernel",
    )
    COMPILE_ERROR = (
        *("CompileError", Severity.REFUSED, _COMPILE),
        "libtpu failed to compile the kernel",
    )
    PRINT_NOT_SUPPORTED = (
        *("PrintNotSupported", Severity.REFUSED, {"print formats": Sure.PROVED}),
        "a `debug_print` that does not work on a TPU",
    )
    COMPILER_ABORT = (
        *("CompilerAbort", Severity.STOPS, _COMPILE),
        "the compiler's process died",
    )

    # Faults while a kernel runs
    DEADLOCK = (
        *("Deadlock", Severity.STOPS, _MACHINE),
        "a wait never ends",
    )
    ENDLESS_LOOP = (
        *("EndlessLoop", Severity.STOPS, _MACHINE | _CHECKED),
        "a `while_loop` does not end",
    )
    OUT_OF_BOUNDS_READ = (
        *("OutOfBoundsRead", Severity.BOUNDS, _MACHINE | _WITNESSED),
        "a load or copy reads out of bounds",
    )
    OUT_OF_BOUNDS_WRITE = (
        *("OutOfBoundsWrite", Severity.BOUNDS, _MACHINE | _WITNESSED),
        "a store or copy writes out of bounds",
    )
    BLOCK_OUT_OF_BOUNDS = (
        *("BlockOutOfBounds", Severity.BOUNDS, _MACHINE | _WITNESSED),
        "an index map returns a block that the array does not have",
    )
    DATA_RACE = (
        *("DataRace", Severity.ORDER, _MACHINE | _PROVED),
        "two unordered accesses to the same memory, one of them a write",
    )
    DMA_NOT_AWAITED = (
        *("DmaNotAwaited", Severity.ORDER, _MACHINE),
        "a copy is started but never waited for",
    )
    WAIT_SIZE_MISMATCH = (
        *("WaitSizeMismatch", Severity.ORDER, _MACHINE),
        "a wait expects a different number of bytes than its copy transfers",
    )
    SEMAPHORE_LEFT_OVER = (
        *("SemaphoreLeftOver", Severity.ORDER, _MACHINE),
        "a semaphore is not zero when the kernel ends",
    )
    NONDETERMINISTIC_RESULT = (
        *("NondeterministicResult", Severity.ORDER, _MACHINE),
        "two possible orders of events give different results",
    )
    OUTPUT_REVISITED = (
        *("OutputRevisited", Severity.ORDER, _MACHINE | _PROVED),
        "an output block is visited again after another block",
    )
    # What the kernel machine knows of who wrote each element
    OVERWRITTEN_READ = (
        *("OverwrittenRead", Severity.ORDER, _MACHINE),
        "an aliased operand is read after being overwritten",
    )
    UNINITIALIZED_READ = (
        *("UninitializedRead", Severity.UNDEFINED, _MACHINE | _CHECKED),
        "scratch or an output is read before it is written",
    )
    OUTPUT_NOT_WRITTEN = (
        *("OutputNotWritten", Severity.UNDEFINED, _MACHINE | {"checks": Sure.INFERRED} | _PROVED),
        "part of an output is never written",
    )
    PADDING_READ = (
        *("PaddingRead", Severity.UNDEFINED, _MACHINE | {"checks": Sure.INFERRED}),
        "the padding of a ragged last block reaches a result",
    )
    UNSEEDED_RANDOM_BITS = (
        *("UnseededRandomBits", Severity.UNDEFINED, _MACHINE),
        "random bits are drawn from a generator that is not seeded on this core",
    )
    NAN_PRODUCED = (
        *("NanProduced", Severity.VALUES, _MACHINE | _CHECKED),
        "an operation produces a NaN from operands without one",
    )
    INFINITY_PRODUCED = (
        *("InfinityProduced", Severity.VALUES, _MACHINE | _CHECKED),
        "an operation produces an infinity from finite operands",
    )
    DIVISION_BY_ZERO = (
        *("DivisionByZero", Severity.VALUES, _MACHINE | _CHECKED),
        "a division by zero",
    )
    INTEGER_OVERFLOW = (
        *("IntegerOverflow", Severity.VALUES, _MACHINE),
        "integer arithmetic exceeds its dtype and wraps around",
    )
    NARROWING_LOSS = (
        *("NarrowingLoss", Severity.VALUES, _MACHINE),
        "a cast to a dtype that cannot hold the value",
    )
    CHECK_FAILED = (
        *("CheckFailed", Severity.VALUES, _MACHINE | _CHECKED),
        "a check in the kernel is false",
    )
    FALSE_HINT = (
        *("FalseHint", Severity.VALUES, _MACHINE | _CHECKED | _COMPILE),
        "`pl.multiple_of` or `pltpu.annotate` makes a false claim",
    )
    INTERPRET_ERROR = (
        *("InterpretError", Severity.MINOR, _MACHINE),
        "the kernel takes longer than a run may take",
    )

    # Faults that only a reference shows
    VALUE_MISMATCH = (
        *("ValueMismatch", Severity.VALUES, {"reference": Sure.SEEN}),
        "a result differs from the reference's by more than the tolerance",
    )
    LOW_PRECISION_PRODUCT = (
        *("LowPrecisionProduct", Severity.VALUES, {"reference": Sure.INFERRED}),
        "a TPU rounds the float32 operands of a product to bfloat16, and a result is far off",
    )


FORMER: dict[str, Fault] = {
    "BlockIndexOutOfBounds": Fault.BLOCK_OUT_OF_BOUNDS,
    "CheckNotSupported": Fault.UNSUPPORTED_CHECK,
    "DebugCheckFailed": Fault.CHECK_FAILED,
    "DmaBufferReused": Fault.DATA_RACE,
    "DmaReadBeforeWait": Fault.DATA_RACE,
    "DmaWaitedTwice": Fault.DEADLOCK,
    "ElementOffsetAsBlockIndex": Fault.BLOCK_OUT_OF_BOUNDS,
    "FalseMultipleOf": Fault.FALSE_HINT,
    "NonConsecutiveRevisit": Fault.OUTPUT_REVISITED,
    "ParallelRevisit": Fault.DATA_RACE,
    "RaggedPadding": Fault.PADDING_READ,
    "SemaphoreNeverSignalled": Fault.DEADLOCK,
    "SemaphoreNotZero": Fault.SEMAPHORE_LEFT_OVER,
    "UninitializedOutput": Fault.OUTPUT_NOT_WRITTEN,
    "UninitializedScratch": Fault.UNINITIALIZED_READ,
    "VmemCapacity": Fault.VMEM_OVERFLOW,
}
"""Names in records of schema 1 and in older suppression files; never written."""

_BY_NAME = {str(fault): fault for fault in Fault} | FORMER


def named(name: str) -> Fault | None:
    """Return the fault with this name or former name; None if unknown."""
    return _BY_NAME.get(name)


NO_KERNEL = "no kernel"
"""Kernel name in findings of programs that stopped, perhaps before they reached a kernel."""
