"""Mechanisms of Pallas that mean something else in an untested jax: kernels that need them.

`meaning` compares tiny kernels, one for each mechanism, with what they are known to mean. The
kernels of the user are compared with the tiny ones by their features: primitives that access
memory, synchronise, print or hold jaxprs, and what is particular to their call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pallas_debug.bridge import primitives, versions
from pallas_debug.bridge.jaxprs import nested
from pallas_debug.bridge.jaxprs.params import jaxprs_of

_MECHANISMS = ("access", "copy", "semaphore", "control", "effect")


@dataclass(frozen=True, kw_only=True)
class Changed:
    """A mechanism whose tiny kernel means something else with the installed jax.

    Attributes:
      expected: first step of its normal form that differs.
      found: the step in its place, or the exception.
      features: what a kernel has that uses the mechanism.
      needs_all: whether only all of them together show that it does.
    """

    name: str
    expected: str
    found: str
    features: frozenset[str]
    needs_all: bool = False

    def __str__(self) -> str:
        return f"{self.name} (expected `{self.expected}`, found `{self.found}`)"

    def is_used_by(self, features: frozenset[str]) -> bool:
        """Return whether a kernel with these features uses the mechanism."""
        shared = self.features & features
        return bool(shared) and (shared == self.features or not self.needs_all)


changed: list[Changed] = []
"""Mechanisms that changed; empty with a tested jax. Set by `meaning`."""


def features(params: Mapping[str, Any]) -> frozenset[str]:
    """Features of a kernel, given the parameters of its equation."""
    names = frozenset().union(*map(nested.primitives, jaxprs_of(params)))
    found = {
        name
        for name in names
        if name not in primitives.TABLE or primitives.TABLE[name].kind in _MECHANISMS
    }
    if getattr(params.get("grid_mapping"), "num_index_operands", 0):
        found.add("scalar prefetch")
    found |= {type(mesh).__name__ for mesh in params.get("meshes", ())}
    return frozenset(found)


def refusal(params: Mapping[str, Any]) -> str | None:
    """Return why nothing can be said of a kernel with the installed jax, or None."""
    own = features(params) if changed else frozenset()
    used = next((one for one in changed if one.is_used_by(own)), None)
    if used is None:
        return None
    return (
        f"jax {versions.installed().get('jax')} changed the meaning of {used.name}, which the "
        f"kernel uses: pallas-debug expects `{used.expected}`, and finds `{used.found}`. Install "
        f"a tested jax ({versions.OLDEST} to {versions.NEWEST}), or report this"
    )
