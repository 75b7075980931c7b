"""Indices, blocks, devices and sizes of copies that are out of bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.findings.bounds import Computed, CopyOf, MissingBlock, Outside
from pallas_debug.findings.facts import array_text
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.sighting import Sighting
from pallas_debug.machine.bounds import origins
from pallas_debug.machine.copies import Counter, SizesDiffer
from pallas_debug.machine.grid import Window
from pallas_debug.machine.memory import Entry, MemoryBuffer, OutOfBounds
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.places import NoSuchDevice
from pallas_debug.machine.sightings import counter_text, index_text, shape_text, sighting
from pallas_debug.machine.threads import Thread
from pallas_debug.model import Finding


class BoundsObserver(MachineObserver):
    """Reports out-of-bounds indices, and blocks that an array does not have."""

    follows_loops = False

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._findings: list[Finding] = []
        self._outside: dict[int, tuple[Sighting, dict[str, Any]]] = {}

    def findings(self) -> list[Finding]:
        return self._findings

    def outside_reads(self, *, is_discarded: bool) -> list[Finding]:
        """Return the scalar reads outside their tables, one per line of code.

        Args:
          is_discarded: whether no result depends on the values read.
        """
        return [
            seen.of(Fault.OUT_OF_BOUNDS_READ, is_discarded=is_discarded, **facts)
            for seen, facts in self._outside.values()
        ]

    def reads_outside(self, thread: Thread, step: ir.MachineStep, error: OutOfBounds) -> None:
        if id(step) in self._outside:
            seen, facts = self._outside[id(step)]
            self._outside[id(step)] = replace(seen, count=seen.count + 1), facts
        else:
            dim, start, _, _ = _first_outside(error.index, error.shape)
            outside = Outside(dim=dim, start=start, size=None, bound=error.shape[dim])
            self._outside[id(step)] = self._access(thread, step, error, outside)

    def leaves(self, thread: Thread, step: ir.MachineStep, error: OutOfBounds) -> None:
        dim, start, size, stride = _first_outside(error.index, error.shape)
        outside = Outside(dim=dim, start=start, size=size, bound=error.shape[dim], stride=stride)
        window = self._window_of(thread, error)
        if window is not None and window.block is not None and not window.has(window.block):
            self.block_leaves(thread, window, window.block)
        elif thread.index_map_of:
            self._findings.append(self._table(thread, step, error, outside))
        else:
            seen, facts = self._access(thread, step, error, outside)
            writes = _writes(step, error)
            kind = Fault.OUT_OF_BOUNDS_WRITE if writes else Fault.OUT_OF_BOUNDS_READ
            self._findings.append(seen.of(kind, **facts))

    def _access(
        self, thread: Thread, step: ir.MachineStep, error: OutOfBounds, outside: Outside
    ) -> tuple[Sighting, dict[str, Any]]:
        """Return a sighting of the access, and the facts of its finding."""
        buffer, dim, start = error.buffer, outside.dim, outside.start
        name = buffer.name if error.place is None else thread.ref(error.place).name
        seen = sighting(
            self._launch,
            thread,
            step,
            operand=name,
            index=index_text(name + error.recast, error.index),
            shape=shape_text(buffer, error.shape),
        )
        if tables := origins.tables_of_index(thread, error, dim):
            seen = seen.with_values({"index from": ", ".join(tables)})
        facts: dict[str, Any] = {}
        if isinstance(step, ir.CopyStart):
            copy = CopyOf(thread.ref(step.source).name, thread.ref(step.destination).name)
            is_within = outside.size is not None and 0 <= start < outside.bound
            facts = {
                "copy": copy,
                "is_fetched": not (step.of_pipeline or _writes(step, error)) and start > 0,
                "is_rounded": step.of_pipeline and is_within,
            }
        is_scratch = buffer.kind in ("scratch", "scoped")
        computed = self._launch.index_lines.of(step.site.line, dim)
        return seen, {
            **facts,
            "slice": replace(outside, scratch=name if is_scratch else None),
            "is_block": buffer.kind == "window" and self._is_part(buffer),
            "origin": ", and from ".join(origins.of_index(thread, error, dim)),
            "computed": None if computed is None else Computed(computed, step.site.line),
            "is_masked": self._launch.is_gpu and getattr(step, "mask", None) is not None,
            "is_ragged": self._window_of(thread, error) is not None,
        }

    def _window_of(self, thread: Thread, error: OutOfBounds) -> Window | None:
        """The operand of a GPU's kernel whose block does not fit into its array."""
        if not self._launch.is_gpu or error.place is None:
            return None
        window = thread.walk.pointed(thread.ref(error.place).name)
        is_of_array = error.shape == error.buffer.content.shape
        return window if window is not None and is_of_array else None

    def _is_part(self, window: MemoryBuffer) -> bool:
        """Return whether a window is smaller than its array."""
        operand = next((o for o in self._launch.operands if o.name == window.name), None)
        if operand is None or operand.array is None:
            return False
        return window.content.size < math.prod(operand.array)

    def _table(
        self, thread: Thread, step: ir.MachineStep, error: OutOfBounds, outside: Outside
    ) -> Finding:
        """Report an index map that reads scalar prefetch past its end."""
        name = error.buffer.name
        seen = sighting(
            self._launch,
            thread,
            step,
            operand=name,
            index=index_text(name, error.index),
            shape=shape_text(error.buffer, error.shape),
        )
        return seen.of(
            Fault.OUT_OF_BOUNDS_READ,
            map_of=thread.index_map_of,
            slice=outside,
            is_small=any(size > outside.bound for size in thread.grid),
        )

    def leaves_mesh(self, thread: Thread, step: ir.MachineStep, error: NoSuchDevice) -> None:
        copy = None
        if isinstance(step, ir.CopyStart):
            copy = CopyOf(thread.ref(step.source).name, thread.ref(step.destination).name)
            operand = copy.destination
        else:
            assert isinstance(step, ir.SemaphoreSignal)
            operand = counter_text(Counter(thread.ref(step.semaphore).buffer, ()))
        self._findings.append(
            sighting(self._launch, thread, step, operand=operand).of(
                Fault.OUT_OF_BOUNDS_WRITE,
                copy=copy,
                signal=None if copy else operand,
                unit="core" if error.is_core else "device",
                value=error.value,
                axis=error.axis,
                total=error.count,
                last=error.count - 1,
            )
        )

    def sizes_differ(self, thread: Thread, step: ir.MachineStep, error: SizesDiffer) -> None:
        assert isinstance(step, ir.CopyStart)
        names = thread.ref(step.source).name, thread.ref(step.destination).name
        regions = error.source, error.destination
        pairs = zip(error.source.shape, error.destination.shape, strict=False)
        dim = next((i for i, (one, other) in enumerate(pairs) if one != other), 0)
        taken, room = (region.shape[dim] if region.shape else 1 for region in regions)
        entries = [origins.of_sizes(thread, place) for place in (step.source, step.destination)]
        slices = (
            index_text(name, region.index or ())
            for name, region in zip(names, regions, strict=True)
        )
        self._findings.append(
            sighting(self._launch, thread, step, operand=names[1]).of(
                Fault.OUT_OF_BOUNDS_WRITE if taken > room else Fault.OUT_OF_BOUNDS_READ,
                copy=CopyOf(*slices),
                dim=dim,
                taken=taken,
                room=room,
                origin=", and from ".join(entry for entry in entries if entry is not None),
            )
        )

    def block_leaves(self, thread: Thread, window: Window, block: tuple[int, ...]) -> None:
        spec, shape = window.spec, window.array.content.shape
        counts = [-(-n // unit) for n, unit in zip(shape, spec.unit, strict=True)]
        dim = next((i for i, n in enumerate(block) if not 0 <= n < counts[i]), 0)
        seen = sighting(
            self._launch,
            thread,
            operand=window.operand.name,
            shape=shape_text(window.array),
            source=self._launch.block_line(window.operand),
        )
        self._findings.append(
            seen.of(
                Fault.BLOCK_OUT_OF_BOUNDS,
                block=MissingBlock(
                    dim=dim,
                    value=block[dim],
                    last=counts[dim] - 1,
                    size=spec.sizes[dim],
                    is_element=spec.unit[dim] != spec.sizes[dim],
                    point=thread.point,
                ),
                array=array_text(str(window.array.type.dtype), shape),
                is_from_table=origins.is_of_table(
                    spec.index_map, spec.index_map.outputs[dim].number
                ),
                origin=origins.of_block(window.failed, dim),
            )
        )


def _first_outside(
    index: Sequence[Entry], shape: Sequence[int]
) -> tuple[int, int, int | None, int]:
    """Dimension, start, number of elements and stride of the first out-of-bounds entry."""
    for dim, (entry, bound) in enumerate(zip(index, shape, strict=True)):
        if isinstance(entry, slice):
            stride = entry.step or 1
            count = -(-(entry.stop - entry.start) // stride) if stride else 1
            last = entry.start + (count - 1) * stride
            if count > 0 and (entry.start < 0 or last >= bound):
                return dim, entry.start, count, stride
        elif isinstance(entry, np.ndarray):
            outside = entry[(entry < 0) | (entry >= bound)]
            if outside.size:
                return dim, int(outside.flat[0]), None, 1
        elif not 0 <= entry < bound:
            return dim, int(entry), None, 1
    return 0, 0, None, 1


def _writes(step: ir.MachineStep, error: OutOfBounds) -> bool:
    if isinstance(step, ir.CopyStart):
        return error.place is step.destination
    return isinstance(step, ir.StoreStep | ir.AtomicStep)
