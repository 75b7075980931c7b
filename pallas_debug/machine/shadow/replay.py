"""Further runs of a kernel, with other values in some reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np

from pallas_debug.bridge.programs import units
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.chips import TILE
from pallas_debug.machine.memory import MemoryRegion
from pallas_debug.machine.sanitizer.again import KernelCall
from pallas_debug.machine.shadow.shadow import (
    Mask,
    NumberTest,
    ReadKind,
    SiteKey,
    SuspectRead,
    differing,
)
from pallas_debug.machine.shadow.tracking import MemoryTracker
from pallas_debug.stepping import unwritten

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
