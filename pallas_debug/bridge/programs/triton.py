"""Decode operations that only kernels for a GPU have: those of Pallas's Triton back end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from pallas_debug.bridge.jaxcompat import triton_primitives
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.accesses import place, registers
from pallas_debug.bridge.programs.decode import Decoder, rule
from pallas_debug.errors import MachineError


def masks_blocks() -> bool:
    """Return whether accesses are masked where a block reaches past its array (jax 0.12)."""
    function = triton_primitives.lowering._compute_pointers_from_indices
    return "bounds_mask" in function.__code__.co_varnames


_UPDATES: Mapping[str, Callable[[Any, Any], Any]] = {
    "xchg": lambda old, new: new,
    "add": lambda old, new: old + new,
    "max": np.maximum,
    "min": np.minimum,
    "and": lambda old, new: old & new,
    "or": lambda old, new: old | new,
    "xor": lambda old, new: old ^ new,
}


@rule(triton_primitives.atomic_rmw_p)
def _atomic(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    ref, transforms, value, mask = jax.tree.unflatten(eqn.params["args_tree"], inputs)
    kind = str(eqn.params["atomic_type"].value)
    return _update(decoder, site, place(decoder, ref, transforms), (value,), _UPDATES[kind], mask)


@rule(triton_primitives.atomic_cas_p)
def _compare_and_swap(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    ref, expected, value = inputs
    return _update(decoder, site, place(decoder, ref), (expected, value), _swapped)


def _swapped(old: Any, expected: Any, value: Any) -> Any:
    return np.where(old == expected, value, old)


def _update(
    decoder: Decoder, site: ir.StepSite, at: ir.RefPlace, values: tuple[Any, ...],
    update: Callable[..., Any], mask: Any = None,
) -> list[ir.Reg]:  # fmt: skip
    output = decoder.new()
    step = ir.AtomicStep(
        site=site,
        place=at,
        values=tuple(decoder.reg(value) for value in values),
        update=update,
        output=output,
        mask=None if mask is None else decoder.reg(mask),
    )
    decoder.emit(step, *step.values, step.mask, *registers(at))
    return [output]


@rule(triton_primitives.debug_barrier_p)
def _barrier(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    """Decode to nothing: it orders the threads of a grid point, which runs as one thread here."""
    return []


@rule(triton_primitives.max_contiguous_p)
def _hint(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    return [inputs[0]]


@rule(triton_primitives.elementwise_inline_asm_p)
def _assembly(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    if not eqn.params["asm"].startswith("tanh.approx"):
        text = eqn.params["asm"]
        raise MachineError(f"the kernel machine has no rule for inline assembly, `{text}`")
    (value,) = (decoder.reg(one) for one in inputs)
    output = decoder.new()
    step = ir.Compute(site=site, inputs=(value,), outputs=(output,), evaluate=_tanh)
    decoder.emit(step, value)
    return [output]


def _tanh(value: Any) -> list[Any]:
    return [np.tanh(np.asarray(value)).astype(np.asarray(value).dtype)]
