"""Decode loads, stores, copies and semaphores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.bridge import jaxcompat
from pallas_debug.bridge.jaxcompat import (
    conditionals,
    indexing,
    jax_core,
    pallas_primitives,
    sc_core,
    state_primitives,
    state_types,
    tpu_primitives,
)
from pallas_debug.bridge.jaxprs import lines
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.decode import Decoder, ref_type, rule


def place(decoder: Decoder, ref: Any, transforms: Sequence[Any] = ()) -> ir.RefPlace:
    """View of a reference that a chain of transforms selects."""
    chain: list[Any] = list(transforms or ())
    while isinstance(ref, state_types.TransformedRef):
        if isinstance(ref.ref, (tuple, list)):
            (select,) = ref.transforms
            assert isinstance(select, state_types.SelectTransform)
            chosen = _selected(decoder, ref.ref, select.idx)
            return ir.RefPlace(chosen, _view(decoder, chain), _assumed(chain))
        chain = [*ref.transforms, *chain]
        ref = ref.ref
    return ir.RefPlace(ref, _view(decoder, chain), _assumed(chain))


def _selected(decoder: Decoder, refs: Sequence[Any], index: Any) -> ir.Reg:
    places = tuple(place(decoder, ref) for ref in refs)
    output = decoder.new()
    step = ir.SelectRef(site=decoder.here, index=decoder.reg(index), places=places, output=output)
    decoder.emit(step, step.index, *registers(*places))
    return output


def _view(decoder: Decoder, transforms: Sequence[Any]) -> ir.View:
    view: list[ir.Index | ir.Recast] = []
    for transform in transforms:
        if isinstance(transform, indexing.NDIndexer):
            view.append(ir.Index(tuple(_entry(decoder, i) for i in transform.indices)))
        elif not jaxcompat.is_assumption(transform):
            view.append(ir.Recast(transform))
    return tuple(view)


def _assumed(transforms: Sequence[Any]) -> frozenset[str]:
    flags = (vars(t.assumption) for t in transforms if jaxcompat.is_assumption(t))
    return frozenset(name for one in flags for name, is_set in one.items() if is_set)


def _entry(decoder: Decoder, index: Any) -> Any:
    if isinstance(index, indexing.Slice):
        return ir.Slice(decoder.number(index.start), decoder.number(index.size), int(index.stride))
    if isinstance(
        index, state_types.TransformedRef
    ):  # positions in memory, of a SparseCore's copies
        return _selected(decoder, [index], np.int32(0))
    if isinstance(index, sc_core.Indices):
        positions = _entry(decoder, index.values)
        if index.ignored_value is None:
            return positions
        return ir.RowChoice(decoder.reg(positions), int(index.ignored_value))
    return decoder.number(index)


def registers(*places: ir.RefPlace | None) -> list[ir.Reg]:
    """Registers that an access reads besides its values."""
    found = []
    for at in places:
        if at is not None:
            found.append(at.ref)
            for part in at.view:
                for entry in part.entries if isinstance(part, ir.Index) else ():
                    numbers: tuple[Any, ...] = (entry,)
                    if isinstance(entry, ir.Slice):
                        numbers = entry.start, entry.size
                    elif isinstance(entry, ir.RowChoice):
                        numbers = (entry.positions,)
                    found += [n for n in numbers if isinstance(n, ir.Reg)]
    return found


@rule(state_primitives.get_p)
def _get(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    transforms = jax.tree.unflatten(eqn.params["tree"], inputs[1:])
    return _load(decoder, site, place(decoder, inputs[0], transforms))


@rule(pallas_primitives.load_p)
def _masked_load(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    ref, transforms, mask, other = jax.tree.unflatten(eqn.params["args_tree"], inputs)
    return _load(decoder, site, place(decoder, ref, transforms), mask, other)


def _load(
    decoder: Decoder, site: ir.StepSite, at: ir.RefPlace, mask: Any = None, other: Any = None
) -> Any:
    output = decoder.new()
    step = ir.LoadStep(
        site=site,
        place=at,
        output=output,
        mask=None if mask is None else decoder.reg(mask),
        other=None if other is None else decoder.reg(other),
    )
    decoder.emit(step, step.mask, step.other, *registers(at))
    return [output]


@rule(state_primitives.swap_p, state_primitives.addupdate_p)
def _swap(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    transforms = jax.tree.unflatten(eqn.params["tree"], inputs[2:])
    at = place(decoder, inputs[0], transforms)
    adds = eqn.primitive is state_primitives.addupdate_p
    return _store(decoder, eqn, site, at, inputs[1], adds=adds)


@rule(pallas_primitives.swap_p)
def _masked_swap(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    ref, transforms, value, mask = jax.tree.unflatten(eqn.params["args_tree"], inputs)
    return _store(decoder, eqn, site, place(decoder, ref, transforms), value, mask)


def _store(
    decoder: Decoder, eqn: Any, site: ir.StepSite, at: ir.RefPlace, value: Any, mask: Any = None,
    adds: bool = False,
) -> Any:  # fmt: skip
    outputs = [decoder.new() for _ in eqn.outvars]
    step = ir.StoreStep(
        site=site,
        place=at,
        value=decoder.reg(value),
        output=outputs[0] if outputs else None,
        mask=None if mask is None else decoder.reg(mask),
        adds=adds,
    )
    decoder.emit(step, step.value, step.mask, *registers(at))
    return outputs


@rule(tpu_primitives.dma_start_p)
def _start(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    source, destination, received, sent, device = jax.tree.unflatten(eqn.params["tree"], inputs)
    step = ir.CopyStart(
        site=site,
        source=place(decoder, source),
        destination=place(decoder, destination),
        received=place(decoder, received),
        sent=None if sent is None else place(decoder, sent),
        device=_device(decoder, device, eqn.params["device_id_type"]),
        adds=bool(eqn.params.get("add")),
        of_pipeline=lines.is_of_pipeline(eqn),
    )
    needed = registers(step.source, step.destination, step.received, step.sent)
    decoder.emit(step, *needed, *_device_registers(step.device))


@rule(tpu_primitives.dma_wait_p)
def _wait_copy(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    source, destination, semaphore, _, _ = jax.tree.unflatten(eqn.params["tree"], inputs)
    step = ir.CopyWait(
        site=site,
        source=place(decoder, source),
        destination=place(decoder, destination),
        semaphore=place(decoder, semaphore),
    )
    decoder.emit(step, *registers(step.source, step.destination, step.semaphore))


@rule(pallas_primitives.semaphore_signal_p)
def _signal(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    ref, transforms, amount, device, core = jax.tree.unflatten(eqn.params["args_tree"], inputs)
    step = ir.SemaphoreSignal(
        site=site,
        semaphore=place(decoder, ref, transforms),
        amount=decoder.reg(amount),
        device=_device(decoder, device, eqn.params["device_id_type"]),
        core=None if core is None else decoder.reg(core),
    )
    needed = [*registers(step.semaphore), step.amount, *_device_registers(step.device)]
    decoder.emit(step, *needed, step.core)


@rule(pallas_primitives.semaphore_wait_p)
def _wait(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    ref, transforms, amount, decrement = jax.tree.unflatten(eqn.params["args_tree"], inputs)
    step = ir.SemaphoreWait(
        site=site,
        semaphore=place(decoder, ref, transforms),
        amount=decoder.reg(amount),
        decrements=bool(decrement),
    )
    decoder.emit(step, *registers(step.semaphore), step.amount)


@rule(pallas_primitives.semaphore_read_p)
def _read(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    ref, transforms = jax.tree.unflatten(eqn.params["args_tree"], inputs)
    output = decoder.new()
    step = ir.ReadSemaphore(site=site, semaphore=place(decoder, ref, transforms), output=output)
    decoder.emit(step, *registers(step.semaphore))
    return [output]


@rule(tpu_primitives.get_barrier_semaphore_p)
def _barrier(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    output = decoder.new()
    decoder.emit(ir.BarrierSemaphore(site=site, output=output))
    return [output]


def _device(decoder: Decoder, device: Any, kind: Any) -> ir.DeviceId | None:
    if device is None:
        return None
    if isinstance(device, Mapping):
        named: dict[str | tuple[str, ...], ir.Reg] = {}
        for axes, value in device.items():
            is_joint = isinstance(axes, tuple) and len(axes) > 1
            name = tuple(map(str, axes)) if isinstance(axes, tuple) else (str(axes),)
            named[name if is_joint else name[0]] = decoder.reg(value)
        return ir.DeviceId(coordinates=named)
    if isinstance(device, (tuple, list)):
        return ir.DeviceId(coordinates=tuple(decoder.reg(value) for value in device))
    if str(getattr(kind, "value", kind)).lower().endswith("mesh"):
        return ir.DeviceId(coordinates=(decoder.reg(device),))
    return ir.DeviceId(number=decoder.reg(device))


def _device_registers(device: ir.DeviceId | None) -> list[ir.Reg]:
    if device is None:
        return []
    if isinstance(device.coordinates, Mapping):
        return list(device.coordinates.values())
    return [device.number] if device.number is not None else list(device.coordinates or ())


@rule(pallas_primitives.program_id_p, pallas_primitives.num_programs_p)
def _grid(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    output = decoder.new()
    is_size = eqn.primitive is pallas_primitives.num_programs_p
    decoder.emit(ir.GridId(site=site, axis=eqn.params["axis"], is_size=is_size, output=output))
    return [output]


@rule(jax.lax.axis_index_p)
def _axis(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    name = eqn.params["axis_name"]
    names = tuple(map(str, name)) if isinstance(name, tuple) else (str(name),)
    output = decoder.new()
    decoder.emit(ir.AxisIndex(site=site, names=names, output=output))
    return [output]


@rule(pallas_primitives.multiple_of_p)
def _hint(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    output = decoder.new()
    value = decoder.reg(inputs[0])
    divisors = tuple(map(int, eqn.params["values"]))
    step = ir.MultipleOf(
        site=site,
        value=value,
        divisors=divisors,
        of_pipeline=lines.is_of_pipeline(eqn),
        output=output,
    )
    decoder.emit(step, value)
    return [output]


@rule(jax_core.empty_ref_p)
def _empty(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    return _new_ref(decoder, eqn.outvars[0].aval, site, "empty_ref")


@rule(pallas_primitives.get_global_p)
def _global(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    return _new_ref(decoder, eqn.params["what"], site, "get_global", lasts=True)


def _new_ref(decoder: Decoder, aval: Any, site: ir.StepSite, name: str, lasts: bool = False) -> Any:
    output = decoder.new()
    type_ = ref_type(aval)
    decoder.emit(ir.NewRef(site=site, type=type_, name=name, output=output, lasts=lasts))
    return [output]


@rule(jax_core.free_ref_p)
def _free(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> None:
    """Decode to nothing: jax frees the reference, and no kernel can use it afterwards."""


@rule(tpu_primitives.has_memory_space_p)
def _has_space(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    """Operands without a memory space of their own are in HBM."""
    return [decoder.constant(np.bool_(eqn.params["memory_space"] is pltpu.HBM))]


@rule(conditionals.platform_index_p)
def _platform(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    """Decode the branch for Mosaic, not the CPU's."""
    platforms = enumerate(eqn.params["platforms"])
    index = next(i for i, names in platforms if names is None or "mosaic" in names)
    return [decoder.constant(np.int32(index))]


@rule(pallas_primitives.delay_p, tpu_primitives.trace_value_p)
def _nothing(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    return [decoder.constant(np.int32(0)) for _ in eqn.outvars]


@rule(tpu_primitives.touch_p)
def _touch(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    return list(inputs[: len(eqn.outvars)])
