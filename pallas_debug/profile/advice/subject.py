"""Subject of advice rules: a kernel's schedule, program and derived numbers, by Python line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pallas_debug.ir.bundles import Instruction
from pallas_debug.ir.operations import Module
from pallas_debug.model import Kernel, SourceLine
from pallas_debug.profile.blocks import BlockMap
from pallas_debug.profile.schedule import Schedule
from pallas_debug.profile.tracing import Tracing

Place = tuple[str, int]
"""File name and line number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedInstruction:
    """Instruction of the schedule with its bundle and source line.

    Attributes:
      bundle: index of the instruction's bundle.
      weight: number of times that the bundle runs.
      source: innermost Python line.
    """

    bundle: int
    weight: float
    instruction: Instruction
    source: SourceLine | None

    @property
    def opcode(self) -> str:
        return self.instruction.opcode


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """Average cycles of a grid step.

    Attributes:
      compute: cycles in which bundles issue.
      copies: cycles that the step's copies between HBM and VMEM take by themselves.
    """

    compute: float
    copies: float

    @property
    def total(self) -> float:
        """Cycles of a step whose copies overlap with its computation."""
        return max(self.compute, self.copies)


@dataclass(frozen=True, kw_only=True)
class AdviceSubject:
    """Kernel that is examined: its schedule, and data derived from it.

    Attributes:
      mosaic: the module before any pass.
      executions: number of times that each bundle runs; empty if unknown.
      cycles: estimated cycles of the whole kernel; None if a trip count is unknown.
      step: cost of a grid step; None if it cannot be derived.
      cores: number of cores that share the grid; `cycles` are those of one core.
      resident: names of the operands that are in VMEM as a whole, so that nothing is copied.
      bytes_per_cycle: bandwidth between HBM and VMEM.
      latency: cycles before the first byte of a fetch arrives.
      write_latency: cycles of a write-back in addition to those of its bytes.
      vmem: bytes of VMEM that the kernel uses.
      vmem_limit: bytes of VMEM that the kernel may use.
      depends_on_data: whether the estimate assumes that regions run or copies are made.
    """

    kernel: Kernel
    schedule: Schedule
    tracing: Tracing
    mosaic: Module | None = None
    executions: Sequence[float] = ()
    cycles: float | None = None
    step: StepCost | None = None
    cores: float = 1.0
    blocks: BlockMap | None = None
    resident: frozenset[str] = frozenset()
    bytes_per_cycle: float | None = None
    latency: float = 0.0
    write_latency: float = 0.0
    vmem: int | None = None
    vmem_limit: int | None = None
    depends_on_data: bool = False

    @cached_property
    def depends_on_tables(self) -> bool:
        """True if the work depends on values of scalar prefetch that are not known."""
        known = {s.name for s in self.blocks.scalars} if self.blocks is not None else set()
        tables = self.kernel.of_kind("scalar_prefetch")
        return self.depends_on_data and any(table.name not in known for table in tables)

    @property
    def core_points(self) -> float:
        """Number of grid points that each core runs; 0 if unknown."""
        return self.blocks.points / self.cores if self.blocks is not None else 0.0

    @cached_property
    def is_memory_bound(self) -> bool:
        """True if steps wait for copies, so that less computation would not make them faster."""
        return self.step is not None and self.step.compute < self.step.copies

    @cached_property
    def is_compute_bound(self) -> bool:
        """True if copies complete before the computation, so that fewer bytes would not help."""
        return self.step is not None and self.step.copies < self.step.compute

    @cached_property
    def instructions(self) -> tuple[PlacedInstruction, ...]:
        """All instructions of the schedule, in order."""
        weights = self.executions or [1.0] * len(self.schedule.bundles)
        return tuple(
            PlacedInstruction(
                bundle=at,
                weight=weights[at],
                instruction=instruction,
                source=trace.chain[0] if trace.chain else None,
            )
            for at, (bundle, traces) in enumerate(
                zip(self.schedule.bundles, self.tracing.traces, strict=True)
            )
            for instruction, trace in zip(bundle.instructions, traces, strict=True)
        )

    def block_source(self, name: str) -> SourceLine | None:
        """Return the line of an operand's spec; None if it is not known."""
        named = (o.block_source for o in self.kernel.operands if o.name == name)
        return next((source for source in named if source is not None), None)
