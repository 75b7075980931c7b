"""Failures of jax or of a compiler as findings."""

from __future__ import annotations

import re

from pallas_debug import explain
from pallas_debug.findings.faults import Fault, named
from pallas_debug.findings.sighting import Sighting
from pallas_debug.model import Failure, Finding, Kernel

_ASKS = re.compile(
    r"\b(?:TPUs?|device_kind|default_backend|platform|coords|core_on_chip)\b", re.IGNORECASE
)
"""Phrases in a line or its message that may depend on the device."""

_LACKS = re.compile(r" has no attribute '(?P<name>\w+)'")

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
"""Replacements of names that the installed Pallas does not have."""

UNKNOWN_NAME = "look for its replacement in the Pallas changelog"

_STAGES = {"lowering": Fault.LOWERING_ERROR, "crash": Fault.COMPILER_ABORT}


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
    kind = _STAGES.get(failure.stage, Fault.COMPILE_ERROR)
    if seen.engine == "trace":
        kind = Fault.TRACE_ERROR
    seen = seen.at(source=failure.source or (kernel.source if kernel is not None else None))
    lacking = _LACKS.search(failure.headline)
    failure = explain.explained(failure, kernel)
    known = failure.explanation
    if known is not None:
        kind, advice = named(known.kind) or kind, known.advice
        if kind is Fault.REMOVED_NAME and lacking:
            advice = REPLACEMENTS.get(lacking["name"], UNKNOWN_NAME)
        message = "\n".join([failure.headline, *known.details[1:]])
        return seen.found(kind, message, known.cause, advice)
    text = (failure.source and failure.source.text) or ""
    asks = _ASKS.search(f"{failure.headline} {text}") and not lacking
    return seen.of(
        kind,
        headline=failure.headline,
        attach="; ".join(explain.WHAT_TO_ATTACH),
        is_import=failure.type in ("ImportError", "ModuleNotFoundError"),
        raiser=raiser,
        chip=_chip(pretended) if asks else "",
    )


def _chip(pretended: str | None) -> str:
    """Advice on an exception that may depend on the chip."""
    if pretended is None:
        return "; if it needs a TPU, pass --pretend"
    return f"; the chip that it queries is {pretended} here: --target names another one"
