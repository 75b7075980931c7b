"""`pallas_debug.breakpoint()` in a kernel: an operation that does nothing, except in the debugger.

jax's interpreters and the lowering for TPUs know it, and emit nothing for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pallas_debug.bridge.jaxcompat import (
    ad,
    batching,
    effects,
    jax_core,
    lowering,
    mlir,
    pallas_core,
    source_info_util,
    tpu_core,
)


class BreakpointEffect(effects.Effect):  # type: ignore[misc]
    """Keeps a breakpoint where it is: jax drops operations without results or effects."""

    def __str__(self) -> str:
        return "breakpoint"


EFFECT = BreakpointEffect()

for allowed in (
    effects.lowerable_effects,
    effects.control_flow_allowed_effects,
    effects.remat_allowed_effects,
    effects.custom_derivatives_allowed_effects,
    pallas_core.kernel_local_effects,
):
    allowed.add_type(BreakpointEffect)

breakpoint_p = jax_core.Primitive("pallas_debug_breakpoint")
breakpoint_p.multiple_results = True

breakpoint_p.def_impl(list)
breakpoint_p.def_effectful_abstract_eval(lambda: ([], {EFFECT}))


def _lowered(context: Any) -> list[Any]:
    return []


mlir.register_lowering(breakpoint_p, _lowered)
lowering.register_lowering_rule(breakpoint_p, kernel_types=[*tpu_core.CoreType])(_lowered)
ad.primitive_jvps[breakpoint_p] = lambda primals, tangents: (breakpoint_p.bind(), [])
batching.primitive_batchers[breakpoint_p] = lambda values, dims: (breakpoint_p.bind(), [])


def mark() -> None:
    """Add a breakpoint to what is being traced, at the line of the caller of our caller."""
    breakpoint_p.bind()


# The line of a breakpoint is the user's.
source_info_util.register_exclusion(__file__)
source_info_util.register_exclusion(str(Path(__file__).parents[2] / "_api" / "breakpoint.py"))
