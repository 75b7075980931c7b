"""The pipeline: which blocks are in VMEM at which grid point, as Pallas moves them.

A block that the next grid point needs is fetched while the current one runs; an output block is
written back after the last of the consecutive grid points that visit it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pallas_debug.bridge.programs.launch import LaunchOperand, OperandBlock
from pallas_debug.machine.memory import Indexed, MemoryBuffer, Ref
from pallas_debug.machine.threads import ProgramFrame
from pallas_debug.profile.blocks import grid_point
from pallas_debug.stepping import unwritten

if TYPE_CHECKING:
    from pallas_debug.machine.machine import Machine
    from pallas_debug.machine.threads import Thread


BlockBounds = tuple[tuple[slice, ...], tuple[slice, ...]]

MAX_BOUNDS = 64
"""Maximum number of blocks per operand whose bounds are kept: a step asks several times."""


class BlockOutOfBounds(Exception):
    """An index map returns a block that the array does not have."""

    def __init__(self, window: Window, block: tuple[int, ...]) -> None:
        super().__init__(
            f"the index map of {window.operand.name} returns block {block}, which is outside "
            f"its array, {window.operand.type.dtype}{list(window.array.content.shape)}"
        )
        self.window = window
        self.block = block


@dataclass(eq=False, slots=True)
class Window:
    """An operand that the kernel accesses block by block.

    Attributes:
      array: the whole array.
      slots: buffers for one block each, used in turn.
      slot: number of the slot in use.
      block: indices of the block in `slot`; None before the first.
      next_block: indices of the prefetched block.
      failed: frame of an index map that returned a nonexistent block.
      filled: number of the most recently fetched slot.
      is_pointer: whether a block is an address, as on a GPU: only what is accessed has to exist.
    """

    operand: LaunchOperand
    array: MemoryBuffer
    slots: list[MemoryBuffer]
    slot: int = 0
    block: tuple[int, ...] | None = None
    next_block: tuple[int, ...] | None = None
    failed: ProgramFrame | None = None
    filled: int = 0
    spec: OperandBlock = field(init=False)
    is_pointer: bool = field(init=False)
    _known: dict[tuple[int, ...], BlockBounds] = field(default_factory=dict, init=False)
    _unwritten: np.ndarray[Any, Any] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        assert self.operand.block is not None
        self.spec = self.operand.block
        self.is_pointer = self.array.type.space == "gmem"

    @property
    def current(self) -> MemoryBuffer:
        return self.slots[self.slot]

    def bounds(self, block: tuple[int, ...]) -> BlockBounds:
        """Return the part of the array that a block covers, and its position in the window.

        Raises:
          BlockOutOfBounds: no part of the block is inside the array.
        """
        known = self._known.get(block)
        if known is None:
            if len(self._known) >= MAX_BOUNDS:
                self._known.clear()
            known = self._known[block] = self._bounds(block)
        return known

    def _bounds(self, block: tuple[int, ...]) -> BlockBounds:
        spec = self.spec
        outer, inner = [], []
        for index, unit, size, (low, high), n, squeezed in zip(
            block, spec.unit, spec.sizes, spec.padding, self.array.content.shape, spec.squeezed,
            strict=True,
        ):  # fmt: skip
            start = index * unit - low
            if (start < -low or start >= n + high) and (n or start):
                raise BlockOutOfBounds(self, block)
            first = max(start, 0)
            stop = max(min(start + size, n), first)
            outer.append(slice(first, stop))
            if not squeezed:
                inner.append(slice(first - start, stop - start))
        return tuple(outer), tuple(inner)

    def has(self, block: tuple[int, ...]) -> bool:
        """Return whether any part of a block is within the array."""
        try:
            self.bounds(block)
        except BlockOutOfBounds:
            return False
        return True

    def fetch(self, block: tuple[int, ...], slot: int, fill: str) -> None:
        outer, inner = self.bounds(block)
        self.filled = slot
        buffer = self.slots[slot]
        part = self.array.content[outer]
        shape = buffer.content.shape
        if math.prod(n.stop - n.start for n in inner) != buffer.content.size:
            buffer.content[...] = self.unwritten(fill)
            buffer.content[inner] = part.reshape([n.stop - n.start for n in inner])
        else:
            buffer.content[...] = part.reshape(shape)

    def unwritten(self, fill: str) -> np.ndarray[Any, Any]:
        """Contents of a slot before anything is written to it, made once."""
        if self._unwritten is None:
            content = self.current.content
            self._unwritten = unwritten.memory(content.shape, content.dtype, fill)
        return self._unwritten

    def write_back(self) -> None:
        assert self.block is not None
        outer, inner = self.bounds(self.block)
        shape = [part.stop - part.start for part in outer]
        self.array.content[outer] = self.current.content[inner].reshape(shape)


@dataclass(frozen=True, slots=True)
class PlacedBlock:
    """A block of an operand that the kernel accesses in place, in HBM or on a GPU."""

    window: Window

    def ref(self, block: tuple[int, ...]) -> Ref:
        spec, array = self.window.spec, self.window.array
        if self.window.is_pointer:
            starts = [index * unit for index, unit in zip(block, spec.unit, strict=True)]
            outer = tuple(slice(n, n + size) for n, size in zip(starts, spec.sizes, strict=True))
        else:
            outer, _ = self.window.bounds(block)
        entries = tuple(
            part.start if squeezed else part
            for part, squeezed in zip(outer, spec.squeezed, strict=True)
        )
        view = tuple(slice(e.start, e.stop, 1) if isinstance(e, slice) else e for e in entries)
        output = None if self.window.operand.alias is None else self.window.operand.name
        return Ref(array, (Indexed(view),), output)


@dataclass(eq=False, slots=True)
class GridWalk:
    """A thread's progress through the grid.

    Attributes:
      points: grid points, in order.
      position: of the current point; -1 before the first.
      start: position of the first point.
      stop: position after the last; None at the end of the grid.
    """

    grid: tuple[int, ...]
    windows: list[Window]
    refs: list[Any]  # Ref, Window or PlacedBlock, for each operand of the body
    prefetch: list[Ref]
    position: int = -1
    stop: int | None = None
    start: int = 0
    _points: dict[int, tuple[int, ...]] = field(default_factory=dict, init=False)

    @property
    def count(self) -> int:
        return math.prod(self.grid) if self.stop is None else self.stop

    def point(self, position: int) -> tuple[int, ...]:
        """The grid point at a position, kept for the few that a step asks for again."""
        if position not in self._points:
            if len(self._points) > 2:
                self._points.clear()
            self._points[position] = grid_point(self.grid, position)
        return self._points[position]

    def block(self, machine: Machine, thread: Thread, window: Window, position: int) -> Any:
        point = self.point(position)
        block = _projected(window.spec.projection, point)
        is_known = window.is_pointer or block == window.block
        if block is not None and (is_known or window.has(block)):
            return block
        index_map = window.spec.index_map
        ids = [np.int32(i) for i in point]
        frame = machine.call(
            thread, index_map, [*ids, *self.prefetch], index_map_of=window.operand.name, point=point
        )
        block = tuple(int(frame.registers[reg.number]) for reg in index_map.outputs)
        if block != window.block and not window.is_pointer:
            try:
                window.bounds(block)
            except BlockOutOfBounds:
                window.failed = frame
                thread.point = point
                raise
        return block

    def pointed(self, name: str) -> Window | None:
        """The operand of a GPU's kernel with this name, if the kernel accesses it by block."""
        windows = (item.window for item in self.refs if isinstance(item, PlacedBlock))
        return next((w for w in windows if w.is_pointer and w.operand.name == name), None)

    def advance(self, machine: Machine, thread: Thread) -> list[Ref] | None:
        """Finish a grid point and begin the next; return the body's refs, None after the last."""
        if self.position >= self.start:
            self._finish(machine, thread)
        if self.position + 1 >= self.count:
            return None
        self.position += 1
        thread.point = self.point(self.position)
        for window in self.windows:
            self._begin(machine, thread, window)
        return [self._ref(machine, thread, item) for item in self.refs]

    def _ref(self, machine: Machine, thread: Thread, item: Any) -> Ref:
        if isinstance(item, PlacedBlock):
            block = self.block(machine, thread, item.window, self.position)
            if item.window.is_pointer:
                item.window.block = block
            return item.ref(block)
        return Ref(item.current) if isinstance(item, Window) else item

    def _begin(self, machine: Machine, thread: Thread, window: Window) -> None:
        is_input = window.operand.kind == "input"
        block = window.next_block
        if block is None:
            block = self.block(machine, thread, window, self.position)
        if block != window.block:
            is_first = window.block is None
            window.slot = 0 if is_first else (window.slot + 1) % len(window.slots)
            if is_input and window.next_block is None:
                self._fetch(machine, thread, window, block, window.slot)
            elif not is_input:
                window.bounds(block)
            window.block = block
            # The first slot has been unwritten since the start, unless another device wrote to it.
            if not is_input and not is_first:
                window.current.content[...] = window.unwritten(machine.fill)
                if machine.observer is not None:
                    machine.observer.allocated(window.current, thread)
            if not is_input and window.spec.revisits:
                self._fetch(machine, thread, window, block, window.slot)
        window.next_block = None
        if self.position + 1 < self.count and len(window.slots) > 1:
            following = self.block(machine, thread, window, self.position + 1)
            if is_input and following != block:
                slot = (window.slot + 1) % len(window.slots)
                self._fetch(machine, thread, window, following, slot)
            window.next_block = following

    def _fetch(
        self, machine: Machine, thread: Thread, window: Window, block: tuple[int, ...], slot: int
    ) -> None:
        window.fetch(block, slot, machine.fill)
        if machine.observer is not None:
            machine.observer.fetches(thread, window, block)

    def _finish(self, machine: Machine, thread: Thread) -> None:
        is_last = self.position + 1 >= self.count
        for window in self.windows:
            if window.operand.kind != "output":
                continue
            following = window.next_block
            if following is None and not is_last:
                following = self.block(machine, thread, window, self.position + 1)
            if is_last or following != window.block:
                assert window.block is not None
                if machine.observer is not None:
                    machine.observer.writes_back(thread, window, window.block)
                window.write_back()


def _projected(
    projection: tuple[tuple[int | None, int], ...] | None, point: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return the block of an index map that only selects grid axes."""
    if projection is None:
        return None
    return tuple(n if axis is None else point[axis] for axis, n in projection)
