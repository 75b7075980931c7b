"""Operations that jax's lowering or the compiler refuses, found by looking at each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pallas_debug.analysis.subject import Result, Subject
from pallas_debug.analysis.tiling import LANES
from pallas_debug.bridge.walk.events import Dim, Event, View
from pallas_debug.bridge.walk.operations import Equation, operations
from pallas_debug.model import Finding, Target
from pallas_debug.report import plural

_ACCESSES = ("get", "swap", "addupdate", "masked_load", "masked_swap")

_NO_NARROW_MATMUL = {"TPU v4": ("int8", "uint8", "float8", "int4", "uint4")}
"""Dtypes that a chip's matrix unit does not take, by device kind, by how they begin."""


def look(subject: Subject, targets: Sequence[Target]) -> Result:
    """One finding for each line and kind."""
    result = Result()
    said: set[tuple[object, ...]] = set()

    def add(found: Iterable[Finding]) -> None:
        for finding in found:
            line = finding.source and (finding.source.file, finding.source.line)
            if (finding.kind, line) not in said:
                said.add((finding.kind, line))
                result.findings.append(finding)

    for operation in operations(subject.captured):
        add(_of_operation(subject, operation, targets))
    for event in subject.walked.events:
        if event.what == "dma_start" and event.certain:
            for view in (event.view, event.other):
                dim = _partial_lanes(view)
                if dim is not None and view is not None:
                    add([_unaligned(subject, view, dim, event)])
    return result


def _of_operation(
    subject: Subject, operation: Equation, targets: Sequence[Target]
) -> Iterable[Finding]:
    for rule in (_index, _memory, _rule, _dtype, _column, _matmul, _alignment):
        found = rule(subject, operation, targets)
        if found is not None:
            yield found
            return


def _at(
    subject: Subject, operation: Equation, kind: str, message: str, cause: str, advice: str
) -> Finding:
    return Finding(
        kind=kind,
        kernel=subject.name,
        message=message,
        source=operation.source or subject.captured.kernel.source,
        operand=operation.ref or None,
        shape=str(operation.inputs[0]) if operation.inputs else None,
        cause=cause,
        advice=advice,
        engine="static",
    )


def _index(subject: Subject, operation: Equation, _: Sequence[Target]) -> Finding | None:
    """Loads, stores and copies at a place that is a float."""
    if not operation.float_index:
        return None
    return _at(
        subject,
        operation,
        "InvalidOperation",
        f"{operation.ref or 'a ref'} is indexed by a {operation.float_index}",
        "the index came of a division with /, or of a float operand: interpret mode cuts it off, "
        "and the compiler refuses it or dies of it",
        "divide with //, or cast the index with .astype(jnp.int32)",
    )


def _memory(subject: Subject, operation: Equation, _: Sequence[Target]) -> Finding | None:
    """Loads and stores that the memory space of the ref does not take."""
    if operation.name not in _ACCESSES or not operation.inputs[0].is_ref:
        return None
    ref = operation.inputs[0]
    if ref.space in ("any", "hbm"):
        return _at(
            subject,
            operation,
            "DirectHbmAccess",
            f"{operation.ref or 'a ref'}, {ref} in {ref.space.upper()}, is accessed without a copy",
            "the core loads from and stores to VMEM and SMEM alone",
            "copy it with pltpu.sync_copy into a VMEM scratch buffer, or give it a BlockSpec",
        )
    stores_scalar = operation.name == "swap" and operation.inputs[1].shape == ()
    if stores_scalar and ref.space == "vmem":
        return _at(
            subject,
            operation,
            "ScalarStoreToVmem",
            f"a scalar is stored to {operation.ref or 'a ref'}, {ref} in VMEM",
            "VMEM holds vectors; scalars live in SMEM",
            "store a (1, 1) vector, or put the output in SMEM: "
            "pl.BlockSpec(memory_space=pltpu.SMEM)",
        )
    return None


def _rule(subject: Subject, operation: Equation, _: Sequence[Target]) -> Finding | None:
    """Primitives that jax's lowering has no rule for, and uses of some that it refuses."""
    if operation.name == "check" and not operation.is_debug:
        return _at(
            subject,
            operation,
            "UnsupportedCheck",
            "checkify.check stands in the kernel, and is not lowered for a TPU",
            "no jax from 0.10.1 on functionalizes checks in a kernel",
            "use pl.debug_check, which pallas-debug's checks evaluate",
        )
    if operation.stacked:
        return _at(
            subject,
            operation,
            "UnsupportedPrimitive",
            f"a lax.scan stacks {plural(operation.stacked, 'output')}, an entry for each iteration",
            "a loop on the core has a carry, and no stacked outputs",
            "use lax.fori_loop, and store to a ref at each iteration",
        )
    if operation.name == "gather" and not _is_along_axis(operation):
        values, indices = operation.inputs[:2]
        return _at(
            subject,
            operation,
            "UnsupportedGather",
            f"{values} is gathered from by indices {indices}",
            "the core gathers along one axis alone, as jnp.take_along_axis does",
            "multiply by a one-hot matrix, use jnp.take_along_axis, or index the ref by scalars",
        )
    if not operation.has_rule:
        return _at(
            subject,
            operation,
            "UnsupportedPrimitive",
            f"`{operation.name}` has no lowering for the TPU's core",
            "interpret mode knows every operation of jax, the TPU's lowering does not",
            _ADVICE.get(operation.name, "compute it outside of the kernel, or of other operations"),
        )
    return None


def _is_along_axis(operation: Equation) -> bool:
    values, indices = operation.inputs[:2]
    shape = operation.outputs[0].shape
    return len(values.shape) == len(shape) and indices.shape == (*shape, 1)


_ADVICE = {
    "cumsum": "multiply by a triangular matrix of ones, or compute it outside of the kernel",
    "sort": "sort outside of the kernel; of a row's maximum or minimum, take max or min",
    "dynamic_slice": "slice the ref: ref[pl.ds(start, size)]",
    "dynamic_update_slice": "store to a slice of the ref: ref[pl.ds(start, size)] = value",
    "scatter": "multiply by a one-hot matrix, or store to slices of a ref",
    "scatter-add": "multiply by a one-hot matrix, or store to slices of a ref",
}


def _dtype(subject: Subject, operation: Equation, _: Sequence[Target]) -> Finding | None:
    """float16, float iotas, casts that the TPU has not."""
    if operation.name == "get" and operation.inputs[0].dtype == "float16":
        return _at(
            subject,
            operation,
            "UnsupportedDtype",
            f"{operation.ref or 'a ref'} is {operation.inputs[0]}, and the TPU loads no float16",
            "the TPU has bfloat16, and no float16",
            "cast to bfloat16 or float32 before the call",
        )
    if operation.name == "convert_element_type":
        pair = (operation.inputs[0].dtype, operation.outputs[0].dtype)
        if pair in (("bfloat16", "float16"), ("float16", "bfloat16")):
            return _at(
                subject,
                operation,
                "UnsupportedCast",
                f"{pair[0]} is cast to {pair[1]}",
                "the TPU casts neither of the two to the other",
                "stay with bfloat16, or cast through float32 outside of the kernel",
            )
    if operation.name == "iota" and operation.outputs[0].dtype.startswith(("float", "bfloat")):
        return _at(
            subject,
            operation,
            "InvalidOperation",
            f"an iota of {operation.outputs[0]} is asked for, and the core counts in integers",
            "`tpu.iota` is one of integers",
            "take lax.broadcasted_iota(jnp.int32, ...), and cast it with astype",
        )
    return None


def _column(subject: Subject, operation: Equation, _: Sequence[Target]) -> Finding | None:
    """A row of bools that is made a column."""
    if not operation.turns_lanes:
        return None
    return _at(
        subject,
        operation,
        "UnsupportedShapeCast",
        f"{operation.inputs[0]}, which lies along the lanes, becomes {operation.outputs[0]}",
        "the compiler moves no bools from lanes to sublanes: libtpu 0.0.42 refuses it, and 0.0.50 "
        "dies of it",
        "turn the numbers into a column, and compare them then; or pass them as a column",
    )


def _matmul(subject: Subject, operation: Equation, targets: Sequence[Target]) -> Finding | None:
    """Products of dtypes that jax or a chip does not multiply."""
    if operation.name != "dot_general":
        return None
    dtypes = [value.dtype for value in operation.inputs[:2]]
    unsigned = next((d for d in dtypes if d.startswith("uint")), None)
    if unsigned is not None:
        return _at(
            subject,
            operation,
            "UnsupportedDtype",
            f"matrices of {unsigned} are multiplied",
            "the matrix unit would take unsigned numbers for signed ones",
            "cast to a signed or float dtype that holds all values",
        )
    names = [
        target.name
        for target in targets
        if any(d.startswith(_NO_NARROW_MATMUL.get(target.device_kind or "", ())) for d in dtypes)
    ]
    if not names:
        return None
    return _at(
        subject,
        operation,
        "UnsupportedDtype",
        f"matrices of {' and '.join(dict.fromkeys(dtypes))} are multiplied, which "
        f"{', '.join(names)} cannot",
        "its matrix unit multiplies bfloat16 and float32 alone",
        "cast to bfloat16, in which products of 8-bit integers are exact",
    )


def _alignment(subject: Subject, operation: Equation, _: Sequence[Target]) -> Finding | None:
    """Slices of lanes from an offset of which nobody says that it is a multiple of 128."""
    multiple = operation.lane_start
    if not multiple or multiple % LANES == 0 or operation.inputs[0].space != "vmem":
        return None
    known = "of it nothing is known" if multiple == 1 else f"only {multiple} is known to divide it"
    return _at(
        subject,
        operation,
        "UnprovenAlignment",
        f"{operation.lane_size} columns of {operation.ref or 'a ref'} are accessed from an offset "
        f"that must be a multiple of {LANES}: {known}",
        f"a vector begins at a whole tile of {LANES} lanes, and the compiler must be able to prove "
        "that",
        f"where it is true, say so: pl.multiple_of(start, {LANES}); else load whole tiles and use "
        "pltpu.roll",
    )


def _partial_lanes(view: View | None) -> Dim | None:
    """The last dimension where a copy takes a part of it that is no multiple of 128 lanes."""
    if view is None or not view.is_plain or len(view.levels) != 1 or len(view.buffer.shape) < 2:
        return None
    dim = view.levels[0][-1]
    if not dim.is_slice or dim.size is None or dim.size == dim.bound or dim.bound < 0:
        return None
    return dim if dim.size % LANES else None


def _unaligned(subject: Subject, view: View, dim: Dim, event: Event) -> Finding:
    return Finding(
        kind="UnalignedDma",
        kernel=subject.name,
        message=f"a copy takes {dim.size} of {dim.bound} columns of {view.buffer.name}, "
        f"{view.buffer}: it moves whole rows of {LANES} lanes",
        source=event.source,
        operand=view.buffer.name,
        shape=str(view.buffer),
        cause="an array lies in memory in tiles of 128 lanes",
        advice="copy whole tiles into a larger buffer, and take the part from there",
        engine="static",
    )
