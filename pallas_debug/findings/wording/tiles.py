"""Wording of tiling faults and of memory overflows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pallas_debug.findings.faults import Fault
from pallas_debug.findings.sighting import Sighting
from pallas_debug.findings.wording.unsupported import LANES, SUBLANES
from pallas_debug.model import Finding

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Division of an operand's array: the block shape, and the array's dtype and shape."""

    operand: str
    shape: tuple[int | None, ...]
    array: str

    def refused(self, seen: Sighting, what: str, cause: str, advice: str) -> Finding:
        message = f"{self.operand}, {self.array}, is divided into blocks of {self.shape}{what}"
        return seen.found(Fault.BLOCK_SHAPE_TILING, message, cause, advice)


def no_dimension(seen: Sighting, blocks: Blocks) -> Finding:
    return blocks.refused(
        seen,
        ", which have no dimension",
        "a block needs at least one dimension",
        "reshape it to (1, 1)",
    )


def in_hbm(seen: Sighting, blocks: Blocks, *, space: str) -> Finding:
    return blocks.refused(
        seen,
        f" in {space.upper()}",
        "an operand that stays in HBM is not divided into blocks: the kernel gets all of it",
        "remove the block shape and the index map, and copy the parts by DMA",
    )


def columns(seen: Sighting, blocks: Blocks, *, size: int, best: int, bound: int) -> Finding:
    return blocks.refused(
        seen,
        f": {size} is neither a multiple of {LANES} nor the whole dimension",
        f"a tile has {SUBLANES} rows of {LANES} lanes",
        f"use {_whole(best, bound, 'columns')}",
    )


def rows(seen: Sighting, blocks: Blocks, *, size: int, best: int, bound: int) -> Finding:
    return blocks.refused(
        seen,
        f": {size} is neither a multiple of {SUBLANES} nor the whole dimension",
        f"a tile has {SUBLANES} rows of {LANES} lanes",
        f"use {_whole(best, bound, 'rows')}; or reshape the array so that its blocks span the "
        "last two dimensions",
    )


def _whole(best: int, bound: int, what: str) -> str:
    return f"all {bound} {what}" if best == bound else f"{best} {what} or all {bound}"


def vector(
    seen: Sighting, blocks: Blocks, *, dtype: str, size: int, least: int, best: int
) -> Finding:
    return blocks.refused(
        seen,
        f": {size} is neither the whole dimension, nor a multiple of {LANES * SUBLANES}, nor a "
        f"power of two of at least {least}",
        f"a vector of {dtype} is laid out in tiles of {least}",
        f"use {best} elements, or reshape the array to two dimensions",
    )


def narrow(
    seen: Sighting, blocks: Blocks, *, dtype: str, size: int, tile: int, best: int, libtpu: str,
    since: str,
) -> Finding:  # fmt: skip
    return blocks.refused(
        seen,
        f": {size} rows is not a multiple of {tile}",
        f"a tile of {dtype} has {tile} rows, and libtpu {libtpu} requires whole tiles",
        f"use {best} rows, or upgrade libtpu to {since}",
    )


def vmem_overflow(
    seen: Sighting, *, used: int, limits: Mapping[str, int], parts: Sequence[str],
    capacities: Mapping[str, int], room: int | None,
) -> Finding:  # fmt: skip
    """Report a kernel that uses more VMEM than its limit on some targets.

    Args:
      limits: limits in bytes, by target.
      parts: parts, largest first.
      capacities: the chips' whole VMEM in bytes, by target, if even that is too small everywhere.
      room: number of bytes that `vmem_limit_bytes` may be set to, if that would help.
    """
    advice = "use smaller blocks, less scratch or a narrower dtype"
    if room is not None:
        advice += f"; or set vmem_limit_bytes to at most {mib(room)}"
    cause = "VMEM holds each block once per buffer, plus the scratch"
    if capacities:
        cause = (
            f"the whole VMEM of a chip is {_by_size(capacities)}: vmem_limit_bytes cannot make it "
            "larger"
        )
    more = f" and {len(parts) - 3} more" if len(parts) > 3 else ""
    message = _message("VMEM", used, limits, parts) + more
    return seen.found(Fault.VMEM_OVERFLOW, message, cause, advice)


def smem_overflow(
    seen: Sighting, *, used: int, limits: Mapping[str, int], parts: Sequence[str]
) -> Finding:
    return seen.found(
        Fault.SMEM_OVERFLOW,
        _message("SMEM", used, limits, parts),
        "all scalar-prefetch operands are in SMEM while the kernel runs",
        "keep the table in HBM and copy the part in use by DMA, or call the kernel for one part "
        "of the table at a time",
    )


def _message(space: str, used: int, limits: Mapping[str, int], parts: Sequence[str]) -> str:
    largest = ", ".join(parts[:3])
    has = "may use" if space == "VMEM" else "has"  # a chip has more VMEM than a kernel's share
    return (
        f"the kernel needs at least {mib(used)} of {space}, and {has} {_by_size(limits)}: {largest}"
    )


def _by_size(limits: Mapping[str, int]) -> str:
    """Format limits: `16 MiB on v5e, v5p; 32 MiB on v6e`."""
    return "; ".join(
        f"{mib(size)} on {', '.join(t for t, s in limits.items() if s == size)}"
        for size in dict.fromkeys(limits.values())
    )


def mib(size: int) -> str:
    return f"{size / MIB:.4g} MiB"
