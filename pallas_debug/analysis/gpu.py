"""Limits of a GPU's block that the shapes of a kernel alone exceed."""

from __future__ import annotations

from collections.abc import Sequence

from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.jaxprs.held import HeldBuffer, held
from pallas_debug.chips import Gpu, gpu_of
from pallas_debug.findings.facts import array_text
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.sighting import Sighting
from pallas_debug.model import Finding, Target, Witness
from pallas_debug.quantities import size_text

WARPGROUP = 128
"""Threads over which an accumulator of `wgmma` is spread."""

MAX_REGISTERS = 255
"""Maximum 32-bit registers of a thread, on all GPUs since compute capability 5.0 (`CAPABILITIES`
of the table of chips)."""


def too_large(captured: Capture, targets: Sequence[Target]) -> list[Finding]:
    """Report shared memory and accumulators that no block can have, before anything is compiled."""
    buffers = held(captured.params)
    gpus = [(target.name, gpu) for target in targets if (gpu := gpu_of(target.name)) is not None]
    shared = [buffer for buffer in buffers if buffer.space == "smem"]
    needed = sum(buffer.bytes for buffer in shared)
    over = [(name, gpu) for name, gpu in gpus if needed > gpu.shared_limit]
    found = []
    if over:
        limits = ", ".join(f"{size_text(gpu.shared_limit)} on {name}" for name, gpu in over)
        needs = f"at least {size_text(needed, 2)} of shared memory"
        found.append(_finding(captured, over, shared, needs, limits))
    for buffer in buffers:
        registers = buffer.bytes // 4 // WARPGROUP
        if buffer.space == "regs" and registers > MAX_REGISTERS and gpus:
            needs = f"{registers} registers of each thread for one accumulator"
            found.append(_finding(captured, gpus, [buffer], needs, str(MAX_REGISTERS)))
    return found


def _finding(
    captured: Capture,
    over: Sequence[tuple[str, Gpu]],
    buffers: Sequence[HeldBuffer],
    needs: str,
    limits: str,
) -> Finding:
    largest = sorted(buffers, key=lambda buffer: -buffer.bytes)
    parts = ", ".join(
        f"{array_text(buffer.dtype, buffer.shape)} ({size_text(buffer.bytes, 2)})"
        for buffer in largest
    )
    seen = Sighting(
        kernel=captured.kernel.name,
        engine="static",
        witness=Witness(source=captured.kernel.source),
        targets=tuple(name for name, _ in over),
    )
    return seen.of(Fault.GPU_BLOCK_OVERFLOW, needs=needs, limits=limits, parts=parts)
