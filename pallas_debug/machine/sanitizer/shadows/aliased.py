"""Reads of inputs that the kernel has overwritten: of copies from arrays, and of blocks.

Copies from an array that is both input and output may read overwritten elements.

A kernel that reads back its own writes on purpose can use either reference: an in-place recurrence
is no fault. A copy from the input's reference that sees overwritten elements is reported if values
of the input go to the output, nothing had read the elements before they were overwritten, and

- its line copies elements that the call passed in at two or more other steps; a recurrence does so
  only at its first step, from its initial state; or
- the kernel only moves the input's values to the output, without computing anything from them.

A block of an input is fetched if its index changes. A line that scales it in place, at each of the
steps that keep it, scales what it has already scaled. That is reported if the numbers are floats,
nothing else goes into them, they change by more than rounding, as normalised rows do, and values of
the block are stored elsewhere at both steps: an input may also hold a state, or be changed once for
all steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.findings.wording import writers
from pallas_debug.machine.copies import DmaCopy
from pallas_debug.machine.memory import MemoryBuffer, MemoryRegion
from pallas_debug.machine.sanitizer.report import access_of, sighting_of
from pallas_debug.machine.sanitizer.shadows import reach, shadow
from pallas_debug.machine.sanitizer.shadows.flow import ValueFlow
from pallas_debug.machine.sanitizer.shadows.shadow import (
    BufferShadow,
    Mask,
    WriteChange,
    WriteRecord,
)
from pallas_debug.machine.threads import Thread
from pallas_debug.model import Finding

if TYPE_CHECKING:
    from pallas_debug.machine.sanitizer.shadows.tracking import MemoryTracker

ROUNDING = {1: 2.0**-2, 2: 2.0**-5}
"""Maximum change by rounding, relative to the largest element, of floats of one or two bytes."""


def shared_by(launch: Launch) -> dict[str, str]:
    """Names of the outputs that share memory with inputs, by the names of these."""
    given = [operand for operand in launch.operands if operand.kind in ("prefetch", "input")]
    return {
        given[operand.alias].name: operand.name
        for operand in launch.operands
        if operand.kind == "output" and operand.alias is not None
    }


@dataclass(eq=False, slots=True)
class OverwrittenCopy:
    """A copy that reads overwritten elements.

    Attributes:
      mask: overwritten elements of the array whose values differ from those passed in.
      numbers: numbers of the writes that overwrote them, in the array's shape.
      total: number of copied elements.
      value, before: value of the first element, now and as passed in.
    """

    copy: DmaCopy
    output: str
    mask: Mask
    numbers: Any
    total: int
    writer: WriteRecord
    element: tuple[int, ...]
    value: Any
    before: Any


_Place = tuple[int, tuple[int, ...], tuple[int, ...]]
"""Thread, grid point and loop iterations."""


@dataclass(eq=False, slots=True)
class _CopySite:
    """A line that starts copies from an aliased array.

    Attributes:
      given: steps at which it copied elements that the call passed in.
      is_move: whether the kernel computes nothing from the copied values.
      first: first copy of elements that were overwritten before being read.
    """

    is_move: bool
    given: set[_Place] = field(default_factory=set)
    first: OverwrittenCopy | None = None


class AliasedCopies:
    """Copies from aliased arrays so far, by the step that starts them."""

    def __init__(self, flow: ValueFlow) -> None:
        self._flow = flow
        self._sites: dict[int, _CopySite] = {}

    def reads(
        self, copy: DmaCopy, found: BufferShadow, output: str, given: Any, read: Mask,
        writes: Mapping[int, WriteRecord],
    ) -> None:  # fmt: skip
        """Record a copy from an aliased array.

        Args:
          output: name of the output that shares the array.
          given: contents of the array as passed in.
          read: elements that were read before they were overwritten.
          writes: writes by number.
        """
        buffer = copy.source.buffer
        if not self._is_in_place(copy, buffer.name, output):
            return
        site = self._sites.get(id(copy.step))
        if site is None:
            site = self._sites[id(copy.step)] = _CopySite(self._flow.is_moved(buffer.name))
        copied = found.where(copy.source)
        numbers = np.asarray(found.whole if found.numbers is None else found.numbers)
        is_written = copied & (numbers > shadow.GIVEN)
        if (copied & ~is_written).any():
            site.given.add((copy.thread, copy.point, copy.iterations))
        if site.first is not None:
            return
        mask = is_written & shadow.differing(buffer.content, given)
        places = mask & ~read
        if not places.any():
            return
        element = shadow.first_in(places)
        writer = writes.get(int(np.broadcast_to(numbers, places.shape)[element]))
        if writer is None or (writer.point, writer.iterations) == (copy.point, copy.iterations):
            return
        site.first = OverwrittenCopy(
            copy, output, mask, np.where(mask, numbers, 0), int(copied.sum()), writer, element,
            buffer.content[element].item(), given[element].item(),
        )  # fmt: skip

    def _is_in_place(self, copy: DmaCopy, name: str, output: str) -> bool:
        """Return whether a DMA reads through the input's ref, and its values reach the output."""
        sources = self._flow.copied.get(id(copy.step), frozenset())
        return sources == {name} and output in self._flow.reached(name)

    def overwritten(self) -> list[OverwrittenCopy]:
        """Return the first faulty copy of each line, once the run has ended."""
        return [
            site.first
            for site in self._sites.values()
            if site.first is not None and (site.is_move or len(site.given) > 1)
        ]


@dataclass(frozen=True, eq=False, slots=True)
class ChangedInput:
    """A change of an input's block by a line that has changed it before."""

    step: ir.StoreStep
    buffer: MemoryBuffer
    point: tuple[int, ...]
    iterations: tuple[int, ...]
    moment: int
    change: WriteChange
    writer: WriteRecord


class ChangedInputs:
    """Lines that change the block of an input again, at another step."""

    def __init__(self) -> None:
        self._found: dict[int, ChangedInput] = {}
        self._used: dict[int, set[int]] = {}

    def stores(
        self, run: MemoryTracker, thread: Thread, step: ir.MachineStep, region: MemoryRegion,
        value: Any,
    ) -> None:  # fmt: skip
        """Handle a store that is about to be executed."""
        buffer = region.buffer
        found = run.shadows.get(buffer.number)
        if not isinstance(step, ir.StoreStep):
            return
        moment = run.threads[thread.number].moment
        if found is None or found.operand != "input":
            if self._used:
                for source in reach.sources(thread.frames, step.value.number):
                    if source.number in self._used:
                        self._used[source.number].add(moment)
            return
        self._used.setdefault(buffer.number, set())
        if step.mask is not None or step.adds or buffer.content.dtype.kind in "biu":
            return
        if id(step) in self._found or found.least(region) <= shadow.GIVEN:
            return
        change = shadow.change_of(region, np.asarray(value))
        if change is None or set(reach.sources(thread.frames, step.value.number)) != {buffer}:
            return
        if _is_rounding(region.read(), np.asarray(value)):
            return
        numbers = found.whole if found.numbers is None else found.numbers[change.element]
        writer = run.writes.get(int(numbers))
        if writer is not None and writer.step is step and writer.moment < moment:
            self._found[id(step)] = ChangedInput(
                step, buffer, thread.point, thread.iterations, moment, change, writer
            )

    def faults(self) -> Iterator[ChangedInput]:
        """Yield the first such change of each line, once the run has ended."""
        for found in self._found.values():
            if {found.writer.moment, found.moment} <= self._used[found.buffer.number]:
                yield found


def _is_rounding(old: np.ndarray, new: np.ndarray) -> bool:
    """Return whether values change by no more than if they are normalised twice."""
    tolerance = ROUNDING.get(old.dtype.itemsize, 1e-4)
    wide = np.nan_to_num(old.astype(np.float64))
    difference = np.abs(np.nan_to_num(new.astype(np.float64)) - wide)
    return bool((difference <= tolerance * np.abs(wide).max(initial=0.0)).all())


def changed_input(launch: Launch, found: ChangedInput) -> Finding:
    """Report that a line changes the block of an input again."""
    writer = found.writer
    return writers.input_changed_again(
        sighting_of(launch, found, operand=found.buffer.name, other=writer.step.site.line),
        reader=access_of(found, writes=False),
        writer=access_of(writer),
        element=found.change.written,
    )
