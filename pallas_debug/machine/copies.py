"""DMAs: events with a start, a finish and a number of bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine.memory import MemoryBuffer, MemoryRegion


class SizesDiffer(Exception):
    """A copy whose source and destination have different numbers of elements."""

    def __init__(self, source: MemoryRegion, destination: MemoryRegion) -> None:
        super().__init__(f"a copy of {list(source.shape)} elements to {list(destination.shape)}")
        self.source = source
        self.destination = destination


@dataclass(frozen=True, slots=True)
class Counter:
    """An entry of a semaphore array."""

    buffer: MemoryBuffer
    entry: tuple[Any, ...]

    def __str__(self) -> str:
        entry = f"[{', '.join(map(str, self.entry))}]" if self.entry else ""
        return f"{self.buffer.name}{entry}"

    @property
    def count(self) -> int:
        return int(self.buffer.content[self.entry])

    def add(self, amount: int) -> None:
        self.buffer.content[self.entry] += amount

    def is_same(self, other: Counter) -> bool:
        return self.buffer is other.buffer and self.entry == other.entry


@dataclass(eq=False, slots=True)
class DmaCopy:
    """A DMA.

    Attributes:
      thread: number of the thread that started it, at `point` and `iterations`.
      nbytes: number of bytes copied.
      was_seen: whether one of its semaphores was read while it was in flight.
    """

    number: int
    step: ir.CopyStart
    thread: int
    point: tuple[int, ...]
    iterations: tuple[int, ...]
    source: MemoryRegion
    destination: MemoryRegion
    received: Counter
    sent: Counter | None
    nbytes: int
    adds: bool
    is_done: bool = False
    was_seen: bool = False

    def signals(self, counter: Counter) -> bool:
        """Return whether the DMA raises a semaphore when it is done."""
        return self.received.is_same(counter) or (
            self.sent is not None and self.sent.is_same(counter)
        )

    def amount(self, counter: Counter) -> int:
        """Amount that the DMA adds to a semaphore: its bytes, or 1 if bytes are not counted."""
        return self.nbytes if counter.buffer.type.semaphore == "dma" else 1

    def perform(self) -> None:
        value = self.source.read()
        if self.adds:
            before = self.destination.read()
            value = value.reshape(before.shape)
            if any(isinstance(entry, np.ndarray) for entry in self.destination.index or ()):
                value = self.destination.sums(value)
            else:
                value = np.asarray(before + value).astype(before.dtype)
        if self.destination.index is not None:
            value = value.reshape(self.destination.shape)
        self.destination.write(value)
        for counter in (self.received, self.sent):
            if counter is not None:
                counter.add(self.amount(counter))
        self.is_done = True
