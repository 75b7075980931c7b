"""Broken kernels, one module per topic: those bundled for the guides, and many more.

Importable from all tests; a child process needs `tests` in its PYTHONPATH.
"""

from pallas_debug_kernels.broken import BROKEN as BUNDLED
from pallas_debug_kernels.broken import BrokenKernel as BrokenKernel
from pallas_debug_kernels.broken import Refusal as Refusal
from pallas_debug_kernels.broken import find

from . import (
    alignment,
    arithmetic,
    attention,
    bounds,
    dma,
    gpu,
    grid,
    hints,
    initialization,
    lowering,
    memory,
    misuse,
    numerics,
    order,
    outputs,
    remote,
    semaphores,
    stale,
)

TOPICS = (
    *(bounds, initialization, grid, dma, semaphores, hints),
    *(numerics, arithmetic, alignment, memory, lowering, misuse),
    *(stale, attention, outputs),
)
BROKEN: tuple[BrokenKernel, ...] = tuple(
    kernel
    for topic in TOPICS
    for kernel in (
        *(k for k in BUNDLED if k.topic == topic.__name__.rpartition(".")[2]),
        *topic.KERNELS,
    )
)

FOR_MACHINE: tuple[BrokenKernel, ...] = tuple(
    kernel for topic in (order, remote) for kernel in topic.KERNELS
)
"""Those that the kernel machine alone is asked about, and not the static analysis."""

ALL = BROKEN + FOR_MACHINE

FOR_GPU = gpu.KERNELS
"""Kernels that no TPU runs."""


def broken(name: str) -> BrokenKernel:
    return find(ALL, name)
