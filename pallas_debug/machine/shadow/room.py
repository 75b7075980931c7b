"""Room for shadow memory: which kernels fit, and which grid points to check if one does not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pallas_debug import defaults
from pallas_debug.bridge.hosted.watch import GridWatch, WatchedPoints
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.errors import MachineError
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.shadow.memory import MemorySanitizer
from pallas_debug.quantities import size_text

SHADOW_BYTES = 4
"""Bytes of shadow memory per element: the number of the write that the element comes from."""


def require_room(launch: Launch, watch: GridWatch | None = None) -> None:
    """Reject a kernel whose arrays are too large for shadow memory, or grid points of other axes.

    Args:
      watch: grid points that are watched. Shadows of arrays in HBM are then created on write, so
        their size is not known in advance.

    Raises:
      MachineError: the arrays are too large, with the sizes and what to do; or the grid points of
        this kernel do not have as many axes as its grid.
    """
    devices, axes = math.prod(launch.mesh.values()), len(launch.grid)
    parts = () if watch is None else watch.of(launch.name, axes)
    for part in parts:
        if len(part.entries) != axes:
            grid = ", ".join("?" if n is None else str(n) for n in launch.grid)
            raise MachineError(
                f"the grid points to watch in kernel `{launch.name}`, {part.text!r}, have "
                f"{_axes(len(part.entries))}, but its grid ({grid}) has {axes}"
            )
    elements = _elements(launch) * devices
    needed = (_kept_whole(launch) * devices if parts else elements) * SHADOW_BYTES
    if needed <= defaults.MAX_SHADOW_BYTES:
        return
    largest = max(launch.operands, key=lambda o: math.prod(o.array or o.type.shape))
    shape = ", ".join(map(str, largest.array or largest.type.shape))
    message = (
        f"kernel `{launch.name}` has {elements:,} elements (`{largest.name}`: "
        f"{largest.type.dtype}[{shape}]), for which the sanitizer needs up to "
        f"{size_text(needed)} of shadow memory; its limit is "
        f"{size_text(defaults.MAX_SHADOW_BYTES)}. Sanitize it on smaller arrays with "
        "the same blocks"
    )
    fits = None if parts else example(launch)
    if fits is not None:
        message += (
            f", or watch only some of its grid points, such as {fits} (`watch={fits!r}`, `--watch "
            f"'{fits}'`, `--pallas-interpret='machine,sanitize,watch={fits}'`)"
        )
    if watch is not None and not parts:
        message += (
            f". The watched grid points {watch.text!r} are not for this kernel, whose grid has "
            f"{_axes(axes)}"
        )
    raise MachineError(message)


def watched_points(
    launch: Launch, arrays: Sequence[Sequence[Any]], watch: GridWatch | None
) -> WatchedPoints | None:
    """Return the grid points that are watched in a run; None if all are."""
    parts = () if watch is None else watch.of(launch.name, len(launch.grid))
    if not parts:
        return None
    sizes = iter(arrays[0])
    grid = tuple(int(next(sizes)) if n is None else n for n in launch.grid)
    boxes = tuple(part.ranges(grid) for part in parts)
    found = WatchedPoints(grid, tuple(part.text for part in parts), boxes)
    return None if found.count == found.total else found


def example(launch: Launch) -> str | None:
    """Name grid points whose writes fit in the room, such as the first along the first axes."""
    devices = math.prod(launch.mesh.values())
    room = defaults.MAX_SHADOW_BYTES // SHADOW_BYTES // devices - _kept_whole(launch)
    sizes = [1 if n is None else n for n in launch.grid]
    share = max(_elements(launch) - _kept_whole(launch), 1)
    entries = ["*"] * len(sizes)
    for axis, size in enumerate(sizes):
        if size < 2:
            continue
        # Use half of the room: blocks may overlap, and tiles extend beyond them.
        count = room * size // (2 * share)
        entries[axis] = f"0:{min(count, size - 1)}" if count > 1 else "0"
        if count:
            return ",".join(entries)
        share = -(-share // size)
    return None


def checked_in_part(observers: Sequence[MachineObserver]) -> str | None:
    """Why a run was not checked at all grid points; None if it was."""
    memories = [observer for observer in observers if isinstance(observer, MemorySanitizer)]
    points = memories[0].watched if memories else None
    if points is None:
        return None
    message = (
        f"memory and arithmetic are checked at {points.count:,} of {points.total:,} grid points "
        f"({points.text})"
    )
    if points.empty:
        grid = ", ".join(map(str, points.grid))
        message += f", but its grid ({grid}) has no {' or '.join(points.empty)}"
    return message


def _axes(count: int) -> str:
    return f"{count} {'axis' if count == 1 else 'axes'}"


def _elements(launch: Launch) -> int:
    return sum(math.prod(o.array or o.type.shape) for o in launch.operands)


def _kept_whole(launch: Launch) -> int:
    """Number of elements shadowed even if few grid points are watched: those not in HBM."""
    near = (o for o in launch.operands if o.array is None and o.type.space != "hbm")
    shared = (o for o in launch.operands if o.alias is not None)  # a bit per element takes a byte
    return sum(math.prod(o.type.shape) for o in near) + sum(
        math.prod(o.array or ()) // SHADOW_BYTES for o in shared
    )
