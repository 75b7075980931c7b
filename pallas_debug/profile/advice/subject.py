"""Subject of the rules: a kernel's schedule, program and derived numbers, by Python line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pallas_debug.ir.bundles import Instruction
from pallas_debug.ir.operations import Module
from pallas_debug.model import Kernel, Operand, SourceLine
from pallas_debug.profile.advice.program import MosaicProgram
from pallas_debug.profile.blocks import BlockMap
from pallas_debug.profile.core.copies import memory_spaces
from pallas_debug.profile.schedule import Schedule, ScheduledLoop
from pallas_debug.profile.tracing import Tracing
from pallas_debug.profile.units import BUSY, SUBSETS

Place = tuple[str, int]
"""File and number of a line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedInstruction:
    """An instruction of the schedule.

    Attributes:
      bundle: index of its bundle.
      weight: how often the bundle runs.
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
    """Cycles of a grid step, on average.

    Attributes:
      compute: cycles in which a bundle issues.
      copies: cycles that the step's copies between HBM and VMEM take by themselves.
    """

    compute: float
    copies: float

    @property
    def total(self) -> float:
        """With copies and computation side by side."""
        return max(self.compute, self.copies)


@dataclass(frozen=True, kw_only=True)
class AdviceSubject:
    """A kernel's schedule, and what was derived from it.

    Attributes:
      mosaic: the module before any pass.
      relaid: the module after the pass that inserts relayouts.
      executions: how often each bundle runs; empty if unknown.
      cycles: estimate of the whole kernel; None if the length of a loop is unknown.
      step: None if it cannot be derived.
      cores: cores that share the grid; the cycles are those of one of them.
      resident: names of the operands that are in VMEM as a whole, where nothing is copied.
      bytes_per_cycle: between HBM and VMEM.
      latency: cycles before the first byte of a fetch arrives.
      write_latency: cycles of a write-back besides those of its bytes.
      vmem: bytes that the kernel uses.
      vmem_limit: bytes that it may use.
      depends_on_data: whether the estimate assumes that regions run or copies are made.
      ignores_copies: whether to take the computation for the limit, whatever copies take.
    """

    kernel: Kernel
    schedule: Schedule
    tracing: Tracing
    mosaic: Module | None = None
    relaid: Module | None = None
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
    ignores_copies: bool = False

    @cached_property
    def program(self) -> MosaicProgram | None:
        return MosaicProgram(self.mosaic) if self.mosaic is not None else None

    @cached_property
    def spaces(self) -> Mapping[str, str]:
        """Memory that each register with a pointer points into."""
        return memory_spaces(self.schedule.bundles)

    @cached_property
    def depends_on_tables(self) -> bool:
        """Whether the work depends on values of scalar prefetch that are not known."""
        known = {s.name for s in self.blocks.scalars} if self.blocks is not None else set()
        tables = self.kernel.of_kind("scalar_prefetch")
        return self.depends_on_data and any(table.name not in known for table in tables)

    @property
    def core_points(self) -> float:
        """Grid points that a core runs; 0 if unknown."""
        return self.blocks.points / self.cores if self.blocks is not None else 0.0

    @cached_property
    def is_memory_bound(self) -> bool:
        """Whether a step waits for its copies: less computation would not make it faster."""
        if self.step is None or self.ignores_copies:
            return False
        return self.step.compute < self.step.copies

    @cached_property
    def is_compute_bound(self) -> bool:
        """Whether copies are done before the computation: fewer bytes would not help."""
        return self.step is not None and self.step.copies < self.step.compute

    @cached_property
    def instructions(self) -> tuple[PlacedInstruction, ...]:
        """All instructions, in order."""
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

    @cached_property
    def by_place(self) -> dict[Place, list[PlacedInstruction]]:
        """Instructions of each line, calls not included."""
        found: dict[Place, list[PlacedInstruction]] = defaultdict(list)
        for placed in self.instructions:
            if placed.source is not None:
                found[placed.source.file, placed.source.line].append(placed)
        return found

    @cached_property
    def definitions(self) -> dict[str, list[PlacedInstruction]]:
        """Instructions that define each register value."""
        found: dict[str, list[PlacedInstruction]] = defaultdict(list)
        for placed in self.instructions:
            for result in placed.instruction.results:
                found[result].append(placed)
        return found

    def at(self, source: SourceLine | None) -> list[PlacedInstruction]:
        """Instructions of a line."""
        return self.by_place.get((source.file, source.line), []) if source else []

    @cached_property
    def executed(self) -> float:
        """Bundles that run, all steps together."""
        return sum(self.executions) if self.executions else float(len(self.schedule.bundles))

    def share(self, instructions: Iterable[PlacedInstruction]) -> float:
        """Share of the executed bundles that contain one of these instructions."""
        bundles = {placed.bundle: placed.weight for placed in instructions}
        return sum(bundles.values()) / self.executed if self.executed else 0.0

    def loop_of(self, instructions: Iterable[PlacedInstruction]) -> ScheduledLoop | None:
        """Innermost loop around most of these instructions."""
        counts: dict[int, int] = defaultdict(int)
        for placed in instructions:
            loop = self.schedule.loop_at(placed.bundle)
            if loop is not None:
                counts[loop.number] += 1
        if not counts:
            return None
        return self.schedule.loops[max(counts, key=lambda number: (counts[number], number))]

    def cycles_of(self, loop: ScheduledLoop) -> int:
        """Cycles of an iteration that takes no branch: bundles and their delays."""
        return loop.size + sum(self.schedule.delays[loop.start : loop.stop])

    def is_of_grid(self, loop: ScheduledLoop) -> bool:
        """Whether a loop is the one over the grid, which the kernel does not write itself."""
        return loop.depth == 0 and any(size != 1 for size in self.kernel.grid)

    def inside(self, loop: ScheduledLoop) -> list[PlacedInstruction]:
        """Instructions of a loop, those of loops within it included."""
        return [p for p in self.instructions if loop.start <= p.bundle < loop.stop]

    def column(self, name: str, loop: ScheduledLoop) -> tuple[int, int] | None:
        """Bundles of a loop that use a unit at all, and all its bundles."""
        table = self.schedule.table
        counts = table.column(name) if table is not None else None
        if counts is None or len(counts) < loop.stop:
            return None
        return sum(1 for n in counts[loop.start : loop.stop] if n), loop.stop - loop.start

    def slots(self, loop: ScheduledLoop) -> dict[str, int]:
        """Slots that a loop uses, by column, without loops within it; empty without a table."""
        table = self.schedule.table
        if table is None or len(table.rows) < loop.stop:
            return {}
        inner = [other for other in self.schedule.loops if other.parent == loop.number]
        rows = [
            row
            for at, row in enumerate(table.rows[loop.start : loop.stop], loop.start)
            if not any(i.start <= at < i.stop for i in inner)
        ]
        return {name: sum(row[n] for row in rows) for n, name in enumerate(table.names)}

    def busiest(self, slots: Mapping[str, int], less: Mapping[str, int] | None = None) -> int:
        """Bundles that the busiest issue slot needs, with fewer instructions in some of them."""
        table = self.schedule.table
        if table is None:
            return 0
        return max(
            (
                -(-max(slots.get(name, 0) - (less or {}).get(name, 0), 0) // capacity)
                for name, capacity in zip(table.names, table.capacity, strict=True)
                if capacity and name not in BUSY and name not in SUBSETS
            ),
            default=0,
        )

    def longest_chain(self, test: Callable[[str], bool]) -> int:
        """Longest sequence of equal instructions of one line, each of which needs the one before.

        Args:
          test: opcodes that count.
        """
        longest = 0
        counts: dict[str, dict[tuple[str, Place], int]] = {}
        for placed in self.instructions:
            seen: dict[tuple[str, Place], int] = {}
            for operand in placed.instruction.operands:
                for key, count in counts.get(operand, {}).items():
                    seen[key] = max(seen.get(key, 0), count)
            if placed.source is not None and test(placed.opcode):
                key = placed.opcode, (placed.source.file, placed.source.line)
                seen = seen | {key: seen.get(key, 0) + 1}
                longest = max(longest, seen[key])
            for result in placed.instruction.results:
                counts[result] = seen
        return longest

    def operand(self, value: str) -> Operand | None:
        """The kernel's operand that a parameter of the program stands for."""
        if self.program is None:
            return None
        parameters = self.program.arguments
        operands = [o for o in self.kernel.operands if o.kind != "dynamic_grid"]
        if value not in parameters or len(parameters) != len(operands):
            return None
        return operands[parameters.index(value)]

    def block_source(self, name: str) -> SourceLine | None:
        """Line of the spec of an operand; None if it is not known."""
        named = (o.block_source for o in self.kernel.operands if o.name == name)
        return next((source for source in named if source is not None), None)

    def times(self, line: int) -> int | None:
        """Iterations of the loops of the program around a line; None if not constant."""
        if self.program is None:
            return None
        product = 1
        for loop in self.program.loops_around(line):
            if loop.trips is None:
                return None
            product *= loop.trips
        return product


def selected(
    instructions: Iterable[PlacedInstruction], test: Callable[[str], bool]
) -> list[PlacedInstruction]:
    """Instructions whose opcode passes a test."""
    return [placed for placed in instructions if test(placed.opcode)]
