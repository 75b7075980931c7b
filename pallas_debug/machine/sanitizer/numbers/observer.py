"""Faults in arithmetic: NaNs, infinities, integer overflow, lossy casts and sums.

Units are evaluated together with cheap tests (`bridge.programs.arithmetic`). A test that fires is
only a suspicion, and `numeric_faults.explain` decides. That is slow, so a unit whose suspicions are
never confirmed is explained less and less often. NaNs and infinities are reported if a result
contains them (`nan_trail`); sums in 16-bit floats are compared with float32 sums (`sums`).
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pallas_debug.bridge.hosted.watch import WatchedPoints
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.arithmetic import (
    numeric_faults,
    numerics,
    rounded_integers,
    wrapping,
)
from pallas_debug.bridge.programs.arithmetic.numeric_faults import NumericFault
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.findings.sighting import Sighting
from pallas_debug.findings.wording import contents
from pallas_debug.findings.wording import numbers as wording
from pallas_debug.findings.wording.facts import number
from pallas_debug.machine.copies import DmaCopy
from pallas_debug.machine.grid import Window
from pallas_debug.machine.memory import MemoryBuffer, MemoryRegion
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.sanitizer.numbers.decisions import Decision, DecisionLedger, Rerun
from pallas_debug.machine.sanitizer.numbers.nan_trail import Facts, NanTrail
from pallas_debug.machine.sanitizer.numbers.repeated import RepeatedArithmetic
from pallas_debug.machine.sanitizer.numbers.sums import SumLoss, SumShadows
from pallas_debug.machine.sanitizer.report import sighting
from pallas_debug.machine.threads import Thread
from pallas_debug.model import Finding

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
class SumReport:
    """A sum in memory that lost too much precision, where that was first seen.

    Attributes:
      number: number of the event in the run.
    """

    number: int
    seen: Sighting
    loss: SumLoss

    def finding(self) -> Finding:
        return wording.precision_loss(
            self.seen,
            operation="add",
            dtype=self.loss.dtype,
            result=self.loss.result,
            exact=self.loss.exact,
            largest=self.loss.largest,
            bound=numerics.SUM_BOUND,
            element=self.loss.element,
        )


@dataclass(eq=False)
class ArithmeticReport:
    """An arithmetic fault, where it was first seen.

    Attributes:
      number: number of the event in the run.
      decides: comparison with the NaN that affects results, if no result contains the NaN.
    """

    number: int
    seen: Sighting
    fault: NumericFault
    count: int = 1
    decides: str | None = None

    def finding(self) -> Finding:
        fault, seen = self.fault, replace(self.seen, count=self.count)
        facts = {"element": str(list(fault.element))} if fault.element else {}
        facts |= {f"operand {i}": number(value) for i, value in enumerate(fault.values)}
        if not fault.values:
            for i, (least, greatest) in enumerate(fault.ranges):
                facts[f"operand {i}"] = f"{number(least)} to {number(greatest)}"
        return _worded(
            seen.at(shape=fault.result_type).with_values(facts),
            fault,
            self.decides,
        )


def _worded(seen: Sighting, fault: NumericFault, decides: str | None) -> Finding:
    element = fault.element or None
    dtype = fault.result_type.partition("[")[0]
    if fault.trouble in ("nan", "infinity"):
        facts: dict[str, Any] = {
            "operation": fault.operation,
            "values": fault.values,
            "operands": fault.operands,
            "ranges": fault.ranges,
            "element": element,
        }
        if fault.trouble == "infinity":
            return contents.infinity_produced(seen, decides=decides, **facts)
        return contents.nan_produced(seen, decides=decides, **facts)
    if fault.trouble == "division":
        return wording.division_by_zero(
            seen,
            is_float=False,
            is_remainder=fault.operation == "rem",
            dividend=fault.values[0] if fault.values else None,
            divisor=fault.operands[1],
            element=element,
        )
    if fault.trouble == "overflow":
        assert fault.exact is not None
        return wording.integer_overflow(
            seen,
            operation=fault.operation,
            dtype=dtype,
            values=[int(value) for value in fault.values],
            exact=int(fault.exact),
            result=int(fault.result),
            element=fault.element,
            terms=fault.terms,
        )
    if isinstance(fault, rounded_integers.RoundedInteger):
        return wording.rounded_integer(
            seen.at(other=fault.used),
            source=fault.operands[0].partition("[")[0],
            target=dtype,
            value=int(fault.values[0]),
            result=fault.result,
            element=fault.element,
            operation=fault.operation,
        )
    if fault.trouble == "narrowing":
        return wording.narrowing_loss(
            seen,
            source=fault.operands[0].partition("[")[0],
            target=dtype,
            value=fault.values[0],
            result=fault.result,
            element=fault.element,
        )
    assert fault.exact is not None
    if fault.trouble == "rounding":
        return wording.low_precision_integers(
            seen,
            result=fault.result,
            exact=fault.exact,
            element=fault.element,
            count=fault.count,
            operands=fault.operands,
            ranges=fault.ranges,
        )
    assert fault.largest is not None
    return wording.precision_loss(
        seen,
        operation=fault.operation,
        dtype=dtype,
        result=float(fault.result),
        exact=float(fault.exact),
        largest=fault.largest,
        bound=numerics.SUM_BOUND,
        element=fault.element,
        terms=fault.terms,
    )


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


class NumbersObserver(MachineObserver):
    """Checks the arithmetic of a kernel."""

    evaluates = True

    def __init__(
        self, launch: Launch, watched: WatchedPoints | None = None, *, rerun: Rerun | None = None
    ) -> None:
        """Search the kernel for sums.

        Args:
          watched: grid points whose arithmetic is checked; None for all.
          rerun: runs the kernel again; without it, comparisons with NaN are not judged.
        """
        self._decisions = None if rerun is None else DecisionLedger(rerun)
        self._launch = launch
        self._watched = watched
        self._trail = NanTrail()
        self._sums = SumShadows()
        for program in launch.body.all():
            self._sums.search(program)
            wrapping.find_bits(program)
        self._records: dict[int, _UnitRecord] = {}
        self._found: list[ArithmeticReport | SumReport] = []
        self._count = 0
        self._held = 0

    def findings(self) -> list[Finding]:
        """Return the confirmed findings so far, in the order in which they were first seen."""
        for made in sorted(self._trail.results(), key=min):
            self._confirm(made)
        for decision in () if self._decisions is None else self._decisions.that_matter():
            self._decided(decision)
        return [report.finding() for report in sorted(self._found, key=lambda r: r.number)]

    def repeated(self) -> RepeatedArithmetic:
        """Return an observer that evaluates a further run in the same way."""
        return RepeatedArithmetic(self._watched)

    def evaluate(self, thread: Thread, step: ir.Compute, values: Sequence[Any]) -> Sequence[Any]:
        if step.unit is None or not self._watches(thread):
            return step.evaluate(*values)
        outputs, suspicions = numerics.watch(step).run(values)
        made: Facts = frozenset()
        if self._trail.is_active:
            made = self._trail.of(thread, step.inputs, values)
        if suspicions or made:
            self._suspected(thread, step, values, outputs, suspicions, made)
        if self._sums.is_active:
            self._sums.evaluated(thread, step, values)
        return outputs

    def _watches(self, thread: Thread) -> bool:
        return self._watched is None or thread.point in self._watched

    def _suspected(
        self,
        thread: Thread,
        step: ir.Compute,
        values: Sequence[Any],
        outputs: Sequence[Any],
        suspicions: Sequence[numerics.Flag],
        made: Facts,
    ) -> None:
        """Judge an evaluation at once, or hold it if its outputs contain NaNs.

        Args:
          made: occasions that produced the NaNs in `values`.
        """
        self._count += 1
        occasion = _Occasion(self._count, sighting(self._launch, thread), step, values)
        equations = [n for kind, n in suspicions if kind == "equation"]
        if equations:
            self._judge(occasion, equations, made)
        compared = [n for kind, n in suspicions if kind == "comparison"]
        if compared and self._decisions is not None:
            self._decisions.note(occasion, step, values, compared, made)
        ties = [n for kind, n in suspicions if kind == "tie"]
        if ties and self._decisions is not None:
            self._decisions.note_ties(occasion, step, values, ties)
        if len(equations) + len(compared) + len(ties) < len(suspicions) and self._keeps(occasion):
            made |= {occasion}
        if made:
            self._trail.follow(thread, made, outputs)

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

    def _judge(self, occasion: _Occasion, equations: Sequence[int], made: Facts) -> None:
        """Report faults of integers, casts and sums."""
        record = self._record(occasion.step)
        known = {record.reports[n] for n in equations if n in record.reports}
        for report in known:
            report.count += 1
        new = [n for n in equations if n not in record.reports]
        if not new or not record.is_due():
            return
        fault = _explained(occasion, "integers", record.reports)
        if fault is None:
            return
        if fault.trouble == "narrowing" and not np.isfinite(fault.values[0]) and made:
            self._consequences(record, new, self._confirm(made))
        elif fault.trouble in ("nan", "infinity"):
            self._consequences(record, new, self._report(occasion, fault))
        else:
            self._report(occasion, fault)

    @staticmethod
    def _consequences(
        record: _UnitRecord, equations: Sequence[int], cause: ArithmeticReport | None
    ) -> None:
        """Record casts of a NaN as further sightings of the operation that produced it."""
        if cause is not None:
            record.reports.update(dict.fromkeys(equations, cause))

    def _confirm(self, made: Facts) -> ArithmeticReport | None:
        """Report the first explained occasion that produced a NaN from numbers."""
        for occasion in sorted(made):
            record = self._record(occasion.step)
            if record.is_due():
                fault = _explained(occasion, "nans")
                if fault is not None:
                    return self._report(occasion, fault)
        return None

    def _decided(self, decision: Decision) -> None:
        """Report a NaN that decides a comparison, unless it has been reported."""
        known = len(self._found)
        if decision.fault is not None:
            report: ArithmeticReport | None = self._report(decision.occasion, decision.fault)
        else:
            report = self._confirm(decision.made)
        if report is not None and len(self._found) > known:
            site = decision.step.unit.sites[decision.equation]
            report.decides = decision.sign
            report.seen = report.seen.at(other=site.line)

    def _report(self, occasion: _Occasion, fault: NumericFault) -> ArithmeticReport:
        record = self._record(occasion.step)
        if fault.equation not in record.reports:
            site = occasion.step.unit.sites[fault.equation]
            seen = occasion.seen.at(source=site.line)
            record.reports[fault.equation] = ArithmeticReport(occasion.number, seen, fault)
            self._found.append(record.reports[fault.equation])
        return record.reports[fault.equation]

    def _record(self, step: ir.Compute) -> _UnitRecord:
        return self._records.setdefault(id(step.unit), _UnitRecord())

    # Propagation of followed values

    def point_begins(self, thread: Thread) -> None:
        self._trail.point_begins(thread)

    def loads(self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any) -> None:
        if self._trail.is_active:
            self._trail.loads(thread, getattr(step, "output", None), region, value)
        if self._sums.is_active:
            self._sums.loads(thread, step, region)

    def stores(
        self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any
    ) -> None:
        if not isinstance(step, ir.StoreStep):
            return
        if self._trail.is_active:
            self._trail.stores(thread, step, region, value)
        if self._sums.is_active and not self._watches(thread):
            self._sums.forget(region.buffer)
        elif self._sums.is_active:
            loss = self._sums.stores(thread, step, region, value)
            if loss is not None:
                seen = sighting(self._launch, thread, step, operand=region.buffer.name)
                self._count += 1
                self._found.append(SumReport(self._count, seen, loss))

    def copy_ends(self, copy: DmaCopy) -> None:
        if self._trail.is_active:
            self._trail.copy_ends(copy)
        self._sums.forget(copy.destination.buffer)

    def fetches(self, thread: Thread, window: Window, block: tuple[int, ...]) -> None:
        if self._trail.is_active:
            self._trail.fetches(window)

    def writes_back(self, thread: Thread, window: Window, block: tuple[int, ...]) -> None:
        if self._trail.is_active:
            self._trail.writes_back(window, block)

    def allocated(self, buffer: MemoryBuffer, thread: Thread | None) -> None:
        self._trail.allocated(buffer)
        self._sums.forget(buffer)


def _explained(
    occasion: _Occasion, kind: numeric_faults.Kind, but: Collection[int] = ()
) -> NumericFault | None:
    given = occasion.step.unit, occasion.values
    fault = numeric_faults.explain(*given, kind=kind, but=but)
    if fault is not None or kind != "integers":
        return fault
    return rounded_integers.explain(*given, but=but)
