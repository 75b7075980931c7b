"""Copies from an array that is an input and an output: which read what they should not see.

A kernel that means to read what it wrote can do so by either reference: a recurrence in place is no
fault. A copy from the reference of the input that sees overwritten elements is reported if values
of the input go to the output, nothing had read the elements before they were overwritten, and

- its line copies elements that the call passed in at two or more other steps; a recurrence does so
  at its first step, from its initial state; or
- the kernel moves the input's values to the output, and computes nothing from them.
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
      mask: these elements of the array, with other values than those passed in.
      numbers: of the writes that overwrote them, in the array's shape.
      total: number of elements that are copied.
      value, before: of the first element, now and as it was passed in.
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
"""A thread, its grid point and its loop iterations."""


@dataclass(eq=False, slots=True)
class _CopySite:
    """A line that starts copies from an aliased array.

    Attributes:
      given: steps at which it has copied elements that the call passed in.
      is_move: whether the kernel computes nothing from what it copies.
      first: its first copy of elements that were overwritten unread.
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
        """A copy from an aliased array is performed.

        Args:
          output: name of the output that shares the array.
          given: contents of the array that the call passed in.
          read: elements that have been read before they were overwritten.
          writes: by number.
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
        element = tuple(int(i) for i in np.unravel_index(int(places.argmax()), places.shape))
        writer = writes.get(int(np.broadcast_to(numbers, places.shape)[element]))
        if writer is None or (writer.point, writer.iterations) == (copy.point, copy.iterations):
            return
        site.first = OverwrittenCopy(
            copy, output, mask, np.where(mask, numbers, 0), int(copied.sum()), writer, element,
            buffer.content[element].item(), given[element].item(),
        )  # fmt: skip

    def _is_in_place(self, copy: DmaCopy, name: str, output: str) -> bool:
        """Whether a DMA reads through the input's reference and its values reach the output."""
        sources = self._flow.copied.get(id(copy.step), frozenset())
        return sources == {name} and output in self._flow.reached(name)

    def overwritten(self) -> list[OverwrittenCopy]:
        """The first copy of each line that is a fault, once the run is over."""
        return [
            site.first
            for site in self._sites.values()
            if site.first is not None and (site.is_move or len(site.given) > 1)
        ]
