"""Named algorithms of matrix products that a CPU does not have: fermix's kernels use TF32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jax import lax

from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.jaxprs.params import equations_of

ON_CPU = frozenset(
    {
        *("DEFAULT", "F16_F16_F16", "F32_F32_F32", "F64_F64_F64"),
        *("BF16_BF16_F32", "BF16_BF16_F32_X3", "BF16_BF16_F32_X6"),
    }
)
"""Algorithms that jax accepts on a CPU, as in jax._src.lax.lax._dot_general_lower."""


def on_cpu(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of an equation, with the highest precision in place of a missing algorithm."""
    if _missing(params) is None:
        return dict(params)
    return {**params, "precision": (lax.Precision.HIGHEST, lax.Precision.HIGHEST)}


def note(captured: Capture) -> str | None:
    """Remark on a kernel whose products are computed with another algorithm than it names."""
    missing = (_missing(eqn.params) for eqn in equations_of(captured.params))
    names = dict.fromkeys(name for name in missing if name is not None)
    if not names:
        return None
    return (
        f"`{captured.kernel.name}` multiplies with {' and '.join(names)}, which a CPU does not "
        "have: its products were computed at the highest precision"
    )


def _missing(params: Mapping[str, Any]) -> str | None:
    """Name of the algorithm of a product, if a CPU does not have it."""
    algorithm = params.get("precision")
    if not isinstance(algorithm, (lax.DotAlgorithm, lax.DotAlgorithmPreset)):
        return None
    name = getattr(algorithm, "name", None) or str(algorithm)
    return None if name in ON_CPU else name
