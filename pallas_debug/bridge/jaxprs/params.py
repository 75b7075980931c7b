"""Access to parameters of a kernel's equation that differ between primitives or jax versions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from pallas_debug.bridge import primitives
from pallas_debug.bridge.jaxcompat import dtypes, jax_core, pallas_core, triton_primitives
from pallas_debug.bridge.jaxprs import lines, nested
from pallas_debug.model import SourceLine


def jaxprs_of(params: Mapping[str, Any]) -> tuple[Any, ...]:
    """Bodies of a kernel: one for `pallas_call`, several for `mpmd_map`."""
    return (params["jaxpr"],) if "jaxpr" in params else tuple(params["jaxprs"])


def equations_of(params: Mapping[str, Any]) -> Iterator[Any]:
    """Equations of a kernel, each before those of the jaxprs within it."""
    return (eqn for jaxpr in jaxprs_of(params) for eqn in nested.equations(jaxpr))


def name_of(params: Mapping[str, Any]) -> str:
    """jax's name for the kernel."""
    return str(params.get("name") or jaxprs_of(params)[0].debug_info.func_name)


def dimension_semantics(params: Mapping[str, Any]) -> tuple[str, ...]:
    """Semantics of the grid's dimensions as requested, without those added by `vmap`."""
    given = getattr(params.get("compiler_params"), "dimension_semantics", None) or ()
    return tuple(str(getattr(s, "value", s)).lower() for s in given)


def parallel_axes(params: Mapping[str, Any]) -> tuple[bool, ...]:
    """Return which grid dimensions have unordered points; those that `vmap` adds come first."""
    semantics = dimension_semantics(params)
    added = len(params["grid_mapping"].grid) - len(semantics)
    return (*[False] * added, *("parallel" in s for s in semantics))


def passes_semaphores(params: Mapping[str, Any]) -> bool:
    """Return whether a kernel takes semaphores from other kernels, or returns them."""
    grid, jaxpr = params.get("grid_mapping"), jaxprs_of(params)[0]
    if grid is not None:
        avals = [ref.aval for ref in jaxpr.invars[grid.slice_block_ops]]
    elif "out_avals" in params:  # a kernel over a mesh returns all semaphores that it takes
        avals = params["out_avals"]
    else:  # `core_map` closes over its operands
        avals = [variable.aval for variable in jaxpr.constvars]
    return any(dtypes.issubdtype(aval.dtype, pallas_core.semaphore_dtype) for aval in avals)


_OF_GPUS = {"triton": "Triton", "mosaic_gpu": "Mosaic GPU"}
"""Names of jax's back ends for GPUs, by the packages of their classes."""

_OF_TPUS = "mosaic"


def gpu_backend(params: Mapping[str, Any]) -> str | None:
    """Back end of a kernel that is written for a GPU; None unless its parameters say so.

    These are its compiler parameters, its mesh, the memory spaces of its operands and scratch, and
    operations that only Triton has, such as atomic ones.
    """
    found = next((_OF_GPUS[name] for name in _packages(params) if name in _OF_GPUS), None)
    if found is None and _has_operations_of_triton(params):
        return "Triton"
    return found


def is_for_tpu(params: Mapping[str, Any]) -> bool:
    """Return whether the same parts of a kernel say that it is written for a TPU."""
    return _OF_TPUS in _packages(params)


def _packages(params: Mapping[str, Any]) -> Iterator[str]:
    """Packages of the classes of a kernel's compiler parameters, meshes and memory spaces."""
    refs = (variable for jaxpr in jaxprs_of(params) for variable in jaxpr.invars)
    stated = (
        params.get("compiler_params"),
        params.get("mesh"),
        *params.get("meshes", ()),
        *(getattr(ref.aval, "memory_space", None) for ref in refs),
    )
    return (name for value in stated for name in type(value).__module__.split("."))


def _has_operations_of_triton(params: Mapping[str, Any]) -> bool:
    module = triton_primitives.loaded
    if module is None:  # then no kernel uses them
        return False
    own = [value for value in vars(module).values() if isinstance(value, jax_core.Primitive)]
    return any(eqn.primitive in own or _is_of_triton(eqn) for eqn in equations_of(params))


def _is_of_triton(eqn: Any) -> bool:
    """Return whether a load or store has arguments that only those of Triton take.

    A TPU's have a mask, but no value for masked elements, no cache policy, and no indices of
    several dimensions.
    """
    if eqn.primitive.name not in ("masked_load", "masked_swap"):
        return False
    access = primitives.form(eqn)
    return (
        access.other is not None
        or any(eqn.params.get(n) for n in ("cache_modifier", "eviction_policy", "is_volatile"))
        or any(indexer.int_indexer_shape for indexer in access.place.indexers)
    )


_LOADS = ("get", "masked_load")
"""Primitives that read a reference as it is."""


def float_dtypes(params: Mapping[str, Any], given: Collection[str] = ()) -> frozenset[str]:
    """Names of the float and complex dtypes that a kernel computes in.

    Args:
      given: dtypes of the function's arguments: a load of one rounds nothing.
    """
    return frozenset(
        var.aval.dtype.name
        for eqn in equations_of(params)
        for var in eqn.outvars
        if eqn.primitive.name not in _LOADS or var.aval.dtype.name not in given
        if dtypes.issubdtype(getattr(var.aval, "dtype", np.dtype(bool)), np.inexact)
    )


def static_shape(aval: Any) -> tuple[int, ...]:
    """Shape of a value, -1 for a dimension known only at run time; () for a value without one."""
    return tuple(n if isinstance(n, int) else -1 for n in getattr(aval, "shape", ()))


def memory_space(aval: Any) -> str:
    """Memory space of a ref, in lower case; `default` if Pallas chooses it."""
    space = getattr(aval, "memory_space", None)
    if space is None or "Device" in str(space):
        return "default"
    return str(getattr(space, "value", space)).lower()


def buffer_count(mode: Any) -> int | None:
    """Number of buffers that a block's `pipeline_mode` asks for; None if it does not say.

    A pair is for an operand that is input and output, whose buffers share one.
    """
    found = getattr(mode, "buffer_count", None)
    return found[0] + found[1] - 1 if isinstance(found, tuple) else found


class BlockEntry(NamedTuple):
    """One dimension of a block.

    Attributes:
      kind: `blocked`, `squeezed`, `element`, or another of jax's kinds, in lower case.
      size: in elements; 1 if squeezed.
      padding: elements before and after the array that indices may address.
    """

    kind: str
    size: int
    padding: tuple[int, int] = (0, 0)


def block_entry(entry: Any) -> BlockEntry:
    """Describe an entry of a block's shape: jax's object, an int, or None for a squeezed one."""
    kind = "blocked" if isinstance(entry, int) else type(entry).__name__.lower()
    if entry is None or kind == "squeezed":
        return BlockEntry("squeezed", 1)
    before, after = getattr(entry, "padding", (0, 0))
    return BlockEntry(kind, int(getattr(entry, "block_size", entry)), (int(before), int(after)))


def index_map_line(block: Any) -> SourceLine | None:
    """Line of a block's index map; None if jax made it."""
    line = lines.of_function(block.index_map_jaxpr.debug_info)
    return None if line is None or line.function == "default_index_map" else line


def revisits(block: Any) -> bool:
    """Return whether a kernel declares that an output block may be visited again."""
    revisit = getattr(block.pipeline_mode, "revisit", None)
    return str(getattr(revisit, "value", revisit)).lower() == "any"
