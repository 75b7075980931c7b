"""Decode operations of the subcores of a SparseCore: gathers, scans, packing, barriers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from pallas_debug.bridge import jaxcompat, normal_forms, primitives
from pallas_debug.bridge.jaxcompat import dtypes, sc_primitives
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.accesses import as_step, place
from pallas_debug.bridge.programs.decode import Decoder, program, rule

Array = np.ndarray[Any, Any]


# Loads and stores. A mask selects the values that are in memory one after the other.


@rule(sc_primitives.load_p)
def _load(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    load = primitives.form(eqn, inputs)
    at = place(decoder, load.place)
    if load.mask is not None:
        at = _first(decoder, site, at, load.mask)
    return _loaded(decoder, site, at, load.mask)


def _loaded(decoder: Decoder, site: ir.StepSite, at: ir.RefPlace, mask: Any) -> Any:
    """Load a place; with a mask, its first values go to the elements that the mask selects."""
    (output,) = decoder.emit(ir.LoadStep(site=site, place=at, output=decoder.new()))
    if mask is None:
        return [output]

    def expand(values: Array, mask: Array) -> Sequence[Any]:
        found = np.zeros(mask.shape, values.dtype)
        found[mask] = values.reshape(-1)[: np.count_nonzero(mask)]
        return [found]

    return decoder.compute(site, [output, mask], 1, expand)


def _first(decoder: Decoder, site: ir.StepSite, at: ir.RefPlace, mask: Any) -> ir.RefPlace:
    """The part of a place that a masked access reaches: as many elements as the mask selects.

    A slice may end beyond the reference, such as for a list that is filled to its last element. A
    place that has several dimensions or is reshaped is left unchanged.
    """
    *outer, last = at.view or (None,)
    if not isinstance(last, ir.Index):
        return at
    slices = [entry for entry in last.entries if isinstance(entry, ir.Slice)]
    if len(slices) != 1 or slices[0].stride != 1:
        return at
    (count,) = decoder.compute(site, [mask], 1, lambda mask: [np.count_nonzero(mask)])
    entries = tuple(
        ir.Slice(entry.start, count) if isinstance(entry, ir.Slice) else entry
        for entry in last.entries
    )
    return ir.RefPlace(at.ref, (*outer, ir.Index(entries)))


@rule(sc_primitives.swap_p)
def _store(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    store = primitives.form(eqn, inputs)
    at, value, mask = place(decoder, store.place), store.value, store.mask

    def select(value: Array, mask: Array) -> Sequence[Any]:
        return [value[mask]]

    def compress(value: Array, mask: Array) -> Sequence[Any]:
        count = np.count_nonzero(mask)
        found = np.zeros(value.size, value.dtype)
        found[:count] = value[mask]
        return [found.reshape(value.shape), (np.arange(value.size) < count).reshape(value.shape)]

    stored = value
    if mask is not None and eqn.params.get("compress", True):
        part = _first(decoder, site, at, mask)
        if part is at:
            stored, mask = decoder.compute(site, [value, mask], 2, compress)
        else:
            (stored,) = decoder.compute(site, [value, mask], 1, select)
            at, mask = part, None
    step = ir.StoreStep(
        site=site,
        place=at,
        value=decoder.reg(stored),
        mask=decoder.optional(mask),
        adds=store.adds,
    )
    decoder.emit(step)
    return [value]


def _selected(
    decoder: Decoder, site: ir.StepSite, ref: Any, transforms: Any, indices: Any, mask: Any
) -> ir.RefPlace:
    """A place for each lane that the mask selects."""
    if mask is not None:
        indices = decoder.compute(site, [mask, *indices], len(indices),
            lambda mask, *indices: [index[mask] for index in indices],
        )  # fmt: skip
    at = place(decoder, normal_forms.at(ref, transforms))
    entries = tuple(decoder.reg(index) for index in indices)
    return ir.RefPlace(at.ref, (*at.view, ir.Index(entries)))


@rule(sc_primitives.gather_p)
def _gather(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    ref, transforms, indices, mask = jax.tree.unflatten(eqn.params["tree"], inputs)
    return _loaded(decoder, site, _selected(decoder, site, ref, transforms, indices, mask), mask)


@rule(sc_primitives.scatter_p)
def _scatter(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    ref, transforms, indices, value, mask = jax.tree.unflatten(eqn.params["tree"], inputs)
    at = _selected(decoder, site, ref, transforms, indices, mask)
    if mask is not None:
        (value,) = decoder.compute(site, [value, mask], 1, lambda value, mask: [value[mask]])
    step = ir.StoreStep(site=site, place=at, value=decoder.reg(value), adds=bool(eqn.params["add"]))
    return decoder.emit(step)


@rule(sc_primitives.fetch_and_add_p)
def _fetch_and_add(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    ref, value, *indices, subcore = inputs
    step = ir.FetchAdd(
        site=site,
        place=ir.RefPlace(ref, (ir.Index(tuple(decoder.number(i) for i in indices)),)),
        value=decoder.reg(value),
        subcore=decoder.reg(subcore),
        output=decoder.new(),
    )
    return decoder.emit(step)


rule(sc_primitives.barrier_p)(as_step(ir.SubcoreBarrier))


# Arithmetic across lanes.


@rule(sc_primitives.bitcast_p)
def _bitcast(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    before, after = eqn.invars[0].aval.dtype, np.dtype(eqn.params["dtype"])
    if min(dtypes.itemsize_bits(before), dtypes.itemsize_bits(after)) < 8:
        raise NotImplementedError(f"a bitcast of {before} to {after} on a SparseCore")
    return decoder.compute(site, inputs, 1, lambda value: [np.ascontiguousarray(value).view(after)])


@rule(sc_primitives.scan_count_p)
def _scan_count(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    def count(values: Array, mask: Array) -> Sequence[Any]:
        is_same = (values[:, None] == values[None, :]) & mask[None, :]
        counts = np.tril(is_same).sum(axis=1, dtype=np.int32)
        is_last = mask & ~np.triu(is_same, 1).any(axis=1)
        return [counts, is_last]

    return decoder.compute(site, inputs, 2, count)


_SCANS: dict[Any, tuple[Any, Callable[[Any], Any]]] = {
    sc_primitives.masked_cumsum_p: (np.add, lambda dtype: 0),
    sc_primitives.masked_cummax_p: (np.maximum, lambda dtype: _limits(dtype)[0]),
    sc_primitives.masked_cummin_p: (np.minimum, lambda dtype: _limits(dtype)[1]),
}
"""Operation of each scan, and its neutral element."""


def _limits(dtype: Any) -> tuple[Any, Any]:
    if dtype.kind == "f":
        return -np.inf, np.inf
    info = np.iinfo(dtype)
    return info.min, info.max


@rule(*_SCANS)
def _scan(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    operation, neutral = _SCANS[eqn.primitive]

    def scan(values: Array, mask: Array) -> Sequence[Any]:
        masked = np.where(mask, values, np.asarray(neutral(values.dtype), values.dtype))
        found = operation.accumulate(masked, dtype=values.dtype)
        if operation is not np.add:  # values pass through up to the first selected one
            found = np.where(np.logical_or.accumulate(mask), found, values)
        return [found]

    return decoder.compute(site, inputs, 1, scan)


@rule(sc_primitives.masked_sort_p)
def _sort(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    descends = eqn.params["descending"]

    def sort(keys: Array, values: Array, *masks: Array) -> Sequence[Any]:
        wide = keys.astype(np.float64 if keys.dtype.kind == "f" else np.int64)
        excluded = [~mask for mask in masks]  # come last
        at = np.lexsort((-wide if descends else wide, *excluded))
        return [keys[at], values[at], *(mask[at] for mask in masks)]

    return decoder.compute(site, inputs, len(inputs), sort)


def _lanes(value: Any, count: int) -> Sequence[Any]:
    return [np.full((count,), value, np.int32)]


@rule(sc_primitives.all_reduce_population_count_p)
def _population_count(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    (count,) = eqn.outvars[0].aval.shape
    return decoder.compute(site, inputs, 1, lambda mask: _lanes(np.count_nonzero(mask), count))


@rule(sc_primitives.all_reduce_ffs_p)
def _find_first(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    (count,) = eqn.outvars[0].aval.shape
    return decoder.compute(site, inputs, 1,
        lambda mask: _lanes(np.argmax(mask) if mask.any() else mask.size, count),
    )  # fmt: skip


@rule(sc_primitives.pack_p)
def _pack(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    result = eqn.outvars[0].aval

    def pack(first: Array, second: Array) -> Sequence[Any]:
        pairs = np.stack([first, second], axis=-1).astype(result.dtype)
        return [pairs.reshape(result.shape)]

    return decoder.compute(site, inputs, 1, pack)


@rule(sc_primitives.unpack_p)
def _unpack(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    dtype = eqn.outvars[0].aval.dtype

    def unpack(pairs: Array) -> Sequence[Any]:
        pairs = pairs.reshape(-1, 2).astype(dtype)
        return [pairs[:, 0], pairs[:, 1]]

    return decoder.compute(site, inputs, 2, unpack)


# Loops


@rule(sc_primitives.parallel_loop_p)
def _parallel_loop(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    """A loop from a lower to an upper bound; its iterations are run in order."""
    lower, upper, stride, consts, carry = jax.tree.unflatten(eqn.params["tree"], inputs)
    inner, own = jaxcompat.opened(eqn.params["jaxpr"])
    consts = [*own, *consts]
    body = program(inner, constvars_first=True, **decoder.context())
    count = len(consts)
    index = body.inputs[count]
    by, following = ir.Reg(len(body.template)), ir.Reg(len(body.template) + 1)
    advance = ir.Compute(
        site=site, inputs=(index, by), outputs=(following,),
        evaluate=lambda i, by: [np.int32(int(i) + int(by))],
    )  # fmt: skip
    body = ir.KernelProgram(
        (*body.template, None, None),
        (*body.inputs[:count], by, index, *body.inputs[count + 1 :]),
        (following, *body.outputs),
        (*body.steps, advance),
        body.names,
    )
    bound, position, *rest, goes_on = (ir.Reg(n) for n in range(len(carry) + 3))
    compare = ir.Compute(
        site=site, inputs=(position, bound), outputs=(goes_on,),
        evaluate=lambda i, bound: [np.bool_(int(i) < int(bound))],
    )  # fmt: skip
    condition = ir.KernelProgram(
        (None,) * (len(carry) + 3), (bound, position, *rest), (goes_on,), (compare,)
    )
    outputs = tuple(decoder.new() for _ in range(len(carry) + 1))
    step = ir.WhileLoop(
        site=site,
        condition=condition,
        body=body,
        condition_constants=(decoder.reg(upper),),
        constants=(*map(decoder.reg, consts), decoder.reg(stride)),
        carry=(decoder.reg(lower), *map(decoder.reg, carry)),
        outputs=outputs,
    )
    return decoder.emit(step)[1:]
