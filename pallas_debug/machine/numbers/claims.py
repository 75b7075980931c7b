"""False claims of a kernel, and its random bits: hints, checks, seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs import units
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.findings.facts import number
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.hints import HintKind
from pallas_debug.findings.sighting import Sighting
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.sightings import sighting
from pallas_debug.machine.threads import ProgramFrame, Thread
from pallas_debug.model import Finding, Hint, SourceLine


class ClaimsObserver(MachineObserver):
    """Checks `pl.multiple_of`, `pl.debug_check` and `checkify.check`."""

    follows_loops = False

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._found: dict[tuple[int, int], tuple[Sighting, Fault, dict[str, Any]]] = {}

    def findings(self) -> list[Finding]:
        """Return the findings, one per line of code, in the order in which they were first seen."""
        return [seen.of(kind, **facts) for seen, kind, facts in self._found.values()]

    def multiple_of(self, thread: Thread, step: ir.MultipleOf, value: Any) -> None:
        given = np.asarray(value)
        for divisor in step.divisors:
            wrong = given[given % divisor != 0]
            if wrong.size:
                first = int(wrong.flat[0])
                self._note(
                    sighting(self._launch, thread, step),
                    (id(step), divisor),
                    Fault.FALSE_HINT,
                    value=first,
                    divisor=divisor,
                    of_pipeline=step.of_pipeline,
                )

    def checks(self, thread: Thread, step: ir.CheckStep, values: Sequence[Any]) -> None:
        message = step.message(values)
        if message is None:
            return
        seen = sighting(self._launch, thread, step)
        facts = {"message": message.removesuffix(" (`check` failed)")}
        compared = _compared(thread.frames[-1], step)
        if compared is not None:
            left, right = number(compared.left.item()), number(compared.right.item())
            false = {"condition": f"{left} {compared.sign} {right}"}
            if compared.element:
                false["element"] = str(list(compared.element))
            seen, facts = seen.with_values(false), facts | false
        self._note(seen, (id(step), 0), Fault.CHECK_FAILED, **facts)

    def _note(self, seen: Sighting, place: tuple[int, int], kind: Fault, **facts: Any) -> None:
        first, *_, facts = self._found.get(place, (replace(seen, count=0), kind, facts))
        self._found[place] = replace(first, count=first.count + 1), kind, facts


def _compared(frame: ProgramFrame, step: ir.CheckStep) -> units.FalseComparison | None:
    """Return the comparison that is false, if the condition is a comparison."""
    registers = frame.registers
    for failed in step.inputs:
        value = np.asarray(registers[failed.number])
        if value.dtype != bool or not value.any():
            continue
        for maker in frame.program.steps:
            if isinstance(maker, ir.Compute) and failed in maker.outputs:
                values = [registers[reg.number] for reg in maker.inputs]
                if any(value is None for value in values):
                    return None  # large values are dropped after their last use
                return units.false_comparison(maker, failed, values)
    return None


@dataclass(frozen=True, kw_only=True)
class _Seeding:
    """The last seeding of a core's generator.

    Attributes:
      drawn: number of 32-bit numbers drawn since.
    """

    line: SourceLine | None
    point: tuple[int, ...]
    numbers: tuple[int, ...]
    drawn: int = 0


@dataclass(kw_only=True)
class _Draws:
    """All draws of a step with the same coordinates on `vmap` axes.

    Attributes:
      state: state of the generator at the first draw: its seed, and how many 32-bit numbers
        were drawn since.
      is_same: whether the state was the same at each draw.
    """

    seen: Sighting
    state: tuple[tuple[int, ...], int]
    seeded: SourceLine | None
    is_same: bool = True
    count: int = 1


class RandomBitsObserver(MachineObserver):
    """Checks where and with what a kernel seeds its random number generator."""

    follows_loops = False

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._shared = [a for a in launch.axes if launch.parallel[a] and launch.grid[a] != 1]
        self._seeded: dict[int, _Seeding] = {}
        self._first: dict[int, _Seeding] = {}
        self._unseeded: dict[int, tuple[Sighting, int]] = {}
        self._seeded_elsewhere: dict[int, tuple[Sighting, _Seeding, tuple[int, ...]]] = {}
        self._draws: dict[tuple[int, int, tuple[int, ...]], _Draws] = {}

    def findings(self) -> list[Finding]:
        """Return the findings, one per line of code, in the order in which they were first seen."""
        found = [self._before_seeding(*noted) for noted in self._unseeded.values()]
        for seen, by, axes in self._seeded_elsewhere.values():
            finding = seen.at(other=by.line)
            dimension = " and ".join(map(str, axes))
            found.append(
                finding.of(
                    Fault.UNSEEDED_RANDOM_BITS,
                    seeded_at=by.point,
                    axes=dimension,
                    axis=axes[0],
                )
            )
        return found

    def hints(self) -> list[Hint]:
        """Return draws of the same bits at several grid points or iterations, one per line."""
        found: dict[int, Hint] = {}
        for (_, step, _), draws in self._draws.items():
            if draws.count > 1 and draws.is_same:
                found.setdefault(step, self._repeated(draws))
        return list(found.values())

    def _before_seeding(self, seen: Sighting, thread: int) -> Finding:
        later = self._first.get(thread)
        if later is None:
            return seen.of(Fault.UNSEEDED_RANDOM_BITS)
        return seen.at(other=later.line).of(Fault.UNSEEDED_RANDOM_BITS, later=str(later.point))

    def _repeated(self, draws: _Draws) -> Hint:
        seed = ", ".join(map(str, draws.state[0]))
        return Hint(
            kind=HintKind.SAME_RANDOM_BITS,
            kernel=self._launch.name,
            message=f"all {draws.count} draws return the same bits: the seed is {seed} each time",
            source=draws.seen.witness.source,
            other=draws.seeded,
            grid_point=draws.seen.witness.grid_point,
        )

    def seeds(self, thread: Thread, step: ir.Seed, numbers: Sequence[int]) -> None:
        made = _Seeding(line=step.site.line, point=thread.point, numbers=tuple(numbers))
        self._seeded[thread.number] = made
        self._first.setdefault(thread.number, made)

    def draws(self, thread: Thread, step: ir.RandomBits) -> None:
        seeded = self._seeded.get(thread.number)
        if seeded is None:
            first = sighting(self._launch, thread, step), thread.number
            noted, of = self._unseeded.setdefault(id(step), first)
            if noted is not first[0]:
                self._unseeded[id(step)] = replace(noted, count=noted.count + 1), of
            return
        self._seeded[thread.number] = replace(seeded, drawn=seeded.drawn + math.prod(step.shape))
        axes = [axis for axis in self._shared if seeded.point[axis] != thread.point[axis]]
        if axes:
            seen = sighting(self._launch, thread, step)
            self._seeded_elsewhere.setdefault(id(step), (seen, seeded, self._launch.numbers(axes)))
            return
        mapped = tuple(thread.point[axis] for axis in self._launch.mapped)
        state = seeded.numbers, seeded.drawn
        known = self._draws.get((thread.number, id(step), mapped))
        if known is None:
            self._draws[thread.number, id(step), mapped] = _Draws(
                seen=sighting(self._launch, thread, step), state=state, seeded=seeded.line
            )
            return
        known.count += 1
        known.is_same = known.is_same and known.state == state
