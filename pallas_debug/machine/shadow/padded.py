"""NaN results caused by padding, in runs that are not sanitized.

Padding is NaN on the machine, so a kernel that uses it returns NaN. A test then fails with its own
assertion, which does not name the cause: so the kernel is run again with shadow memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.chips import TILE
from pallas_debug.errors import MachineError
from pallas_debug.findings.faults import Fault
from pallas_debug.machine.sanitizer import areas
from pallas_debug.machine.sanitizer.again import KernelCall
from pallas_debug.machine.shadow.memory import MemorySanitizer, require_room
from pallas_debug.model import Finding

Array = np.ndarray[Any, Any]


def explain(
    launch: Launch,
    arrays: Sequence[Sequence[Any]],
    results: Sequence[Sequence[Array]],
    *,
    first: int = 0,
) -> list[Finding]:
    """Return reads of padding that reach the results of a run with NaN.

    Args:
      arrays, results: arrays and results of the run, for each device.
      first: number of the first of these devices in the mesh.

    Returns:
      The findings; none if no array has padding, the call passed NaN, or the sanitizer cannot check
      the kernel.
    """
    if not _has_padding(launch) or not _has_nan(results) or _has_nan(arrays):
        return []
    try:
        areas.require_cores(launch)
        require_room(launch)
    except MachineError:
        return []
    sanitizer = MemorySanitizer(launch, arrays, first=first)
    KernelCall(launch, arrays, {"first": first}).run(sanitizer)
    return [found for found in sanitizer.findings() if found.kind is Fault.PADDING_READ]


def _has_padding(launch: Launch) -> bool:
    """Return whether an array's shape is not a multiple of its blocks, or of the tile size."""
    for operand in launch.operands:
        shape = operand.type.shape if operand.array is None else operand.array
        if operand.block is not None:
            blocks = zip(shape, operand.block.sizes, strict=True)
            if any(size % block for size, block in blocks):
                return True
        if operand.type.space == "hbm":
            tiles = zip(reversed(shape), reversed(TILE), strict=False)
            if any(size % tile for size, tile in tiles):
                return True
    return False


def _has_nan(arrays: Iterable[Iterable[Any]]) -> bool:
    for given in arrays:
        for array in map(np.asarray, given):
            is_float = array.dtype.kind == "f" or "float" in array.dtype.name
            if is_float and bool((array != array).any()):  # only NaN differs from itself
                return True
    return False
