"""Further runs of a kernel: with other values in some reads, or to record element histories."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from pallas_debug.bridge.hosted.watch import WatchedPoints
from pallas_debug.bridge.programs import made_of
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.machine.copies import DmaCopy
from pallas_debug.machine.memory import TILE, MemoryBuffer, MemoryRegion
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.sanitizer.again import KernelCall
from pallas_debug.machine.sanitizer.shadows import reach, shadow
from pallas_debug.machine.sanitizer.shadows.flow import ValueFlow
from pallas_debug.machine.sanitizer.shadows.shadow import (
    BufferShadow,
    ReadKind,
    SiteKey,
    SuspectRead,
    differing,
)
from pallas_debug.machine.sanitizer.shadows.tracked import Point, begins_moment
from pallas_debug.machine.sanitizer.shadows.tracking import MemoryTracker
from pallas_debug.machine.threads import Thread
from pallas_debug.stepping import unwritten

Array = np.ndarray[Any, Any]

MAX_NARROWING = 14
"""Maximum number of further runs that bisect the elements of one read."""

MAX_COMPARED = 3
"""Maximum number of constants of the kernel's comparisons that are tried as other values."""

OtherValues = Literal["unlikely", "likely"] | int | float
"""Values of unwritten memory or padding in a further run: numbers that stand out, those of
neighbouring elements, which a kernel that counts certain values is more likely to count, or a
number, such as one that a flag is compared with."""


@dataclass(frozen=True, kw_only=True)
class ReadEffect:
    """Effect of other values in some reads.

    Attributes:
      on_results: results differ.
      on_control: other branches are taken, or other elements accessed.
      fill: values that were tried last.
    """

    on_results: bool
    on_control: bool
    fill: OtherValues = "unlikely"

    @property
    def matters(self) -> bool:
        return self.on_results or self.on_control


@dataclass(frozen=True, eq=False)
class SparedElements:
    """Elements of the buffer of a read that get separate values; by default, the original ones."""

    key: SiteKey
    mask: shadow.Mask
    value: Any = None


class AlteredRun(MemoryTracker):
    """A run in which suspect reads see other values."""

    def __init__(
        self, launch: Launch, altered: Iterable[SiteKey], *, keeps_results: bool = False,
        watched: WatchedPoints | None = None, spared: SparedElements | None = None,
        fill: OtherValues = "unlikely",
    ) -> None:  # fmt: skip
        """Set up the altered reads.

        Args:
          fill: values that the reads see.
          spared: elements that see other values.
        """
        super().__init__(launch, keeps_results=keeps_results, watched=watched)
        self._altered = frozenset(altered)
        self._spared = spared
        self._fill = fill

    def alter(
        self,
        suspect: SuspectRead,
        region: MemoryRegion,
        found: BufferShadow,
        unseen: shadow.Unseen,
        value: Any,
    ) -> None:
        if suspect.key not in self._altered:
            return
        part = None if value is None or self._spares(suspect) else found.of(region)
        if part is not None and part.shape == value.shape:
            mask = shadow.chosen(suspect.kind, part, unseen)
            value[mask] = _other(suspect.kind, value, mask, self._fill)
            return
        # A DMA will read the buffer's content. For a reshaped or bitcast reference, read it again.
        mask = found.where(region, lambda numbers: shadow.chosen(suspect.kind, numbers, unseen))
        content = region.buffer.content
        kept = content[mask]
        rest = mask & ~self._spared.mask if self._spared and self._spares(suspect) else mask
        content[rest] = _other(suspect.kind, content, rest, self._fill)
        if self._spared is not None and self._spared.value is not None:
            content[mask & ~rest] = self._spared.value
        if value is not None:
            value[...] = region.read()
            content[mask] = kept

    def _spares(self, suspect: SuspectRead) -> bool:
        return self._spared is not None and self._spared.key == suspect.key


def _other(kind: ReadKind, content: Array, mask: shadow.Mask, fill: OtherValues) -> Array:
    """Return alternative values for the masked elements of a read."""
    values = content[mask]
    if kind == "parallel":
        return unwritten.memory(values.shape, values.dtype, "nan")
    if kind != "stale":
        if fill == "likely" and values.dtype.kind != "b":
            return unwritten.like(values.shape, content[~mask])
        if not isinstance(fill, str) and unwritten.holds(values.dtype, fill):
            return np.full(values.shape, fill, values.dtype)
        return unwritten.memory(values.shape, values.dtype, "number")
    if values.dtype.kind == "b":
        return ~values
    if values.dtype.kind in "iu":
        return np.asarray(values + values.dtype.type(1))
    # Larger, finite, and with different bits: another block could have left such values.
    number = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    return np.asarray(number + np.abs(number) + 1.0).astype(values.dtype)


def effect(call: KernelCall, altered: Iterable[SiteKey], run: MemoryTracker) -> ReadEffect:
    """Compare a first run with further runs in which some reads see other values."""
    keys, fills = tuple(altered), list[OtherValues](["unlikely"])
    if any(kind in ("unwritten", "padding") for _, _, kind in keys):
        dtypes = [run.suspects[key].buffer.content.dtype for key in keys if key in run.suspects]
        compared = made_of.compared_numbers(call.launch.all_steps())
        tried = [n for n in compared if any(unwritten.holds(dtype, n) for dtype in dtypes)]
        fills += ["likely", *tried[:MAX_COMPARED]]
    found = ReadEffect(on_results=False, on_control=False)
    for fill in fills:
        options: dict[str, Any] = {"keeps_results": run.keeps_results, "watched": run.watched}
        other = AlteredRun(call.launch, keys, fill=fill, **options)
        call.run(other)
        found = replace(difference(run, other), fill=fill)
        if found.matters:
            break
    return found


def narrow(
    call: KernelCall,
    altered: Iterable[SiteKey],
    suspects: Iterable[SuspectRead],
    run: MemoryTracker,
    fill: OtherValues,
) -> None:
    """Find the first element of each read that matters, and drop earlier ones from its mask.

    A masked read-modify-write of a whole block sees elements whose value it discards. A NaN in one
    element hides the effect of another, so all suspect reads see other values except for the
    elements in question.

    Args:
      altered: reads that matter together, including `suspects`.
      run: the first run.
      fill: other values for which the reads matter.
    """
    chosen = tuple(altered)
    options: dict[str, Any] = {"keeps_results": run.keeps_results, "watched": run.watched}
    options["fill"] = fill
    base = AlteredRun(call.launch, chosen, **options)
    call.run(base)

    def matter(suspect: SuspectRead, elements: Array) -> bool:
        part = np.zeros(suspect.mask.shape, bool)
        np.put(part, elements, True)
        # XLA's maximum on a CPU may drop a NaN; an infinity shows the effect.
        for value in (None, *unwritten.extremes(suspect.buffer.content.dtype)):
            spared = SparedElements(suspect.key, part, value)
            other = AlteredRun(call.launch, chosen, spared=spared, **options)
            call.run(other)
            if difference(base, other).matters:
                return True
        return False

    for suspect in suspects:
        elements = np.flatnonzero(suspect.mask)
        if len(elements) > 1 and not matter(suspect, elements[-1:]):
            suspect.without = suspect.position(elements[-1])
        if matter(suspect, elements[:1]):
            continue
        low, high, is_certain = 1, len(elements), False
        for _ in range(MAX_NARROWING):
            if high - low <= 1:
                break
            middle = (low + high) // 2
            is_certain = matter(suspect, elements[low:middle])
            low, high = (low, middle) if is_certain else (middle, high)
        suspect.is_element_known = high - low == 1 and (
            is_certain or matter(suspect, elements[low:high])
        )
        if suspect.is_element_known:
            np.put(suspect.mask, elements[:low], False)


def difference(run: MemoryTracker, other: MemoryTracker) -> ReadEffect:
    """Return how a run differs from another."""
    sizes = [pair for copy in run.padded.values() for pair in _padded(copy.source)]
    return ReadEffect(
        on_results=run.results_so_far != other.results_so_far
        or any(
            _differ(before, after, sizes)
            for before, after in zip(run.results(), other.results(), strict=True)
        ),
        on_control=run.trace != other.trace,
    )


def _padded(source: MemoryRegion) -> list[tuple[int, int]]:
    """Sizes of an array along which a copy includes padding, each with its size in whole tiles."""
    shape = source.buffer.content.shape
    dims = [-1] * len(source.shape)  # for a reshaped array, only the last dimension can be padded
    if source.index is not None:
        entries = enumerate(source.index, -len(shape))
        dims = [dim for dim, entry in entries if isinstance(entry, slice)]
    found = []
    for dim, size, existing in zip(dims, source.shape, source.existing or (), strict=True):
        if existing.stop < size:
            found.append((shape[dim], -(-shape[dim] // TILE[dim]) * TILE[dim]))
    return found


def _differ(before: Array, after: Array, sizes: Iterable[tuple[int, int]]) -> bool:
    """Return whether results differ, ignoring the padding of results that consist of whole tiles.

    A kernel for arrays of 255 columns may return 256, and the program drops the last.

    Args:
      sizes: sizes of arrays whose padding was copied, each with its size in whole tiles.
    """
    mask = differing(before, after)
    if not mask.any():
        return False
    for size, padded in sizes:
        for dim, length in enumerate(mask.shape):
            if length == padded:
                mask[(slice(None),) * dim + (slice(size, None),)] = False
    return bool(mask.any())


# History of elements


@dataclass(frozen=True, eq=False, slots=True)
class ElementEvent:
    """A read of an element, or a write to it.

    Attributes:
      moment: moment of the thread; for a DMA, when it was started.
      updates: whether the written value was computed from the buffer's content.
      conditions: conditions around the step, outermost first.
    """

    writes: bool
    step: ir.MachineStep
    thread: int
    moment: int
    point: Point
    iterations: Point
    updates: bool = False
    conditions: tuple[ir.Branch, ...] = ()


@dataclass(eq=False, slots=True)
class StoredPart:
    """Regions that a store writes at different grid points.

    Attributes:
      regions: distinct regions.
      points: grid points at which it ran without an earlier read of the region.
      masks: elements written, at the requested grid points.
      early: elements written before any of the elements was read.
    """

    step: ir.MachineStep
    conditions: tuple[ir.Branch, ...]
    regions: dict[int, MemoryRegion] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    masks: dict[Point, shadow.Mask] = field(default_factory=dict)
    early: dict[Point, shadow.Mask] = field(default_factory=dict)


BufferKey = tuple[int, str, str]
"""Device, name and kind of a buffer."""


def buffer_key(buffer: MemoryBuffer) -> BufferKey:
    return buffer.device, buffer.name, buffer.kind


@dataclass(eq=False)
class BufferHistory:
    """History of some elements of a buffer.

    Attributes:
      events: events of each element, in the order of the run.
      stores: all stores by step, whether they reach one of the elements or not; and all copies.
      used_at: moments at which a value computed from this buffer is stored to another one, or this
        buffer is copied.
      buffer: buffer of the last read.
      written: elements that were stored or copied to.
    """

    events: dict[Point, list[ElementEvent]]
    points: frozenset[Point]
    stores: dict[int, StoredPart] = field(default_factory=dict)
    was_read: shadow.Mask | None = None
    read_at: set[Point] = field(default_factory=set)
    used_at: set[int] = field(default_factory=set)
    buffer: MemoryBuffer | None = None
    written: shadow.Mask | None = None

    def reset_under(self, element: Point) -> frozenset[int]:
        """Identities of the conditions around the stores that reset an element."""
        resets = [event for event in self.events[element] if event.writes and not event.updates]
        return frozenset(id(branch) for event in resets for branch in event.conditions)

    def keep(self, stored: StoredPart, point: Point, selected: shadow.Mask) -> None:
        """Record the elements that a store or copy writes; of a grid point, if it was requested."""
        if self.written is None or self.written.shape != selected.shape:
            self.written = selected.copy()
        else:
            self.written |= selected
        if point not in self.points:
            return
        for masks in [stored.masks] if point in self.read_at else [stored.masks, stored.early]:
            masks.setdefault(point, np.zeros(selected.shape, bool))[selected] = True


class ElementHistory(MachineObserver):
    """Records every access of some elements."""

    def __init__(
        self,
        elements: Mapping[BufferKey, Sequence[Point]],
        flow: ValueFlow,
        points: Iterable[Point] = (),
    ) -> None:
        """Set up the elements.

        Args:
          points: grid points whose stores and copies are kept as masks.
        """
        kept = frozenset(points)
        self._flow = flow
        self._moments: dict[int, int] = {}
        self._started: dict[int, int] = {}
        self.buffers = {
            key: BufferHistory({element: [] for element in chosen_}, kept)
            for key, chosen_ in elements.items()
        }

    def _history(self, buffer: MemoryBuffer) -> BufferHistory | None:
        return self.buffers.get(buffer_key(buffer))

    def _begins(self, thread: Thread) -> None:
        self._moments[thread.number] = self._moments.get(thread.number, -1) + 1

    def iterates(self, thread: Thread, step: ir.MachineStep, iteration: int) -> None:
        if begins_moment(step):
            self._begins(thread)

    def point_begins(self, thread: Thread) -> None:
        self._begins(thread)
        for history in self.buffers.values():
            history.was_read = None

    def loads(self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any) -> None:
        history = self._history(region.buffer)
        if history is None:
            return
        history.buffer = region.buffer
        selected = _selected(region)
        if history.was_read is None or history.was_read.shape != selected.shape:
            history.was_read = np.zeros(selected.shape, bool)
        history.was_read |= selected
        for element, events in history.events.items():
            if selected[element]:
                history.read_at.add(thread.point)
                events.append(
                    ElementEvent(
                        False, step, thread.number, self._moments[thread.number], thread.point,
                        thread.iterations,
                    )
                )  # fmt: skip

    def stores(
        self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any
    ) -> None:
        if isinstance(step, ir.StoreStep):
            self._uses(thread, step, region.buffer)
        history = self._history(region.buffer)
        if history is None:
            return
        selected = _selected(region)
        updates = False
        if isinstance(step, ir.StoreStep):
            updates = step.adds or reach.depends_on(thread.frames, step.value.number, region.buffer)
        around = reach.conditions(thread.frames)
        for element, events in history.events.items():
            if selected[element]:
                events.append(
                    ElementEvent(
                        True, step, thread.number, self._moments[thread.number], thread.point,
                        thread.iterations, updates, around,
                    )
                )  # fmt: skip
        stored = history.stores.setdefault(id(step), StoredPart(step, around))
        if len(stored.regions) < 8:
            stored.regions.setdefault(shadow.index_key(region), region)
        history.keep(stored, thread.point, selected)
        is_fresh = history.was_read is None or not history.was_read[selected].any()
        if is_fresh and not updates and thread.point not in stored.points[-1:]:
            stored.points.append(thread.point)

    def _uses(self, thread: Thread, step: ir.StoreStep, target: MemoryBuffer) -> None:
        """Record the buffers from which a stored value was computed."""
        for (device, name, _), history in self.buffers.items():
            buffer = history.buffer
            moment = self._moments[thread.number]
            if buffer is None or moment in history.used_at or device != target.device:
                continue
            if self._flow.stores_to_others(name, target.name) and reach.depends_on(
                thread.frames, step.value.number, buffer
            ):
                history.used_at.add(moment)

    def copy_starts(self, thread: Thread, copy: DmaCopy) -> None:
        self._started[id(copy)] = self._moments[thread.number]

    def copy_ends(self, copy: DmaCopy) -> None:
        moment = self._started.pop(id(copy))
        for region, writes in ((copy.source, False), (copy.destination, True)):
            history = self._history(region.buffer)
            if history is None:
                continue
            selected = _selected(region)
            if writes:
                stored = history.stores.setdefault(id(copy.step), StoredPart(copy.step, ()))
                history.keep(stored, copy.point, selected)
            else:
                history.used_at.add(moment)
            for element, events in history.events.items():
                if selected[element]:
                    events.append(
                        ElementEvent(
                            writes, copy.step, copy.thread, moment, copy.point, copy.iterations,
                        )
                    )  # fmt: skip


def _selected(region: MemoryRegion) -> shadow.Mask:
    selected = np.zeros(region.buffer.content.shape, bool)
    for index in region.ranges():
        selected[index] = True
    return selected
