"""Events of refs: loads, stores and copies."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from pallas_debug.bridge.instrument.primitives import ACCESSES
from pallas_debug.bridge.jaxcompat import indexing, jax_core, pallas_primitives, tpu_primitives
from pallas_debug.bridge.jaxprs import lines, nested
from pallas_debug.bridge.walk import numbers
from pallas_debug.bridge.walk.events import Dim, KernelRef, View
from pallas_debug.bridge.walk.values import UNKNOWN, UnknownValue, Value, WalkState

if TYPE_CHECKING:
    from pallas_debug.bridge.walk.walker import Walker


def _access(walker: Walker, eqn: Any, inputs: list[Value], place: WalkState) -> Sequence[Value]:
    what, first = ACCESSES[eqn.primitive]
    if first is None:
        buffer, transforms, *_ = jax.tree.unflatten(eqn.params["args_tree"], inputs)
    else:
        buffer, transforms = inputs[0], jax.tree.unflatten(eqn.params["tree"], inputs[first:])
    if isinstance(buffer, KernelRef):
        view = _view(walker, buffer, transforms)
        walker.emit(what, eqn, place, view=view)
        if what == "read":
            entry = _entry(walker, buffer, view)
            return [UNKNOWN if entry is None else entry]
        if buffer.position is not None:
            walker.stale.add(buffer.position)
    return [UNKNOWN] * len(eqn.outvars)


def _entry(walker: Walker, buffer: KernelRef, view: View) -> np.ndarray | None:
    """Return an element of a known table; an index out of range is clipped."""
    table = walker.tables.get(-1 if buffer.position is None else buffer.position)
    if table is None or buffer.position in walker.stale or len(view.levels) > 1:
        return None
    dims = view.levels[0] if view.levels else ()
    starts = [dim.start for dim in dims if dim.start is not None and not dim.is_slice]
    if len(starts) != table.ndim or numbers.too_large(*starts):
        return None
    clipped = (np.clip(s, 0, n - 1) for s, n in zip(starts, table.shape, strict=True))
    entry: np.ndarray = table[tuple(clipped)] if table.ndim else table
    return np.asarray(entry).reshape(entry.shape or (1,) * walker.rank)


def _view(walker: Walker, ref: Any, transforms: Any = ()) -> View:
    """View of a ref, or of a transformed one."""
    if not isinstance(ref, KernelRef):
        return _view(walker, ref.ref, (*ref.transforms, *transforms))
    levels: list[tuple[Dim, ...]] = []
    for transform in transforms or ():
        if not isinstance(transform, indexing.NDIndexer):
            return View(buffer=ref, levels=tuple(levels), is_plain=False)
        levels.append(
            tuple(map(functools.partial(_dim, walker), transform.indices, transform.shape))
        )
    return View(buffer=ref, levels=tuple(levels))


def _dim(walker: Walker, index: Any, bound: Any) -> Dim:
    is_slice = isinstance(index, indexing.Slice)
    start, size, stride = (index.start, index.size, index.stride) if is_slice else (index, 1, 1)
    number = start if isinstance(start, (np.ndarray, UnknownValue)) else walker.constant(start)
    is_static = isinstance(size, int) and isinstance(stride, int)
    return Dim(
        start=number if isinstance(number, np.ndarray) else None,
        size=size if is_static else None,
        stride=stride if is_static else 1,
        is_slice=is_slice,
        bound=bound if isinstance(bound, int) else -1,
    )


def _program_id(walker: Walker, eqn: Any, _: list[Value], __: WalkState) -> Sequence[Value]:
    axis = eqn.params["axis"]
    return [walker.ids[axis] if axis < len(walker.ids) else UNKNOWN]


def _num_programs(walker: Walker, eqn: Any, _: list[Value], __: WalkState) -> Sequence[Value]:
    axis = eqn.params["axis"]
    if axis >= len(walker.sizes):
        return [UNKNOWN]
    return [walker.constant(np.int32(walker.sizes[axis]))]


def _axis_index(walker: Walker, eqn: Any, _: list[Value], __: WalkState) -> Sequence[Value]:
    """Number of a core along axes of its mesh; those of a device are unknown."""
    given = eqn.params["axis_name"]
    names = given if isinstance(given, tuple) else (given,)
    known = {str(name): i for i, name in enumerate(walker.names)}
    if len(walker.names) != len(walker.ids) or not {str(name) for name in names} <= known.keys():
        return [UNKNOWN]
    number: np.ndarray = np.zeros((1,) * walker.rank, np.int32)
    for axis in (known[str(name)] for name in names):
        number = number * np.int32(walker.sizes[axis]) + walker.ids[axis]
    return [number]


def _copy(walker: Walker, eqn: Any, inputs: list[Value], place: WalkState) -> Sequence[Value]:
    source, destination, _, other, device = jax.tree.unflatten(eqn.params["tree"], inputs)
    walker.emit(
        "dma_start",
        eqn,
        place,
        view=_view(walker, destination),
        other=_view(walker, source),
        remote=device is not None or other is not None,
    )
    return []


def _without_access(_: Walker, __: Any, ___: list[Value], ____: WalkState) -> Sequence[Value]:
    return []


def _scoped(walker: Walker, eqn: Any, inputs: list[Value], place: WalkState) -> Sequence[Value]:
    inner = eqn.params["jaxpr"]
    buffers = [
        walker.buffer(v.aval, name=name, kind="scoped", position=None)
        for v, name in zip(inner.invars, nested.arg_names(inner, "scoped"), strict=True)
    ]
    if not lines.is_of_pipeline(eqn):
        place = replace(place, calls=(*place.calls, eqn))
    return walker.inner(inner, inputs, buffers, place)


def _empty(walker: Walker, eqn: Any, _: list[Value], __: WalkState) -> Sequence[Value]:
    """A buffer that a core allocates for the rest of the kernel."""
    return [walker.buffer(eqn.outvars[0].aval, name="empty_ref", kind="scoped", position=None)]


def plain_stores(jaxpr: Any) -> set[int]:
    """Swap equations whose result, the previous value, is unused."""
    used = {id(atom) for eqn in jaxpr.eqns for atom in eqn.invars} | set(map(id, jaxpr.outvars))
    stores = (eqn for eqn in jaxpr.eqns if ACCESSES.get(eqn.primitive, ("", 0))[0] == "write")
    return {id(eqn) for eqn in stores if all(id(out) not in used for out in eqn.outvars)}


RULES: dict[Any, Callable[[Walker, Any, list[Value], WalkState], Sequence[Value]]] = {
    **dict.fromkeys(ACCESSES, _access),
    pallas_primitives.program_id_p: _program_id,
    pallas_primitives.num_programs_p: _num_programs,
    jax.lax.axis_index_p: _axis_index,
    pallas_primitives.run_scoped_p: _scoped,
    jax_core.empty_ref_p: _empty,
    tpu_primitives.dma_start_p: _copy,
    tpu_primitives.dma_wait_p: _without_access,
    pallas_primitives.semaphore_signal_p: _without_access,
    pallas_primitives.semaphore_wait_p: _without_access,
}
