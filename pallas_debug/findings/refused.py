"""Cases of faults that prevent compilation or end a run.

Causes and advice are the catalogue's: of the entry that a case names, else of the entry of its
kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pallas_debug import explain
from pallas_debug.findings.case import Case, Test, has, is_
from pallas_debug.findings.faults import Fault
from pallas_debug.quantities import size_text


def by_size(limits: Mapping[str, int]) -> str:
    """Format sizes by target: `16 MiB on v5e, v5p; 32 MiB on v6e`."""
    return "; ".join(
        f"{size_text(size, 2)} on {', '.join(t for t, s in limits.items() if s == size)}"
        for size in dict.fromkeys(limits.values())
    )


REPLACEMENTS = {
    "load": "read the ref: ref[index]; with a mask, load(ref.at[index], mask=…) of "
    "jax.experimental.pallas.triton for a GPU, or of jax.experimental.pallas.tpu",
    "store": "write to the ref: ref[index] = value; with a mask, store(ref.at[index], value, "
    "mask=…) of jax.experimental.pallas.triton for a GPU, or of jax.experimental.pallas.tpu",
    "swap": "read the ref, then write to it: ref[index] = value",
    "dot": "write jnp.dot",
    "repeat": "write jnp.tile, as in jnp.tile(x, (n, 1)) for axis 0; jnp.repeat has another order",
    "ANY": "write pl.ANY",
    "TPUCompilerParams": "write pltpu.CompilerParams",
    "TritonCompilerParams": "write CompilerParams, of jax.experimental.pallas.triton",
    "TensorCoreMesh": "it needs jax ≥ 0.11; before, pltpu.create_tensorcore_mesh makes the mesh",
    "TPUMemorySpace": "write pltpu.MemorySpace, and pl.ANY for TPUMemorySpace.ANY",
}
"""Replacements of names that the installed Pallas does not have."""

UNKNOWN_NAME = "look for its replacement in the Pallas changelog"


def _entry(entry: str, message: str, fact: str | None = None) -> Case:
    """Case that an entry of the catalogue explains, if a fact is known."""
    return Case(message, entry=entry, when=None if fact is None else has(fact))


def _raised(advice: str, when: Test | None = None) -> Case:
    return Case("{headline}", None, advice, when)


_UNKNOWN = [_raised(explain.UNKNOWN_ADVICE)]
_NO_RULE = "`{name}` has no lowering for the TPU's core"
_BLOCKS = "{operand}, {array}, is divided into blocks of {block}"
_VMEM = "the kernel needs at least {used} of VMEM, the limit is {limits}"

CASES: Mapping[Fault, Sequence[Case]] = {
    Fault.INVALID_OPERATION: [
        _entry("float-index", "{ref} is indexed by a {index_dtype}", "index_dtype"),
        _entry("float-iota", "an iota of {iota} is created"),
    ],
    Fault.DIRECT_HBM_ACCESS: [Case("{ref}, {shape}, is loaded or stored without a copy")],
    Fault.SCALAR_STORE_TO_VMEM: [Case("a scalar is stored to {ref}, {shape} in VMEM")],
    Fault.UNSUPPORTED_CHECK: [
        Case("checkify.check is called in the kernel, but jax cannot run it there")
    ],
    Fault.UNSUPPORTED_PRIMITIVE: [
        _entry("scan-outputs", "a lax.scan stacks outputs, one entry per iteration", "stacked"),
        Case(_NO_RULE, None, "{instead}", has("instead")),
        Case(_NO_RULE),
    ],
    Fault.UNSUPPORTED_GATHER: [Case("{values} is gathered with indices {indices}")],
    Fault.UNSUPPORTED_CAST: [Case("{old} is cast to {new}")],
    Fault.UNSUPPORTED_DTYPE: [
        _entry("complex-values", "{complex} holds complex numbers", "complex"),
        _entry("unsigned-matmul", "matrices of {unsigned} are multiplied", "unsigned"),
        _entry(
            "matmul-type",
            "matrices of {narrow} are multiplied, which {targets} cannot do",
            "narrow",
        ),
        Case("{ref} is {shape}, but a TPU cannot load float16"),
    ],
    Fault.UNSUPPORTED_SHAPE_CAST: [
        _entry("mask-reshape", "{old}, which lies along the lanes, becomes {new}")
    ],
    Fault.UNPROVEN_ALIGNMENT: [
        Case(
            "{columns:% }columns of {ref} are accessed at an offset that must be a multiple of "
            "128, and is not known to be{multiple:, only to be a multiple of %}"
        )
    ],
    Fault.UNALIGNED_DMA: [
        Case("a copy takes {columns} of {of} columns of {operand}, {shape}, which splits a tile")
    ],
    Fault.X64_INDEX_MAP: [
        Case(
            "no index map is given for {made}, and that which jax creates returns int64 zeros",
            when=has("made"),
        ),
        Case("the index map of {operand} returns an int64 for dimension {dim}, in place of int32"),
    ],
    Fault.ZERO_SIZE_OPERAND: [Case("{operand} is {shape}, which is empty")],
    Fault.BLOCK_SHAPE_TILING: [
        _entry("any-window", _BLOCKS + " in {space}", "space"),
        _entry(
            "block-shape",
            _BLOCKS + ": {size:d} is neither a multiple of {unit} nor the whole dimension",
            "unit",
        ),
        _entry(
            "block-shape-1d",
            _BLOCKS + ": {elements:d} is neither the whole dimension, nor a multiple of 1024, nor "
            "a power of two of at least {least:d}",
            "elements",
        ),
        _entry("window-tiling", _BLOCKS + ": {narrow} rows is not a multiple of {tile}", "narrow"),
        _entry("scalar-block", _BLOCKS + ", which have no dimension"),
    ],
    Fault.VMEM_OVERFLOW: [
        Case(_VMEM, "{parts}", None, has("is_full"), entry="vmem-capacity"),
        Case(_VMEM, "{parts}", entry="scoped-vmem-overflow"),
    ],
    Fault.SMEM_OVERFLOW: [Case(_VMEM.replace("VMEM", "SMEM"), "{parts}")],
    Fault.INTERPRET_ERROR: [
        Case(
            "stopped after {seconds:,.0f} s{progress:, at grid point %}; {calls} steps, "
            "{pace:,.0f} per second"
        )
    ],
    Fault.TRACE_ERROR: [
        _raised(
            "install the package that the message names, or correct the import", has("is_import")
        ),
        _raised(
            "fix what the message names: jax rejected the call while tracing it",
            is_("raiser", "jax"),
        ),
        _raised(
            "fix what the message names: {raiser} raised the exception, not jax{chip}",
            has("raiser"),
        ),
        _raised("fix this line: it raises the exception itself{chip}"),
    ],
    Fault.LOWERING_ERROR: _UNKNOWN,
    Fault.COMPILE_ERROR: _UNKNOWN,
    Fault.COMPILER_ABORT: _UNKNOWN,
}
