"""Cycles of a kernel with other blocks, another grid or less work, without compiling it.

Changes of blocks and grid are simulated step by step: copies go through the pipeline, and the work
of a step is divided into what each step costs whatever its blocks are (loops and steps), what grows
with the blocks (loops inside the kernel), and the rest, of which only the work of the busiest unit
grows (`growth` says along which axes). The result is the estimate
times the ratio of two simulations, so an error that both share cancels out. Work that is removed or
overlapped gives a lower bound.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from pallas_debug.errors import UsageError
from pallas_debug.profile import changed, units
from pallas_debug.profile.blocks import Block, BlockMap, OperandBlocks
from pallas_debug.profile.changed import Followed
from pallas_debug.profile.core.copies import copy_model
from pallas_debug.profile.costs import class_of
from pallas_debug.profile.figures import Figure
from pallas_debug.profile.growth import Growth
from pallas_debug.profile.pipeline import PipelineOperand, pipeline_cycles
from pallas_debug.profile.tracing import Place
from pallas_debug.quantities import size_text

if TYPE_CHECKING:
    from pallas_debug.profile.stats import Profile

UTILIZATION = 0.55
"""Share of its capacity that the busiest unit reaches in a long schedule, with the spills of large
blocks."""

ALLOWANCE = 1.05
"""Factor on the cycles with blocks of other sizes. Measured, as `UTILIZATION`, on 43 pairs of
kernels of jax, tpu-inference, sglang-jax and recurrentgemma, compiled with two sizes
(`benchmarks/costs.py`): 34 of the promises are 0.9 to 1.25 of what is compiled."""

MAX_STEPS = 4096
"""Maximum steps to simulate; the remaining steps are assumed to be similar."""

FORMS = (
    "k_ref[2]=512 (size of a block), order=1,0,2 (axes of the grid), k_ref=resident, "
    "k_ref.bits=16, k_ref.buffers=3, without=spill or without=spill@0x10 (a class of instructions, "
    "in the loop at a bundle), overlap=0x10:4 (iterations of a loop)"
)
"""Forms of a change, with what they change."""

_SIZE = re.compile(r"(?P<name>.{1,200})\[(?P<dimension>\d{1,2})\]=(?P<size>\d{1,9})")
_OPERAND = re.compile(
    r"(?P<name>.{1,200}?)(?:=(?P<resident>resident)|\.(?P<key>bits|buffers)=(?P<value>\d{1,3}))"
)
_ORDER = re.compile(r"order=(?P<axes>\d{1,2}(?:,\d{1,2})*)")
_WITHOUT = re.compile(r"without=(?P<kind>[A-Za-z ]{1,20})(?:@(?P<loop>0x[0-9a-f]{1,8}))?")
_OVERLAP = re.compile(r"overlap=(?P<loop>0x[0-9a-f]{1,8}):(?P<times>\d{1,4})")


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """A change, and the cycles with it.

    Attributes:
      change: what differs, such as `k_ref[2]=512`.
      now, cycles: estimated cycles without and with it.
      is_bound: whether `cycles` are a lower bound, because only part of the effect is known.
      steps: number of grid points.
      vmem: bytes of VMEM, without those of spills that are added; None if unknown.
      assumed: operands whose block is assumed to change at every step.
    """

    change: str
    now: Figure
    cycles: Figure
    steps: int
    vmem: int | None = None
    is_bound: bool = False
    assumed: tuple[str, ...] = ()

    @property
    def saved(self) -> float:
        """Cycles that it saves; negative if it costs some."""
        return (self.now.value or 0) - (self.cycles.value or 0)


class Simulator:
    """Simulator of changes to a kernel; it derives once what all changes share."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._totals: dict[int, float] = {}
        self._busy: dict[int | None, _Busy] = {}

    def what_if(self, changes: Iterable[str]) -> WhatIf:
        """Estimate the cycles with all of these changes, in one of the `FORMS` each.

        Raises:
          UsageError: a change cannot be read or made, does not fit VMEM, or the cycles are not
            known.
        """
        texts = [text.strip() for text in changes]
        bounds = [bound for text in texts if (bound := self._bound(text)) is not None]
        if bounds and len(texts) > 1:
            raise UsageError("a bound, without=… or overlap=…, is not combined with other changes")
        if bounds:
            return bounds[0]
        blocks = changed_blocks(self.blocks, texts)
        return self.simulated(blocks, ", ".join(texts))

    @property
    def now(self) -> Figure:
        """Estimated cycles without a change.

        Raises:
          UsageError: they are not known.
        """
        now = self._profile.cycles.total
        if now.value is None and not now.formula:
            raise UsageError(f"the cycles of this kernel are not known: {now.note}")
        if now.value is None:
            raise UsageError(
                "the cycles of this kernel are a formula; values of its unknowns make them a "
                "number (--assume), and so does a call whose arguments have values"
            )
        return now

    @property
    def blocks(self) -> BlockMap:
        """Blocks without a change.

        Raises:
          UsageError: they are not known.
        """
        blocks = self._profile.blocks
        if blocks is None or blocks.unknown is not None or not blocks.points:
            because = f": {blocks.unknown}" if blocks is not None and blocks.unknown else ""
            raise UsageError(f"the blocks of this kernel are not known{because}")
        return blocks

    def simulated(self, blocks: BlockMap, change: str, *, max_steps: int = MAX_STEPS) -> WhatIf:
        """Estimate the cycles with other blocks.

        Args:
          blocks: the blocks; those of a kernel that was traced with other arguments, or changed
            ones.
          change: what differs, in words.
          max_steps: maximum steps to simulate.

        Raises:
          UsageError: the cycles or the blocks are not known, or VMEM is too small.
        """
        now, before = self.now, self.blocks
        if blocks.unknown is not None or not blocks.points:
            raise UsageError(f"the blocks with {change} are not known: {blocks.unknown}")
        growth = before.points / blocks.points
        own = [operand.name for operand in before.operands if not operand.is_pipelined]
        if own and growth != 1:
            raise UsageError(
                f"{change} cannot be simulated: the kernel itself copies {', '.join(own)}, and how "
                "much at a time depends on its blocks"
            )
        factors = changed.factors(before, blocks)
        vmem, limit = self._vmem(before, blocks, factors, growth), self.vmem_limit.value
        if vmem is not None and limit is not None and vmem > limit:
            raise UsageError(
                f"{change} needs {size_text(vmem)} of VMEM, of the {size_text(limit)} that the "
                "kernel may use; vmem_limit_bytes may raise it"
            )
        if max_steps not in self._totals:
            self._totals[max_steps] = self._total(before, {}, max_steps)
        base = self._totals[max_steps]
        ratio = self._total(blocks, factors, max_steps) / base if base else 1.0
        if growth != 1:
            ratio *= ALLOWANCE
        return WhatIf(
            change=change,
            now=now,
            cycles=replace(
                now, value=round((now.value or 0) * ratio), origin="assumed", note="simulated"
            ),
            steps=blocks.points,
            vmem=None if vmem is None else round(vmem),
            assumed=tuple(o.name for o in blocks.pipelined if o.unknown is not None),
        )

    @property
    def vmem_limit(self) -> Figure:
        """VMEM that the kernel may use with other blocks: if it states how much, the chip has it.

        Kernels compute `vmem_limit_bytes` from their blocks (tpu-inference's quantized matmul).
        """
        kernel, memory = self._profile.kernel, self._profile.memory
        is_stated = kernel is not None and "vmem_limit_bytes" in kernel.compiler_params
        return memory.capacity if is_stated else memory.limit

    def without(self, kind: str, loop: int | None = None) -> WhatIf:
        """Return the least cycles without a class of instructions, in a loop or outside of loops.

        At most the bundles with such an instruction and the waits for their results go, and the
        busiest of the other units remains.

        Raises:
          UsageError: the cycles are not known, or no such instruction runs.
        """
        busy = self._busy_in(loop)
        touched = self._profile.costs.where(kind=kind, loop=loop, reason="result").total
        touched += sum(
            cycles
            for at, cycles in busy.weights.items()
            if any(class_of(i) == kind for i in self._profile.schedule.bundles[at].instructions)
        )
        if not touched:
            raise UsageError(f"no instruction of class {kind!r} runs there")
        saved = min(touched, busy.cycles - busy.busiest(counts=lambda other: other != kind))
        return self.bounded(f"without={kind}{self._place(loop)}", saved)

    def overlapped(self, loop: int, times: int) -> WhatIf:
        """Return the least cycles if several iterations of a loop overlap.

        Waits for results and the control of the loop are shared by the iterations; the bundles that
        issue remain, and so does the busiest unit.

        Raises:
          UsageError: the cycles are not known.
        """
        cells = self._profile.costs.where(loop=loop)
        shared = cells.where(reason="result").total + cells.where(reason="overhead").total
        busiest = self._busy_in(loop).busiest()
        least = max(cells.total - shared * (1 - 1 / times), busiest)
        start = self._profile.schedule.loops[loop].start
        return self.bounded(f"overlap={start:#x}:{times}", cells.total - least)

    def bounded(self, change: str, saved: float) -> WhatIf:
        """Return a change that saves at most this number of cycles."""
        now = self.now
        value = round((now.value or 0) - max(saved, 0.0))
        return WhatIf(
            change=change,
            now=now,
            cycles=replace(now, value=value, origin="assumed", note="at least"),
            steps=self._profile.blocks.points if self._profile.blocks is not None else 0,
            is_bound=True,
        )

    def _bound(self, text: str) -> WhatIf | None:
        if found := _WITHOUT.fullmatch(text):
            kind, loop = found["kind"], found["loop"]
            return self.without(kind, self._loop_at(loop)) if loop else self._everywhere(kind)
        if found := _OVERLAP.fullmatch(text):
            times = int(found["times"])
            if times < 1:
                raise UsageError(f"{text!r}: at least one iteration runs at a time")
            return self.overlapped(self._loop_at(found["loop"]), times)
        return None

    def _everywhere(self, kind: str) -> WhatIf:
        loops = {cell.loop for cell in self._profile.costs.where(kind=kind).cells}
        if not loops:
            raise UsageError(f"no instruction of class {kind!r} runs in this kernel")
        return self.bounded(f"without={kind}", sum(self.without(kind, n).saved for n in loops))

    def _loop_at(self, bundle: str) -> int:
        loops = self._profile.schedule.loops
        found = [loop.number for loop in loops if loop.start == int(bundle, 16)]
        if not found:
            known = ", ".join(f"{loop.start:#x}" for loop in loops)
            raise UsageError(f"no loop begins at bundle {bundle}; there are {known or 'none'}")
        return found[-1]

    def _place(self, loop: int | None) -> str:
        return "" if loop is None else f"@{self._profile.schedule.loops[loop].start:#x}"

    def _busy_in(self, loop: int | None) -> _Busy:
        if loop not in self._busy:
            self._busy[loop] = _Busy(self._profile, loop)
        return self._busy[loop]

    def _vmem(
        self, before: BlockMap, after: BlockMap, factors: Mapping[Followed, float], growth: float
    ) -> float | None:
        """Return the bytes of VMEM with other blocks: windows and scratch grow, the rest stays."""
        memory, kernel = self._profile.memory, self._profile.kernel
        used = memory.vmem.value
        if used is None or kernel is None:
            return None
        windows, larger = (
            sum(o.block_bytes * o.buffers for o in blocks.pipelined) for blocks in (before, after)
        )
        scratch = more = 0.0
        for operand in kernel.of_kind("scratch"):
            use = memory.of_operand(operand.name)
            if use is None or use.space != "vmem" or not use.size.value:
                continue
            factor = self._growth.of_buffer(operand.name, factors) if self._growth else None
            scratch += use.size.value
            more += use.size.value * (max(growth, 1.0) if factor is None else factor)
        return larger + more + max(used - windows - scratch, 0)

    def _total(self, blocks: BlockMap, factors: Mapping[Followed, float], max_steps: int) -> float:
        """Run the pipeline over a grid, and return its cycles.

        Args:
          factors: factors by which blocks are larger, by what they grow with.
        """
        model, _ = copy_model(self._profile.schedule.chip)
        ran = min(blocks.points, max_steps)
        fixed, work = self._work(factors, self.blocks.points / blocks.points)
        base = changed.busy_points(self.blocks)
        share = 1.0 if base is None else float(base.mean())  # the average counts idle steps, too
        compute = [fixed + (work / share if is_busy else 0.0) for is_busy in _busy(blocks, ran)]

        operands = [
            PipelineOperand(
                is_input=operand.kind == "input",
                buffers=operand.buffers,
                reads_back=operand.reads_back,
                block=_numbered(blocks, operand),
                fetch=model.time("hbm_to_vmem", operand.block_bytes),
                write=model.time("vmem_to_hbm", operand.block_bytes),
            )
            for operand in blocks.pipelined
            if operand.name not in self._profile.traffic.resident
        ]
        cycles = pipeline_cycles(
            operands, steps=blocks.points, ran=ran, compute=compute.__getitem__
        )
        return cycles * blocks.points / ran

    def _work(self, factors: Mapping[Followed, float], growth: float) -> tuple[float, float]:
        """Return the cycles of a step whatever its blocks are, and those of its work.

        Args:
          factors: factors by which blocks are larger, by what they grow with.
          growth: how many steps of the compiled kernel a step replaces.
        """
        steps = self._profile.cycles.core_steps.value or 1
        fixed, growing, rest = self._parts
        if growth < 1:
            rest *= growth
        elif growth > 1:
            # A schedule takes about its longest chain of results, which is that of one block
            # whatever its size, and the work of its busiest unit (R. Graham, SIAM J. Appl. Math.
            # 17, 1969); a long one does not fill that unit.
            busiest = self._busiest(factors, growth)
            rest = max(rest - self._busiest({}, 1.0) + busiest, busiest / UTILIZATION)
        return fixed / steps, (growing * growth + rest) / steps

    @cached_property
    def _outside(self) -> frozenset[int | None]:
        """Loops that run a step once or never: those over grid steps, or none."""
        return frozenset({None, *step_loops(self._profile)})

    @cached_property
    def _parts(self) -> tuple[float, float, float]:
        """Cycles of loops and steps, of work inside the kernel's loops, and of other work."""
        fixed = growing = rest = 0.0
        for cell in self._profile.costs.cells:
            if cell.reason == "overhead" and cell.loop in self._outside:
                fixed += cell.cycles
            elif cell.reason != "copy" and cell.loop not in self._outside:
                growing += cell.cycles
            elif cell.reason != "copy":
                rest += cell.cycles
        return fixed, growing, rest

    @cached_property
    def _growth(self) -> Growth | None:
        kernel, module = self._profile.kernel, self._profile.mosaic
        return Growth(kernel, self.blocks, module) if kernel and module else None

    def _busiest(self, factors: Mapping[Followed, float], growth: float) -> float:
        """Return the cycles of the busiest unit outside of inner loops, with larger blocks."""
        known: dict[Place, float] = {}

        def factor(place: Place | None) -> float:
            if place is None or self._growth is None:
                return growth
            if place not in known:
                found = self._growth.of_place(place, factors)
                known[place] = growth if found is None else found
            return known[place]

        return sum(self._busy_in(loop).busiest(factor=factor) for loop in self._outside)


def changed_blocks(blocks: BlockMap, changes: Iterable[str]) -> BlockMap:
    """Make changes of blocks, grid and operands, in one of the `FORMS` each.

    Raises:
      UsageError: a change cannot be read or made.
    """
    sizes: dict[tuple[str, int], int] = {}
    others: list[Callable[[BlockMap], BlockMap]] = []
    for text in changes:
        if size := _SIZE.fullmatch(text):
            sizes[size["name"], int(size["dimension"])] = int(size["size"])
        elif order := _ORDER.fullmatch(text):
            axes = [int(n) for n in order["axes"].split(",")]
            others.append(partial(changed.reordered, order=axes))
        elif operand := _OPERAND.fullmatch(text):
            given = (
                {operand["key"]: int(operand["value"])} if operand["key"] else {"resident": True}
            )
            others.append(partial(changed.of_operand, name=operand["name"], **given))
        else:
            raise UsageError(
                f"{text!r} is no change; there are {FORMS}. A parameter of a function can be "
                "changed where the function is given instead of a dump"
            )
    if sizes:
        blocks = changed.resized(blocks, sizes)
    for change in others:
        blocks = change(blocks)
    return blocks


def step_loops(profile: Profile) -> frozenset[int]:
    """Return the numbers of the loops over grid steps."""
    if (profile.cycles.core_steps.value or 1) == 1:
        return frozenset()
    return frozenset(loop.number for loop in profile.schedule.loops if loop.depth == 0)


def _busy(blocks: BlockMap, steps: int) -> Sequence[bool]:
    found = changed.busy_points(blocks)
    if found is None:
        return [True] * steps
    import numpy as np  # slow to import, and most kernels skip no steps

    spots = np.unravel_index(np.arange(steps), blocks.grid)
    return [bool(is_busy) for is_busy in np.broadcast_to(found, blocks.grid)[spots]]


def _numbered(blocks: BlockMap, operand: OperandBlocks) -> Callable[[int], Block]:
    """Return a function from a step to an operand's block."""
    return lambda step: blocks.block(operand, blocks.point(step))


class _Busy:
    """Issue slots and units in the bundles of one loop, or outside of loops.

    Args:
      loop: number of the innermost loop; None for bundles outside of loops.

    Attributes:
      weights: number of times that each bundle runs.
      cycles: cycles of these bundles and their delays.
    """

    def __init__(self, profile: Profile, loop: int | None) -> None:
        schedule, executions = profile.schedule, profile.cycles.executions
        self._schedule = schedule
        self._traces = profile.tracing.traces
        inside = (schedule.loop_at(at) for at in range(len(executions)))
        self.weights = {
            at: executions[at]
            for at, found in enumerate(inside)
            if (found.number if found else None) == loop and executions[at]
        }
        self.cycles = sum(times * (1 + schedule.delays[at]) for at, times in self.weights.items())

    def busiest(
        self,
        *,
        counts: Callable[[str], bool] = lambda _: True,
        factor: Callable[[Place | None], float] = lambda _: 1.0,
    ) -> float:
        """Return the cycles of the busiest unit if it were never idle.

        Args:
          counts: whether a class of instructions counts.
          factor: factor by which the work of a line is larger.
        """
        table = self._schedule.table
        if table is None or not self._schedule.is_matched:
            return 0.0
        now, used = defaultdict[str, float](float), defaultdict[str, float](float)
        for (slot, kind, place), times in self._issued.items():
            if counts(kind):
                now[slot] += times
                used[slot] += times * factor(place)
        capacity = table.capacities
        # An instruction keeps these units busy for longer than it takes to issue.
        for unit in units.BUSY:
            column = table.column(unit)
            if column is not None and now[unit]:
                busy = sum(column[at] * times for at, times in self.weights.items())
                used[unit] *= busy / now[unit]
        return max(
            (used[unit] / capacity[unit] for unit in units.VECTOR if capacity.get(unit)),
            default=0.0,
        )

    @cached_property
    def _issued(self) -> dict[tuple[str, str, Place | None], float]:
        """Number of instructions by unit, class and line."""
        found: dict[tuple[str, str, Place | None], float] = defaultdict(float)
        for at, times in self.weights.items():
            pairs = zip(self._schedule.bundles[at].instructions, self._traces[at], strict=True)
            for instruction, trace in pairs:
                slot = units.slot_of(instruction.opcode)
                if slot is not None:
                    place = trace.chain[0].place if trace.chain else None
                    found[slot, class_of(instruction), place] += times
        return dict(found)
