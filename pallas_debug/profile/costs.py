"""Where a kernel's cycles go: by Python line, loop, operand, class of instruction and reason.

A cycle in which a bundle issues is divided evenly among its instructions. A delay counts for the
latest producer of an operand of the following bundle: its result is waited for. Waits for copies
count for the operand that is copied. The cells sum up to the estimate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from pallas_debug.ir.bundles import Instruction
from pallas_debug.model import SourceLine
from pallas_debug.profile import units
from pallas_debug.profile.schedule import Schedule
from pallas_debug.profile.timeline.origins import CopyOrigin
from pallas_debug.profile.tracing import Place, Trace, Tracing

CostClass = Literal[
    "VALU",
    "EUP",
    "XLU",
    "matmul",
    "matrix load",
    "load",
    "store",
    "spill",
    "move",
    "conversion",
    "scalar",
    "DMA",
]
"""Class of an instruction."""

CostReason = Literal["issue", "result", "copy", "overhead"]
"""Reason of a cycle: a bundle issues, waits for an earlier result or for a copy, or only steers
loops and grid steps."""

_MOVES = ("vperm", "vrot", "vcombine", "vbcast", "vcompose", "vshuffle")
_CONVERSIONS = ("vcvt", "vpack", "vunpack")
_MATRIX_LOADS = ("vmatpush", "vmatprep", "vlatch")
_RESULTS: tuple[tuple[str, CostClass], ...] = (
    ("eup", "EUP"),
    ("mrb", "matmul"),
    ("mxu", "matmul"),
    ("mrf", "matmul"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class CostCell:
    """Cycles of one line, loop, operand, class and reason.

    Attributes:
      source: innermost Python line; None if unknown.
      loop: number of the innermost loop; None outside of loops.
      operand: number of the copied operand among those with blocks; None for other work.
    """

    source: SourceLine | None
    loop: int | None
    operand: int | None
    kind: CostClass
    reason: CostReason
    cycles: float


@dataclass(frozen=True, kw_only=True)
class Costs:
    """All cells of a kernel.

    Loops of unknown length count with a fixed number of iterations, so shares within them hold.
    """

    cells: tuple[CostCell, ...] = ()

    @property
    def total(self) -> float:
        return sum(cell.cycles for cell in self.cells)

    def where(self, **wanted: Hashable) -> Costs:
        """Return the cells with these attributes: `where(kind="spill", loop=3)`."""
        return Costs(
            cells=tuple(c for c in self.cells if all(getattr(c, k) == v for k, v in wanted.items()))
        )

    def by(self, key: str) -> list[tuple[object, float]]:
        """Return the cycles by an attribute of the cells, largest first."""
        sums: dict[object, float] = defaultdict(float)
        for cell in self.cells:
            sums[getattr(cell, key)] += cell.cycles
        return sorted(sums.items(), key=lambda item: -item[1])

    def lines(self) -> list[tuple[SourceLine, Costs]]:
        """Return the cells of each Python line, most expensive first."""
        found: dict[Place, list[CostCell]] = defaultdict(list)
        for cell in self.cells:
            if cell.source is not None:
                found[cell.source.place].append(cell)
        grouped = [(c[0].source, Costs(cells=tuple(c))) for c in found.values()]
        return sorted(
            ((source, costs) for source, costs in grouped if source is not None),
            key=lambda item: -item[1].total,
        )


def costs_of(
    schedule: Schedule,
    tracing: Tracing,
    executions: Sequence[float],
    waits: Iterable[tuple[int, int, float]],
    origins: Mapping[int, CopyOrigin],
) -> Costs:
    """Attribute all cycles of a kernel; empty if it is not known how often bundles run.

    Args:
      executions: number of times that each bundle runs.
      waits: the bundle that waits, the one that started the copy, and the cycles, of all waits.
      origins: origins of the copies, by bundle.
    """
    sums: dict[_Key, float] = defaultdict(float)
    sources: dict[Place, SourceLine] = {}
    loops = [schedule.loop_at(at) for at in range(len(schedule.bundles))]
    if executions:
        for at, trace, instruction, reason, cycles in attributed(schedule, tracing, executions):
            source = trace.chain[0] if trace is not None and trace.chain else None
            if source is not None:
                source = sources.setdefault(source.place, source)
            kind: CostClass = "scalar" if instruction is None else class_of(instruction)
            origin = origins.get(at) if kind == "DMA" else None
            loop = loops[at]
            key = source, loop.number if loop else None, origin.operand if origin else None
            sums[(*key, kind, reason)] += cycles
        for at, start, cycles in waits:
            origin, loop = origins.get(start), loops[at]
            trace = waiting(tracing, at)
            source = trace.chain[0] if trace is not None else None
            operand = origin.operand if origin else None
            sums[source, loop.number if loop else None, operand, "DMA", "copy"] += cycles
    return Costs(
        cells=tuple(
            CostCell(
                source=source,
                loop=loop,
                operand=operand,
                kind=kind,
                reason=reason,
                cycles=cycles,
            )
            for (source, loop, operand, kind, reason), cycles in sums.items()
            if cycles
        )
    )


_Key = tuple[SourceLine | None, int | None, int | None, CostClass, CostReason]
_Attributed = tuple[int, Trace | None, Instruction | None, CostReason, float]


def waiting(tracing: Tracing, bundle: int) -> Trace | None:
    """Return the trace of the wait for a copy in a bundle; None if it has no line."""
    found = (t for t in tracing.traces[bundle] if t.chain and t.origin == "compiler")
    return next(found, None)


def attributed(
    schedule: Schedule, tracing: Tracing, executions: Sequence[float]
) -> Iterator[_Attributed]:
    """Yield the cycles of bundles and delays, each with its bundle and instruction.

    A bundle is divided evenly among its instructions; a delay is of the latest result that the next
    bundle needs.
    """
    made: dict[str, tuple[int, Instruction, Trace]] = {}
    bundles = schedule.bundles
    for at, (bundle, traces) in enumerate(zip(bundles, tracing.traces, strict=True)):
        times, delay = executions[at], schedule.delays[at]
        pairs = list(zip(bundle.instructions, traces, strict=True))
        for instruction, trace in pairs:
            share = times / len(pairs)
            yield at, trace, instruction, _reason(instruction, trace), share
            made.update((name, (at, instruction, trace)) for name in instruction.results)
        if not pairs:
            yield at, None, None, "overhead", times
        if delay:
            following = bundles[at + 1].instructions if at + 1 < len(bundles) else ()
            producers = [made[o] for i in following for o in i.operands if o in made]
            if producers:
                _, instruction, trace = max(producers, key=lambda p: p[0])
                yield at, trace, instruction, "result", times * delay
            elif pairs:
                for instruction, trace in pairs:
                    yield at, trace, instruction, "result", times * delay / len(pairs)
            else:
                yield at, None, None, "overhead", times * delay


def _reason(instruction: Instruction, trace: Trace) -> CostReason:
    """Return "overhead" for scalar work without a line of its own: loops, steps, addresses."""
    is_own = bool(trace.chain) and trace.origin == "compiler"
    return "issue" if is_own or class_of(instruction) not in ("scalar", "DMA") else "overhead"


def class_of(instruction: Instruction) -> CostClass:
    """Return the class of an instruction."""
    opcode, text = instruction.opcode, instruction.text
    if units.is_spill(opcode, text) or units.is_fill(opcode, text):
        return "spill"
    return _class(opcode)


@lru_cache(4096)
def _class(opcode: str) -> CostClass:
    slot = units.slot_of(opcode)
    if opcode.startswith("dma.") or (slot == units.LOAD and not opcode.startswith("vld")):
        return "DMA"
    if slot is None or slot == units.SALU:
        return "scalar"
    if slot == units.VPOP:
        return next((kind for name, kind in _RESULTS if name in opcode), "XLU")
    if opcode.startswith(_MATRIX_LOADS):
        return "matrix load"
    if slot in (units.MXU, units.XLU):
        return "matmul" if slot == units.MXU else "XLU"
    if slot in (units.LOAD, units.STORE):
        return "load" if slot == units.LOAD else "store"
    if opcode.startswith(units._EUP):
        return "EUP"
    if opcode.startswith(_MOVES):
        return "move"
    return "conversion" if opcode.startswith(_CONVERSIONS) else "VALU"
