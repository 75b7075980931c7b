"""Our estimate on the assumptions of libtpu's own, which differ from those of `stats`.

As observed with libtpu 0.0.42: what a kernel reads is 0, so are remainders and what is not
evaluated; a number passed in a register is 42; every copy has all of the bandwidth, and a wait ends
when all copies of its flag have ended; empty bundles take no time.
"""

from __future__ import annotations

from dataclasses import replace

from pallas_debug.profile.core import scalars
from pallas_debug.profile.core.copies import CopyModel, copy_model
from pallas_debug.profile.core.decode import DecodedBundle, DecodedWait, decode
from pallas_debug.profile.core.given import GivenScalars
from pallas_debug.profile.core.memory import ScalarMemory
from pallas_debug.profile.core.scalars import Address, DecodedScalar, Scalar
from pallas_debug.profile.core.walk import BUDGET, PendingCopy, ScheduleWalk, Walk, _running
from pallas_debug.profile.schedule import Schedule


def as_libtpu(schedule: Schedule) -> float | None:
    """Return the cycles; None if the walk does not end or a trip count is unknown."""
    found = walk_as_libtpu(schedule)
    return round(found.cycles) if found.is_complete and not found.unknown_loops else None


def walk_as_libtpu(schedule: Schedule, model: CopyModel | None = None) -> Walk:
    return _Walker(schedule, _FullSpeed(**vars(model or copy_model(schedule.chip)[0]))).run()


class _FullSpeed(CopyModel):
    def shared(self, direction: str, size: int) -> dict[str, float]:
        return {}


class _Zeros(ScalarMemory):
    """Memory that keeps stored words after a copy, and is 0 elsewhere."""

    def load(self, place: Address | None) -> Scalar:
        found = super().load(place)
        return 0 if found is None else found

    def copy(self, bundle: int, destination: Scalar) -> None:
        """Copy nothing."""


class _Walker(ScheduleWalk):
    def __init__(self, schedule: Schedule, model: CopyModel) -> None:
        decoded = [_assumed(bundle) for bundle in decode(schedule)]
        super().__init__(schedule, model, "enter", None, BUDGET, decoded, GivenScalars())
        self._cost = [
            bool(bundle.instructions) + delay
            for bundle, delay in zip(schedule.bundles, schedule.delays, strict=True)
        ]
        self._before = [0, *_running(self._cost)]
        self._memory = _Zeros({})
        by_value = sum(
            i.opcode.startswith("inlined_call_operand") and scalars.is_by_value(i)
            for bundle in schedule.bundles[:1]
            for i in bundle.instructions
        )
        self._time = by_value * model.time("hbm_to_vmem", 0)[0]  # XLA loads them first

    def _holds(self, predicate: tuple[str, bool] | None) -> bool | None:
        found = super()._holds(predicate)
        if found is None and predicate is not None and not predicate[1]:
            return False if self._registers.get(predicate[0]) is None else None
        return found

    def _queue(self, flag: Address | None, direction: str, copy: PendingCopy) -> None:
        before = sum(size for _, size, _ in self._pending.pop(flag, []))
        more = self._model.time(direction, before * self._model.granule)[1]
        super()._queue(flag, direction, (copy[0] + more, before + copy[1], copy[2]))

    def _wait(self, at: int, wait: DecodedWait) -> None:
        flag, wanted = self._value(wait.flag), self._value(wait.amount)
        runs = self._holds(wait.predicate)
        queue = self._pending.get(flag if isinstance(flag, tuple) else None, [])
        before = sum(size for _, size, _ in queue)
        super()._wait(at, wait)
        taken = before - sum(size for _, size, _ in queue)
        if runs is not False and isinstance(wanted, int) and taken > wanted:
            queue.append((self._time, taken - wanted, at))


def _assumed(bundle: DecodedBundle) -> DecodedBundle:
    assumed = [_constant(scalar) for scalar in bundle.scalars]
    return replace(bundle, scalars=type(bundle.scalars)(assumed))


def _constant(scalar: DecodedScalar) -> DecodedScalar:
    values = {None: 0, scalars._unsigned_minimum: 0, scalars._unknown: 42}
    if scalar.function not in values:
        return scalar
    value = values[scalar.function]
    return replace(scalar, function=lambda: value, arguments=())
