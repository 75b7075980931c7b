"""Scalar prefetch values that a program passes to its kernels, if its arguments determine them.

The program is traced, and the equations that lead from arguments and constants to a kernel's tables
are compiled for the CPU and run. Nothing is guessed: a table is unknown if it depends on an
argument without values, or on a kernel; also if its call may not happen, in a branch or in a loop
of unknown length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from pallas_debug.bridge.capture import capture
from pallas_debug.bridge.dataflow.forward import Forward
from pallas_debug.bridge.jaxcompat import loops
from pallas_debug.bridge.jaxprs import arrays, nested
from pallas_debug.bridge.lowering import hook, trace
from pallas_debug.bridge.normal_forms import BranchForm, CallForm, Control, InnerJaxpr, LoopForm
from pallas_debug.model import Target

Tables = tuple[np.ndarray | None, ...]
"""Sizes of the grid that a kernel call passes, then its scalar prefetch, per operand; None if
unknown."""

MAX_EQUATIONS = 2_000
"""Maximum number of equations to evaluate for one program."""

MAX_ELEMENTS = 1 << 22
"""Maximum elements of an equation's operands and results: tables are small."""

MAX_ITERATIONS = 1 << 12
"""Maximum iterations of a loop to evaluate."""


def tables(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], target: Target
) -> dict[str, list[Tables]]:
    """Tables of each call of each kernel that takes tables, by the kernel's digest."""
    jaxpr, consts, given = trace.jaxpr_of(function, args, kwargs, target)
    known = [i for i, leaf in enumerate(given) if not arrays.is_abstract(leaf)]
    digests: list[str] = []

    def passed(*values: Any) -> list[list[Any]]:
        inputs = dict(zip(known, values, strict=True))
        program = _Program()
        program.run(InnerJaxpr(jaxpr, consts), list(map(inputs.get, range(len(given)))), True)
        digests[:] = [digest for digest, _ in program.kernels]
        return [tables for _, tables in program.kernels]

    # What leads to no table is not compiled.
    with hook.unwatched(), jax.default_device(jax.local_devices(backend="cpu")[0]):
        computed = jax.jit(passed)(*(given[i] for i in known))
    found: dict[str, list[Tables]] = {}
    for digest, values in zip(digests, computed, strict=True):
        made: Any = tuple(None if value is None else np.asarray(value) for value in values)
        several: list[Any] = found.setdefault(digest, [])
        if not any(all(map(np.array_equal, made, other)) for other in several):
            several.append(made)
    return found


class _Program(Forward[Any, bool]):
    """Walk with traced values, None for those that are unknown.

    A place is whether it certainly is reached.

    Attributes:
      kernels: digest of each kernel that is called, with its tables.
    """

    unknown = None

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[tuple[str, list[Any]]] = []
        self._computed = 0

    def literal(self, atom: Any) -> Any:
        dtype = getattr(atom.aval, "dtype", None)  # atom.val may be a Python scalar
        return np.asarray(atom.val, dtype) if isinstance(dtype, np.dtype) else None

    def enters(self, eqn: Any, form: Control, inputs: Sequence[Any]) -> bool:
        return isinstance(form, CallForm) or not self._is_computed(eqn, inputs)

    def plain(self, eqn: Any, inputs: list[Any], place: bool) -> Sequence[Any]:
        unknown = [None] * len(eqn.outvars)
        if eqn.primitive in hook.PRIMITIVES.values():
            self._kernel(eqn, inputs if place else [None] * len(inputs))
            return unknown
        if self._is_computed(eqn, inputs):
            self._computed += 1
            return nested.bound(eqn, inputs)
        for inner, _ in nested.within(eqn.params):
            self.walk(inner, [None] * len(inner.constvars), [None] * len(inner.invars), False)
        return unknown

    def _is_computed(self, eqn: Any, inputs: Sequence[Any]) -> bool:
        is_known = not any(value is None for value in inputs)
        return is_known and self._computed < MAX_EQUATIONS and _is_computable(eqn)

    def reachable(self, eqn: Any, branch: BranchForm, place: bool) -> Iterator[tuple[int, bool]]:
        return ((number, False) for number in range(len(branch.branches)))

    def widen(self, loop: LoopForm, place: bool) -> tuple[Sequence[None], bool]:
        # The constants are the same in all iterations; the body of a scan runs if there are any.
        return [None] * len(loop.carry), place and bool(loop.length)

    def _kernel(self, eqn: Any, inputs: list[Any]) -> None:
        mapping = eqn.params.get("grid_mapping")
        count = mapping and mapping.num_dynamic_grid_bounds + mapping.num_index_operands
        if count:
            self.kernels.append((capture.of_equation(eqn).kernel.digest, inputs[:count]))


def _is_computable(eqn: Any) -> bool:
    """Return whether an equation can be computed on the CPU, and quickly."""
    name = eqn.primitive.name
    if eqn.effects or eqn.primitive in hook.PRIMITIVES.values() or eqn.primitive is loops.while_p:
        return False
    if "callback" in name or "rng" in name or eqn.params.get("length", 0) > MAX_ITERATIONS:
        return False
    avals = [atom.aval for atom in (*eqn.invars, *eqn.outvars)]
    if any(not isinstance(getattr(aval, "dtype", None), np.dtype) for aval in avals):
        return False
    if sum(math.prod(aval.shape) for aval in avals) > MAX_ELEMENTS:
        return False
    return all(_is_computable(e) for inner in nested.within(eqn.params) for e in inner.jaxpr.eqns)
