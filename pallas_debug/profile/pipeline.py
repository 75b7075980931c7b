"""Simulation of the pipeline that libtpu builds around a kernel, step by step, for what-if.

As observed in the bundles of all supported versions, it is one loop in which fetches run a step
ahead of the kernel, and the wait for write-backs a step behind it. An iteration

1. starts to fetch this step's blocks of operands with a single buffer;
2. starts to fetch the next step's blocks of other operands, if they differ from this step's blocks;
3. waits for the fetches of this step, and runs the kernel;
4. starts to write back the blocks that this step is the last to use, and waits for those with a
   single buffer;
5. waits for the write-backs of the previous step.

Copies share the bandwidth of HBM and are served in the order in which they start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pallas_debug.profile.blocks import Block


@dataclass(frozen=True, kw_only=True)
class PipelineOperand:
    """Operand whose blocks are copied.

    Attributes:
      is_input: whether blocks are fetched; those of an output are written back.
      reads_back: whether an output's block is fetched, too.
      block: returns the operand's block at a step.
      fetch, write: cycles before the first byte of a block moves, and those of the transfer.
    """

    is_input: bool
    buffers: int
    reads_back: bool
    block: Callable[[int], Block]
    fetch: tuple[float, float]
    write: tuple[float, float]

    @property
    def is_ahead(self) -> bool:
        """True if blocks are fetched a step ahead."""
        return self.is_input and self.buffers > 1


def pipeline_cycles(
    operands: Sequence[PipelineOperand],
    *,
    steps: int,
    ran: int,
    compute: Callable[[int], float],
) -> float:
    """Return the cycles of a core until a step ends, or the last write-back completes.

    Args:
      operands: operands whose blocks are copied, in order.
      steps: total number of steps of the core.
      ran: number of steps to run.
      compute: returns the compute cycles of a step.
    """
    now = free = 0.0  # free: time at which all copies started so far have moved

    def copied(latency: float, transfer: float) -> float:
        """Start a copy, and return when it completes."""
        nonlocal free
        free = max(now, free) + transfer
        return free + latency

    before: list[Block] | None = None
    blocks = [operand.block(0) for operand in operands]
    fetches = [copied(*o.fetch) for o in operands if o.is_ahead]
    writes: list[float] = []
    for step in range(ran):
        following = [o.block(step + 1) for o in operands] if step + 1 < steps else None
        fetches += [
            copied(*o.fetch)
            for n, o in enumerate(operands)
            if (o.is_input or o.reads_back) and not o.is_ahead and _differs(blocks, before, n)
        ]
        ahead = [
            copied(*o.fetch)
            for n, o in enumerate(operands)
            if following is not None and o.is_ahead and _differs(blocks, following, n)
        ]
        now = max([now, *fetches]) + compute(step)
        complete = [
            (o.buffers > 1, copied(*o.write))
            for n, o in enumerate(operands)
            if not o.is_input and _differs(blocks, following, n)
        ]
        now = max([now, *writes, *(end for is_double, end in complete if not is_double)])
        writes = [end for is_double, end in complete if is_double]
        if step + 1 == steps:
            now = max([now, *writes])
        fetches, before = ahead, blocks
        blocks = blocks if following is None else following
    return now


def _differs(blocks: list[Block], others: list[Block] | None, number: int) -> bool:
    """Return whether an operand's block differs or may differ."""
    if others is None:
        return True
    block, other = blocks[number], others[number]
    return block is None or other is None or block != other
