"""Copies from an array that is an input and an output: which read what they should not see.

A kernel that means to read what it wrote can do so by the reference of the output. A copy from the
reference of the input that sees overwritten elements is a fault if values of the input go to the
output, so that the kernel works in place, and

- the elements had not been read before they were overwritten, or
- elements that the call passed in are copied from there at the same grid point and iterations, what
  the copy sees is the final result, and its line does not see all of the result: then it is no
  second pass over the array.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_debug.machine.copies import DmaCopy
from pallas_debug.machine.memory import MemoryBuffer
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
      was_unread: whether an element had not been read before.
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
    was_unread: bool


@dataclass(eq=False, slots=True)
class _CopySite:
    """A line that starts copies from an aliased array.

    Attributes:
      seen: overwritten elements that it has copied.
    """

    buffer: MemoryBuffer
    seen: Mask
    first: OverwrittenCopy | None = None


_Place = tuple[int, int, tuple[int, ...], tuple[int, ...]]


def _place(copy: DmaCopy) -> _Place:
    """Where a copy was started, and from which array."""
    return copy.source.buffer.number, copy.thread, copy.point, copy.iterations


class AliasedCopies:
    """Copies from aliased arrays so far, by the step that starts them."""

    def __init__(self, flow: ValueFlow) -> None:
        self._flow = flow
        self._sites: dict[int, _CopySite] = {}
        self._sees_given: set[_Place] = set()

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
            seen = np.zeros(buffer.content.shape, bool)
            site = self._sites[id(copy.step)] = _CopySite(buffer, seen)
        copied = found.where(copy.source)
        numbers = np.asarray(found.whole if found.numbers is None else found.numbers)
        is_written = copied & (numbers > shadow.GIVEN)
        if (copied & ~is_written).any():
            self._sees_given.add(_place(copy))
        site.seen |= is_written
        mask = is_written & shadow.differing(buffer.content, given)
        unread = mask & ~read
        was_unread = bool(unread.any())
        if site.first is not None and (site.first.was_unread or not was_unread):
            return
        places = unread if was_unread else mask
        if not places.any():
            return
        element = tuple(int(i) for i in np.unravel_index(int(places.argmax()), places.shape))
        writer = writes.get(int(np.broadcast_to(numbers, places.shape)[element]))
        if writer is None or (writer.point, writer.iterations) == (copy.point, copy.iterations):
            return
        site.first = OverwrittenCopy(
            copy, output, mask, np.where(mask, numbers, 0), int(copied.sum()), writer, element,
            buffer.content[element].item(), given[element].item(), was_unread,
        )  # fmt: skip

    def _is_in_place(self, copy: DmaCopy, name: str, output: str) -> bool:
        """Whether a DMA reads through the input's reference and its values reach the output."""
        sources = self._flow.copied.get(id(copy.step), frozenset())
        return sources == {name} and output in self._flow.reached(name)

    def overwritten(self, shadows: Mapping[int, BufferShadow]) -> list[OverwrittenCopy]:
        """The first copy of each line that is a fault, once the run is over."""
        return [
            site.first
            for site in self._sites.values()
            if site.first is not None
            and (site.first.was_unread or self._sees_part(site, site.first, shadows))
        ]

    def _sees_part(
        self, site: _CopySite, first: OverwrittenCopy, shadows: Mapping[int, BufferShadow]
    ) -> bool:
        """Whether a line reads input elements and some, but not all, of those written last."""
        found = shadows.get(site.buffer.number)
        if found is None or _place(first.copy) not in self._sees_given:
            return False
        numbers = np.asarray(found.whole if found.numbers is None else found.numbers)
        is_final = not (first.mask & (numbers != first.numbers)).any()
        return is_final and bool(((numbers > shadow.GIVEN) & ~site.seen).any())
