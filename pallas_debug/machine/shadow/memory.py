"""Memory area of the sanitizer: uninitialized reads, padding, revisits, unwritten outputs.

A read of memory that was never written is no fault by itself: the value may be masked. So suspect
reads are recorded, and if there are any, the kernel is run again with other values for them. A read
matters if the results differ in any bit, other branches are taken, or other elements are accessed.

Scratch that a grid point on another parallel coordinate has left may be on another core: such a
read is reported as `UninitializedRead` if it matters.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np

from pallas_debug import defaults
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs import units
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.bridge.programs.loops import LoopChunk
from pallas_debug.chips import TILE
from pallas_debug.errors import MachineError
from pallas_debug.findings.facts import array_text
from pallas_debug.machine.loops import ChunkAccess
from pallas_debug.machine.memory import MemoryRegion
from pallas_debug.machine.order.events import OrderTracker
from pallas_debug.machine.sanitizer.again import KernelCall
from pallas_debug.machine.shadow.findings import MemoryReport
from pallas_debug.machine.shadow.shadow import (
    Mask,
    NumberTest,
    ReadKind,
    SiteKey,
    SuspectRead,
    differing,
)
from pallas_debug.machine.shadow.tracking import MemoryTracker
from pallas_debug.machine.threads import Thread
from pallas_debug.model import Finding
from pallas_debug.quantities import size_text
from pallas_debug.stepping import unwritten

MAX_REPLAYS = 12
"""Maximum number of further runs that search for the one of several reads that matters."""

SHADOW_BYTES = 4
"""Bytes of shadow memory per element: the number of the write that the element comes from."""


def require_room(launch: Launch) -> None:
    """Reject a kernel whose arrays are too large for shadow memory.

    Raises:
      MachineError: they are too large, with the sizes and what to do.
    """
    shapes = [operand.array or operand.type.shape for operand in launch.operands]
    elements = sum(map(math.prod, shapes)) * math.prod(launch.mesh.values())
    needed = elements * SHADOW_BYTES
    if needed <= defaults.MAX_SHADOW_BYTES:
        return
    shape, largest = max(zip(shapes, launch.operands, strict=True), key=lambda o: math.prod(o[0]))
    raise MachineError(
        f"kernel `{launch.name}` has {elements:,} elements (`{largest.name}`: "
        f"{array_text(str(largest.type.dtype), shape)}), for which the sanitizer needs "
        f"{size_text(needed)} of shadow memory; its limit is "
        f"{size_text(defaults.MAX_SHADOW_BYTES)}. Sanitize it on smaller arrays with "
        "the same blocks"
    )


class MemorySanitizer(MemoryTracker):
    """Observes a run; `findings` runs the kernel again if a read may matter."""

    def __init__(
        self, launch: Launch, arrays: Sequence[Sequence[Any]], *,
        order: OrderTracker | None = None, **options: Any,
    ) -> None:  # fmt: skip
        """Set up the shadow.

        Args:
          arrays: arrays of the call, for each device.
          order: observer of the same run that detects races; None if there is none.
          options: options of the machine, except its observer.
        """
        super().__init__(launch)
        self._call = KernelCall(launch, arrays, options)
        self._replays = 0
        self._has_chunks = False
        self._order = order

    follows_loops = False

    def accepts_chunk(self, thread: Thread, accesses: Sequence[ChunkAccess]) -> bool:
        """Accept a chunk that reads only what was written before, on this core."""
        return not any(
            self.is_suspect(thread, access.region) for access in accesses if not access.writes
        )

    def runs_chunk(self, thread: Thread, step: ir.Loop, chunk: LoopChunk) -> None:
        self._has_chunks = True

    @functools.cached_property
    def _baseline(self) -> MemoryTracker:
        """The run to compare with bit by bit: compiled loops may round differently."""
        if not self._has_chunks:
            return self
        run = MemoryTracker(self.launch)
        self._call.run(run)
        return run

    def findings(self) -> list[Finding]:
        """Return the faults of the run, in the order in which they happened."""
        uninitialized = self._uninitialized()
        for suspect in uninitialized:
            if suspect.back is not None:  # it reads what the revisit has lost
                self.arrays.returns.setdefault(suspect.buffer.name, suspect.back)
        uninitialized = [suspect for suspect in uninitialized if suspect.back is None]
        known = {suspect.buffer.name for suspect in uninitialized}
        carried = self._first_of_each(self._of_kinds("other core"), known)
        report = MemoryReport(self)
        found = [
            *((suspect.first, report.read(suspect)) for suspect in (*uninitialized, *carried)),
            *report.arrays(),
        ]
        found.sort(key=lambda one: one[0])
        return [finding for _, finding in found]

    # Reads of memory that was never written

    def _uninitialized(self) -> list[SuspectRead]:
        """Return the first read of each buffer that matters."""
        suspects = [
            suspect
            for suspect in self._of_kinds("unwritten", "padding")
            if not self._is_race(suspect)
            and (suspect.back is None or suspect.buffer.name not in self.arrays.returns)
        ]
        if not suspects or not self._matters(suspects):
            return []
        if len(suspects) == 1:
            return suspects
        return self._first_of_each(suspects) or self._needed(suspects)

    def _first_of_each(
        self, suspects: Iterable[SuspectRead], known: Iterable[str] = ()
    ) -> list[SuspectRead]:
        """Return the first read of each buffer, unless it is known, that matters by itself."""
        found: dict[object, SuspectRead] = {}
        for suspect in suspects:
            place = suspect.buffer.name, suspect.kind
            if place[0] not in known and place not in found and self._matters([suspect]):
                found[place] = suspect
        return list(found.values())

    def _needed(self, suspects: Sequence[SuspectRead]) -> list[SuspectRead]:
        """Return the first read of each buffer in the minimal set of reads that matter together.

        Each read hides the effect of the others: a result stays NaN as long as one of them is. A
          read that the others do not need, such as a read of masked padding, is not in the set.
        """
        self._replays = 0
        needed: dict[tuple[ReadKind, str], list[SuspectRead]] = {}
        for suspect in suspects:
            needed.setdefault((suspect.kind, suspect.buffer.name), []).append(suspect)
        for left_out in sorted(needed):  # padding first
            rest = [group for key, group in needed.items() if key != left_out]
            if self._replays >= MAX_REPLAYS:
                break
            if rest and self._matters(itertools.chain(*rest)):
                del needed[left_out]
        return [group[0] for group in needed.values()]

    def _is_race(self, suspect: SuspectRead) -> bool:
        """Return whether a read races with the copy that writes the data it reads."""
        if not suspect.is_early or self._order is None:
            return suspect.is_early
        return suspect.buffer.name in self._order.detector.raced

    def _of_kinds(self, *kinds: ReadKind) -> list[SuspectRead]:
        found = [suspect for suspect in self.suspects.values() if suspect.kind in kinds]
        return sorted(found, key=lambda suspect: suspect.first)

    def _matters(self, suspects: Iterable[SuspectRead]) -> bool:
        if self._replays >= MAX_REPLAYS or self.is_in_part:
            return False
        self._replays += 1
        return matters(self._call, [s.key for s in suspects], self._baseline)


Array = np.ndarray[Any, Any]

MAX_COMPARED = 3
"""Maximum number of constants of the kernel's comparisons that are tried as other values."""

OtherValues = Literal["unlikely", "likely"] | int | float
"""Values of unwritten memory or padding in a further run: numbers that stand out, those of
neighbouring elements, which a kernel that counts certain values is more likely to count, or a
number, such as one that a flag is compared with."""


class AlteredRun(MemoryTracker):
    """A run in which suspect reads see other values."""

    def __init__(
        self, launch: Launch, altered: Iterable[SiteKey], *,
        fill: OtherValues = "unlikely",
    ) -> None:  # fmt: skip
        """Set up the altered reads; `fill` are the values that they see."""
        super().__init__(launch)
        self._altered = frozenset(altered)
        self._fill = fill

    def alter(
        self, suspect: SuspectRead, region: MemoryRegion, test: NumberTest, value: Any
    ) -> None:
        if suspect.key not in self._altered:
            return
        found = self.shadows[region.buffer.number]
        part = None if value is None else found.of(region)
        if part is not None and part.shape == value.shape:
            mask = test(part)
            value[mask] = _other(suspect.kind, value, mask, self._fill)
            return
        # A DMA will read the buffer's content. For a reshaped or bitcast reference, read it again.
        mask = found.where(region, test)
        content = region.buffer.content
        kept = content[mask]
        content[mask] = _other(suspect.kind, content, mask, self._fill)
        if value is not None:
            value[...] = region.read()
            content[mask] = kept


def _other(kind: ReadKind, content: Array, mask: Mask, fill: OtherValues) -> Array:
    """Return alternative values for the masked elements of a read."""
    values = content[mask]
    if kind == "other core":
        return unwritten.memory(values.shape, values.dtype, "nan")
    if fill == "likely" and values.dtype.kind != "b":
        return unwritten.like(values.shape, content[~mask])
    if not isinstance(fill, str) and unwritten.holds(values.dtype, fill):
        return np.full(values.shape, fill, values.dtype)
    return unwritten.memory(values.shape, values.dtype, "number")


def matters(call: KernelCall, altered: Iterable[SiteKey], run: MemoryTracker) -> bool:
    """Return whether other values in some reads change a result, a branch or an index of a run."""
    keys, fills = tuple(altered), list[OtherValues](["unlikely"])
    if any(kind != "other core" for _, _, kind in keys):
        dtypes = [run.suspects[key].buffer.content.dtype for key in keys if key in run.suspects]
        compared = units.compared_numbers(call.launch.all_steps())
        tried = [n for n in compared if any(unwritten.holds(dtype, n) for dtype in dtypes)]
        fills += ["likely", *tried[:MAX_COMPARED]]
    for fill in fills:
        other = AlteredRun(call.launch, keys, fill=fill)
        call.run(other)
        if run.trace != other.trace or _results_differ(run, other):
            return True
    return False


def _results_differ(run: MemoryTracker, other: MemoryTracker) -> bool:
    sizes = [pair for copy in run.padded.values() for pair in _padded(copy.source)]
    return any(
        _differ(before, after, sizes)
        for before, after in zip(run.results(), other.results(), strict=True)
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
