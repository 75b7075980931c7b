"""Fault kinds: name, severity, and which engines detect each.

The names are public: findings, JSON, suppressions and `expect_finding` use them. Imports nothing
from this package, so that `model.py` can use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum, StrEnum
from typing import Literal

EngineName = Literal["trace", "static", "compile", "machine", "checks", "reference"]
"""Engine that reports a finding: jax tracing the call, the static analysis, jax's lowering and
libtpu, the kernel machine, checks in a compiled kernel, the comparison with a reference."""


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


class Sure(StrEnum):
    """Degree of certainty of an engine about the faults that it reports."""

    PROVED = "proved"
    """It happens in every run with these shapes and tables."""
    SEEN = "seen"
    """It happened in this run."""
    REFUSED = "refused"
    """jax or the compiler reports it."""


GUARANTEES: Mapping[EngineName, Sure] = {
    "static": Sure.PROVED,
    **dict.fromkeys(("trace", "compile"), Sure.REFUSED),
    **dict.fromkeys(("machine", "checks", "reference"), Sure.SEEN),
}

_Row = tuple[str, Severity, tuple[EngineName, ...], str]


def _row(severity: Severity, *engines: EngineName) -> Callable[[str, str], _Row]:
    """Return a function that makes the row of a kind from its name and summary."""
    return lambda name, summary: (name, severity, engines, summary)


_unsupported = _row(Severity.UNSUPPORTED, "static", "compile")
_no_layout = _row(Severity.UNSUPPORTED, "compile")
_too_large = _row(Severity.REFUSED, "static", "compile")
_rejected = _row(Severity.REFUSED, "trace")
_failed = _row(Severity.REFUSED, "compile")
_aborts = _row(Severity.STOPS, "compile")
_stops = _row(Severity.STOPS, "machine")
_bounds = _row(Severity.BOUNDS, "machine", "checks", "static")
_sharing = _row(Severity.ORDER, "machine", "static")
_order = _row(Severity.ORDER, "machine")
_undefined = _row(Severity.UNDEFINED, "machine")
_unwritten = _row(Severity.UNDEFINED, "static", "machine")
_value = _row(Severity.VALUES, "machine", "checks")
_claim = _row(Severity.VALUES, "machine", "checks", "compile")
_misplaced = _row(Severity.VALUES, "compile")
_result = _row(Severity.VALUES, "reference")


class Fault(StrEnum):
    """A kind of fault in a kernel.

    Attributes:
      severity: how bad it is.
      engines: engines that detect it, the most informative witness first.
      summary: what happens, in one line.
    """

    _value_: str
    severity: Severity
    engines: tuple[EngineName, ...]
    summary: str

    def __new__(
        cls, name: str, severity: Severity, engines: tuple[EngineName, ...], summary: str
    ) -> Fault:
        member = str.__new__(cls, name)
        member._value_ = name
        member.severity, member.engines, member.summary = severity, engines, summary
        return member

    UNSUPPORTED_PRIMITIVE = _unsupported("UnsupportedPrimitive", "an operation has no TPU lowering")
    UNSUPPORTED_GATHER = _unsupported("UnsupportedGather", "a gather is not along a single axis")
    UNSUPPORTED_SHAPE_CAST = _no_layout(
        "UnsupportedShapeCast", "a reshape moves data in a way the compiler does not support"
    )
    UNSUPPORTED_LAYOUT = _no_layout("UnsupportedLayout", "an operation has no layout")
    UNSUPPORTED_DTYPE = _unsupported("UnsupportedDtype", "the operation or chip lacks a dtype")
    UNSUPPORTED_CAST = _unsupported("UnsupportedCast", "the TPU has no cast between two dtypes")
    UNSUPPORTED_CHECK = _unsupported("UnsupportedCheck", "`checkify.check` inside a kernel")
    INVALID_OPERATION = _unsupported("InvalidOperation", "an operation mixes incompatible types")
    UNALIGNED_DMA = _unsupported("UnalignedDma", "a copy takes part of a tile")
    UNPROVEN_ALIGNMENT = _unsupported(
        "UnprovenAlignment", "the compiler cannot prove that an offset is a multiple of the tile"
    )
    DIRECT_HBM_ACCESS = _unsupported("DirectHbmAccess", "HBM is accessed without a copy")
    SCALAR_STORE_TO_VMEM = _unsupported("ScalarStoreToVmem", "a scalar is stored to VMEM")
    BLOCK_SHAPE_TILING = _unsupported("BlockShapeTiling", "a block shape does not fit the tiles")
    X64_INDEX_MAP = _unsupported("X64IndexMap", "an index map returns 64-bit integers")
    ZERO_SIZE_OPERAND = _unsupported("ZeroSizeOperand", "an operand has no elements")
    VMEM_OVERFLOW = _too_large("VmemOverflow", "the kernel needs more VMEM than it may use")
    SMEM_OVERFLOW = _too_large("SmemOverflow", "the kernel needs more SMEM than the chip has")
    GPU_BLOCK_OVERFLOW = _too_large(
        "GpuBlockOverflow", "a block needs more shared memory or registers than a GPU has for it"
    )
    REMOVED_NAME = _rejected("RemovedName", "a name of Pallas that the installed jax does not have")
    CAPTURED_CONSTANT = _rejected("CapturedConstant", "the kernel closes over an array")
    STORE_DTYPE = _rejected("StoreDtype", "a value is stored to a ref of another dtype")
    STORE_SHAPE = _rejected("StoreShape", "a value is stored to a slice of another shape")
    KERNEL_RETURNS_VALUE = _rejected("KernelReturnsValue", "the kernel function returns a value")
    INDEX_MAP_ARITY = _rejected("IndexMapArity", "an index map has a wrong number of indices")
    BLOCK_RANK = _rejected("BlockRank", "a block and its array differ in rank")
    TRACE_ERROR = _rejected("TraceError", "jax failed to trace the call")
    LOWERING_ERROR = _failed("LoweringError", "jax failed to lower the kernel")
    COMPILE_ERROR = _failed("CompileError", "libtpu failed to compile the kernel")
    PRINT_NOT_SUPPORTED = _failed("PrintNotSupported", "a print that a TPU does not support")
    COMPILER_ABORT = _aborts("CompilerAbort", "the compiler's process died")
    DEADLOCK = _stops("Deadlock", "a wait never ends")
    ENDLESS_LOOP = _stops("EndlessLoop", "a `while_loop` does not end")
    OUT_OF_BOUNDS_READ = _bounds("OutOfBoundsRead", "a load or copy reads out of bounds")
    OUT_OF_BOUNDS_WRITE = _bounds("OutOfBoundsWrite", "a store or copy writes out of bounds")
    BLOCK_OUT_OF_BOUNDS = _bounds("BlockOutOfBounds", "an index map returns a missing block")
    DATA_RACE = _sharing(
        "DataRace", "two unordered accesses to the same memory, one of them a write"
    )
    DMA_NOT_AWAITED = _order("DmaNotAwaited", "a copy is started but never waited for")
    WAIT_SIZE_MISMATCH = _order(
        "WaitSizeMismatch", "a wait expects a different number of bytes than its copy transfers"
    )
    SEMAPHORE_LEFT_OVER = _order("SemaphoreLeftOver", "a semaphore is not zero at the end")
    NONDETERMINISTIC_RESULT = _order(
        "NondeterministicResult", "two possible orders of events give different results"
    )
    OUTPUT_REVISITED = _sharing(
        "OutputRevisited", "an output block is visited again after another block"
    )
    OVERWRITTEN_READ = _order(
        "OverwrittenRead", "an aliased operand is read after being overwritten"
    )
    UNINITIALIZED_READ = _undefined(
        "UninitializedRead", "scratch or an output is read before it is written"
    )
    OUTPUT_NOT_WRITTEN = _unwritten("OutputNotWritten", "part of an output is never written")
    PADDING_READ = _undefined("PaddingRead", "the padding of a ragged last block reaches a result")
    UNSEEDED_RANDOM_BITS = _undefined(
        "UnseededRandomBits",
        "random bits are drawn from a generator that is not seeded on this core",
    )
    NAN_PRODUCED = _value("NanProduced", "an operation produces a NaN from operands without one")
    INFINITY_PRODUCED = _value(
        "InfinityProduced", "an operation produces an infinity from finite operands"
    )
    DIVISION_BY_ZERO = _value("DivisionByZero", "a division by zero")
    CHECK_FAILED = _value("CheckFailed", "a check in the kernel is false")
    FALSE_HINT = _claim("FalseHint", "`pl.multiple_of` makes a false claim")
    MISPLACED_OPERAND = _misplaced(
        "MisplacedOperand", "XLA puts an operand in another memory than the kernel declares"
    )
    VALUE_MISMATCH = _result(
        "ValueMismatch", "a result differs from the reference's by more than the tolerance"
    )
    LOW_PRECISION_PRODUCT = _result(
        "LowPrecisionProduct",
        "a TPU rounds the float32 operands of a product to bfloat16, and a result is far off",
    )


KINDS = {str(fault): fault for fault in Fault}
"""Faults by name."""


def named(name: str) -> Fault | None:
    """Return the fault with this name; None if unknown."""
    return KINDS.get(name)


NO_KERNEL = "no kernel"
"""Kernel name in findings of programs that stopped, perhaps before they reached a kernel."""
