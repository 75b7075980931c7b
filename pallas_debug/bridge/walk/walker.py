"""Walker over a kernel's jaxpr, at all grid points at once, that records its accesses.

Nothing runs. Values that depend only on program ids, loop counters, literals and known scalar
prefetch are computed in numpy (`numbers.py`); all others are unknown, and events that depend on
them are uncertain. A loop is walked once, with its iterations as an additional dimension.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pallas_debug.bridge import jaxcompat
from pallas_debug.bridge.jaxcompat import jax_core
from pallas_debug.bridge.jaxprs import lines, nested
from pallas_debug.bridge.jaxprs.params import static_shape
from pallas_debug.bridge.walk import loops, numbers, refs
from pallas_debug.bridge.walk.events import Event, KernelRef, View
from pallas_debug.bridge.walk.values import UNKNOWN, Exhausted, Value, WalkState

MAX_EQUATIONS = 10_000
"""Maximum number of equations to walk, counting each iteration of unrolled loops."""

_RULES = {**refs.RULES, **loops.RULES}


@dataclass(kw_only=True)
class Walker:
    """Walks one jaxpr.

    Attributes:
      ids: program ids, one for each dimension of the grid in the kernel's source.
      sizes: sizes of those dimensions.
      names: names of all dimensions of the grid or of the cores; empty if they have none.
      tables: scalar prefetch, by position of the ref.
      unrolls: whether to unroll every loop, to obtain its result.
      deadline: `time.monotonic` value at which the walk ends.
      events: events recorded so far.
      stale: positions of refs that were written to.
    """

    ids: Sequence[np.ndarray]
    sizes: Sequence[int]
    rank: int
    names: Sequence[str] = ()
    tables: Mapping[int, np.ndarray] = field(default_factory=dict)
    unrolls: bool = False
    deadline: float = float("inf")
    events: list[Event] = field(default_factory=list)
    stale: set[int] = field(default_factory=set)
    _equations: int = 0
    _buffers: int = 0
    _sources: dict[int, Any] = field(default_factory=dict)
    _literals: dict[int, Value] = field(default_factory=dict)

    def run(self, jaxpr: Any, args: Sequence[Value]) -> list[Value]:
        """Walk a jaxpr from its start; return its outputs.

        Raises:
          Exhausted: the walk would take too long.
        """
        inner, consts = jaxcompat.opened(jaxpr)
        place = WalkState(where=np.ones((1,) * self.rank, bool))
        with np.errstate(all="ignore"):
            return self.inner(inner, [self.constant(c) for c in consts], args, place)

    def buffer(self, aval: Any, *, name: str, kind: str, position: int | None) -> KernelRef:
        self._buffers += 1
        space = getattr(aval, "memory_space", None)
        return KernelRef(
            name=name,
            kind=kind,
            position=position,
            shape=static_shape(aval),
            dtype=str(getattr(aval, "dtype", "")),
            space=str(getattr(space, "value", space or "default")).lower(),
            number=self._buffers,
        )

    def inner(
        self, jaxpr: Any, consts: Sequence[Value], args: Sequence[Value], place: WalkState
    ) -> list[Value]:
        """Walk an inner jaxpr; return its outputs."""
        known = nested.JaxprValues((*jaxpr.constvars, *jaxpr.invars), (*consts, *args))

        def read(atom: Any) -> Value:
            if not isinstance(atom, jax_core.Literal):
                return known.get(atom, UNKNOWN)
            if id(atom) not in self._literals:
                self._literals[id(atom)] = self._literal(atom)
            return self._literals[id(atom)]

        for eqn in jaxpr.eqns:
            self._equations += 1
            if self._equations > MAX_EQUATIONS:
                raise Exhausted(f"it has more than {MAX_EQUATIONS:,} operations")
            if self._equations % 16 == 1 and time.monotonic() > self.deadline:
                raise Exhausted("it takes longer than the time limit")
            outputs = self._equation(eqn, [read(atom) for atom in eqn.invars], place)
            known.bind(eqn.outvars, outputs)
        return [read(atom) for atom in jaxpr.outvars]

    def constant(self, value: Any) -> Value:
        if np.ndim(value) == 0 and np.asarray(value).dtype.kind in "biuf":
            return np.asarray(value).reshape((1,) * self.rank)
        return UNKNOWN

    def _literal(self, atom: Any) -> Value:
        value = self.constant(atom.val)
        if isinstance(value, np.ndarray) and numbers.is_number(atom.aval):
            return value.astype(atom.aval.dtype)
        return value

    def _equation(self, eqn: Any, inputs: list[Value], place: WalkState) -> Sequence[Value]:
        inline = nested.inlined(eqn)
        if inline is not None:
            inner, consts = inline
            called = replace(place, calls=(*place.calls, eqn))
            return self.inner(inner, [self.constant(c) for c in consts], inputs, called)
        primitive = eqn.primitive
        rule = _RULES.get(primitive)
        if rule is not None:
            result: Sequence[Value] = rule(self, eqn, inputs, place)
            return result
        for value in inputs:
            if isinstance(value, KernelRef):
                self.emit("escape", eqn, place, view=View(buffer=value))
        known = [value for value in inputs if isinstance(value, np.ndarray)]
        computed = numbers.compute(eqn, known) if len(known) == len(inputs) else None
        return [UNKNOWN] * len(eqn.outvars) if computed is None else [computed]

    def emit(self, what: str, eqn: Any, place: WalkState, **details: Any) -> None:
        """Record an event."""
        self.events.append(
            Event(
                what=what,
                number=len(self.events),
                source=self._source(eqn, place),
                where=place.where,
                certain=place.certain,
                **details,
            )
        )

    def _source(self, eqn: Any, place: WalkState) -> Any:
        if id(eqn) not in self._sources:
            self._sources[id(eqn)] = lines.source_of(eqn, place.calls)
        return self._sources[id(eqn)]
