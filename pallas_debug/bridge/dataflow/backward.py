"""Backward dataflow: from the results of a jaxpr to its inputs, through calls, branches and loops.

Nothing runs. A subclass says what an equation wants of its operands, given what is wanted of its
results. Control flow is handled here.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

from pallas_debug.bridge import primitives
from pallas_debug.bridge.jaxcompat import jax_core
from pallas_debug.bridge.normal_forms import BranchForm, CallForm, InnerJaxpr, LoopForm, ScopeForm

V = TypeVar("V")


class Backward(ABC, Generic[V]):
    """Walk with values of type `V`, what is wanted of a variable.

    Attributes:
      nothing: value of a variable that nothing uses.
    """

    nothing: V

    # What a subclass defines

    @abstractmethod
    def join(self, a: V, b: V) -> V:
        """Return what is wanted of a variable with two uses."""

    @abstractmethod
    def transfer(self, eqn: Any, wanted: Sequence[V]) -> Sequence[V]:
        """Return what an equation wants of its operands."""

    @abstractmethod
    def decision(self, eqn: Any, wanted: Sequence[V]) -> V:
        """Return what a branch or loop wants of the value that decides it."""

    # The engine

    def run(self, jaxpr: Any, wanted: Sequence[V]) -> list[V]:
        """Return what is wanted of the constants and inputs of a jaxpr."""
        known: dict[Any, V] = {}

        def add(atoms: Iterable[Any], values: Iterable[V]) -> None:
            for atom, value in zip(atoms, values, strict=True):
                if not isinstance(atom, jax_core.Literal):
                    known[atom] = self.join(known[atom], value) if atom in known else value

        add(jaxpr.outvars, wanted)
        for eqn in reversed(jaxpr.eqns):
            add(eqn.invars, self.equation(eqn, [known.get(v, self.nothing) for v in eqn.outvars]))
        return [known.get(var, self.nothing) for var in (*jaxpr.constvars, *jaxpr.invars)]

    def equation(self, eqn: Any, wanted: Sequence[V]) -> Sequence[V]:
        """Return what an equation wants of its operands, also one that contains jaxprs."""
        match primitives.form(eqn):
            case CallForm() as call:
                return self.inputs(call.body, wanted)
            case BranchForm() as branch:
                found = [self.inputs(one, wanted) for one in branch.branches]
                each = (functools.reduce(self.join, v) for v in zip(*found, strict=True))
                return [self.decision(eqn, wanted), *each]
            case LoopForm() as loop:
                return self._loop(eqn, loop, wanted)
            case ScopeForm() as scope:
                return self.run(scope.body.jaxpr, wanted)[: len(scope.inputs)]
        return self.transfer(eqn, wanted)

    def inputs(self, region: InnerJaxpr, wanted: Sequence[V]) -> list[V]:
        """Return what a region wants of its inputs, without its constants."""
        return self.run(region.jaxpr, wanted)[len(region.jaxpr.constvars) :]

    def _loop(self, eqn: Any, loop: LoopForm, wanted: Sequence[V]) -> list[V]:
        """Go through the body until nothing changes."""
        count, first = len(loop.carry), len(loop.constants)
        carry, stacked = list(wanted[:count]), wanted[count:]
        decided: list[V] = []
        if loop.condition is not None:
            found = self.inputs(loop.condition, [self.decision(eqn, wanted)])
            decided = found[: len(loop.condition_constants)]
            carry = self._joined(carry, found[len(decided) :])
        while True:
            found = self.inputs(loop.body, [*carry, *stacked])
            following = self._joined(carry, found[first : first + count])
            if following == carry:
                return [*decided, *found[:first], *carry, *found[first + count :]]
            carry = following

    def _joined(self, a: Sequence[V], b: Sequence[V]) -> list[V]:
        return [self.join(x, y) for x, y in zip(a, b, strict=True)]
