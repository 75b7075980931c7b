"""From a profile to what the rules of advice read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pallas_debug.ir.operations import Module
from pallas_debug.profile.advice import AdviceSubject, StepCost
from pallas_debug.profile.advice.program import MosaicProgram
from pallas_debug.profile.advice.rules.pipelines import copies
from pallas_debug.profile.blocks import BlockMap
from pallas_debug.profile.chips import CHIPS

if TYPE_CHECKING:
    from pallas_debug.profile.stats import Profile

BYTES_PER_CYCLE = {"v5e": 491.2, "v5p": 1250.5, "v6e": 776.4, "tpu7x": 1688.9}
"""Of copies between HBM and VMEM, as in libtpu's own estimates."""


def subject_of(profile: Profile) -> AdviceSubject | None:
    """Collect what advice is derived from; None without a kernel or bundles."""
    if profile.kernel is None or not profile.schedule.bundles:
        return None
    relayouts = profile.texts.relayouts
    target = profile.compilation.target.partition(":")[0] if profile.compilation else ""
    executions = _executions(profile)
    rate = BYTES_PER_CYCLE.get(target)
    return AdviceSubject(
        kernel=profile.kernel,
        schedule=profile.schedule,
        tracing=profile.tracing,
        mosaic=profile.mosaic,
        relaid=Module.of(relayouts, "mlir") if relayouts else None,
        executions=executions,
        step=_step(profile, executions, rate),
        blocks=profile.blocks,
        bytes_per_cycle=rate,
        vmem=_integer(profile.memory.vmem.value),
        vmem_limit=_vmem_limit(profile),
    )


def _vmem_limit(profile: Profile) -> int | None:
    """VMEM that the kernel may use: what it asks for, else the default of the chip."""
    asked = profile.kernel.compiler_params.get("vmem_limit_bytes") if profile.kernel else None
    if asked is not None and asked.isdecimal():
        return int(asked)
    kind = profile.compilation.device_kind if profile.compilation else None
    chip = CHIPS.get(kind or "")
    return chip.limit if chip is not None else None


def _integer(value: int | float | None) -> int | None:
    return int(value) if value is not None else None


def _executions(profile: Profile) -> tuple[float, ...]:
    """How often each bundle runs; inner loops are matched with those of the program, in order."""
    executions = profile.cycles.executions
    inner = [loop for loop in profile.schedule.loops if loop.depth > 0]
    if not profile.cycles.assumptions or profile.mosaic is None:
        return executions
    loops = MosaicProgram(profile.mosaic).loops
    if len(loops) != len(inner):
        return executions
    counts = list(executions)
    for scheduled, loop in zip(inner, loops, strict=True):
        for at in range(scheduled.start, scheduled.stop):
            counts[at] *= loop.trips or 1
    return tuple(counts)


def _step(profile: Profile, executions: Sequence[float], rate: float | None) -> StepCost | None:
    blocks = profile.blocks
    if blocks is None or blocks.unknown is not None or not executions or not rate:
        return None
    moved = _moved(blocks)
    if moved is None or not blocks.points:
        return None
    return StepCost(compute=sum(executions) / blocks.points, copies=moved / rate / blocks.points)


def _moved(blocks: BlockMap) -> int | None:
    """Bytes that the pipeline moves; None if some are unknown."""
    total = 0
    for operand in blocks.pipelined:
        count = operand.visits.copies if operand.visits else copies(operand, blocks.grid)
        if count is None:
            return None
        total += count * operand.block_bytes
    return total
