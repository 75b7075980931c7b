"""Subject of advice rules: a kernel's schedule, program and derived numbers, by Python line."""

from __future__ import annotations

import math
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
from pallas_debug.profile.peaks import peaks_of
from pallas_debug.profile.schedule import Schedule, ScheduledLoop
from pallas_debug.profile.tracing import Tracing
from pallas_debug.profile.traffic import products_of
from pallas_debug.profile.units import BUSY, SUBSETS

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
      relaid: the module after the pass that inserts relayouts.
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
      ignores_copies: whether to treat the kernel as bound by computation, whatever its copies take.
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
    def program(self) -> MosaicProgram:
        """Program of the module; without operations if there is none."""
        return MosaicProgram(self.mosaic or Module.of("", "mlir"))

    @cached_property
    def spaces(self) -> Mapping[str, str]:
        """Memory that each pointer register points into."""
        return memory_spaces(self.schedule.bundles)

    @cached_property
    def depends_on_tables(self) -> bool:
        """True if the work depends on values of scalar prefetch that are not known."""
        known = {s.name for s in self.blocks.scalars} if self.blocks is not None else set()
        tables = self.kernel.of_kind("scalar_prefetch")
        return self.depends_on_data and any(table.name not in known for table in tables)

    @cached_property
    def matrix_cycles(self) -> float:
        """Cycles that all matrix products take at the chip's peak; 0 if unknown.

        Units that are busy in a delay are not in the table of used units.
        """
        peaks = peaks_of(self.schedule.chip)
        if peaks is None or self.schedule.is_sparse:
            return 0.0
        products = products_of(self.schedule, self.tracing, self.executions or [], self.mosaic)
        return (
            sum(
                product.flops * (product.runs or 0) / (peaks.flops_of(product.dtype) or math.inf)
                for product in products
            )
            * peaks.clock
        )

    @property
    def core_points(self) -> float:
        """Number of grid points that each core runs; 0 if unknown."""
        return self.blocks.points / self.cores if self.blocks is not None else 0.0

    @cached_property
    def is_memory_bound(self) -> bool:
        """True if steps wait for copies, so that less computation would not make them faster."""
        if self.step is None or self.ignores_copies:
            return False
        return self.step.compute < self.step.copies

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

    @cached_property
    def by_place(self) -> dict[Place, list[PlacedInstruction]]:
        """Instructions by source line; calls on a line do not count."""
        found: dict[Place, list[PlacedInstruction]] = defaultdict(list)
        for placed in self.instructions:
            if placed.source is not None:
                found[placed.source.place].append(placed)
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
        """Return the instructions of a source line."""
        return self.by_place.get(source.place, []) if source else []

    @cached_property
    def executed(self) -> float:
        """Number of bundles executed, summed over all steps."""
        return sum(self.executions) if self.executions else float(len(self.schedule.bundles))

    def share(self, instructions: Iterable[PlacedInstruction]) -> float:
        """Return the share of executed bundles that contain one of these instructions."""
        bundles = {placed.bundle: placed.weight for placed in instructions}
        return sum(bundles.values()) / self.executed if self.executed else 0.0

    def loop_of(self, instructions: Iterable[PlacedInstruction]) -> ScheduledLoop | None:
        """Return the innermost loop that contains most of these instructions."""
        counts: dict[int, int] = defaultdict(int)
        for placed in instructions:
            loop = self.schedule.loop_at(placed.bundle)
            if loop is not None:
                counts[loop.number] += 1
        if not counts:
            return None
        return self.schedule.loops[max(counts, key=lambda number: (counts[number], number))]

    def own_loop_of(self, instructions: Iterable[PlacedInstruction]) -> ScheduledLoop | None:
        """Return the innermost loop of most of these instructions; None for the grid loop."""
        loop = self.loop_of(instructions)
        return None if loop is None or self.is_of_grid(loop) else loop

    def cycles_of(self, loop: ScheduledLoop) -> int:
        """Return the cycles of an iteration that takes no branch: bundles and their delays."""
        return loop.size + sum(self.schedule.delays[loop.start : loop.stop])

    def is_of_grid(self, loop: ScheduledLoop) -> bool:
        """Return whether a loop is the grid loop, which is not in the kernel's source."""
        return loop.depth == 0 and any(size != 1 for size in self.kernel.grid)

    def inside(self, loop: ScheduledLoop) -> list[PlacedInstruction]:
        """Return the instructions of a loop, including those of nested loops."""
        return [p for p in self.instructions if p.bundle in loop]

    def column(self, name: str, loop: ScheduledLoop) -> tuple[int, int] | None:
        """Return the number of a loop's bundles that use a unit, and of all its bundles."""
        table = self.schedule.table
        counts = table.column(name) if table is not None else None
        if counts is None or len(counts) < loop.stop:
            return None
        return sum(1 for n in counts[loop.start : loop.stop] if n), loop.stop - loop.start

    def slots(self, loop: ScheduledLoop) -> dict[str, int]:
        """Count slots that a loop uses, without nested loops, by column; empty without a table."""
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
        """Return the bundles that the busiest issue slot needs, after subtracting `less`."""
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
        """Return the length of the longest dependency chain of equal instructions of one line.

        Args:
          test: predicate that selects opcodes.
        """
        longest = 0
        counts: dict[str, dict[tuple[str, Place], int]] = {}
        for placed in self.instructions:
            seen: dict[tuple[str, Place], int] = {}
            for operand in placed.instruction.operands:
                for key, count in counts.get(operand, {}).items():
                    seen[key] = max(seen.get(key, 0), count)
            if placed.source is not None and test(placed.opcode):
                key = placed.opcode, placed.source.place
                seen = seen | {key: seen.get(key, 0) + 1}
                longest = max(longest, seen[key])
            for result in placed.instruction.results:
                counts[result] = seen
        return longest

    def operand(self, value: str) -> Operand | None:
        """Return the kernel's operand for a parameter of the program."""
        parameters = self.program.arguments
        operands = [o for o in self.kernel.operands if o.kind != "dynamic_grid"]
        if value not in parameters or len(parameters) != len(operands):
            return None
        return operands[parameters.index(value)]

    def block_source(self, name: str) -> SourceLine | None:
        """Return the line of an operand's spec; None if it is not known."""
        named = (o.block_source for o in self.kernel.operands if o.name == name)
        return next((source for source in named if source is not None), None)

    def times(self, line: int) -> int | None:
        """Return the product of the trip counts of loops around a line; None if not constant."""
        product = 1
        for loop in self.program.loops_around(line):
            if loop.trips is None:
                return None
            product *= loop.trips
        return product


def selected(
    instructions: Iterable[PlacedInstruction], test: Callable[[str], bool]
) -> list[PlacedInstruction]:
    """Return the instructions whose opcode passes a test."""
    return [placed for placed in instructions if test(placed.opcode)]


def starting(instructions: Iterable[PlacedInstruction], *prefixes: str) -> list[PlacedInstruction]:
    """Return the instructions whose opcode starts with one of these prefixes."""
    return [placed for placed in instructions if placed.opcode.startswith(prefixes)]
