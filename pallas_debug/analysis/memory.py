"""How much VMEM and SMEM a kernel takes on a target, before the compiler has spoken.

What is counted is certain: blocks with their buffers, scratch, scalar prefetch. What the compiler
adds (spills, values that live in between) is not known here, so the sum is a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pallas_debug.analysis.subject import Result, Subject, shape_text
from pallas_debug.analysis.tiling import LANES, SUBLANES, padded
from pallas_debug.bridge.walk.index_maps import Block
from pallas_debug.model import SourceLine, Target

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class MemoryPart:
    """What one operand takes.

    Attributes:
      shape: of one buffer, `float32[512, 4096]`.
      buffers: how many there are of it.
      bytes: of all of them, filled up to tiles.
    """

    operand: str
    kind: str
    space: str
    shape: str
    buffers: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """What a kernel takes of a target's memory, at least.

    Attributes:
      vmem, smem: bytes; lower bounds.
      vmem_limit: bytes that a kernel is given: what it asked for, else the compiler's default.
      vmem_capacity, smem_capacity: bytes that there are.
      parts: the largest first.
    """

    target: str
    vmem: int
    smem: int
    vmem_limit: int
    vmem_capacity: int
    smem_capacity: int
    parts: tuple[MemoryPart, ...]


@dataclass(frozen=True, kw_only=True)
class _Chip:
    limit: int
    capacity: int
    smem: int = MIB


CHIPS = {
    "TPU v4": _Chip(limit=16 * MIB, capacity=16 * MIB),
    "TPU v5 lite": _Chip(limit=16 * MIB, capacity=128 * MIB),
    "TPU v5": _Chip(limit=16 * MIB, capacity=64 * MIB),
    "TPU v6 lite": _Chip(limit=32 * MIB, capacity=128 * MIB),
    "TPU7x": _Chip(limit=32 * MIB, capacity=64 * MIB),
}
"""By device kind, as libtpu 0.0.42 and 0.0.50 showed them: a kernel's share of VMEM unless it asks
for another, the VMEM that there is, and the SMEM."""


def look(subject: Subject, targets: Sequence[Target]) -> tuple[Result, tuple[MemoryUse, ...]]:
    """What the kernel takes on each target, and whether that is too much."""
    result = Result()
    uses: list[MemoryUse] = []
    parts = sorted(_parts(subject), key=lambda part: -part.bytes)
    vmem = sum(part.bytes for part in parts if part.space == "vmem")
    smem = sum(part.bytes for part in parts if part.space == "smem")
    for target in targets:
        chip = CHIPS.get(target.device_kind or "")
        if chip is None:
            result.not_judged.append(
                f"memory on {target.name}: how much {target.device_kind or 'it'} has is not known"
            )
            continue
        uses.append(
            MemoryUse(
                target=target.name,
                vmem=vmem,
                smem=smem,
                vmem_limit=min(subject.grid.vmem_limit or chip.limit, chip.capacity),
                vmem_capacity=chip.capacity,
                smem_capacity=chip.smem,
                parts=tuple(parts),
            )
        )
    _vmem(subject, uses, result)
    _smem(subject, uses, result)
    return result, tuple(uses)


def _parts(subject: Subject) -> list[MemoryPart]:
    parts = [part for block in subject.grid.blocks if (part := _block(subject, block))]
    for table in subject.grid.tables:
        size = math.prod(table.shape) * max(table.bits, 32) // 8
        shape = shape_text(table.dtype, table.shape)
        parts.append(
            MemoryPart(
                operand=table.name,
                kind="scalar_prefetch",
                space="smem",
                shape=shape,
                buffers=1,
                bytes=size,
            )
        )
    for scratch in subject.grid.scratch:
        if scratch.space not in ("vmem", "smem", "default") or not scratch.bits:
            continue
        space = "smem" if scratch.space == "smem" else "vmem"
        flat = math.prod(scratch.shape) * max(scratch.bits, 32) // 8
        parts.append(
            MemoryPart(
                operand=scratch.name,
                kind="scratch",
                space=space,
                shape=shape_text(scratch.dtype, scratch.shape),
                buffers=1,
                bytes=flat if space == "smem" else padded(scratch.shape, scratch.bits),
            )
        )
    return parts


def _block(subject: Subject, block: Block) -> MemoryPart | None:
    if block.space not in ("default", "vmem", "smem"):
        return None
    space = "smem" if block.space == "smem" else "vmem"
    # The compiler keeps one buffer of a block that stays the same.
    dims = subject.indices[block.position].dims
    stays = dims is not None and all(dim.size == 0 or dim.min() == dim.max() for dim in dims)
    buffers = 1 if block.is_whole or stays else (block.buffers or 2)
    shape = tuple(dim.size for dim in block.dims if dim.kind != "squeezed")
    flat = math.prod(shape) * max(block.bits, 32) // 8
    return MemoryPart(
        operand=block.name,
        kind=block.kind,
        space=space,
        shape=shape_text(block.dtype, shape),
        buffers=buffers,
        bytes=buffers * (flat if space == "smem" else padded(shape, block.bits)),
    )


def _vmem(subject: Subject, uses: list[MemoryUse], result: Result) -> None:
    """One finding for all targets on which the kernel is too large."""
    full = [use for use in uses if use.vmem > use.vmem_capacity]
    over = [use for use in uses if use.vmem > use.vmem_limit]
    if not over:
        return
    kind = "VmemCapacity" if len(full) == len(over) else "VmemOverflow"
    parts = [part for part in over[0].parts if part.space == "vmem"]
    limits = _limits({use.target: use.vmem_limit for use in over})
    if kind == "VmemCapacity":
        cause = "the chip has no more VMEM than that, whatever vmem_limit_bytes says"
    else:
        cause = "each block lies in VMEM as often as it is buffered, and scratch beside them"
    advice = _fitting(subject, min(use.vmem_limit for use in over))
    if kind == "VmemOverflow" and len(full) < len(over):
        room = min(use.vmem_capacity for use in over if use not in full)
        if over[0].vmem < room:
            advice += f"; or set vmem_limit_bytes, of at most {_mib(room)}"
    result.add(
        subject.finding(
            kind,
            f"the kernel takes {_mib(over[0].vmem)} of VMEM at least, and has {limits}: "
            + ", ".join(_part(part) for part in parts[:3])
            + (f" and {len(parts) - 3} more" if len(parts) > 3 else ""),
        ),
        source=_line_of(subject, parts[0]),
        operand=parts[0].operand,
        shape=parts[0].shape,
        values={"vmem": str(over[0].vmem), "targets": ", ".join(use.target for use in over)},
        cause=cause,
        advice=advice,
    )


def _smem(subject: Subject, uses: list[MemoryUse], result: Result) -> None:
    over = [use for use in uses if use.smem > use.smem_capacity]
    if not over:
        return
    parts = [part for part in over[0].parts if part.space == "smem"]
    limits = _limits({use.target: use.smem_capacity for use in over})
    result.add(
        subject.finding(
            "SmemOverflow",
            f"the kernel takes {_mib(over[0].smem)} of SMEM at least, and has {limits}: "
            + ", ".join(_part(part) for part in parts[:3]),
        ),
        source=_line_of(subject, parts[0]),
        operand=parts[0].operand,
        shape=parts[0].shape,
        values={"smem": str(over[0].smem), "targets": ", ".join(use.target for use in over)},
        cause="scalar prefetch lies in SMEM as a whole while the kernel runs",
        advice="leave the table in HBM and copy the part at hand by DMA, or call the kernel for a "
        "part of it at a time",
    )


def _limits(by_target: Mapping[str, int]) -> str:
    """`16 MiB on v4, v5e; 32 MiB on v6e`."""
    sizes = dict.fromkeys(by_target.values())
    return "; ".join(
        f"{_mib(size)} on {', '.join(t for t, s in by_target.items() if s == size)}"
        for size in sizes
    )


def _part(part: MemoryPart) -> str:
    times = f"{part.buffers} x " if part.buffers > 1 else ""
    return f"{part.operand} {times}{part.shape} ({_mib(part.bytes)})"


def _mib(size: int) -> str:
    return f"{size / MIB:.4g} MiB"


def _line_of(subject: Subject, part: MemoryPart) -> SourceLine | None:
    """Where the size of an operand is said."""
    for block in subject.grid.blocks:
        if block.name == part.operand and block.kind == part.kind:
            return subject.block_line(block)
    fallback = subject.site.line() or subject.captured.kernel.source
    if part.kind == "scalar_prefetch":
        return subject.site.line("num_scalar_prefetch") or fallback
    names = [scratch.name for scratch in subject.grid.scratch]
    return subject.site.line("scratch_shapes", names.index(part.operand)) or fallback


def _fitting(subject: Subject, limit: int) -> str:
    """Block sizes with which the lower bound stays within the limit."""
    fixed = sum(
        padded(s.shape, s.bits)
        for s in subject.grid.scratch
        if s.space in ("vmem", "default") and s.bits
    )
    shapes = {
        block.name: block.block_shape
        for block in subject.grid.blocks
        if block.space in ("default", "vmem") and block.shape
    }
    bits = {block.name: block.bits for block in subject.grid.blocks}
    buffers = 1 if all(block.is_whole for block in subject.grid.blocks) else 2

    def total(times: int) -> int:
        return fixed + times * sum(padded(shape, bits[name]) for name, shape in shapes.items())

    if total(1) - fixed == 0 or fixed >= limit:
        return "make the scratch smaller, and go over it in more steps"
    before = dict(shapes)
    while total(2) > limit:
        largest = max(
            shapes.values(),
            key=lambda shape: max(
                padded(shape, bits[name]) for name, other in shapes.items() if other == shape
            ),
        )
        smaller = _halved(largest)
        if smaller is None:
            return "cut the arrays into smaller blocks, or use a narrower dtype"
        # Blocks of one shape stay so.
        shapes = {name: smaller if s == largest else s for name, s in shapes.items()}
    changed = [f"{name} {shape}" for name, shape in shapes.items() if shape != before[name]]
    word = "a grid with blocks" if buffers == 1 else "blocks"
    return f"take {word} of {', '.join(changed)}, which would fit"


def _halved(shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Half of a block along the first dimension that can be halved and keep whole tiles."""
    for i, size in enumerate(shape):
        unit = {len(shape) - 1: LANES, len(shape) - 2: SUBLANES}.get(i, 1)
        if len(shape) == 1:
            unit = LANES * SUBLANES
        if size % (2 * unit) == 0 and size > unit:
            return (*shape[:i], size // 2, *shape[i + 1 :])
    return None
