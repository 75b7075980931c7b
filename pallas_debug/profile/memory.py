"""VMEM and SMEM of a kernel, by operand, with the number of buffers.

libtpu writes a map of VMEM as an HTML page that contains the data as JSON. It does not list
operands in SMEM; their sizes are derived from their shapes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pallas_debug.chips import chip_of_kind
from pallas_debug.explain.memory import BUFFERS, WINDOW
from pallas_debug.ir.hlo import kernel_calls
from pallas_debug.model import Compilation, Kernel, Operand, OperandKind
from pallas_debug.profile.figures import Figure, missing

_DATA = re.compile(r"const\s+DATA\s*=\s*")
_BITS = re.compile(r"(?:[a-z]+?)(?P<bits>\d+)")
_LIMIT_FLAG = re.compile(r"--xla_tpu_scoped_vmem_limit_kib=(?P<kib>\d{1,12})")
_BYTES = re.compile(r"[1-9]\d{0,14}")

_SMEM_TILE = 4
"""Size in bytes of an element in SMEM; smaller types are padded to it."""

Role = Literal["operand", "spill", "internal"]


@dataclass(frozen=True, kw_only=True)
class AllocatedMemory:
    """Memory allocated for a kernel.

    Attributes:
      name: name of the operand, `spilled registers`, or the compiler's description.
      kind: kind of the operand; None for the compiler's own allocations.
      space: `vmem`, `smem`, or the memory space that the operand requests.
      size: size in bytes of all buffers together.
      buffers: number of buffers: 2 if one block is copied while the kernel works on the other.
      padding: bytes of `size` that contain no data.
    """

    name: str
    role: Role
    space: str
    size: Figure
    kind: OperandKind | None = None
    buffers: int | None = None
    padding: int | None = None


@dataclass(frozen=True, kw_only=True)
class MemoryMap:
    """Memory of a kernel by operand.

    Attributes:
      vmem, smem: total bytes.
      limit: VMEM that the kernel may use: the amount it requests, or else the chip's default.
      capacity: VMEM of the core, as reported by the compiler: the highest limit to request.
    """

    uses: tuple[AllocatedMemory, ...]
    vmem: Figure
    smem: Figure
    limit: Figure
    capacity: Figure

    @property
    def is_limit_raisable(self) -> bool:
        """True if the core has more VMEM than the kernel's limit."""
        limit, capacity = self.limit.value, self.capacity.value
        return limit is not None and capacity is not None and limit < capacity

    def of_operand(self, name: str) -> AllocatedMemory | None:
        """Return the memory of an operand; None if it has none of its own."""
        named = (a for a in self.uses if a.role == "operand" and a.name == name)
        return next(named, None)


def memory_map(
    vmem: str | None,
    kernel: Kernel | None = None,
    compilation: Compilation | None = None,
    *,
    hlo: str | None = None,
) -> MemoryMap:
    """Parse the text of `vmem.html`, and name its parts after the kernel's operands.

    Args:
      hlo: XLA's program around the kernel, whose copies have their own allocations.
    """
    limit = vmem_limit(kernel, compilation)
    data = _data(vmem, kernel_calls(hlo or "")) if vmem else None
    in_smem = tuple(_in_smem(kernel)) if kernel is not None else ()
    smem = _total(in_smem) if kernel is not None else missing("the kernel is unknown", unit="bytes")
    if data is None:
        reason = "the compiler's memory map cannot be read" if vmem else "there is no memory map"
        return MemoryMap(
            uses=in_smem,
            vmem=missing(reason, unit="bytes"),
            smem=smem,
            limit=limit,
            capacity=missing(reason, unit="bytes"),
        )
    rows, total, capacity, is_listed = data
    return MemoryMap(
        uses=(*_in_vmem(rows, kernel), *in_smem),
        vmem=_stated(total, "VMEM that the compiler allocated to the kernel")
        if is_listed
        else Figure(value=0, unit="bytes", note="the compiler's list does not include the kernel"),
        smem=smem,
        limit=limit,
        capacity=_stated(capacity, "VMEM of the core"),
    )


def unknown_memory() -> MemoryMap:
    """Return a map without figures, for a SparseCore."""
    nothing = missing("the kernel runs on the SparseCore", unit="bytes")
    return MemoryMap(uses=(), vmem=nothing, smem=nothing, limit=nothing, capacity=nothing)


def vmem_limit(kernel: Kernel | None, compilation: Compilation | None) -> Figure:
    """Return the VMEM limit that the kernel or the compiler's flags request, or the default."""
    chip = chip_of_kind(compilation.device_kind if compilation else None)
    asked = kernel.compiler_params.get("vmem_limit_bytes", "") if kernel is not None else ""
    value, note = None, ""
    for flag in compilation.flags if compilation else ():
        if found := _LIMIT_FLAG.fullmatch(flag):
            value, note = int(found["kib"]) * 1024, "xla_tpu_scoped_vmem_limit_kib"
    if _BYTES.fullmatch(asked):
        value, note = int(asked), "vmem_limit_bytes of the kernel"
    if value is not None:
        return Figure(value=min(value, chip.vmem) if chip else value, unit="bytes", note=note)
    if chip is None:
        return missing("the default limit of this chip is unknown", unit="bytes")
    return Figure(
        value=chip.vmem_limit,
        origin="assumed",
        unit="bytes",
        note="the default of this chip; vmem_limit_bytes sets another one",
    )


def _stated(value: int | None, note: str) -> Figure:
    return Figure(value=value, origin="compiler", unit="bytes", note=note)


def _total(uses: tuple[AllocatedMemory, ...]) -> Figure:
    return Figure(
        value=sum(int(a.size.value or 0) for a in uses),
        unit="bytes",
        note="scalar operands by their shapes, without spilled scalars",
    )


_Rows = list[tuple[str, int, int | None]]

_Data = tuple[_Rows, int | None, int | None, bool]
"""Allocations of the kernel's operation as tag, bytes and padding; their total; capacity of the
core; whether the page lists the operation."""


def _data(html: str, calls: Collection[str]) -> _Data | None:
    """Parse the page; None if it cannot be parsed.

    Args:
      calls: names of the operations that call the kernel; the largest of several is used.
    """
    at = _DATA.search(html)
    if at is None:
        return None
    try:
        page, _ = json.JSONDecoder().raw_decode(html, at.end())
    except (ValueError, RecursionError):
        return None
    operations = _dict(_dict(page).get("hlo_breakdowns"))
    # The kernel's operation is listed under its name and as `<top-inlining-caller>`.
    names = [name for name in operations if not name.startswith("<")] or list(operations)
    found = [_dict(operations[name]) for name in names if name in calls or not calls]
    operation = max(found, key=lambda o: _int(o.get("total_size")) or 0, default={})
    # An operation without allocations is omitted: all arrays of such a kernel are in VMEM.
    is_listed = bool(found) or not calls or not operations
    total = _int(operation.get("total_size"))
    rows: _Rows = []
    for block in _list(operation.get("blocks")):
        for allocation in _list(_dict(block).get("allocations")):
            entry = _dict(allocation)
            size = _int(entry.get("size"))
            if size is not None:
                rows.append((str(entry.get("tag", "")), size, _int(entry.get("padding"))))
    capacity = _int(_dict(_dict(page).get("global_info")).get("vmem_capacity"))
    return rows, total, capacity, is_listed


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _in_vmem(rows: _Rows, kernel: Kernel | None) -> Iterator[AllocatedMemory]:
    inputs: tuple[Operand, ...] = ()
    outputs: tuple[Operand, ...] = ()
    scratch: list[Operand] = []
    if kernel is not None:
        # libtpu numbers the operands of the call from scalar prefetch, without sizes of the grid.
        inputs = tuple(o for k in _CALL_ORDER for o in kernel.of_kind(k))
        outputs = kernel.of_kind("output")
        scratch = [o for o in kernel.of_kind("scratch") if "vmem" in o.memory_space]
    for tag, size, padding in rows:
        window, levels = WINDOW.search(tag), BUFFERS.search(tag)
        name, role, kind, buffers = tag or "unnamed", "internal", None, None
        if window:
            listed = inputs if window["side"] == "input" else outputs
            n = int(window["number"])
            name = listed[n].name if n < len(listed) else f"{window['side']} {n}"
            role, kind, buffers = "operand", window["side"], int(levels["count"]) if levels else 1
        elif tag == "scratch operand":
            name = scratch.pop(0).name if scratch else "scratch"
            role, kind, buffers = "operand", "scratch", 1
        elif tag.upper() == "SPILL":
            name, role = "spilled registers", "spill"
        yield AllocatedMemory(
            name=name,
            role=role,  # type: ignore[arg-type]
            kind=kind,  # type: ignore[arg-type]
            space="vmem",
            size=_stated(size, tag),
            buffers=buffers,
            padding=padding,
        )


_CALL_ORDER: tuple[OperandKind, ...] = ("scalar_prefetch", "input")


def _in_smem(kernel: Kernel) -> Iterator[AllocatedMemory]:
    for operand in kernel.operands:
        if operand.memory_space != "smem" and operand.kind not in (
            "scalar_prefetch",
            "dynamic_grid",
        ):
            continue
        block = operand.block_shape or operand.shape
        elements = math.prod(1 if size is None else size for size in block)
        bits = _BITS.match(operand.dtype)
        width = max(int(bits["bits"]) // 8, _SMEM_TILE) if bits else _SMEM_TILE
        is_windowed = operand.block_shape is not None and operand.block_shape != operand.shape
        yield AllocatedMemory(
            name=operand.name,
            role="operand",
            kind=operand.kind,
            space="smem",
            size=Figure(
                value=elements * width * (2 if is_windowed else 1),
                unit="bytes",
                origin="assumed" if is_windowed else "derived",
                note="of its block, in two buffers" if is_windowed else "of its shape",
            ),
            buffers=2 if is_windowed else 1,
        )
