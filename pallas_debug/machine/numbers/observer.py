"""Faults in arithmetic: NaNs, infinities, integers divided by zero.

Units are evaluated together with cheap tests (`bridge.programs.numerics`). A test that fires is
only a suspicion, and `numeric_faults` decides. That is slow, so a unit whose suspicions are never
confirmed is explained less and less often. A NaN that a kernel masks is no fault: the facts about
it are held until a result contains it.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pallas_debug.bridge.programs import numeric_faults, numerics
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.bridge.programs.numeric_faults import NumericFault
from pallas_debug.findings.facts import number
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.numbers import FloatOperation
from pallas_debug.findings.sighting import Sighting
from pallas_debug.machine.copies import DmaCopy
from pallas_debug.machine.grid import Window
from pallas_debug.machine.memory import MemoryBuffer, MemoryRegion
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.sightings import sighting
from pallas_debug.machine.threads import Thread
from pallas_debug.model import Finding

MAX_VALUES = 128
"""Maximum number of values in registers that are followed per thread, the latest first."""

MAX_FACTS = 8
"""Maximum number of operations kept per value: the earliest, which may have caused the others."""

Facts = frozenset[Any]
"""Operations that produced a value's NaNs, ordered by time."""

_NONE: Facts = frozenset()


def holds_bad(value: Any) -> bool:
    """Return whether a value contains a NaN or plus infinity."""
    array = np.asarray(value)
    if array.dtype.kind not in "fc":
        if "float" not in array.dtype.name:  # bfloat16 is of kind "V", as are 4-bit integers
            return False
        array = array.astype(np.float32)
    return not bool((array < np.inf).all())


@dataclass(eq=False)
class _Values:
    """Values of a thread that contain NaNs, by identity, and registers that do."""

    by_id: OrderedDict[int, tuple[Any, Facts]] = field(default_factory=OrderedDict)
    by_register: dict[tuple[int, int], tuple[Any, Facts]] = field(default_factory=dict)

    def add(self, value: Any, facts: Facts) -> None:
        self.by_id[id(value)] = value, facts  # keeps the value alive, so its identity stays unique
        while len(self.by_id) > MAX_VALUES:
            self.by_id.popitem(last=False)


class NanTrail(MachineObserver):
    """Values that are held, and where they propagate.

    Attributes:
      follows_loops: whether anything is held.
    """

    def __init__(self) -> None:
        self.follows_loops = False
        self._values: dict[int, _Values] = {}
        self._buffers: dict[int, list[tuple[MemoryBuffer, Any, Facts]]] = {}

    def follow(self, thread: Thread, facts: Facts, outputs: Iterable[Any]) -> None:
        """Follow the NaNs in the outputs of a unit."""
        self.follows_loops = True
        if len(facts) > MAX_FACTS:
            facts = frozenset(sorted(facts)[:MAX_FACTS])
        for value in outputs:
            if holds_bad(value):
                self._of(thread).add(value, facts)

    def facts_of(self, thread: Thread, registers: Sequence[ir.Reg], values: Sequence[Any]) -> Facts:
        """Return the facts about values."""
        if thread.number not in self._values:
            return _NONE
        known, frame = self._of(thread), thread.frames[-1]
        found = _NONE
        for reg, value in zip(registers, values, strict=True):
            entry = known.by_id.get(id(value)) or known.by_register.get((id(frame), reg.number))
            if entry is not None:
                found |= entry[1]
        return found

    def point_begins(self, thread: Thread) -> None:
        """Forget the registers of the previous grid point."""
        self._values.pop(thread.number, None)

    def loads(self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any) -> None:
        facts, reg = self._in(region.buffer), getattr(step, "output", None)
        if facts and reg is not None and holds_bad(value):
            known, frame = self._of(thread), thread.frames[-1]
            known.add(value, facts)
            # A scalar or a masked load puts another object in the register.
            known.by_register[id(frame), reg.number] = frame, facts

    def stores(
        self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any
    ) -> None:
        if not self.follows_loops or not isinstance(step, ir.StoreStep):
            return
        buffer = region.buffer
        if region.is_whole and step.mask is None:
            self._buffers.pop(buffer.number, None)
        register = thread.frames[-1].registers[step.value.number]
        facts = self.facts_of(thread, [step.value], [register])
        if facts and holds_bad(value):
            self._add(buffer, region.index, facts)

    def _moves(self, source: MemoryBuffer, target: MemoryBuffer, content: Any, index: Any) -> None:
        """Follow NaNs through a copy in memory."""
        facts = self._in(source)
        if facts and holds_bad(content):
            self._add(target, index, facts)

    def copy_ends(self, copy: DmaCopy) -> None:
        source, target = copy.source.buffer, copy.destination.buffer
        if source.number in self._buffers:
            self._moves(source, target, copy.source.read(), copy.destination.index)

    def fetches(self, thread: Thread, window: Window, block: tuple[int, ...]) -> None:
        for slot in window.slots:
            self._moves(window.array, slot, slot.content, None)

    def writes_back(self, thread: Thread, window: Window, block: tuple[int, ...]) -> None:
        if window.current.number in self._buffers:
            outer, inner = window.bounds(block)
            self._moves(window.current, window.array, window.current.content[inner], outer)

    def allocated(self, buffer: MemoryBuffer, thread: Thread | None) -> None:
        self._buffers.pop(buffer.number, None)

    def _results(self, *, infinities: bool) -> Iterator[Facts]:
        """Yield the facts about NaNs in the kernel's results so far; also infinities, if wanted."""
        for entries in self._buffers.values():
            for buffer, index, facts in entries:
                content = buffer.content if index is None else buffer.content[index]
                is_bad = holds_bad(content) if infinities else bool((content != content).any())
                if buffer.kind in ("output", "input") and is_bad:
                    yield facts

    def _of(self, thread: Thread) -> _Values:
        return self._values.setdefault(thread.number, _Values())

    def _in(self, buffer: MemoryBuffer) -> Facts:
        entries = self._buffers.get(buffer.number, ())
        return _NONE.union(*(facts for _, _, facts in entries))

    def _add(self, buffer: MemoryBuffer, index: Any, facts: Facts) -> None:
        if index is not None and any(isinstance(entry, np.ndarray) for entry in index):
            index = None
        entries = self._buffers.setdefault(buffer.number, [])
        for i, (_, old, known) in enumerate(entries):
            if old == index or old is None:
                entries[i] = buffer, old, known | facts
                return
        entries.append((buffer, index, facts))


ALWAYS_EXPLAINED = 8
"""Number of a unit's suspicions to explain; of later ones, each whose number is a power of two."""

MAX_HELD = 64 * 2**20
"""Maximum bytes of operands kept to explain NaNs once a result contains them."""


@dataclass(eq=False)
class _Occasion:
    """An evaluation of a unit that raised a suspicion.

    Attributes:
      number: number of the evaluation in the run.
      seen: grid point, iterations, device and core.
    """

    number: int
    seen: Sighting
    step: ir.Compute
    values: Sequence[Any]

    def __lt__(self, other: _Occasion) -> bool:
        return self.number < other.number


@dataclass(eq=False)
class ArithmeticReport:
    """An arithmetic fault, where it was first seen.

    Attributes:
      number: number of the event in the run.
    """

    number: int
    seen: Sighting
    fault: NumericFault
    count: int = 1

    def finding(self) -> Finding:
        fault, seen = self.fault, replace(self.seen, count=self.count)
        facts = {"element": str(list(fault.element))} if fault.element else {}
        ranges = (f"{number(least)} to {number(greatest)}" for least, greatest in fault.ranges)
        operands = map(number, fault.values) if fault.values else ranges
        facts |= {f"operand {i}": value for i, value in enumerate(operands)}
        seen = seen.at(shape=fault.result_type).with_values(facts)
        if fault.trouble != "division":
            return _not_finite(seen, fault)
        return seen.of(
            Fault.DIVISION_BY_ZERO,
            element=facts.get("element"),
            dtype="integer",
            is_integer=True,
            operation="remainder" if fault.operation == "rem" else "division",
            dividend=fault.values[0] if fault.values else None,
            divisor=fault.operands[1],
        )


def _not_finite(seen: Sighting, fault: NumericFault) -> Finding:
    operation = FloatOperation(
        name=fault.operation,
        result=fault.result_type,
        values=fault.values,
        operands=fault.operands,
        ranges=fault.ranges,
        element=fault.element,
    )
    is_nan = fault.trouble == "nan"
    kind = Fault.NAN_PRODUCED if is_nan else Fault.INFINITY_PRODUCED
    found = seen.of(kind, operation=operation)
    comes_of = (Fault.DIVISION_BY_ZERO,) if operation.divides_by_zero else ()
    return replace(found, comes_of=comes_of)


@dataclass(eq=False)
class _UnitRecord:
    """Facts about a unit: number of suspicions, and its faults by equation."""

    suspicions: int = 0
    reports: dict[int, ArithmeticReport] = field(default_factory=dict)

    def is_due(self) -> bool:
        """Count a suspicion; return whether it is to be explained."""
        self.suspicions += 1
        count = self.suspicions
        return count <= ALWAYS_EXPLAINED or count & (count - 1) == 0


class NumbersObserver(NanTrail):
    """Checks the arithmetic of a kernel."""

    evaluates = True

    def __init__(self, launch: Launch, *, infinities: bool = False) -> None:
        """Set up.

        Args:
          infinities: whether infinities in the results are findings, also without a NaN.
        """
        super().__init__()
        self._launch = launch
        self._infinities = infinities
        self._records: dict[int, _UnitRecord] = {}
        self._found: list[ArithmeticReport] = []
        self._count = 0
        self._held = 0

    def findings(self) -> list[Finding]:
        """Return the confirmed findings so far, in the order in which they were first seen."""
        for made in sorted(self._results(infinities=self._infinities), key=min):
            self._confirm(made)
        reports = sorted(self._found, key=lambda r: r.number)
        return [one.finding() for one in reports]

    def evaluate(self, thread: Thread, step: ir.Compute, values: Sequence[Any]) -> Sequence[Any]:
        if step.unit is None:
            return step.evaluate(*values)
        outputs, suspicions = numerics.watch(step).run(values)
        made = self.facts_of(thread, step.inputs, values)
        if suspicions or made:
            self._suspected(thread, step, values, outputs, suspicions, made)
        return outputs

    def _suspected(
        self,
        thread: Thread,
        step: ir.Compute,
        values: Sequence[Any],
        outputs: Sequence[Any],
        suspicions: Sequence[numerics.Flag],
        made: Facts,
    ) -> None:
        """Check an evaluation at once, or hold it if its outputs contain NaNs.

        Args:
          made: occasions that produced the NaNs in `values`.
        """
        self._count += 1
        occasion = _Occasion(self._count, sighting(self._launch, thread), step, values)
        equations = [n for kind, n in suspicions if kind == "equation"]
        if equations:
            self._check(occasion, equations)
        if len(equations) < len(suspicions) and self._keeps(occasion):
            made |= {occasion}
        if made:
            self.follow(thread, made, outputs)

    def _keeps(self, occasion: _Occasion) -> bool:
        """Return whether there is room for an occasion's operands, counted while it exists."""
        size = sum(getattr(value, "nbytes", 8) for value in occasion.values)
        if self._held + size > MAX_HELD:
            return False
        self._held += size
        weakref.finalize(occasion, self._release, size)
        return True

    def _release(self, size: int) -> None:
        self._held -= size

    def _check(self, occasion: _Occasion, equations: Sequence[int]) -> None:
        """Report divisions of integers by zero."""
        record = self._record(occasion.step)
        known = {record.reports[n] for n in equations if n in record.reports}
        for report in known:
            report.count += 1
        new = [n for n in equations if n not in record.reports]
        if not new or not record.is_due():
            return
        fault = numeric_faults.division_by_zero(occasion.step.unit, occasion.values, record.reports)
        if fault is not None:
            self._report(occasion, fault)

    def _confirm(self, made: Facts) -> None:
        """Report the first explained occasion that produced a NaN from numbers."""
        for occasion in sorted(made):
            if not self._record(occasion.step).is_due():
                continue
            fault = numeric_faults.not_finite(occasion.step.unit, occasion.values)
            if fault is not None and (self._infinities or fault.makes_nan):
                self._report(occasion, fault)
                return

    def _report(self, occasion: _Occasion, fault: NumericFault) -> None:
        record = self._record(occasion.step)
        if fault.equation not in record.reports:
            unit = occasion.step.unit
            seen = occasion.seen.at(source=unit.sites[fault.equation].line)
            report = ArithmeticReport(occasion.number, seen, fault)
            record.reports[fault.equation] = report
            self._found.append(report)

    def _record(self, step: ir.Compute) -> _UnitRecord:
        return self._records.setdefault(id(step.unit), _UnitRecord())


class RepeatedArithmetic(MachineObserver):
    """Evaluates units as `NumbersObserver` does, without checking them.

    The results of both runs are compared bit by bit, and XLA may round differently in a program
    without the tests. Compiling one would also take longer than a short run.
    """

    evaluates = True

    def evaluate(self, thread: Thread, step: ir.Compute, values: Sequence[Any]) -> Sequence[Any]:
        if step.unit is None:
            return step.evaluate(*values)
        return numerics.watch(step).run(values)[0]
