"""The list of kernels that are wrong on purpose: what tests and tools iterate over."""

from . import (
    alignment,
    bounds,
    dma,
    grid,
    hints,
    initialization,
    lowering,
    memory,
    misuse,
    numerics,
    semaphores,
)
from .record import BrokenKernel

BROKEN: tuple[BrokenKernel, ...] = (
    *bounds.KERNELS,
    *initialization.KERNELS,
    *grid.KERNELS,
    *dma.KERNELS,
    *semaphores.KERNELS,
    *hints.KERNELS,
    *numerics.KERNELS,
    *alignment.KERNELS,
    *memory.KERNELS,
    *lowering.KERNELS,
    *misuse.KERNELS,
)


def broken(name: str) -> BrokenKernel:
    """The broken kernel called `name`; a ValueError lists the known ones."""
    for candidate in BROKEN:
        if candidate.name == name:
            return candidate
    known = ", ".join(candidate.name for candidate in BROKEN)
    raise ValueError(f"There is no broken kernel {name!r}. The broken kernels are: {known}.")
