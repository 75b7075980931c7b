"""Features that jax's interpreters lack or do not simulate, and detection of kernels that use them.

`why_not_hlo` inspects a kernel's jaxpr; `LIMITS` is documentation. What it says about the installed
jax is tested in `tests/bridge/test_interpret.py`, kernel by kernel.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax._src import core as jax_core
from jax._src.pallas.mosaic import core as tpu_core
from jax._src.pallas.mosaic import sc_core
from jax._src.state import types as state_types
from jax._src.state.indexing import NDIndexer, Slice
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.bridge import versions
from pallas_debug.bridge.jaxprs import lines, triton
from pallas_debug.bridge.jaxprs import nested as nested_jaxprs
from pallas_debug.bridge.jaxprs.params import gpu_backend, jaxprs_of, name_of, semaphores_of
from pallas_debug.errors import InterpretModeError

_BY_NAME = {
    "get_barrier_semaphore": "barrier semaphores",
    "prng_seed": "random number generator",
    "prng_random_bits": "random number generator",
    "delay": "delays",
    "trace_value": "trace values",
    "add_dependency": "pltpu.touch",
    "has_memory_space": "has_memory_space",
}
"""Primitives without a rule in HLO interpret mode, and the feature to which each belongs."""

_NOWHERE = {
    **dict.fromkeys(("prng_split", "prng_join"), "keys of the TPU"),
    **dict.fromkeys(
        ("matmul_push_rhs", "matmul_acc_lhs", "matmul_pop", "matmul_lhs_fifo", "matmul_pop_fifo"),
        "operations on the registers of the MXU",
    ),
    "conv": "pltpu.conv",
    "empty_ref": "references that are created without a scope",
    "emit_pipeline": "primitive for pipelines (`jax_use_emit_pipeline_primitive`)",
}
"""Primitives without a rule in either interpreter, and the feature to which each belongs."""

_ON_MACHINE = (
    'in interpret mode `machine` (--pallas-interpret=machine, pallas_debug.interpret("machine"))'
)
_BRANCHES = "branches for Mosaic"  # HLO interpret mode takes those for the CPU

_OF_THE_GRID = ("program_id", "num_programs")
"""Primitives that HLO interpret mode supports only at the top level of a kernel."""

_WRITES = (state_types.WriteEffect, state_types.AccumEffect)


def why_not_hlo(params: Mapping[str, Any]) -> str | None:
    """Name a feature that a kernel uses but HLO interpret mode lacks; None if it can run.

    Args:
      params: parameters of `pallas_call`, `core_map` or `mpmd_map`.
    """
    axes = _own_axes(params)
    for jaxpr in jaxprs_of(params):
        for eqn, nested in _equations(jaxpr):
            lacking = _lacking(eqn, axes, nested=nested)
            if lacking is not None:
                return f"HLO interpret mode has no {lacking}"
    return forgotten(params)


@dataclass(frozen=True, kw_only=True)
class SharedLack:
    """Reason why neither of jax's interpreters runs a kernel, and where it runs instead."""

    why: str
    way_out: str


def why_machine(params: Mapping[str, Any]) -> str | None:
    """Explain why a kernel runs correctly in neither of jax's interpreters; None if one can run it.

    This includes kernels that they run without detecting incorrect results.
    """
    lack = _shared_lack(params)
    if lack is not None:
        return lack.why
    if gpu_backend(params) == "Triton":  # TPU interpret mode is no alternative
        return why_not_hlo(params)
    for jaxpr in jaxprs_of(params):
        for eqn, _ in _equations(jaxpr):
            if str(eqn.primitive) == "prng_random_bits":
                return f"the random bits of jax's TPU interpret mode are zeros{_at(eqn)}"
            padded = _copied_with_padding(eqn)
            if padded is not None:
                return (
                    f"a copy may include the padding of the tiles of {padded}, and jax's "
                    f"interpreters do not detect whether a result depends on it{_at(eqn)}"
                )
    return None


def unjudged_padding(params: Mapping[str, Any]) -> str | None:
    """Explain what TPU interpret mode does not judge in a kernel whose copies may include padding.

    The mode reads NaN there, without a report if a result depends on it.
    """
    for jaxpr in jaxprs_of(params):
        for eqn, _ in _equations(jaxpr):
            padded = _copied_with_padding(eqn)
            if padded is not None:
                return (
                    f"a copy may include the padding of the tiles of {padded}{_at(eqn)}, and "
                    "whether a result depends on it is not judged; modes `auto` and `machine` do"
                )
    return None


_TILE = (8, 128)
"""Minimum rows and columns of a tile of an array in HBM."""


def _copied_with_padding(eqn: Any) -> str | None:
    """Find an array in HBM that does not consist of whole tiles, if a DMA may read past its end."""
    if str(eqn.primitive) != "dma_start":
        return None
    source = _refs(eqn)[0]
    if not isinstance(source, state_types.TransformedRef):
        return None
    *_, last = source.transforms
    aval = source.ref.aval
    if not isinstance(last, NDIndexer) or aval.memory_space not in (pl.ANY, pltpu.HBM):
        return None
    rows_and_columns = zip(last.indices[::-1], last.shape[::-1], _TILE[::-1], strict=False)
    for index, size, tile in rows_and_columns:
        if size % tile and isinstance(index, Slice) and index.stride == 1:
            count = index.size
            if not isinstance(count, int) or count > size:
                return f"{aval.dtype}{list(last.shape)}"
    return None


def require_any(params: Mapping[str, Any]) -> None:
    """Refuse a kernel that neither of jax's interpreters can run.

    Raises:
      InterpretModeError: the kernel shares semaphores with other kernels, or uses a feature that
        both interpreters lack.
    """
    lack = _shared_lack(params)
    if lack is not None:
        raise InterpretModeError(
            f"kernel `{name_of(params)}` cannot be interpreted: {lack.why}. {lack.way_out}"
        )


def _shared_lack(params: Mapping[str, Any]) -> SharedLack | None:
    axes = _own_axes(params)
    for jaxpr in jaxprs_of(params):
        for eqn, _ in _equations(jaxpr):
            lacking = _NOWHERE.get(str(eqn.primitive))
            way_out = "Run it on a TPU"
            on_machine = _lacking_but_on_machine(eqn, axes)
            if on_machine is not None:
                lacking, way_out = on_machine, f"Run it {_ON_MACHINE}, or on a TPU"
            if lacking is not None:
                why = f"jax's interpreters have no {lacking}{_at(eqn)}"
                return SharedLack(why=why, way_out=way_out)
    if len(params.get("meshes", ())) > 1 or params.get("external_meshes"):
        return SharedLack(
            why="it runs on cores of several kinds (SparseCore and TensorCore), but jax's "
            "interpreters simulate only one",
            way_out=f"Run it {_ON_MACHINE}, or on a TPU",
        )
    if _is_on_sparse_core(params):
        return SharedLack(
            why="it runs on a SparseCore, but jax's interpreters simulate a TensorCore",
            way_out=f"Run it {_ON_MACHINE}, or on a TPU",
        )
    shared = semaphores_of(params)
    if shared:
        return SharedLack(
            why=f"it takes or returns the semaphores {', '.join(shared)}, but jax's interpreters "
            "free semaphores at the end of a kernel",
            way_out=f"Run it {_ON_MACHINE}, on a TPU, or start and wait for the copy in one kernel",
        )
    return None


def _lacking_but_on_machine(eqn: Any, axes: frozenset[object]) -> str | None:
    name = str(eqn.primitive)
    if any(map(_is_tpu_key, (*eqn.invars, *eqn.outvars))):
        return "keys of the TPU"
    if _is_of_sparse_core(eqn.primitive):
        return f"operations of a SparseCore (`{name}`)"
    if name in ("dma_start", "dma_wait") and any(map(_is_by_array, _transforms(_refs(eqn)))):
        return "copies of elements selected by an array of indices"
    if name in ("dma_start", "semaphore_signal"):
        for target in _refs(eqn):
            if isinstance(target, dict) and (cores := _axes_of(target) & axes):
                return f"axis of cores ({', '.join(map(repr, cores))}) in a `device_id`"
    return None


def _is_by_array(transform: Any) -> bool:
    return isinstance(transform, NDIndexer) and bool(transform.int_indexer_shape)


def _axes_of(device_id: Mapping[Any, Any]) -> set[object]:
    return {name for axis in device_id for name in _names(axis)}


def _is_on_sparse_core(params: Mapping[str, Any]) -> bool:
    kind = getattr(params.get("compiler_params"), "kernel_type", None)
    meshes = (params.get("mesh"), *params.get("meshes", ()))
    kinds = (sc_core.ScalarSubcoreMesh, sc_core.VectorSubcoreMesh)
    return kind not in (None, tpu_core.CoreType.TC) or any(isinstance(m, kinds) for m in meshes)


def _at(eqn: Any) -> str:
    source = lines.source_of(eqn)
    return "" if source is None else f" ({source.file}:{source.line}: {source.text})"


def _is_of_sparse_core(primitive: jax_core.Primitive) -> bool:
    """Return whether a primitive is one of `pallas.tpu_sc`; some have the names of others."""
    module = sys.modules.get("jax._src.pallas.mosaic.sc_primitives")
    return module is not None and primitive in nested_jaxprs.primitives_in(module)


def _is_tpu_key(atom: Any) -> bool:
    implementation = getattr(getattr(atom.aval, "dtype", None), "_impl", None)
    return getattr(implementation, "name", None) == "pallas_tpu"


def require_hlo(params: Mapping[str, Any]) -> None:
    """Refuse a kernel for which HLO interpret mode would silently return wrong results.

    Raises:
      InterpretModeError: the mode loses a write of the kernel, or takes another branch.
    """
    axes = _own_axes(params)
    lacks = (_lacking(e, axes, nested=n) for j in jaxprs_of(params) for e, n in _equations(j))
    lost = f"HLO interpret mode has no {_BRANCHES}" if _BRANCHES in lacks else forgotten(params)
    if lost is not None:
        raise InterpretModeError(
            f"kernel `{name_of(params)}` may return wrong results: {lost}. "
            "Run it in TPU interpret mode; `auto` does"
        )


def forgotten(params: Mapping[str, Any]) -> str | None:
    """Name a write of a kernel that HLO interpret mode loses or keeps too long; None if none is."""
    grid = params.get("grid_mapping")
    if grid is None:  # on a mesh of cores, where all operands are in HBM or whole
        return next(
            filter(None, (_unreturned(jaxpr, params, 0) for jaxpr in jaxprs_of(params))), None
        )
    (jaxpr,) = jaxprs_of(params)
    written = {e.input for e in jaxpr.effects if isinstance(e, _WRITES)}
    used = written | {e.input for e in jaxpr.effects if isinstance(e, state_types.ReadEffect)}
    names = _names_of_operands(jaxpr)
    first_input, first_output = grid.num_index_operands, grid.num_index_operands + grid.num_inputs
    aliases = dict(params.get("input_output_aliases") or ())
    has_steps = math.prod(size if isinstance(size, int) else 2 for size in grid.grid) > 1
    for index, ref in enumerate(jaxpr.invars[:first_output]):
        is_unblocked = index >= first_input and _is_unblocked(
            grid.block_mappings[index - first_input]
        )
        if index in aliases and is_unblocked:
            output = jaxpr.invars[first_output + aliases[index]]
            if {ref, output} <= used and written & {ref, output}:
                what = f"does not alias {names[ref]} and {names[output]} within a grid step"
                return _reason(what, jaxpr, ref if ref in written else output)
        elif has_steps and ref in written and index < first_input:
            what = f"forgets writes to {names[ref]}, scalar prefetch, after each grid step"
            return _reason(what, jaxpr, ref)
        elif has_steps and ref in written and index not in aliases and not is_unblocked:
            what = f"copies writes to the input block {names[ref]} back to the input"
            return _reason(what, jaxpr, ref)
    return _unreturned(jaxpr, params, first_input)


def _unreturned(jaxpr: Any, params: Mapping[str, Any], first_input: int) -> str | None:
    """Name a write to an aliased input that is missing in the output; up to jax 0.11.

    References that a kernel closes over become such operands, under `run_state` only after the mode
    was chosen.
    """
    if _IS_0_12:
        return None
    written = {e.input for e in jaxpr.effects if isinstance(e, _WRITES)}
    names = _names_of_operands(jaxpr)
    aliases = dict(params.get("input_output_aliases") or ())
    returned = [jaxpr.invars[index] for index in aliases if index >= first_input]
    for ref in (*jaxpr.constvars, *returned):
        if ref in written:
            name = names.get(ref, "a reference that it closes over")
            return _reason(f"does not return what is written to {name}", jaxpr, ref)
    return None


def _reason(what: str, jaxpr: Any, ref: Any) -> str:
    eqn = _writer(jaxpr, ref)
    return f"HLO interpret mode {what}{'' if eqn is None else _at(eqn)}"


def _names_of_operands(jaxpr: Any) -> dict[Any, str]:
    names = jaxpr.debug_info.arg_names or ()
    numbered = [f"operand {i}" for i in range(len(jaxpr.invars))]
    return dict(zip(jaxpr.invars, [*names, *numbered[len(names) :]], strict=False))


def _is_unblocked(block: Any) -> bool:
    return block.transformed_block_aval.memory_space in (pl.ANY, pltpu.HBM)


def _writer(jaxpr: Any, variable: Any) -> Any:
    """The first equation that writes to a reference, in an inner jaxpr if possible."""
    for eqn in jaxpr.eqns:
        if not any(isinstance(e, _WRITES) and e.input is variable for e in eqn.effects):
            continue
        for inner in jax_core.jaxprs_in_params(eqn.params):
            binders = [*inner.constvars, *inner.invars]
            # An inner jaxpr takes the last operands, in a `run_scoped` the first.
            outer = eqn.invars if inner.constvars else eqn.invars[-len(binders) :]
            bound = dict(zip(map(id, outer), binders, strict=False))
            found = _writer(inner, bound.get(id(variable)))
            if found is not None:
                return found
        return eqn
    return None


def _own_axes(params: Mapping[str, Any]) -> frozenset[object]:
    """Axis names of the kernel's grid, or of the mesh of cores that it runs on."""
    names = set(getattr(params.get("grid_mapping"), "grid_names", None) or ())
    for mesh in (params.get("mesh"), *params.get("meshes", ())):
        names |= set(getattr(mesh, "shape", None) or ())
    return frozenset(names - {None})


def _equations(jaxpr: Any, *, nested: bool = False) -> Iterator[tuple[Any, bool]]:
    for eqn in jaxpr.eqns:
        yield eqn, nested
        for inner in jax_core.jaxprs_in_params(eqn.params):
            yield from _equations(inner, nested=True)


def _lacking(eqn: Any, axes: frozenset[object], *, nested: bool) -> str | None:
    name = str(eqn.primitive)
    if name in _BY_NAME:
        return _BY_NAME[name]
    if name == "platform_index" and any("cpu" in (of or ()) for of in eqn.params["platforms"]):
        return _BRANCHES
    refs = _refs(eqn)
    if name == "dma_start" and refs[-1] is not None:
        return "remote DMAs"
    if name == "dma_start" and eqn.params.get("add"):
        return "DMAs that add"
    if name == "semaphore_signal" and any(at is not None for at in refs[-2:]):
        return "signals to other devices and cores"
    if name == "axis_index" and _names(eqn.params["axis_name"]) & axes:
        return "axis index of a grid or of a mesh of cores"
    if name in _OF_THE_GRID and nested:
        return f"{name} within loops and branches"
    if (atomic := triton.unsupported_atomic(eqn)) is not None:
        return atomic
    written = refs[1:2] if name == "dma_start" else refs if "swap" in name else ()
    return _lacking_transform(_transforms(refs)) or _lacking_write(_transforms(written))


def _refs(eqn: Any) -> Sequence[Any]:
    """Operands of an equation that accesses references, with their transforms."""
    tree = eqn.params.get("tree", eqn.params.get("args_tree"))
    if not hasattr(tree, "unflatten"):
        return ()
    if str(eqn.primitive) in ("get", "swap", "addupdate"):
        first = 1 if str(eqn.primitive) == "get" else 2
        return (tree.unflatten(eqn.invars[first:]),)
    found: Sequence[Any] = tree.unflatten(eqn.invars)
    return found


def _transforms(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, state_types.TransformedRef):
            yield from value.transforms
            yield from _transforms(value.ref if value.multiref else (value.ref,))
        elif isinstance(value, tuple | list):
            yield from _transforms(value)
        elif isinstance(value, (NDIndexer, *_TRANSFORMS)):
            yield value


_TRANSFORMS = (
    state_types.BitcastTransform,
    state_types.ReshapeTransform,
    state_types.TransposeTransform,
    state_types.SelectTransform,
)

_IS_0_12 = tuple(map(int, versions.installed().get("jax", "0").split(".")[:2])) >= (0, 12)
"""Whether HLO interpret mode writes through reshaped or bitcast references, and returns writes to
an aliased input."""


def _lacking_transform(transforms: Iterable[Any]) -> str | None:
    for transform in transforms:
        match transform:
            case NDIndexer() if transform.is_dynamic_size:
                return "slices of dynamic size"
            case NDIndexer() if any(getattr(i, "stride", 1) == 0 for i in transform.indices):
                return "slices of stride 0"
            case state_types.SelectTransform():
                return "references chosen by select_ref"
            case state_types.TransposeTransform():
                return "transposed references"
    return None


def _lacking_write(transforms: Iterable[Any]) -> str | None:
    views = (state_types.ReshapeTransform, state_types.BitcastTransform)
    if not _IS_0_12 and any(isinstance(transform, views) for transform in transforms):
        return "writes to references that are bitcast or reshaped"
    return None


def _names(axis_name: object) -> set[object]:
    return set(axis_name) if isinstance(axis_name, tuple | list) else {axis_name}


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A feature of TPUs, and its support in each mode.

    `yes` if jax simulates it, `with pallas-debug` if we add it, `no` if jax rejects the kernel; any
    other text describes what happens.
    """

    name: str
    hlo: str
    tpu: str


LIMITS: tuple[Limit, ...] = (
    Limit(name="remote DMAs", hlo="only where all devices are in step", tpu="yes"),
    Limit(name="barrier semaphores", hlo="no", tpu="yes"),
    Limit(name="signals to other devices and cores", hlo="no", tpu="yes"),
    Limit(name="DMAs that add", hlo="no", tpu="with pallas-debug"),
    Limit(name="program_id in loops and branches", hlo="no", tpu="yes"),
    Limit(name="axis index of a grid or of a mesh of cores", hlo="no", tpu="yes"),
    Limit(name="delays", hlo="no", tpu="yes"),
    Limit(name="random bits (prng_random_bits)", hlo="no", tpu="zeros"),
    Limit(name="stateful_uniform and keys of the TPU", hlo="no", tpu="no"),
    Limit(name="kernels on a SparseCore", hlo="no", tpu="no"),
    Limit(name="operations of a SparseCore", hlo="no", tpu="no"),
    Limit(name="copies by an array of indices", hlo="no", tpu="no"),
    Limit(name="axis of cores in a device_id", hlo="no", tpu="no"),
    Limit(
        name="stochastic_round, pack_elementwise", hlo="with pallas-debug", tpu="with pallas-debug"
    ),
    Limit(name="masked loads", hlo="yes", tpu="with pallas-debug"),
    Limit(name="references that are bitcast or reshaped", hlo="yes", tpu="with pallas-debug"),
    Limit(name="references chosen by select_ref", hlo="no", tpu="with pallas-debug"),
    Limit(name="transposed references", hlo="no", tpu="with pallas-debug"),
    Limit(name="slices of dynamic size", hlo="no", tpu="yes"),
    Limit(name="slices of stride 0", hlo="no", tpu="with pallas-debug"),
    Limit(name="semaphore_read, waits that do not decrement", hlo="yes", tpu="with pallas-debug"),
    Limit(name="semaphores that are passed between kernels", hlo="no", tpu="no"),
    Limit(name="writes to scalar prefetch", hlo="forgotten after each grid step", tpu="yes"),
    Limit(name="writes to an input block", hlo="copied back to the input", tpu="yes"),
    Limit(name="aliased operands in HBM", hlo="not aliased within a grid step", tpu="yes"),
    Limit(name="vmap with dimension semantics", hlo="yes", tpu="with pallas-debug"),
    Limit(name="copies that take time", hlo="done at once", tpu="done at the wait, or at once"),
    Limit(name="several cores", hlo="one after the other", tpu="num_cores_or_threads"),
    Limit(name="data races", hlo="silent", tpu="detect_races"),
    Limit(name="accesses out of bounds", hlo="silent, clamped", tpu="an error"),
    Limit(name="debug_check", hlo="silent", tpu="silent"),
    Limit(name="tiling, layouts, the size of VMEM", hlo="silent", tpu="silent"),
    Limit(name="the MXU's precision, time", hlo="silent", tpu="silent"),
)


def race_report() -> str:
    """Describe how the installed race detector handles a race."""
    defaults = {f.name: str(f.default) for f in dataclasses.fields(pltpu.InterpretParams)}
    if "on_race" not in defaults:
        return "prints a race and continues"
    does = {"raise": "raises an exception", "warn": "prints a race and continues"}
    return f"{does.get(defaults['on_race'], defaults['on_race'])}; on_race changes that"
