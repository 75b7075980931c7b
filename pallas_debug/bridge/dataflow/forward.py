"""Forward dataflow: values through the equations of a jaxpr, its calls, branches and loops.

A subclass is a domain: it says what an equation makes of values, how values of several branches are
joined, and what is known of a loop's values in all iterations. Control flow is handled here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

from pallas_debug.bridge import primitives
from pallas_debug.bridge.jaxcompat import jax_core
from pallas_debug.bridge.normal_forms import (
    BranchForm,
    CallForm,
    Control,
    InnerJaxpr,
    LoopForm,
    ScopeForm,
)

V = TypeVar("V")
P = TypeVar("P")


class Forward(ABC, Generic[V, P]):
    """Walk with values of type `V`, and places of type `P`: what holds where an equation is.

    Attributes:
      unknown: value of which nothing is known.
      calls: calls around the equation that is being walked, outermost first.
      path: position of that equation in each jaxpr.
    """

    unknown: V

    def __init__(self) -> None:
        self.calls: tuple[Any, ...] = ()
        self.path: list[int] = []

    # What a subclass defines

    @abstractmethod
    def plain(self, eqn: Any, inputs: list[V], place: P) -> Sequence[V]:
        """Return the results of an equation that is not entered."""

    def constant(self, value: Any) -> Any:
        """Return the value of a constant."""
        return value

    def literal(self, atom: Any) -> V:
        """Return the value of a literal."""
        value: V = self.constant(atom.val)
        return value

    def enters(self, eqn: Any, form: Control, inputs: Sequence[V]) -> bool:
        """Return whether to walk the jaxprs of an equation."""
        return True

    def is_call(self, eqn: Any) -> bool:
        """Return whether lines of jax within a scope count as the line of the scope."""
        return False

    def buffers(self, scope: ScopeForm) -> Sequence[V]:
        """Return the buffers that a scope allocates."""
        return [self.unknown] * len(scope.body.jaxpr.invars)

    def reachable(self, eqn: Any, branch: BranchForm, place: P) -> Iterable[tuple[int, P]]:
        """Return the branches that may be taken, and the place in each."""
        return [(number, place) for number in range(len(branch.branches))]

    def join(
        self, branch: BranchForm, count: int, results: Sequence[tuple[int, Sequence[V]]]
    ) -> Sequence[V]:
        """Return the `count` results of a branch, from those of the branches that may be taken."""
        return [self.unknown] * count

    # Loops, whose body is walked once for all iterations

    def widen(self, loop: LoopForm, place: P) -> tuple[Sequence[V], P] | None:
        """Return what is known of carried values in all iterations; None without iterations."""
        return loop.carry, place

    def condition(self, loop: LoopForm, carry: Sequence[V], place: P) -> None:
        """Walk the condition of a `while` loop."""
        self.run(loop.condition, [*loop.condition_constants, *carry], place)

    def loop_results(self, loop: LoopForm) -> Sequence[V]:
        """Return the results of a loop."""
        return [self.unknown] * len(loop.body.jaxpr.outvars)

    # The engine

    def run(self, region: InnerJaxpr | None, inputs: Sequence[V], place: P) -> list[V]:
        """Walk a jaxpr; return its results."""
        assert region is not None
        jaxpr, consts = region
        return self.walk(jaxpr, list(map(self.constant, consts)), inputs, place)

    def walk(self, jaxpr: Any, consts: Sequence[V], inputs: Sequence[V], place: P) -> list[V]:
        """Walk a jaxpr, with values for its constants; return its results."""
        known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *inputs), strict=True))

        def read(atom: Any) -> V:
            return self.literal(atom) if isinstance(atom, jax_core.Literal) else known[atom]

        self.path.append(0)
        for number, eqn in enumerate(jaxpr.eqns):
            self.path[-1] = number
            outputs = self.equation(eqn, [read(atom) for atom in eqn.invars], place)
            known.update(zip(eqn.outvars, outputs, strict=True))
        self.path.pop()
        return [read(atom) for atom in jaxpr.outvars]

    def equation(self, eqn: Any, inputs: list[V], place: P) -> Sequence[V]:
        """Return the results of an equation, also of one that contains jaxprs."""
        row = primitives.TABLE.get(eqn.primitive.name)
        form = primitives.form(eqn, inputs) if row is not None and row.kind == "control" else None
        if form is None or not self.enters(eqn, form, inputs):
            return self.plain(eqn, inputs, place)
        outer = self.calls
        if isinstance(form, CallForm) or (isinstance(form, ScopeForm) and self.is_call(eqn)):
            self.calls = (*outer, eqn)
        outputs = self._entered(eqn, form, place)
        self.calls = outer
        return outputs

    def _entered(self, eqn: Any, form: Control, place: P) -> Sequence[V]:
        match form:
            case CallForm():
                return self.run(form.body, form.inputs, place)
            case BranchForm():
                found = [
                    (number, self.run(form.branches[number], form.inputs, there))
                    for number, there in self.reachable(eqn, form, place)
                ]
                return self.join(form, len(eqn.outvars), found)
            case ScopeForm():
                return self.walk(form.body.jaxpr, form.inputs, self.buffers(form), place)
            case LoopForm():
                return self.loop(eqn, form, place)

    def loop(self, eqn: Any, loop: LoopForm, place: P) -> Sequence[V]:
        """Walk all iterations at once."""
        entered = self.widen(loop, place)
        if entered is not None:
            carry, there = entered
            if loop.condition is not None:
                self.condition(loop, carry, there)
            elements = [self.unknown] * len(loop.stacked)
            self.run(loop.body, [*loop.constants, *carry, *elements], there)
        return self.loop_results(loop)
