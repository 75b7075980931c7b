"""What is known of a kernel that is wrong on purpose."""

import importlib.metadata
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import jax
import jax.numpy as jnp
import numpy as np

MARKER = "# FAULT"


class Fault(StrEnum):
    """Classes of faults."""

    OUT_OF_BOUNDS_READ = "OutOfBoundsRead"
    OUT_OF_BOUNDS_WRITE = "OutOfBoundsWrite"
    BLOCK_INDEX_OUT_OF_BOUNDS = "BlockIndexOutOfBounds"
    ELEMENT_OFFSET_AS_BLOCK_INDEX = "ElementOffsetAsBlockIndex"
    UNINITIALIZED_SCRATCH = "UninitializedScratch"
    UNINITIALIZED_OUTPUT = "UninitializedOutput"
    RAGGED_PADDING = "RaggedPadding"
    NON_CONSECUTIVE_REVISIT = "NonConsecutiveRevisit"
    PARALLEL_REVISIT = "ParallelRevisit"
    DMA_READ_BEFORE_WAIT = "DmaReadBeforeWait"
    DMA_BUFFER_REUSED = "DmaBufferReused"
    DMA_NOT_AWAITED = "DmaNotAwaited"
    DMA_WAITED_TWICE = "DmaWaitedTwice"
    SEMAPHORE_LEFT_OVER = "SemaphoreLeftOver"
    SEMAPHORE_NEVER_SIGNALLED = "SemaphoreNeverSignalled"
    FALSE_MULTIPLE_OF = "FalseMultipleOf"
    DEBUG_CHECK_FAILED = "DebugCheckFailed"
    NAN_FROM_MASKED_ROW = "NanFromMaskedRow"
    NAN_FROM_OVERFLOW = "NanFromOverflow"
    NAN_FROM_LOG_OF_ZERO = "NanFromLogOfZero"
    DIVISION_BY_ZERO = "DivisionByZero"
    LOW_PRECISION_ACCUMULATOR = "LowPrecisionAccumulator"
    UNPROVEN_ALIGNMENT = "UnprovenAlignment"
    UNALIGNED_DMA = "UnalignedDma"
    BLOCK_SHAPE_TILING = "BlockShapeTiling"
    VMEM_OVERFLOW = "VmemOverflow"
    VMEM_CAPACITY = "VmemCapacity"
    SMEM_OVERFLOW = "SmemOverflow"
    UNSUPPORTED_PRIMITIVE = "UnsupportedPrimitive"
    UNSUPPORTED_GATHER = "UnsupportedGather"
    UNSUPPORTED_SHAPE_CAST = "UnsupportedShapeCast"
    UNSUPPORTED_DTYPE = "UnsupportedDtype"
    UNSUPPORTED_CAST = "UnsupportedCast"
    UNSUPPORTED_CHECK = "UnsupportedCheck"
    INVALID_OPERATION = "InvalidOperation"
    X64_INDEX_MAP = "X64IndexMap"
    COMPILER_ABORT = "CompilerAbort"
    CAPTURED_CONSTANT = "CapturedConstant"
    SCALAR_STORE_TO_VMEM = "ScalarStoreToVmem"
    DIRECT_HBM_ACCESS = "DirectHbmAccess"
    INDEX_MAP_ARITY = "IndexMapArity"
    BLOCK_RANK = "BlockRank"
    STORE_DTYPE = "StoreDtype"
    STORE_SHAPE = "StoreShape"
    KERNEL_RETURNS_VALUE = "KernelReturnsValue"


class Engine(StrEnum):
    """Who looks at a kernel, as jax and libtpu are by themselves."""

    TRACE = "trace"
    """jax traces the call."""
    LOWER = "lower"
    """jax lowers it for a TPU."""
    COMPILE = "compile"
    """libtpu compiles it."""
    HLO = "hlo"
    """HLO interpret mode."""
    TPU = "tpu"
    """TPU interpret mode, `pltpu.InterpretParams()`."""
    TPU_RACES = "tpu_races"
    """The same with `detect_races=True`, two cores and 1024 clocks (with few, races are missed)."""


class Outcome(StrEnum):
    """What an engine says."""

    PASSES = "passes"
    """Nothing, and where it runs the kernel, the values equal those of the reference."""
    WRONG = "wrong values"
    """Nothing, and the values are not those of the reference."""
    NAN = "NaN"
    """Nothing, and there are NaNs where the reference has none."""
    PRINTS = "prints"
    """A line on standard output and no error, whatever the values."""
    RAISES = "raises"
    ABORTS = "aborts"
    """Its process dies."""
    HANGS = "hangs"
    NOT_APPLICABLE = "not applicable"
    """It is never asked, as an engine before it raised, or it cannot run such a kernel at all."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What an engine says of a kernel.

    Attributes:
      message: a part of what is raised or printed, the same on every version that it is for.
      targets: of the compiler; empty for all.
      since, before: the versions that it is for: of libtpu for `Engine.COMPILE`, else of jax.
    """

    outcome: Outcome
    message: str = ""
    targets: tuple[str, ...] = ()
    since: str | None = None
    before: str | None = None

    def is_for(self, target: str, version: str) -> bool:
        at = _numbers(version)
        return (
            (not self.targets or target in self.targets)
            and (self.since is None or at >= _numbers(self.since))
            and (self.before is None or at < _numbers(self.before))
        )


PASSES = Verdict(outcome=Outcome.PASSES)
WRONG = Verdict(outcome=Outcome.WRONG)
NAN = Verdict(outcome=Outcome.NAN)
HANGS = Verdict(outcome=Outcome.HANGS)
NOT_APPLICABLE = Verdict(outcome=Outcome.NOT_APPLICABLE)


def passes(*targets: str) -> Verdict:
    return Verdict(outcome=Outcome.PASSES, targets=targets)


def raises(
    message: str, *targets: str, since: str | None = None, before: str | None = None
) -> Verdict:
    return Verdict(
        outcome=Outcome.RAISES, message=message, targets=targets, since=since, before=before
    )


def prints(message: str, *, since: str | None = None, before: str | None = None) -> Verdict:
    return Verdict(outcome=Outcome.PRINTS, message=message, since=since, before=before)


def aborts(message: str, *, since: str | None = None, before: str | None = None) -> Verdict:
    return Verdict(outcome=Outcome.ABORTS, message=message, since=since, before=before)


Verdicts = Verdict | tuple[Verdict, ...]
"""One for all versions and targets, or several of which the first that fits counts (else it
passes)."""


RACE = (prints("RACE DETECTED", before="0.12"), raises("RACE DETECTED", since="0.12"))
"""What jax's race detector says."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What each engine says of a kernel; `tpu_races` is as `tpu` unless told."""

    trace: Verdicts = PASSES
    lower: Verdicts = PASSES
    compile: Verdicts = PASSES
    hlo: Verdicts = PASSES
    tpu: Verdicts = PASSES
    tpu_races: Verdicts | None = None

    def verdicts(self, engine: Engine) -> tuple[Verdict, ...]:
        """All that is expected of `engine`, on any version and target."""
        if engine is Engine.TPU_RACES and self.tpu_races is None:
            return self.verdicts(Engine.TPU)
        verdicts: Verdicts = getattr(self, engine)
        return verdicts if isinstance(verdicts, tuple) else (verdicts,)


@dataclass(frozen=True, kw_only=True)
class BrokenKernel:
    """A kernel that is wrong on purpose, and its repaired twin.

    Attributes:
      fault: the class of the fault.
      summary: one sentence that says what is wrong.
      function: calls the kernel, the only one in it. The line at fault carries the comment
        `# FAULT`: the operation that goes wrong where there is one, else what should be there.
      repaired: right on the same arguments: equal to `reference`, and silent in every engine.
      reference: the same in plain jax.numpy.
      args: what the three take.
      values: of arguments whose values matter, by position: page tables, data that overflows.
      expected: what each engine says of `function`.
      x64: whether it is to be called within `jax.enable_x64(True)`.
    """

    fault: Fault
    summary: str
    function: Callable[..., jax.Array]
    repaired: Callable[..., jax.Array]
    reference: Callable[..., jax.Array]
    args: tuple[jax.ShapeDtypeStruct, ...]
    expected: Expected
    values: Mapping[int, object] = field(default_factory=dict, hash=False)
    x64: bool = False

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def file(self) -> str:
        """The file of the line at fault."""
        return inspect.getsourcefile(self.function) or ""

    @property
    def line(self) -> int:
        """The number of the line at fault, in `file`: the one that carries the marker."""
        lines, start = inspect.getsourcelines(self.function)
        (line,) = [n for n, text in enumerate(lines, start) if text.rstrip().endswith(MARKER)]
        return line

    @property
    def topic(self) -> str:
        """The module that holds it: `bounds`, `dma`, ..."""
        return self.function.__module__.rpartition(".")[2]

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets that something is known of: v5e, and those that differ from it."""
        named = {
            target
            for engine in (Engine.LOWER, Engine.COMPILE)
            for verdict in self.expected.verdicts(engine)
            for target in verdict.targets
        }
        return ("v5e", *sorted(named - {"v5e"}))

    def verdict(
        self,
        engine: Engine,
        *,
        target: str = "v5e",
        jax_version: str | None = None,
        libtpu_version: str | None = None,
    ) -> Verdict:
        """What `engine` says, with the installed versions unless told."""
        at_jax = jax_version or jax.__version__
        after = (Engine.TRACE, Engine.LOWER) if engine is Engine.COMPILE else (Engine.TRACE,)
        for earlier in after:
            said = self._said(earlier, target, at_jax)
            if engine is not earlier and said.outcome is not Outcome.PASSES:
                return NOT_APPLICABLE
        if engine is not Engine.COMPILE:
            return self._said(engine, target, at_jax)
        return self._said(engine, target, libtpu_version or importlib.metadata.version("libtpu"))

    def _said(self, engine: Engine, target: str, version: str) -> Verdict:
        fitting = (v for v in self.expected.verdicts(engine) if v.is_for(target, version))
        return next(fitting, PASSES)

    def make_args(self, seed: int = 0) -> tuple[jax.Array, ...]:
        """Concrete arrays for `args`: standard normal, integers of int8, or the fixed `values`."""
        rng = np.random.default_rng(seed)
        return tuple(
            _array(rng, arg) if i not in self.values else _fixed(self.values[i], arg)
            for i, arg in enumerate(self.args)
        )


def _array(rng: np.random.Generator, arg: jax.ShapeDtypeStruct) -> jax.Array:
    if jnp.issubdtype(arg.dtype, jnp.floating):
        values = rng.standard_normal(arg.shape, np.float32)
    else:
        low = 0 if jnp.issubdtype(arg.dtype, jnp.unsignedinteger) else -128
        values = rng.integers(low, 128, arg.shape)
    array: jax.Array = jnp.asarray(values.astype(arg.dtype))
    return array


def _fixed(values: object, arg: jax.ShapeDtypeStruct) -> jax.Array:
    array: jax.Array = jnp.asarray(np.broadcast_to(np.asarray(values, arg.dtype), arg.shape))
    return array


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:4])
