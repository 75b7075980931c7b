"""Trail of NaNs and infinities: from the operation that made one to the kernel's results.

A NaN that a kernel masks is no fault. So the facts about a NaN are held until a result contains it.
Only values passed to `follow` are followed, through values that contain a NaN or plus infinity:
minus infinity is a mask. As long as nothing is held, every method returns immediately.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine.copies import DmaCopy
from pallas_debug.machine.grid import Window
from pallas_debug.machine.memory import MemoryBuffer, MemoryRegion
from pallas_debug.machine.threads import Thread

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


@dataclass(eq=False)
class NanTrail:
    """Values that are held, and where they propagate.

    Attributes:
      is_active: whether anything is held.
    """

    is_active: bool = False
    _values: dict[int, _Values] = field(default_factory=dict)
    _buffers: dict[int, list[tuple[MemoryBuffer, Any, Facts]]] = field(default_factory=dict)

    def follow(self, thread: Thread, facts: Facts, outputs: Iterable[Any]) -> None:
        """Follow the NaNs in the outputs of a unit."""
        self.is_active = True
        if len(facts) > MAX_FACTS:
            facts = frozenset(sorted(facts)[:MAX_FACTS])
        for value in outputs:
            if holds_bad(value):
                self._of(thread).add(value, facts)

    def of(self, thread: Thread, registers: Sequence[ir.Reg], values: Sequence[Any]) -> Facts:
        """Return the facts about values."""
        if not self.is_active or thread.number not in self._values:
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
        if self.is_active:
            self._values.pop(thread.number, None)

    def loads(self, thread: Thread, reg: ir.Reg | None, region: MemoryRegion, value: Any) -> None:
        facts = self._in(region.buffer)
        if facts and reg is not None and holds_bad(value):
            known, frame = self._of(thread), thread.frames[-1]
            known.add(value, facts)
            # A scalar or a masked load puts another object in the register.
            known.by_register[id(frame), reg.number] = frame, facts

    def stores(self, thread: Thread, step: ir.StoreStep, region: MemoryRegion, value: Any) -> None:
        buffer = region.buffer
        if region.is_whole and step.mask is None:
            self._buffers.pop(buffer.number, None)
        register = thread.frames[-1].registers[step.value.number]
        facts = self.of(thread, [step.value], [register])
        if facts and holds_bad(value):
            self._add(buffer, region.index, facts)

    def moves(self, source: MemoryBuffer, target: MemoryBuffer, content: Any, index: Any) -> None:
        """Follow NaNs through a copy in memory."""
        facts = self._in(source)
        if facts and holds_bad(content):
            self._add(target, index, facts)

    def copy_ends(self, copy: DmaCopy) -> None:
        source, target = copy.source.buffer, copy.destination.buffer
        if source.number in self._buffers:
            self.moves(source, target, copy.source.read(), copy.destination.index)

    def fetches(self, window: Window) -> None:
        for slot in window.slots:
            self.moves(window.array, slot, slot.content, None)

    def writes_back(self, window: Window, block: tuple[int, ...]) -> None:
        if window.current.number in self._buffers:
            outer, inner = window.bounds(block)
            self.moves(window.current, window.array, window.current.content[inner], outer)

    def allocated(self, buffer: MemoryBuffer) -> None:
        self._buffers.pop(buffer.number, None)

    def results(self, *, infinities: bool) -> Iterator[Facts]:
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
