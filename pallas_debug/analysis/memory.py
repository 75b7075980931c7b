"""Lower bound of a kernel's VMEM and SMEM use on each target, without compiling it.

Counts only what is certain: blocks with their buffers, scratch, and scalar prefetch. What the
compiler adds (spills, intermediate values) is unknown here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pallas_debug.analysis.subject import Result, Subject
from pallas_debug.analysis.tiling import padded
from pallas_debug.bridge.walk.index_maps import Block, bits_of
from pallas_debug.chips import chip_of_kind
from pallas_debug.findings.facts import array_text, by_size
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.sighting import Sighting
from pallas_debug.model import Operand, SourceLine, Target
from pallas_debug.quantities import size_text


@dataclass(frozen=True, kw_only=True)
class MemoryPart:
    """Memory used by one operand.

    Attributes:
      shape: shape of one buffer, `float32[512, 4096]`.
      buffers: number of buffers.
      bytes: total of all buffers, padded to tiles.
    """

    operand: str
    kind: str
    space: str
    shape: str
    buffers: int
    bytes: int

    def __str__(self) -> str:
        times = f"{self.buffers} x " if self.buffers > 1 else ""
        return f"{self.operand} {times}{self.shape} ({size_text(self.bytes, 2)})"


@dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """Lower bound of a kernel's memory use on one target.

    Attributes:
      vmem, smem: bytes; lower bounds.
      vmem_limit: bytes available to the kernel: the requested limit, or the compiler's default.
      vmem_capacity, smem_capacity: bytes on the chip.
      parts: memory of the operands, largest first.
    """

    target: str
    vmem: int
    smem: int
    vmem_limit: int
    vmem_capacity: int
    smem_capacity: int
    parts: tuple[MemoryPart, ...]


def look(subject: Subject, targets: Sequence[Target]) -> tuple[Result, tuple[MemoryUse, ...]]:
    """Compute memory use per target and report overflows."""
    result = Result()
    uses: list[MemoryUse] = []
    parts = sorted(_parts(subject), key=lambda part: -part.bytes)
    vmem = sum(part.bytes for part in parts if part.space == "vmem")
    smem = sum(part.bytes for part in parts if part.space == "smem")
    for target in targets:
        chip = chip_of_kind(target.device_kind)
        if chip is None:
            result.left_out.append(
                f"memory on {target.name}: the amount that {target.device_kind or 'it'} has is "
                "unknown"
            )
            continue
        uses.append(
            MemoryUse(
                target=target.name,
                vmem=vmem,
                smem=smem,
                vmem_limit=min(subject.grid.vmem_limit or chip.vmem_limit, chip.vmem),
                vmem_capacity=chip.vmem,
                smem_capacity=chip.smem,
                parts=tuple(parts),
            )
        )
    _vmem(subject, uses, result)
    _smem(subject, uses, result)
    return result, tuple(uses)


_ON_CHIP = ("default", "vmem", "smem")


def _parts(subject: Subject) -> list[MemoryPart]:
    parts = [_block(subject, b) for b in subject.grid.blocks if b.memory_space in _ON_CHIP]
    parts += [_part(t, "scalar_prefetch", "smem", t.shape) for t in subject.grid.tables]
    for scratch in subject.grid.scratch:
        if scratch.memory_space in _ON_CHIP and bits_of(scratch.dtype):
            parts.append(_part(scratch, "scratch", scratch.memory_space, scratch.shape))
    return parts


def _block(subject: Subject, block: Block) -> MemoryPart:
    # The compiler keeps a single buffer for a block whose index never changes.
    dims = subject.indices[block.position].dims
    stays = dims is not None and all(dim.size == 0 or dim.min() == dim.max() for dim in dims)
    buffers = 1 if block.is_whole or stays else (block.buffers or 2)
    shape = tuple(dim.size for dim in block.dims if dim.kind != "squeezed")
    return _part(block, block.kind, block.memory_space, shape, buffers)


def _part(
    of: Operand, kind: str, space: str, shape: tuple[int, ...], buffers: int = 1
) -> MemoryPart:
    is_flat, bits = space == "smem", bits_of(of.dtype)
    size = math.prod(shape) * max(bits, 32) // 8 if is_flat else padded(shape, bits)
    return MemoryPart(
        operand=of.name,
        kind=kind,
        space="smem" if is_flat else "vmem",
        shape=array_text(of.dtype, shape),
        buffers=buffers,
        bytes=buffers * size,
    )


def _vmem(subject: Subject, uses: list[MemoryUse], result: Result) -> None:
    """Report a VMEM overflow as one finding for all targets affected."""
    full = [use for use in uses if use.vmem > use.vmem_capacity]
    over = [use for use in uses if use.vmem > use.vmem_limit]
    if not over:
        return
    parts = [part for part in over[0].parts if part.space == "vmem"]
    seen = _sighting(subject, over, parts[0], {"vmem": str(over[0].vmem)})
    finding = seen.of(
        Fault.VMEM_OVERFLOW,
        used=size_text(over[0].vmem, 2),
        limits=by_size({use.target: use.vmem_limit for use in over}),
        parts=parts,
        is_full=len(full) == len(over),
    )
    result.findings.append(finding)


def _smem(subject: Subject, uses: list[MemoryUse], result: Result) -> None:
    over = [use for use in uses if use.smem > use.smem_capacity]
    if not over:
        return
    parts = [part for part in over[0].parts if part.space == "smem"]
    seen = _sighting(subject, over, parts[0], {"smem": str(over[0].smem)})
    limits = by_size({use.target: use.smem_capacity for use in over})
    used = size_text(over[0].smem, 2)
    result.findings.append(seen.of(Fault.SMEM_OVERFLOW, used=used, limits=limits, parts=parts))


def _sighting(
    subject: Subject, over: list[MemoryUse], part: MemoryPart, values: dict[str, str]
) -> Sighting:
    return subject.sighting(
        source=_line_of(subject, part),
        operand=part.operand,
        shape=part.shape,
        values=values,
        targets=[use.target for use in over],
    )


def _line_of(subject: Subject, part: MemoryPart) -> SourceLine | None:
    """The source line that determines an operand's size."""
    for block in subject.grid.blocks:
        if block.name == part.operand and block.kind == part.kind:
            return subject.block_line(block)
    fallback = subject.site.line() or subject.captured.kernel.source
    if part.kind == "scalar_prefetch":
        return subject.site.line("num_scalar_prefetch") or fallback
    names = [scratch.name for scratch in subject.grid.scratch]
    return subject.site.line("scratch_shapes", names.index(part.operand)) or fallback
