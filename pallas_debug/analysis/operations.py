"""Operations that jax's lowering or the compiler rejects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pallas_debug.analysis.subject import Result, Subject
from pallas_debug.bridge.primitives import ACCESSES, TABLE
from pallas_debug.bridge.walk.events import Dim, View
from pallas_debug.bridge.walk.operations import Equation, operations
from pallas_debug.chips import LANES, chip_of_kind
from pallas_debug.explain.formulas import INSTEAD
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.sighting import Sighting
from pallas_debug.model import Finding, Target


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
        if operation.name not in TABLE and operation.has_rule:
            result.left_out.append(
                f"`{operation.name}` at {operation.source}, which has no row in the table of "
                "primitives"
            )
    for event in subject.walked.events:
        if event.what == "dma_start" and event.certain:
            for view in (event.view, event.other):
                if view is not None and (dim := _partial_lanes(view)) is not None:
                    buffer = view.buffer
                    seen = subject.sighting(
                        source=event.source, operand=buffer.name, shape=str(buffer)
                    )
                    add(seen.of(Fault.UNALIGNED_DMA, columns=dim.size, of=dim.bound))
    return result


def _of_operation(
    subject: Subject, operation: Equation, targets: Sequence[Target]
) -> Finding | None:
    seen = subject.sighting(
        source=operation.source,
        operand=operation.ref or None,
        shape=str(operation.inputs[0]) if operation.inputs else None,
    )
    if operation.float_index:
        return seen.of(Fault.INVALID_OPERATION, index_dtype=operation.float_index)
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
    if operation.name not in ACCESSES or not operation.inputs[0].is_ref:
        return None
    ref = operation.inputs[0]
    if ref.space in ("any", "hbm"):
        return seen.at(shape=f"{ref} in {ref.space.upper()}").of(Fault.DIRECT_HBM_ACCESS)
    stores_scalar = operation.name == "swap" and operation.inputs[1].shape == ()
    if stores_scalar and ref.space == "vmem":
        return seen.of(Fault.SCALAR_STORE_TO_VMEM)
    return None


def _complex(seen: Sighting, operation: Equation) -> Finding | None:
    """Report complex numbers; an operation without a lowering rule may be a consequence."""
    for value in (*operation.inputs, *operation.outputs):
        if value.dtype.startswith("complex"):
            named = f"{operation.ref}: {value}" if operation.ref and value.is_ref else str(value)
            return seen.of(Fault.UNSUPPORTED_DTYPE, complex=named)
    return None


def _rule(seen: Sighting, operation: Equation) -> Finding | None:
    """Report primitives without a lowering rule, and unsupported uses of some that have one."""
    if operation.name == "check" and not operation.is_debug:
        return seen.of(Fault.UNSUPPORTED_CHECK)
    if operation.stacked:
        return seen.of(Fault.UNSUPPORTED_PRIMITIVE, stacked=operation.stacked)
    if operation.name == "gather" and not _is_along_axis(operation):
        values, indices = map(str, operation.inputs[:2])
        return seen.of(Fault.UNSUPPORTED_GATHER, values=values, indices=indices)
    if not operation.has_rule:
        instead = INSTEAD.get(operation.name)
        return seen.of(Fault.UNSUPPORTED_PRIMITIVE, name=operation.name, instead=instead)
    return None


def _is_along_axis(operation: Equation) -> bool:
    values, indices = operation.inputs[:2]
    shape = operation.outputs[0].shape
    return len(values.shape) == len(shape) and indices.shape == (*shape, 1)


def _dtype(seen: Sighting, operation: Equation) -> Finding | None:
    """Report float16 loads, float iotas and unsupported casts."""
    if operation.name == "get" and operation.inputs[0].dtype == "float16":
        return seen.of(Fault.UNSUPPORTED_DTYPE)
    if operation.name == "convert_element_type":
        old, new = operation.inputs[0].dtype, operation.outputs[0].dtype
        if {old, new} == {"bfloat16", "float16"}:
            return seen.of(Fault.UNSUPPORTED_CAST, old=old, new=new)
    if operation.name == "iota" and operation.outputs[0].dtype.startswith(("float", "bfloat")):
        return seen.of(Fault.INVALID_OPERATION, iota=str(operation.outputs[0]))
    return None


def _matmul(seen: Sighting, operation: Equation, targets: Sequence[Target]) -> Finding | None:
    """Report products of dtypes that jax or a chip cannot multiply."""
    if operation.name != "dot_general":
        return None
    dtypes = [value.dtype for value in operation.inputs[:2]]
    unsigned = next((d for d in dtypes if d.startswith("uint")), None)
    if unsigned is not None:
        return seen.of(Fault.UNSUPPORTED_DTYPE, unsigned=unsigned)
    names = tuple(
        target.name
        for target in targets
        if (chip := chip_of_kind(target.device_kind))
        and any(d.startswith(chip.unmultiplied) for d in dtypes)
    )
    if not names:
        return None
    narrow = list(dict.fromkeys(dtypes))
    return replace(seen, targets=names).of(Fault.UNSUPPORTED_DTYPE, narrow=narrow)


def _alignment(seen: Sighting, operation: Equation) -> Finding | None:
    """Report lane slices whose start is not known to be a multiple of 128."""
    multiple = operation.lane_start
    if not multiple or multiple % LANES == 0 or operation.inputs[0].space != "vmem":
        return None
    known = multiple if multiple > 1 else None
    return seen.of(Fault.UNPROVEN_ALIGNMENT, columns=operation.lane_size, multiple=known)


def _partial_lanes(view: View) -> Dim | None:
    """The last dimension, if a copy takes only part of it and not whole 128-lane tiles."""
    if not view.is_plain or len(view.levels) != 1 or len(view.buffer.shape) < 2:
        return None
    dim = view.levels[0][-1]
    if not dim.is_slice or dim.size is None or dim.size == dim.bound or dim.bound < 0:
        return None
    return dim if dim.size % LANES else None
