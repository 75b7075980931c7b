"""Decode loads, stores, copies, semaphores, and control flow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import jax
import numpy as np
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.bridge import jaxcompat, normal_forms, primitives
from pallas_debug.bridge.jaxcompat import (
    conditionals,
    indexing,
    jax_core,
    loops,
    pallas_primitives,
    sc_core,
    state_primitives,
    state_types,
    tpu_primitives,
)
from pallas_debug.bridge.jaxprs import lines, nested
from pallas_debug.bridge.normal_forms import CopyForm, InnerJaxpr, RefChain, SignalForm
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.decode import Decoder, program, ref_type, rule


def place(decoder: Decoder, at: RefChain) -> ir.RefPlace:
    """View of a reference that a chain of transforms selects."""
    ref = at.ref
    if isinstance(ref, state_types.TransformedRef):
        (select,) = ref.transforms
        assert isinstance(select, state_types.SelectTransform)
        ref = _selected(decoder, ref.ref, select.idx)
    return ir.RefPlace(ref, _view(decoder, at.transforms))


def _selected(decoder: Decoder, refs: Sequence[Any], index: Any) -> ir.Reg:
    places = tuple(place(decoder, normal_forms.at(ref)) for ref in refs)
    output = decoder.new()
    decoder.emit(
        ir.SelectRef(site=decoder.here, index=decoder.reg(index), places=places, output=output)
    )
    return output


def _view(decoder: Decoder, transforms: Sequence[Any]) -> ir.View:
    view: list[ir.Index | ir.Recast] = []
    for transform in transforms:
        if isinstance(transform, indexing.NDIndexer):
            view.append(ir.Index(tuple(_entry(decoder, i) for i in transform.indices)))
        elif not jaxcompat.is_assumption(transform):
            view.append(ir.Recast(transform))
    return tuple(view)


def _entry(decoder: Decoder, index: Any) -> Any:
    if isinstance(index, indexing.Slice):
        return ir.Slice(decoder.number(index.start), decoder.number(index.size), int(index.stride))
    # Positions in memory, of a SparseCore's copies
    if isinstance(index, state_types.TransformedRef):
        return _selected(decoder, [index], np.int32(0))
    if isinstance(index, sc_core.Indices):
        positions = _entry(decoder, index.values)
        if index.ignored_value is None:
            return positions
        return ir.RowChoice(decoder.reg(positions), int(index.ignored_value))
    return decoder.number(index)


def as_step(
    kind: type[ir.MachineStep], **own: Callable[[Decoder, Any], Any]
) -> Callable[..., Sequence[ir.Reg]]:
    """Return a rule for equations whose normal form has the parts of a step.

    Args:
      own: makes parts of the step, from the decoder and the form; from the decoder and the equation
        for a primitive without a form.
    """
    names = [part.name for part in fields(kind)]

    def decode(
        decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite
    ) -> Sequence[ir.Reg]:
        form = primitives.form(eqn, inputs)
        parts: dict[str, Any] = {}
        for name in names:
            if name in own:
                parts[name] = own[name](decoder, eqn if form is None else form)
            elif name == "inputs" and form is None:
                parts[name] = tuple(map(decoder.reg, inputs))
            elif name == "output":
                parts[name] = decoder.new() if eqn.outvars else None
            elif name == "outputs":
                parts[name] = tuple(decoder.new() for _ in eqn.outvars)
            elif name == "of_pipeline":
                parts[name] = lines.is_of_pipeline(eqn)
            elif hasattr(form, name):
                parts[name] = _part(decoder, getattr(form, name))
        return decoder.emit(kind(site=site, **parts))

    return decode


def _part(decoder: Decoder, value: Any) -> Any:
    """A part of a normal form: refs become places, jaxprs programs, and values registers."""
    match value:
        case RefChain():
            return place(decoder, value)
        case InnerJaxpr():
            return decoder.inner(value)
        case None | bool() | int() | str():
            return value
        case tuple() | list():
            return tuple(_part(decoder, one) for one in value)
    return decoder.reg(value)


def _device(decoder: Decoder, form: CopyForm | SignalForm) -> ir.DeviceId | None:
    device, kind = form.device, form.device_type
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


rule(state_primitives.get_p, pallas_primitives.load_p)(as_step(ir.LoadStep))
rule(state_primitives.swap_p, state_primitives.addupdate_p, pallas_primitives.swap_p)(
    as_step(ir.StoreStep)
)
rule(tpu_primitives.dma_start_p)(as_step(ir.CopyStart, device=_device))
rule(tpu_primitives.dma_wait_p)(as_step(ir.CopyWait))
rule(pallas_primitives.semaphore_signal_p)(as_step(ir.SemaphoreSignal, device=_device))
rule(pallas_primitives.semaphore_wait_p)(
    as_step(ir.SemaphoreWait, decrements=lambda _, wait: bool(wait.decrements))
)
rule(pallas_primitives.semaphore_read_p)(as_step(ir.ReadSemaphore))
rule(conditionals.cond_p)(as_step(ir.Branch))
rule(loops.scan_p)(as_step(ir.ScanLoop))
rule(loops.while_p)(as_step(ir.WhileLoop))
rule(tpu_primitives.get_barrier_semaphore_p)(as_step(ir.BarrierSemaphore))
rule(pallas_primitives.program_id_p, pallas_primitives.num_programs_p)(
    as_step(
        ir.GridId,
        axis=lambda _, eqn: eqn.params["axis"],
        is_size=lambda _, eqn: eqn.primitive is pallas_primitives.num_programs_p,
    )
)
rule(jax.lax.axis_index_p)(as_step(ir.AxisIndex, names=lambda _, eqn: _axes(eqn)))
rule(jax_core.empty_ref_p)(
    as_step(
        ir.NewRef,
        type=lambda _, eqn: ref_type(eqn.outvars[0].aval),
        name=lambda *_: "empty_ref",
    )
)
rule(pallas_primitives.get_global_p)(
    as_step(
        ir.NewRef,
        type=lambda _, eqn: ref_type(eqn.params["what"]),
        name=lambda *_: "get_global",
        lasts=lambda *_: True,
    )
)


def _axes(eqn: Any) -> tuple[str, ...]:
    name = eqn.params["axis_name"]
    return tuple(map(str, name)) if isinstance(name, tuple) else (str(name),)


@rule(pallas_primitives.run_scoped_p)
def _run_scoped(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    scope = primitives.form(eqn, inputs)
    inner = scope.body.jaxpr
    context = decoder.context()
    if decoder.fuse and site.line is not None:
        # `sync_copy` is in jax: its lines are the lines of the call.
        context["calls"] = (*decoder.calls, site.line)
    step = ir.Scoped(
        site=site,
        body=program(inner, constvars_first=True, **context),
        buffers=tuple(ref_type(v.aval) for v in inner.invars),
        names=tuple(nested.arg_names(inner, "scoped")),
        inputs=tuple(map(decoder.reg, inputs)),
        outputs=tuple(decoder.new() for _ in eqn.outvars),
        collective=scope.collective,
    )
    return decoder.emit(step)


@rule(pallas_primitives.multiple_of_p)
def _hint(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    step = ir.MultipleOf(
        site=site,
        output=decoder.new(),
        value=decoder.reg(inputs[0]),
        divisors=tuple(map(int, eqn.params["values"])),
        of_pipeline=lines.is_of_pipeline(eqn),
    )
    return decoder.emit(step)


@rule(tpu_primitives.has_memory_space_p)
def _has_space(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    """Operands without a memory space of their own are in HBM."""
    return [decoder.new(np.bool_(eqn.params["memory_space"] is pltpu.HBM))]


@rule(conditionals.platform_index_p)
def _platform(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    """Decode the branch for Mosaic, not the CPU's."""
    platforms = enumerate(eqn.params["platforms"])
    index = next(i for i, names in platforms if names is None or "mosaic" in names)
    return [decoder.new(np.int32(index))]


@rule(
    jax_core.free_ref_p,  # no kernel can use it afterwards
    pallas_primitives.delay_p,
    tpu_primitives.touch_p,
    tpu_primitives.trace_value_p,
)
def _nothing(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    return [decoder.new(np.int32(0)) for _ in eqn.outvars]
