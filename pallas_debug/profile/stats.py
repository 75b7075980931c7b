"""Statistics of one kernel on one target, from the compiler's output about its schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from pallas_debug.ir.operations import Module
from pallas_debug.model import Compilation, Kernel
from pallas_debug.profile import units
from pallas_debug.profile.advice import Advice, advise
from pallas_debug.profile.blocks import BlockMap
from pallas_debug.profile.bottleneck import CycleShare, HotLine, bottleneck, hottest
from pallas_debug.profile.core.copies import copy_model
from pallas_debug.profile.core.events import Event
from pallas_debug.profile.core.given import given_scalars
from pallas_debug.profile.core.walk import Walk, walk
from pallas_debug.profile.cost_estimate import CountedCost, counted_cost
from pallas_debug.profile.costs import Costs, costs_of
from pallas_debug.profile.cycles import CycleEstimate, estimate_cycles
from pallas_debug.profile.figures import Figure, Origin, missing
from pallas_debug.profile.lines import LineCost, line_costs
from pallas_debug.profile.memory import MemoryMap, memory_map, unknown_memory
from pallas_debug.profile.schedule import Schedule, ScheduledLoop, schedule_of
from pallas_debug.profile.timeline.origins import CopyOrigin, copy_origins, placements
from pallas_debug.profile.tracing import Tracing, trace
from pallas_debug.profile.traffic import Traffic, traffic_of
from pallas_debug.profile.whatif import Simulator


@dataclass(frozen=True, kw_only=True)
class ScheduleTexts:
    """Tables that the compiler wrote about a kernel's schedule; None for missing ones.

    Attributes:
      mosaic: the kernel's module before any pass, for the calls that lead to each line.
      sparsecore: bundles of a kernel on the SparseCore, which has no other tables.
    """

    bundles: str | None = None
    utilization: str | None = None
    delays: str | None = None
    vmem: str | None = None
    hlo: str | None = None
    estimate: str | None = None
    mosaic: str | None = None
    sparsecore: str | None = None


@dataclass(frozen=True, kw_only=True)
class UnitUse:
    """Use of a functional unit.

    Attributes:
      name: name of the unit as printed by the compiler.
      capacity: slots per bundle, or number of units.
      share: share of the capacity that is used over all bundles, weighted by how often they run.
      meaning: what the column counts; empty for an unknown column.
    """

    name: str
    capacity: Figure
    share: Figure
    meaning: str = ""


@dataclass(frozen=True, kw_only=True)
class LoopCost:
    """Cost of a loop.

    Attributes:
      start, stop: index of the first bundle, and one past the last.
      depth: number of enclosing loops.
      bundles: number of bundles.
      executed: number of bundles executed over the whole kernel.
      share: share of all executed bundles.
      units: share of each unit's capacity that is used in these bundles.
      spills, fills: number of spill and fill instructions.
    """

    start: int
    stop: int
    depth: int
    bundles: Figure
    executed: Figure
    share: Figure
    units: Mapping[str, float] = field(default_factory=dict)
    spills: int = 0
    fills: int = 0


@dataclass(frozen=True, kw_only=True)
class ScheduleCounts:
    """Counts of a schedule's bundles.

    Attributes:
      bundles, empty_bundles, spills, fills: as in `Stats`.
      spills_of, fills_of: number of spills and fills in each bundle.
    """

    bundles: Figure
    empty_bundles: Figure
    spills: Figure
    fills: Figure
    spills_of: tuple[int, ...] = ()
    fills_of: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Stats:
    """Statistics of one kernel on one target.

    Attributes:
      code_size: size of the executable.
      bundles: number of instruction words of the kernel.
      empty_bundles: number of bundles without an instruction.
      cycles: our estimate, and the compiler's.
      spills, fills: number of instructions that spill and reload registers.
      loops: loops of the schedule, in order.
      traffic: bytes copied compared with work done.
      lines: costs of Python lines, most expensive first.
      bottleneck: what the cycles are spent on, most first.
      hottest: the lines with most cycles of their own, and what these are spent on.
      advice: what saves at least a tenth of the cycles.
      cost_estimate: counted work, to declare it; None if the kernel declares a cost estimate.
      is_sparse: whether the kernel runs on the SparseCore, whose bundles are not read.
      problems: one sentence for each input that could not be read.
    """

    kernel: str
    target: str
    versions: Mapping[str, str]
    code_size: Figure
    bundles: Figure
    empty_bundles: Figure
    cycles: CycleEstimate
    units: tuple[UnitUse, ...]
    spills: Figure
    fills: Figure
    loops: tuple[LoopCost, ...]
    memory: MemoryMap
    traffic: Traffic
    lines: tuple[LineCost, ...]
    bottleneck: tuple[CycleShare, ...] = ()
    hottest: tuple[HotLine, ...] = ()
    cost_estimate: CountedCost | None = None
    advice: tuple[Advice, ...] = ()
    is_sparse: bool = False
    problems: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return (
            f"<Stats {self.kernel} on {self.target}: {self.bundles} bundles, "
            f"{self.cycles.total} cycles, {self.spills} spills>"
        )

    def _repr_html_(self) -> str:
        from pallas_debug.report.notebook import stats_html

        return stats_html(self)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Schedule of a kernel and everything derived from it; `Stats` is its summary.

    Attributes:
      assume: values of counts that are known only at run time, such as `{"n1": 12}`.
    """

    texts: ScheduleTexts
    kernel: Kernel | None
    compilation: Compilation | None
    blocks: BlockMap | None = None
    assume: Mapping[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the kernel; empty if it is not known."""
        return self.kernel.name if self.kernel else ""

    @property
    def target(self) -> str:
        """Name of the target; empty if it is not known."""
        return self.compilation.target if self.compilation else ""

    @cached_property
    def schedule(self) -> Schedule:
        return schedule_of(
            self.texts.bundles,
            self.texts.utilization,
            self.texts.delays,
            sparsecore=self.texts.sparsecore,
            target=self.compilation.target if self.compilation else None,
        )

    @cached_property
    def mosaic(self) -> Module | None:
        """The kernel's module before any pass."""
        return Module.of(self.texts.mosaic, "mlir") if self.texts.mosaic else None

    @cached_property
    def tracing(self) -> Tracing:
        return trace(self.schedule.listing, self.mosaic)

    @cached_property
    def traffic(self) -> Traffic:
        traffic = traffic_of(self.schedule, self.tracing, self.cycles, self.mosaic)
        return replace(traffic, resident=self._resident())

    def _resident(self) -> tuple[str, ...]:
        """Operands with blocks that XLA placed in VMEM."""
        placed = placements(self.schedule, self.kernel) if self.blocks is not None else {}
        operands = self.blocks.operands if self.blocks is not None else ()
        return tuple(o.name for i, o in enumerate(operands) if "vmem" in placed.get(i, ""))

    @cached_property
    def walk(self) -> tuple[Walk, list[Event]]:
        """A walk through the schedule with the values of the first call, and what happens in it."""
        events: list[Event] = []
        given = given_scalars(self.schedule, self.blocks.scalars if self.blocks else ())
        model, _ = copy_model(self.schedule.chip)
        return walk(self.schedule, model, given=given, listen=events.append), events

    @cached_property
    def cycles(self) -> CycleEstimate:
        return estimate_cycles(
            self.schedule,
            self.kernel,
            self.texts.estimate,
            blocks=self.blocks,
            mosaic=self.mosaic,
            assume=self.assume,
            walked=self.walk[0],
        )

    @cached_property
    def lines(self) -> tuple[LineCost, ...]:
        cycles = self.cycles
        return line_costs(self.schedule, self.tracing, cycles.executions or None, cycles.waits)

    @cached_property
    def costs(self) -> Costs:
        """Cycles by line, loop, operand, class of instruction and reason."""
        cycles, origins = self.cycles, self.origins
        return costs_of(self.schedule, self.tracing, cycles.executions, cycles.waits, origins)

    @cached_property
    def origins(self) -> Mapping[int, CopyOrigin]:
        """Origins of the schedule's copies, by bundle index."""
        return copy_origins(self.schedule, self.kernel)

    @cached_property
    def bottleneck(self) -> tuple[CycleShare, ...]:
        """What the cycles are spent on, most first."""
        return tuple(bottleneck(self.costs, self.schedule, self.traffic, self._blocked))

    @cached_property
    def hottest(self) -> tuple[HotLine, ...]:
        """The lines with most cycles of their own, and what these are spent on."""
        return tuple(hottest(self.costs, self._blocked))

    @property
    def _blocked(self) -> list[str]:
        """Names of the operands with blocks."""
        operands = self.kernel.operands if self.kernel is not None else ()
        return [operand.name for operand in operands if operand.kind in ("input", "output")]

    @property
    def cost_estimate(self) -> CountedCost | None:
        """Counted work, to declare it; None if the kernel does, or if its schedule is damaged."""
        if self.kernel is None or self.kernel.cost_estimate or self.schedule.problems:
            return None
        return counted_cost(self.schedule, self.cycles, self.traffic, self.blocks)

    @cached_property
    def memory(self) -> MemoryMap:
        if self.schedule.is_sparse:
            return unknown_memory()
        return memory_map(self.texts.vmem, self.kernel, self.compilation, hlo=self.texts.hlo)

    @cached_property
    def simulator(self) -> Simulator:
        """Simulator of changes to the kernel."""
        return Simulator(self)

    @cached_property
    def advice(self) -> tuple[Advice, ...]:
        """Advice worth at least a tenth of the cycles, at most three pieces."""
        from pallas_debug.profile.rules import RULES  # they take a profile

        return advise(self, RULES)

    @cached_property
    def counts(self) -> ScheduleCounts:
        """Counts of bundles and spills, for callers that do not need the rest of `stats`."""
        return _counts(self.schedule)

    @cached_property
    def stats(self) -> Stats:
        return _stats(self)


def _stats(profile: Profile) -> Stats:
    schedule, compilation = profile.schedule, profile.compilation
    memory = compilation.memory if compilation else None
    counts = profile.counts
    return Stats(
        kernel=profile.name,
        target=profile.target,
        versions=dict(compilation.versions) if compilation else {},
        code_size=(
            Figure(
                value=memory.generated_code,
                origin="compiler",
                unit="bytes",
                note="of the executable: the kernel and XLA's code around it",
            )
            if memory
            else missing("the compiler did not report the code size", unit="bytes")
        ),
        bundles=counts.bundles,
        empty_bundles=counts.empty_bundles,
        cycles=profile.cycles,
        units=_unit_uses(profile),
        spills=counts.spills,
        fills=counts.fills,
        loops=tuple(_loop_cost(profile, loop) for loop in schedule.loops),
        memory=profile.memory,
        traffic=profile.traffic,
        lines=profile.lines,
        bottleneck=profile.bottleneck,
        hottest=profile.hottest,
        cost_estimate=profile.cost_estimate,
        advice=profile.advice,
        is_sparse=schedule.is_sparse,
        problems=schedule.problems,
    )


_OPERANDS = "inlined_call_operand"
"""Prefix of opcodes that name operands, in a bundle that libtpu counts as empty."""


def _counts(schedule: Schedule) -> ScheduleCounts:
    def counted(value: int, note: str) -> Figure:
        if not schedule.bundles:
            return missing("there is no listing of bundles")
        return Figure(value=value, origin="compiler", note=note)

    spills, fills = [], []
    for bundle in schedule.bundles:
        spills.append(sum(units.is_spill(i.opcode, i.text) for i in bundle.instructions))
        fills.append(sum(units.is_fill(i.opcode, i.text) for i in bundle.instructions))
    empty = sum(
        all(i.opcode.startswith(_OPERANDS) for i in bundle.instructions)
        for bundle in schedule.bundles
    )
    return ScheduleCounts(
        bundles=counted(len(schedule.bundles), "final bundles of the kernel"),
        empty_bundles=counted(empty, "final bundles without an instruction"),
        spills=counted(sum(spills), "stores to spill slots in VMEM and SMEM"),
        fills=counted(sum(fills), "loads from spill slots in VMEM and SMEM"),
        spills_of=tuple(spills),
        fills_of=tuple(fills),
    )


def _unit_uses(profile: Profile) -> tuple[UnitUse, ...]:
    table, executions = profile.schedule.table, profile.cycles.executions
    if table is None:
        return ()
    origin: Origin = _weight_origin(profile.cycles) if executions else "derived"
    note = "of its capacity in the bundles that run" if executions else "each bundle counted once"
    shares = units.shares(table, executions)
    return tuple(
        UnitUse(
            name=name,
            capacity=Figure(value=capacity, origin="compiler"),
            share=Figure(value=shares.get(name), origin=origin, note=note),
            meaning=units.MEANINGS.get(name, ""),
        )
        for name, capacity in zip(table.names, table.capacity, strict=True)
    )


def _has_unknown_loops(cycles: CycleEstimate) -> bool:
    """Return whether bundles run a number of times that is known only at run time."""
    return bool(cycles.executions) and not cycles.total.is_known


def _weight_origin(cycles: CycleEstimate) -> Origin:
    """Origin of figures that are weighted by how often bundles run."""
    return "assumed" if _has_unknown_loops(cycles) else cycles.compute.origin


def _loop_cost(profile: Profile, loop: ScheduledLoop) -> LoopCost:
    table, executions = profile.schedule.table, profile.cycles.executions
    origin = _weight_origin(profile.cycles)
    start, stop = loop.start, loop.stop
    executed, total = sum(executions[start:stop]), sum(executions)
    is_counted = executions and not _has_unknown_loops(profile.cycles)
    return LoopCost(
        start=start,
        stop=stop,
        depth=loop.depth,
        bundles=Figure(value=loop.size, origin="compiler"),
        executed=Figure(value=round(executed), origin=origin)
        if is_counted
        else missing(profile.cycles.total.note),
        share=Figure(value=executed / total if total else None, origin=origin),
        units=units.shares(table, start=start, stop=stop) if table else {},
        spills=sum(profile.counts.spills_of[start:stop]),
        fills=sum(profile.counts.fills_of[start:stop]),
    )
