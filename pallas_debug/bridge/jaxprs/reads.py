"""Parts of kernels' outputs that a program reads: backward dataflow, nothing runs.

This is conservative: an output is read in part only if everything that uses it is a slice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from pallas_debug.bridge import jaxcompat
from pallas_debug.bridge.jaxcompat import jax_core
from pallas_debug.bridge.jaxprs import nested
from pallas_debug.findings.outputs import Box, hull

KERNELS = ("pallas_call", "mpmd_map")
"""Names of the primitives that call a kernel."""

_ALL: Final = "all"

_Part = Box | Literal["all"] | None
"""Box that contains the elements that are read; None if nothing is read."""


def parts(program: Any, kernel: Callable[[Any], Any]) -> dict[Any, list[Box | None]]:
    """Boxes that contain what a program reads of each output of a kernel, over all of its calls.

    None for an output of which all, or nothing, may be read.

    Args:
      program: a jaxpr.
      kernel: returns the key of the kernel that an equation calls.
    """
    walk = _Walk(kernel)
    walk.run(program, [_ALL] * len(jaxcompat.opened(program)[0].outvars))
    return {
        key: [None if part == _ALL else part for part in found] for key, found in walk.found.items()
    }


class _Walk:
    """Walks a program backwards, from its results to their inputs."""

    def __init__(self, kernel: Callable[[Any], Any]) -> None:
        self.found: dict[Any, list[_Part]] = {}
        self._kernel = kernel

    def run(self, jaxpr: Any, outputs: Sequence[_Part]) -> list[_Part]:
        """Return what is read of each input of a jaxpr, by what is read of its outputs."""
        inner, _ = jaxcompat.opened(jaxpr)
        known: dict[Any, _Part] = {}

        def add(atoms: Sequence[Any], read: Sequence[_Part]) -> None:
            for atom, part in zip(atoms, read, strict=True):
                if not isinstance(atom, jax_core.Literal):
                    known[atom] = _either(known.get(atom), part)

        add(inner.outvars, outputs)
        for eqn in reversed(inner.eqns):
            add(eqn.invars, self._equation(eqn, [known.get(var) for var in eqn.outvars]))
        return [known.get(var) for var in inner.invars]

    def _equation(self, eqn: Any, out: Sequence[_Part]) -> Sequence[_Part]:
        is_used = bool(eqn.effects) or any(part is not None for part in out)
        if eqn.primitive.name in KERNELS:
            key = self._kernel(eqn)
            before = self.found.get(key, [None] * len(out))
            self.found[key] = [_either(a, b) for a, b in zip(before, out, strict=True)]
        elif eqn.primitive.name == "slice":
            return [_sliced(eqn.params) if is_used else None]
        elif nested.inlined(eqn) is not None:
            found = self.run(eqn.params.get("jaxpr") or eqn.params["call_jaxpr"], out)
            if len(found) == len(eqn.invars):
                return found
        else:
            for inner in nested.within(eqn.params):
                self.run(inner, [_ALL] * len(jaxcompat.opened(inner)[0].outvars))
        return [_ALL if is_used else None] * len(eqn.invars)


def _sliced(params: Mapping[str, Any]) -> Box:
    return tuple(zip(params["start_indices"], params["limit_indices"], strict=True))


def _either(a: _Part, b: _Part) -> _Part:
    if a is None or b is None:
        return b if a is None else a
    return _ALL if a == _ALL or b == _ALL else hull(a, b)
