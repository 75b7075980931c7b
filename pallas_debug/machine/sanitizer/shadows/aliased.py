"""Copies from an array that is both input and output, and that read overwritten elements.

A kernel that reads back its own writes on purpose can use either reference: an in-place recurrence
is no fault. A copy from the input's reference that sees overwritten elements is reported if values
of the input go to the output, nothing had read the elements before they were overwritten, and

- its line copies elements that the call passed in at two or more other steps; a recurrence does so
  only at its first step, from its initial state; or
- the kernel only moves the input's values to the output, without computing anything from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pallas_debug.machine.copies import DmaCopy
from pallas_debug.machine.sanitizer.shadows import shadow
from pallas_debug.machine.sanitizer.shadows.flow import ValueFlow
from pallas_debug.machine.sanitizer.shadows.shadow import BufferShadow, Mask, WriteRecord


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
        """Whether a DMA reads through the input's reference, and its values reach the output."""
        sources = self._flow.copied.get(id(copy.step), frozenset())
        return sources == {name} and output in self._flow.reached(name)

    def overwritten(self) -> list[OverwrittenCopy]:
        """Return the first faulty copy of each line, once the run has ended."""
        return [
            site.first
            for site in self._sites.values()
            if site.first is not None and (site.is_move or len(site.given) > 1)
        ]
