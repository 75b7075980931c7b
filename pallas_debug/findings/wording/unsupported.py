"""Wording of constructs that jax or the compiler rejects, and of names that jax lacks."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence

from pallas_debug import explain
from pallas_debug.explain.formulas import FORMULAS
from pallas_debug.findings.faults import Fault, named
from pallas_debug.findings.sighting import Sighting
from pallas_debug.model import Failure, Finding, Kernel

LANES = 128
SUBLANES = 8


def float_index(seen: Sighting, *, dtype: str) -> Finding:
    """Report a load, store or copy with a float index."""
    return seen.found(
        Fault.INVALID_OPERATION,
        f"{seen.witness.operand or 'a ref'} is indexed by a {dtype}",
        "the index comes from a division with / or from a float operand: interpret mode truncates "
        "it, and the compiler rejects it or crashes",
        "divide with //, or cast the index with .astype(jnp.int32)",
    )


def float_iota(seen: Sighting, *, result: str) -> Finding:
    return seen.found(
        Fault.INVALID_OPERATION,
        f"an iota of {result} is created, but the core has only integer iotas",
        "`tpu.iota` takes only integers",
        "use lax.broadcasted_iota(jnp.int32, ...), and cast it with astype",
    )


def direct_hbm_access(seen: Sighting) -> Finding:
    """Report a direct load or store of a ref that the kernel may only copy from or to."""
    name, shape = seen.witness.operand or "a ref", seen.witness.shape
    what = f"{name}, {shape}" if shape else f"{name} in HBM"
    return seen.found(
        Fault.DIRECT_HBM_ACCESS,
        f"{what}, is loaded or stored without a copy",
        "the core can load from and store to only VMEM and SMEM",
        "copy it with pltpu.sync_copy into a VMEM scratch buffer, or give it a BlockSpec",
    )


def scalar_store_to_vmem(seen: Sighting, *, ref: str) -> Finding:
    return seen.found(
        Fault.SCALAR_STORE_TO_VMEM,
        f"a scalar is stored to {seen.witness.operand or 'a ref'}, {ref} in VMEM",
        "VMEM holds vectors; scalars live in SMEM",
        "store a (1, 1) vector, or put the output in SMEM: pl.BlockSpec(memory_space=pltpu.SMEM)",
    )


def unsupported_check(seen: Sighting) -> Finding:
    """Report a `checkify.check` in a kernel."""
    return seen.found(
        Fault.UNSUPPORTED_CHECK,
        "checkify.check is called in the kernel, but jax cannot run it there",
        "since 0.10.1, jax does not functionalize checks in kernels",
        "use pl.debug_check, which pallas-debug's checks evaluate",
    )


_INSTEAD = {
    **{name: f"write {formula} in place of {name}(x)" for name, formula in FORMULAS.items()},
    "cumsum": "multiply by a triangular matrix of ones, or compute it outside the kernel",
    "sort": "sort outside the kernel; for the largest or smallest element of a row, use max or min",
    "dynamic_slice": "slice the ref: ref[pl.ds(start, size)]",
    "dynamic_update_slice": "store to a slice of the ref: ref[pl.ds(start, size)] = value",
    "scatter": "multiply by a one-hot matrix, or store to slices of a ref",
    "scatter-add": "multiply by a one-hot matrix, or store to slices of a ref",
}


def unsupported_primitive(seen: Sighting, *, name: str) -> Finding:
    return seen.found(
        Fault.UNSUPPORTED_PRIMITIVE,
        f"`{name}` has no lowering for the TPU's core",
        "interpret mode supports every jax operation, but the TPU lowering does not",
        _INSTEAD.get(name, "compute it outside the kernel, or from other operations"),
    )


def stacked_scan(seen: Sighting, *, outputs: int) -> Finding:
    plural = "output" if outputs == 1 else "outputs"
    return seen.found(
        Fault.UNSUPPORTED_PRIMITIVE,
        f"a lax.scan stacks {outputs} {plural}, one entry per iteration",
        "a loop on the core can carry values, but cannot stack outputs",
        "use lax.fori_loop, and store to a ref at each iteration",
    )


def unsupported_gather(seen: Sighting, *, values: str, indices: str) -> Finding:
    return seen.found(
        Fault.UNSUPPORTED_GATHER,
        f"{values} is gathered with indices {indices}",
        "the core gathers along only one axis, as jnp.take_along_axis does",
        "multiply by a one-hot matrix, use jnp.take_along_axis, or index the ref with scalars",
    )


def float16_load(seen: Sighting) -> Finding:
    at = seen.witness
    return seen.found(
        Fault.UNSUPPORTED_DTYPE,
        f"{at.operand or 'a ref'} is {at.shape}, but a TPU cannot load float16",
        "TPUs have bfloat16, but no float16",
        "cast to bfloat16 or float32 before the call",
    )


def complex_numbers(seen: Sighting, *, value: str) -> Finding:
    """Report an operation on complex numbers, or one that produces them."""
    return seen.found(
        Fault.UNSUPPORTED_DTYPE,
        f"{value} holds complex numbers",
        "a TPU vector holds only real numbers",
        "keep the real and imaginary parts in two arrays; compute FFTs before the call",
    )


def unsigned_matmul(seen: Sighting, *, dtype: str) -> Finding:
    return seen.found(
        Fault.UNSUPPORTED_DTYPE,
        f"matrices of {dtype} are multiplied",
        "the matrix unit would treat unsigned numbers as signed",
        "cast to a signed or float dtype that holds all values",
    )


def narrow_matmul(seen: Sighting, *, dtypes: Sequence[str]) -> Finding:
    """Report a product of dtypes that the matrix unit of `seen.targets` does not support."""
    return seen.found(
        Fault.UNSUPPORTED_DTYPE,
        f"matrices of {' and '.join(dict.fromkeys(dtypes))} are multiplied, which "
        f"{', '.join(seen.targets)} cannot do",
        "the matrix unit there multiplies only bfloat16 and float32",
        "cast to bfloat16, in which products of 8-bit integers are exact",
    )


def bool_column(seen: Sighting, *, old: str, new: str) -> Finding:
    """Report a row of bools that is reshaped to a column."""
    return seen.found(
        Fault.UNSUPPORTED_SHAPE_CAST,
        f"{old}, which lies along the lanes, becomes {new}",
        "the compiler cannot move bools from lanes to sublanes: libtpu 0.0.42 rejects it, and "
        "0.0.50 crashes",
        "turn the numbers into a column before comparing them, or pass them as a column",
    )


def unproven_alignment(seen: Sighting, *, columns: int | None, multiple: int) -> Finding:
    """Report lanes at an offset that is only known to be a multiple of `multiple`."""
    known = (
        "but nothing is known about it"
        if multiple == 1
        else f"but it is only known to be a multiple of {multiple}"
    )
    return seen.found(
        Fault.UNPROVEN_ALIGNMENT,
        f"{columns} columns of {seen.witness.operand or 'a ref'} are accessed at an offset that "
        f"must be a multiple of {LANES}, {known}",
        f"a vector must begin at a tile boundary (every {LANES} lanes), and the compiler must be "
        "able to prove it",
        f"if it is a multiple, declare it: pl.multiple_of(start, {LANES}); otherwise load whole "
        "tiles and use pltpu.roll",
    )


def unaligned_dma(seen: Sighting, *, columns: int | None, of: int) -> Finding:
    at = seen.witness
    return seen.found(
        Fault.UNALIGNED_DMA,
        f"a copy takes {columns} of {of} columns of {at.operand}, {at.shape}, but copies move "
        f"whole rows of {LANES} lanes",
        f"arrays are laid out in tiles of {LANES} lanes",
        "copy whole tiles into a larger buffer, and slice it there",
    )


def x64_index_map(seen: Sighting, *, dim: int) -> Finding:
    return seen.with_values({"dimension": str(dim)}).found(
        Fault.X64_INDEX_MAP,
        f"the index map of {seen.witness.operand} returns an int64 for dimension {dim}; the "
        "TPU's index maps return int32",
        "with jax_enable_x64, a Python int is an int64",
        "return jnp.int32(0) rather than 0, or call the kernel without x64",
    )


def x64_default_map(seen: Sighting, *, operands: Sequence[str]) -> Finding:
    """Report operands without an index map, for which jax made one that returns 64-bit integers."""
    if len(operands) == 1:
        what = f"{operands[0]} has no index map, and the one that jax creates returns"
        which = "its index map"
    else:
        names = f"{', '.join(operands[:-1])} and {operands[-1]}"
        what = f"{names} have no index map, and those that jax creates return"
        which = "their index maps"
    return seen.found(
        Fault.X64_INDEX_MAP,
        f"{what} int64; the TPU's index maps return int32",
        f"jax fills {which} with Python zeros, which are int64 under jax_enable_x64",
        "pass an index map that returns jnp.int32(0) for each dimension, or call the kernel "
        "without x64",
    )


def zero_size_operand(seen: Sighting) -> Finding:
    return seen.found(
        Fault.ZERO_SIZE_OPERAND,
        f"{seen.witness.operand} is {seen.witness.shape}, which is empty",
        "the compiler has no layout for an operand without elements",
        "return early in the caller if a size is 0",
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
"""What to write for names that Pallas no longer has, or not yet."""

_UNKNOWN_NAME = "look for its replacement in the Pallas changelog"


def removed_names(
    seen: Sighting, *, messages: Sequence[str], instead: Sequence[str | None]
) -> Finding:
    """Report Pallas names on one line that the installed jax does not have.

    Args:
      messages: jax's message about each.
      instead: replacement for each; None if unknown.
    """
    advice = [replacement or _UNKNOWN_NAME for replacement in instead]
    return seen.found(
        Fault.REMOVED_NAME,
        "\n".join(messages),
        "it was renamed, moved or removed, or is newer than this jax",
        "; ".join(dict.fromkeys(advice)),
    )


def too_slow(
    seen: Sighting, *, grid: Sequence[int | None] = (), seconds: float, calls: int
) -> Finding:
    """Report a kernel that was stopped because it takes too long on the kernel machine.

    Args:
      grid: sizes of the grid; None for sizes that only the call determines.
      seconds: time since the kernel began.
      calls: number of loads, stores, copies, waits and similar operations so far.
    """
    return seen.found(
        Fault.INTERPRET_ERROR,
        f"stopped after {seconds:,.0f} s on the kernel machine{_reached(seen, grid, seconds)}; "
        f"{calls:,} steps, {calls / seconds:,.0f} per second",
        "the machine executes each load, store, copy and wait of the kernel in Python",
        "use smaller arguments, or raise the limit (--pallas-stop-after)",
    )


def _reached(seen: Sighting, grid: Sequence[int | None], seconds: float) -> str:
    point = seen.witness.grid_point
    if not grid or point is None or len(point) != len(grid):
        return ""
    if any(size is None for size in grid):
        return f", at grid point {point}; the grid size is set by the call"
    sizes = [size or 1 for size in grid]
    done = 0
    for at, size in zip(point, sizes, strict=True):
        done = done * size + at
    return f", at grid point {_progress(done, math.prod(sizes), done, seconds)}"


def _progress(done: int, total: int, timed: int, seconds: float) -> str:
    pace = seconds / timed if timed else 0.0
    rest = f" ({pace:,.2g} s each: the rest takes about {pace * (total - done):,.0f} s)"
    return f"{done + 1:,} of {total:,}{rest if timed else ''}"


def failed(
    seen: Sighting,
    failure: Failure,
    kernel: Kernel | None = None,
    *,
    raiser: str = "jax",
    pretended: str | None = None,
) -> Finding:
    """Report a call that jax failed to trace, or a kernel that was not compiled.

    Args:
      raiser: package whose code raised the exception; empty for the user's own.
      pretended: chip that jax's devices pretended to be.
    """
    known = explain.explained(failure, kernel).explanation
    if seen.engine == "trace":
        kind = Fault.TRACE_ERROR
        advice = _of_exception(failure, raiser, pretended)
    else:
        kind = _STAGES.get(failure.stage, Fault.COMPILE_ERROR)
        advice = explain.UNKNOWN_ADVICE
    if known is not None:
        kind = named(known.kind) or kind
        advice = known.advice
    if kind is Fault.REMOVED_NAME and (lacking := _LACKS_NAME.search(failure.headline)):
        advice = REPLACEMENTS.get(lacking["name"], _UNKNOWN_NAME)
    source = failure.source or (kernel.source if kernel is not None else None)
    return seen.at(source=source).found(
        kind,
        "\n".join([failure.headline, *(known.details if known else ())]),
        known.cause if known else None,
        advice,
    )


def _of_exception(failure: Failure, raiser: str, pretended: str | None) -> str:
    """Advise on an exception raised while a call was traced."""
    if failure.type in _OF_SYNTAX:
        version = ".".join(map(str, sys.version_info[:2]))
        return f"correct this line: Python {version} cannot compile the file"
    if failure.type in _OF_IMPORTS:
        return "install the package that the message names, or correct the import"
    if failure.type == "SystemExit":
        return "fix what the script reports, or pass the arguments that it needs: it ends here"
    if lacking := _LACKS.search(failure.headline):
        package, name = lacking["module"].partition(".")[0], lacking["name"]
        return f"use another name on this line: the installed {package} has no {name} there"
    if raiser == "jax":
        return "fix what the message names: jax rejected the call while tracing it"
    text = (failure.source and failure.source.text) or ""
    if raiser:
        advice = f"fix what the message names: {raiser} raised the exception, not jax"
    else:
        advice = "fix this line"
        if text.lstrip().startswith(("assert", "raise")):
            advice = "pass what this line requires, or fix its condition"
        advice += ": it raises the exception itself"
        if failure.type not in _OF_WHAT_IT_USES:
            advice += ", and jax is not involved"
    if not _ASKS.search(f"{failure.headline} {text}"):
        return advice
    if pretended is None:
        return f"{advice}; if the cause is that there is no TPU here, pass --pretend"
    return (
        f"{advice}; the chip that it queries is {pretended} here: if it needs another one, put "
        "that first in --target"
    )


_ASKS = re.compile(
    r"\b(?:TPUs?|device_kind|default_backend|platform|coords|core_on_chip)\b", re.IGNORECASE
)
"""Phrases in a line or its message that may depend on the device."""

_LACKS_NAME = re.compile(r" has no attribute '(?P<name>\w+)'")

_LACKS = re.compile(r"\bmodule '(?P<module>[\w.]+)' has no attribute '(?P<name>\w+)'")
"""Message about a name that a module lacks on any device."""

_OF_SYNTAX = ("SyntaxError", "IndentationError", "TabError")

_OF_IMPORTS = ("ImportError", "ModuleNotFoundError")

_OF_WHAT_IT_USES = ("AttributeError", "TypeError")
"""Exceptions raised at the caller's line for what a jax object may lack or refuse."""

_STAGES = {"lowering": Fault.LOWERING_ERROR, "crash": Fault.COMPILER_ABORT}


def partitioned_by_jax(seen: Sighting) -> Finding:
    """Report a kernel that a program runs on several devices without `shard_map`."""
    return seen.found(
        Fault.LOWERING_ERROR,
        "jax does not lower it for a TPU: Mosaic kernels cannot be automatically partitioned. "
        "Please wrap the call in a shard_map.",
    )
