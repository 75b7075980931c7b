"""Indices, blocks, devices and sizes of copies that are out of bounds."""

from __future__ import annotations

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
from pallas_debug.machine.memory import Entry, OutOfBounds
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
            self._outside[id(step)] = self._access(thread, step, error)

    def leaves(self, thread: Thread, step: ir.MachineStep, error: OutOfBounds) -> None:
        window = self._window_of(thread, error)
        if window is not None and window.block is not None and not window.has(window.block):
            self.block_leaves(thread, window, window.block)
            return
        seen, facts = self._access(thread, step, error)
        writes = _writes(step, error)
        kind = Fault.OUT_OF_BOUNDS_WRITE if writes else Fault.OUT_OF_BOUNDS_READ
        self._findings.append(seen.of(kind, **facts))

    def _access(
        self, thread: Thread, step: ir.MachineStep, error: OutOfBounds
    ) -> tuple[Sighting, dict[str, Any]]:
        """Return a sighting of the access, and the facts of its finding."""
        buffer, outside = error.buffer, _first_outside(error.index, error.shape)
        is_of_map, name = bool(thread.index_map_of), buffer.name
        if error.place is not None and not is_of_map:
            name = thread.ref(error.place).name
        seen = sighting(
            self._launch,
            thread,
            step,
            operand=name,
            index=index_text(name + error.recast, error.index),
            shape=shape_text(buffer, error.shape),
        )
        if is_of_map:
            return seen, {"map_of": thread.index_map_of, "slice": outside}
        tables = origins.of_index(thread, error, outside.dim)
        if tables:
            seen = seen.with_values({"index from": ", ".join(tables)})
        copy, is_rounded = None, False
        if isinstance(step, ir.CopyStart):
            copy = CopyOf(thread.ref(step.source).name, thread.ref(step.destination).name)
            is_within = outside.size is not None and 0 <= outside.start < outside.bound
            is_rounded = step.of_pipeline and is_within
        computed = self._launch.index_lines.of(step.site.line, outside.dim)
        return seen, {
            "copy": copy,
            "slice": outside,
            "origin": origins.text(tables),
            "computed": None if computed is None else Computed(computed, step.site.line),
            "is_rounded": is_rounded,
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
                    is_element=spec.unit[dim] != spec.sizes[dim],
                ),
                array=array_text(str(window.array.type.dtype), shape),
                is_from_table=origins.is_of_table(
                    spec.index_map, spec.index_map.outputs[dim].number
                ),
                origin=origins.of_block(window.failed, dim),
            )
        )


def _first_outside(index: Sequence[Entry], shape: Sequence[int]) -> Outside:
    """Return the first entry of an index that is out of bounds."""
    for dim, (entry, bound) in enumerate(zip(index, shape, strict=True)):
        if isinstance(entry, slice):
            stride = entry.step or 1
            count = -(-(entry.stop - entry.start) // stride) if stride else 1
            last = entry.start + (count - 1) * stride
            if count > 0 and (entry.start < 0 or last >= bound):
                return Outside(dim=dim, start=entry.start, size=count, bound=bound, stride=stride)
            continue
        values = np.atleast_1d(entry)
        outside = values[(values < 0) | (values >= bound)]
        if outside.size:
            return Outside(dim=dim, start=int(outside.flat[0]), size=None, bound=bound)
    return Outside(dim=0, start=0, size=None, bound=shape[0])


def _writes(step: ir.MachineStep, error: OutOfBounds) -> bool:
    if isinstance(step, ir.CopyStart):
        return error.place is step.destination
    return isinstance(step, ir.StoreStep | ir.AtomicStep)
