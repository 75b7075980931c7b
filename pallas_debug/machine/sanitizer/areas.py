"""Areas that the sanitizer checks, with an observer for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.bridge.programs.loops import LoopChunk
from pallas_debug.chips import TILE
from pallas_debug.errors import MachineError
from pallas_debug.findings.faults import Fault
from pallas_debug.machine.gpu.undefined import UndefinedElements
from pallas_debug.machine.hints import CarriedMemory, LowPrecisionSums, ReplacedWrites
from pallas_debug.machine.numbers import ClaimsObserver, NumbersObserver, RandomBitsObserver
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.order.findings import OrderSanitizer
from pallas_debug.machine.sanitizer.again import KernelCall
from pallas_debug.machine.shadow.memory import MemorySanitizer, require_room
from pallas_debug.machine.threads import Thread
from pallas_debug.model import Finding, SourceLine

Arrays = Sequence[Sequence[Any]]


def require_cores(launch: Launch) -> None:
    """Reject a SparseCore kernel: the sanitizer has no rules for its accesses.

    Raises:
      MachineError: the kernel runs on a SparseCore.
    """
    if any(mesh.kind != "tensor" for mesh in launch.meshes):
        raise MachineError(
            f"kernel `{launch.name}` runs on a SparseCore, which the sanitizer does not check"
        )


def observers(
    launch: Launch, arrays: Arrays, first: int = 0, *,
    infinities: bool = False,
) -> list[MachineObserver]:  # fmt: skip
    """Create the observers of a run, in the order in which their findings are listed: causes first.

    An observer has a method `findings`, which is called after the run has ended or was stopped.

    Args:
      arrays: arrays of the call, for each device.
      first: number of the first of these devices in the mesh.
      infinities: whether infinities in the results are findings, as NaNs are.
    """
    order = OrderSanitizer(launch, devices=len(arrays))
    memory = MemorySanitizer(launch, arrays, order=order, first=first)
    call = KernelCall(launch, arrays, {"first": first})
    return [
        order,
        CarriedMemory(memory),
        ReplacedWrites(memory),
        LowPrecisionSums(memory),
        memory,
        ClaimsObserver(launch),
        RandomBitsObserver(launch),
        *([UndefinedElements(launch, call)] if launch.is_gpu else []),
        NumbersObserver(launch, infinities=infinities),
    ]


class IdleLoops(MachineObserver):
    """Records, by line, which of the loops reached by a run iterate.

    Attributes:
      skipped: loops whose condition was false from the start at least once.
      ran: loops that iterated at least once.
    """

    follows_loops = False

    def __init__(self) -> None:
        self.skipped: set[SourceLine] = set()
        self.ran: set[SourceLine] = set()

    def skips(self, thread: Thread, step: ir.WhileLoop) -> None:
        if step.site.line is not None:
            self.skipped.add(step.site.line)

    def iterates(self, thread: Thread, step: ir.MachineStep, iteration: int) -> None:
        if iteration == 0 and step.site.line is not None:
            self.ran.add(step.site.line)

    def runs_chunk(self, thread: Thread, step: ir.Loop, chunk: LoopChunk) -> None:
        if step.site.line is not None:
            self.ran.add(step.site.line)


def padding_read(
    launch: Launch, arrays: Arrays, results: Arrays, *, first: int = 0
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
        require_cores(launch)
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
