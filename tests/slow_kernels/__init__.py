"""Kernels that are slow on purpose, each with its remedied twin, one module per topic."""

from . import (
    blocks,
    copies,
    layouts,
    loops,
    memory,
    narrow,
    pipelines,
    precision,
    products,
    recurrences,
    steps,
    together,
)
from .slow import SlowKernel as SlowKernel

TOPICS = (
    *(layouts, precision, pipelines, copies, blocks, loops, products, recurrences, steps),
    *(memory, narrow, together),
)
SLOW: tuple[SlowKernel, ...] = tuple(kernel for topic in TOPICS for kernel in topic.KERNELS)


def slow(name: str) -> SlowKernel:
    """Return the slow kernel called `name`."""
    return next(kernel for kernel in SLOW if kernel.name == name)
