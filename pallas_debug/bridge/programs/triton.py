"""Decode operations that only kernels for a GPU have: those of Pallas's Triton back end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pallas_debug.bridge.jaxcompat import triton_primitives
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.accesses import as_step
from pallas_debug.bridge.programs.decode import Decoder, rule
from pallas_debug.errors import MachineError


def masks_blocks() -> bool:
    """Return whether accesses are masked where a block reaches past its array (jax 0.12)."""
    function = triton_primitives.lowering._compute_pointers_from_indices
    return "bounds_mask" in function.__code__.co_varnames


_UPDATES: Mapping[str, Callable[..., Any]] = {
    "xchg": lambda old, new: new,
    "add": lambda old, new: old + new,
    "max": np.maximum,
    "min": np.minimum,
    "and": lambda old, new: old & new,
    "or": lambda old, new: old | new,
    "xor": lambda old, new: old ^ new,
    "cas": lambda old, expected, new: np.where(old == expected, new, old),
}


rule(triton_primitives.atomic_rmw_p, triton_primitives.atomic_cas_p)(
    as_step(ir.AtomicStep, update=lambda _, atomic: _UPDATES[atomic.kind])
)


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
    return decoder.compute(site, inputs, 1, lambda value: [np.tanh(value).astype(value.dtype)])
