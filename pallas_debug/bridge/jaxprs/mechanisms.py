"""Mechanisms of Pallas that mean something else in an untested jax: kernels that need them.

`meaning` compares tiny kernels, one for each mechanism, with what they are known to mean, and knows
the features by which kernels use it: primitives, and what is particular to their call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pallas_debug.bridge import versions
from pallas_debug.bridge.jaxprs import lines
from pallas_debug.bridge.jaxprs.params import equations_of

PREFETCH, PIPELINE = "prefetch", "pipeline"
"""Features of kernels with scalar prefetch, and with `emit_pipeline`."""


class Changed(NamedTuple):
    """A mechanism whose tiny kernel means something else with the installed jax.

    Attributes:
      expected: first step of its normal form that differs.
      found: the step in its place, or the exception.
      features: those of which a kernel that uses the mechanism has any.
    """

    name: str
    expected: str
    found: str
    features: frozenset[str]

    def __str__(self) -> str:
        return f"{self.name} (expected `{self.expected}`, found `{self.found}`)"


changed: list[Changed] = []
"""Mechanisms that changed; empty with a tested jax. Set by `meaning`."""


def _features(params: Mapping[str, Any]) -> set[str]:
    """Features of a kernel, given the parameters of its equation."""
    found = {type(mesh).__name__ for mesh in params.get("meshes", ())}
    for eqn in equations_of(params):
        found.add(eqn.primitive.name)
        if lines.is_of_pipeline(eqn):
            found.add(PIPELINE)
    if getattr(params.get("grid_mapping"), "num_index_operands", 0):
        found.add(PREFETCH)
    return found


def refusal(params: Mapping[str, Any]) -> str | None:
    """Return why nothing can be said of a kernel with the installed jax, or None."""
    own = _features(params) if changed else set()
    used = next((one for one in changed if not own.isdisjoint(one.features)), None)
    if used is None:
        return None
    return (
        f"jax {versions.installed().get('jax')} changed the meaning of {used.name}, which the "
        f"kernel uses: pallas-debug expects `{used.expected}`, and finds `{used.found}`. Install "
        f"a tested jax ({versions.OLDEST} to {versions.NEWEST}), or report this"
    )
