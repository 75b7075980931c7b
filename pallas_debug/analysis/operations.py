"""Operations that jax's lowering or the compiler rejects, or that have no effect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pallas_debug.analysis.subject import Result, Subject, over_loops
from pallas_debug.analysis.tiling import LANES
from pallas_debug.bridge.jaxprs import lines
from pallas_debug.bridge.jaxprs.params import jaxprs_of
from pallas_debug.bridge.walk.dataflow.same_values import RefUses, SameValues
from pallas_debug.bridge.walk.dataflow.unread_scratch import unread_scratch
from pallas_debug.bridge.walk.events import Dim, View
from pallas_debug.bridge.walk.operations import Equation, operations
from pallas_debug.findings.sighting import Sighting
from pallas_debug.findings.wording import stored, unsupported
from pallas_debug.findings.wording.facts import array_text
from pallas_debug.model import Finding, SourceLine, Target

_ACCESSES = ("get", "swap", "addupdate", "masked_load", "masked_swap")

_NO_NARROW_MATMUL = {"TPU v4": ("int8", "uint8", "float8", "int4", "uint4")}
"""Prefixes of dtypes that a chip's matrix unit does not accept, by device kind."""


def look(subject: Subject, targets: Sequence[Target]) -> Result:
    """Report each kind of problem once per line."""
    result = Result()
    known: set[tuple[object, ...]] = set()

    def add(finding: Finding | None) -> None:
        if finding is not None and (finding.kind, finding.witness.line) not in known:
            known.add((finding.kind, finding.witness.line))
            result.findings.append(finding)

    for operation in operations(subject.captured):
        add(_of_operation(subject, operation, targets))
    for event in subject.walked.events:
        if event.what == "dma_start" and event.certain:
            for view in (event.view, event.other):
                dim = _partial_lanes(view)
                if dim is not None and view is not None:
                    buffer = view.buffer
                    seen = subject.sighting(
                        source=event.source, operand=buffer.name, shape=str(buffer)
                    )
                    add(unsupported.unaligned_dma(seen, columns=dim.size, of=dim.bound))
    result.findings += _without_effect(subject)
    result.findings += _never_read(subject)
    return result


def _without_effect(subject: Subject) -> Iterator[Finding]:
    """Yield states that nothing updates, and values that are subtracted from themselves."""
    values = SameValues(jaxprs_of(subject.captured.params)[0])
    operands = subject.captured.kernel.operands
    for position, uses in values.refs.items():
        number = uses.constant
        if number is None or position >= len(operands) or operands[position].kind != "scratch":
            continue
        source = uses.combined(again=not _is_kept(subject, position))
        if source is None:
            continue
        stores = list(dict.fromkeys(line for line in uses.stores if line is not None))
        if stores and not _is_turned_off(subject, operands[position].name, stores):
            yield stored.state_not_updated(
                _of_operand(subject, position, source=source, other=stores[0]),
                number=number,
                stores=[line.line for line in stores],
            )
    for position, found in {one.ref: one for one in reversed(values.cancelled)}.items():
        if position < len(operands) and _is_state(operands[position].kind, values.refs[position]):
            yield stored.cancelled(
                _of_operand(subject, position, source=found.source, other=found.stored),
                divides=found.operation == "div",
                stored=None if found.stored is None else found.stored.line,
            )


def _never_read(subject: Subject) -> Iterator[Finding]:
    """Yield scratch that another device fills, or that the kernel updates, but that nothing uses.

    A kernel may compute more than it needs. Updates are reported only if there are as many outputs
    with blocks of that size as there are such buffers: each then seems to belong to one.
    """
    if subject.walked.incomplete is not None:
        return
    operands = subject.captured.kernel.operands
    for position in sorted(unread_scratch(subject.captured)):
        events = [e for e in subject.walked.events if e.view and e.view.buffer.position == position]
        if not events or events[0].view is None or events[0].view.buffer.is_semaphore:
            continue
        copies = [e for e in events if e.what == "dma_start" and e.certain and e.remote]
        updates = [e for e in events if e.what == "write" and e.certain]
        loads = [e.source for e in events if e.what == "read"]
        found = copies or (updates if loads and _has_output(subject, position) else [])
        name = operands[position].name
        if not found or _may_be_read(subject, name, loads):
            continue
        used = [e.source for e in found if e.source is not None]
        yield stored.never_read(
            _of_operand(subject, position, source=used[-1] if used else None),
            is_copied=bool(copies),
            lines=sorted({line.line for line in used}),
        )


def _has_output(subject: Subject, position: int) -> bool:
    """Return whether there is an output for each of the scratch buffers of a size."""
    operands = subject.captured.kernel.operands
    size = [n for n in operands[position].shape if n != 1]
    blocks = [[dim.size for dim in block.dims if dim.size != 1] for block in subject.grid.outputs]
    alike = [o for o in operands if o.kind == "scratch" and [n for n in o.shape if n != 1] == size]
    return blocks.count(size) >= len(alike)


def _may_be_read(subject: Subject, name: str, loads: Sequence[SourceLine | None]) -> bool:
    """Return whether the kernel's source reads a ref in a line that parameters turn off."""
    function = subject.captured.kernel.source
    if function is None:
        return True
    run = {line.line for line in loads if line is not None and line.file == function.file}
    return any(
        run.isdisjoint(range(first, last + 1)) for first, last in lines.loads_from(function, name)
    )


def _is_state(kind: str, uses: RefUses) -> bool:
    """Return whether a ref can have a previous value: scratch that is stored to once cannot."""
    return kind != "scratch" or not uses.is_known or len(uses.stores) > 1


def _is_turned_off(subject: Subject, name: str, stores: Sequence[SourceLine]) -> bool:
    """Return whether the kernel stores to a ref in a line of its file that parameters turn off."""
    function = subject.captured.kernel.source
    if function is None:
        return False
    run = {line.line for line in stores if line.file == function.file}
    return any(
        run.isdisjoint(range(first, last + 1)) for first, last in lines.stores_to(function, name)
    )


def _of_operand(subject: Subject, position: int, **witness: Any) -> Sighting:
    operand = subject.captured.kernel.operands[position]
    space = "VMEM" if operand.memory_space == "default" else operand.memory_space.upper()
    shape = f"{array_text(operand.dtype, operand.shape)} in {space}"
    return subject.sighting(operand=operand.name, shape=shape, **witness)


def _is_kept(subject: Subject, position: int) -> bool:
    """Return whether any grid point reads what only earlier ones have written to a ref."""
    if subject.walked.incomplete:
        return False
    rank = len(subject.grid.sizes)
    read, written = (np.zeros((1,) * rank, bool) for _ in range(2))
    for event in subject.walked.events:
        if event.view is None or event.view.buffer.position != position:
            continue
        if event.what == "write":
            written = written | over_loops(event.where, rank)
            if not event.certain:
                return False
        elif event.what == "read" and event.certain:
            read = read | over_loops(event.where, rank)
    return bool((read & ~written).any())


def _of_operation(
    subject: Subject, operation: Equation, targets: Sequence[Target]
) -> Finding | None:
    seen = subject.sighting(
        source=operation.source,
        operand=operation.ref or None,
        shape=str(operation.inputs[0]) if operation.inputs else None,
    )
    if operation.float_index:
        return unsupported.float_index(seen, dtype=operation.float_index)
    return (
        _memory(seen, operation)
        or _complex(seen, operation)
        or _rule(seen, operation)
        or _dtype(seen, operation)
        or _matmul(seen, operation, targets)
        or _alignment(seen, operation)
    )


def _memory(seen: Sighting, operation: Equation) -> Finding | None:
    """Report loads and stores that the ref's memory space does not support."""
    if operation.name not in _ACCESSES or not operation.inputs[0].is_ref:
        return None
    ref = operation.inputs[0]
    if ref.space in ("any", "hbm"):
        return unsupported.direct_hbm_access(seen.at(shape=f"{ref} in {ref.space.upper()}"))
    stores_scalar = operation.name == "swap" and operation.inputs[1].shape == ()
    if stores_scalar and ref.space == "vmem":
        return unsupported.scalar_store_to_vmem(seen, ref=str(ref))
    return None


def _complex(seen: Sighting, operation: Equation) -> Finding | None:
    """Report complex numbers; an operation without a lowering rule may be a consequence."""
    for value in (*operation.inputs, *operation.outputs):
        if value.dtype.startswith("complex"):
            named = f"{operation.ref}: {value}" if operation.ref and value.is_ref else str(value)
            return unsupported.complex_numbers(seen, value=named)
    return None


def _rule(seen: Sighting, operation: Equation) -> Finding | None:
    """Report primitives without a lowering rule, and unsupported uses of some that have one."""
    if operation.name == "check" and not operation.is_debug:
        return unsupported.unsupported_check(seen)
    if operation.stacked:
        return unsupported.stacked_scan(seen, outputs=operation.stacked)
    if operation.name == "gather" and not _is_along_axis(operation):
        values, indices = map(str, operation.inputs[:2])
        return unsupported.unsupported_gather(seen, values=values, indices=indices)
    if not operation.has_rule:
        return unsupported.unsupported_primitive(seen, name=operation.name)
    return None


def _is_along_axis(operation: Equation) -> bool:
    values, indices = operation.inputs[:2]
    shape = operation.outputs[0].shape
    return len(values.shape) == len(shape) and indices.shape == (*shape, 1)


def _dtype(seen: Sighting, operation: Equation) -> Finding | None:
    """Report float16 loads, float iotas, unsupported casts, and bool rows that become a column."""
    if operation.name == "get" and operation.inputs[0].dtype == "float16":
        return unsupported.float16_load(seen)
    if operation.name == "convert_element_type":
        old, new = operation.inputs[0].dtype, operation.outputs[0].dtype
        if {old, new} == {"bfloat16", "float16"}:
            return unsupported.unsupported_cast(seen, old=old, new=new)
    if operation.name == "iota" and operation.outputs[0].dtype.startswith(("float", "bfloat")):
        return unsupported.float_iota(seen, result=str(operation.outputs[0]))
    if operation.turns_lanes:
        old, new = str(operation.inputs[0]), str(operation.outputs[0])
        return unsupported.bool_column(seen, old=old, new=new)
    return None


def _matmul(seen: Sighting, operation: Equation, targets: Sequence[Target]) -> Finding | None:
    """Report products of dtypes that jax or a chip cannot multiply."""
    if operation.name != "dot_general":
        return None
    dtypes = [value.dtype for value in operation.inputs[:2]]
    unsigned = next((d for d in dtypes if d.startswith("uint")), None)
    if unsigned is not None:
        return unsupported.unsigned_matmul(seen, dtype=unsigned)
    names = tuple(
        target.name
        for target in targets
        if any(d.startswith(_NO_NARROW_MATMUL.get(target.device_kind or "", ())) for d in dtypes)
    )
    return unsupported.narrow_matmul(replace(seen, targets=names), dtypes=dtypes) if names else None


def _alignment(seen: Sighting, operation: Equation) -> Finding | None:
    """Report lane slices whose start is not known to be a multiple of 128."""
    multiple = operation.lane_start
    if not multiple or multiple % LANES == 0 or operation.inputs[0].space != "vmem":
        return None
    return unsupported.unproven_alignment(seen, columns=operation.lane_size, multiple=multiple)


def _partial_lanes(view: View | None) -> Dim | None:
    """The last dimension, if a copy takes only part of it and not whole 128-lane tiles."""
    if view is None or not view.is_plain or len(view.levels) != 1 or len(view.buffer.shape) < 2:
        return None
    dim = view.levels[0][-1]
    if not dim.is_slice or dim.size is None or dim.size == dim.bound or dim.bound < 0:
        return None
    return dim if dim.size % LANES else None
