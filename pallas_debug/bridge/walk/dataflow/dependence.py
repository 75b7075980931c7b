"""Arguments of a function on which its kernels depend: forward dataflow, nothing runs.

Each value, including refs, has the set of arguments from which it was computed. This is
conservative: if the flow is not known in detail, an output depends on all inputs. A kernel's grid
points are walked until nothing changes, because one may read what another wrote.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from pallas_debug.bridge import jaxcompat
from pallas_debug.bridge.jaxcompat import (
    conditionals,
    jax_core,
    loops,
    pallas_primitives,
    state_primitives,
)
from pallas_debug.bridge.jaxprs import lines, nested
from pallas_debug.bridge.lowering import hook
from pallas_debug.bridge.primitives import FIRST_INDEX
from pallas_debug.bridge.walk import refs
from pallas_debug.bridge.walk.dataflow import programs
from pallas_debug.model import Target

Names = frozenset[str]

_NONE: Names = frozenset()

_Line = tuple[str, int]

MAX_ROUNDS = 20
"""Maximum rounds of a loop until its values stop changing; each adds an argument to some value."""

_READS = (state_primitives.get_p, pallas_primitives.load_p)


@dataclass(eq=False)
class KernelMemory:
    """Contents of a ref."""

    names: Names = _NONE

    def add(self, names: Names) -> None:
        self.names |= names


FlowValue = Names | KernelMemory


@dataclass(kw_only=True)
class Dependence:
    """Arguments on which a kernel depends.

    Attributes:
      values: by line, the arguments on which the line's values depend.
      accesses: by line, the arguments that decide the indices, and whether and how often the line
        runs.
    """

    values: dict[_Line, Names] = field(default_factory=lambda: defaultdict(lambda: _NONE))
    accesses: dict[_Line, Names] = field(default_factory=lambda: defaultdict(lambda: _NONE))

    def of_values(self, *at: _Line | None) -> Names:
        """Arguments on which values at these lines depend; if a line is unknown, the kernel's."""
        return self._of(self.values, at) | self._of(self.accesses, at)

    def of_accesses(self, *at: _Line | None) -> Names:
        """Arguments on which accesses at these lines depend, like `of_values`."""
        return self._of(self.accesses, at)

    def _of(self, by_line: Mapping[_Line, Names], at: Sequence[_Line | None]) -> Names:
        known = [line for line in at if line in self.values or line in self.accesses]
        if not known or len(known) < len(at):
            return _NONE.union(*by_line.values())
        return _NONE.union(*(by_line.get(line, _NONE) for line in known if line is not None))


def dependences(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    named: Mapping[int, str],
    target: Target,
) -> dict[str, Dependence]:
    """Parts of each kernel that depend on these arguments, by its digest.

    Args:
      named: names of arguments, by their number among the leaves of `(args, kwargs)`.
    """
    traced = programs.traced_leaves(args, kwargs)
    jaxpr = programs.traced(function, args, kwargs, target)[0]
    program = _Program()
    given = [frozenset({named[i]}) if i in named else _NONE for i in traced]
    program.run(jaxpr, given, ProgramPlace())
    return program.kernels


@dataclass(frozen=True, kw_only=True)
class ProgramPlace:
    """Position in a program: dependences of whether it is reached, and the calls around it."""

    names: Names = _NONE
    calls: tuple[Any, ...] = ()

    def under(self, names: Names) -> ProgramPlace:
        return ProgramPlace(names=self.names | names, calls=self.calls)


class JaxprWalk:
    """Walk through a jaxpr; subclasses define the effect of their equations."""

    def __init__(self) -> None:
        self._lines: dict[int, _Line | None] = {}

    def run(self, jaxpr: Any, args: Sequence[FlowValue], place: ProgramPlace) -> list[FlowValue]:
        inner, _ = jaxcompat.opened(jaxpr)
        known: dict[Any, FlowValue] = dict.fromkeys(inner.constvars, _NONE)
        if len(args) == len(inner.invars) + len(inner.constvars):
            known.update(zip(inner.constvars, args, strict=False))  # those of a `run_scoped`
            args = args[len(inner.constvars) :]
        known.update(zip(inner.invars, args, strict=True))

        def read(atom: Any) -> FlowValue:
            return _NONE if isinstance(atom, jax_core.Literal) else known.get(atom, _NONE)

        for eqn in inner.eqns:
            outputs = self._equation(eqn, [read(atom) for atom in eqn.invars], place)
            known.update(zip(eqn.outvars, outputs, strict=True))
        return [read(atom) for atom in inner.outvars]

    def _equation(
        self, eqn: Any, inputs: list[FlowValue], place: ProgramPlace
    ) -> Sequence[FlowValue]:
        inline = nested.inlined(eqn)
        if inline is not None:
            called = ProgramPlace(names=place.names, calls=(*place.calls, eqn))
            return self.run(eqn.params.get("jaxpr") or eqn.params["call_jaxpr"], inputs, called)
        primitive, params = eqn.primitive, eqn.params
        if primitive is conditionals.cond_p:
            chosen = names_of(inputs[:1])
            self.decides(eqn, chosen, place)
            inner = place.under(chosen)
            found = [self.run(branch, inputs[1:], inner) for branch in params["branches"]]
            return [_either(values, chosen) for values in zip(*found, strict=True)]
        if primitive is loops.scan_p:
            consts, carry, xs = nested.scan_operands(params, inputs)
            return self._loop(
                carry, lambda carry: self.run(params["jaxpr"], [*consts, *carry, *xs], place)
            )
        if primitive is loops.while_p:
            return self._while(eqn, inputs, place)
        return self.other(eqn, inputs, place)

    def _while(self, eqn: Any, inputs: list[FlowValue], place: ProgramPlace) -> Sequence[FlowValue]:
        params = eqn.params
        cond, body, start = nested.while_operands(params, inputs)

        def step(carry: list[FlowValue]) -> list[FlowValue]:
            (goes_on,) = self.run(params["cond_jaxpr"], [*cond, *carry], place)
            decided = names_of([goes_on])
            self.decides(eqn, decided, place)
            found = self.run(params["body_jaxpr"], [*body, *carry], place.under(decided))
            return [_either([value], decided) for value in found]

        return self._loop(start, step)

    def _loop(
        self, carry: Sequence[FlowValue], step: Callable[[list[FlowValue]], list[FlowValue]]
    ) -> list[FlowValue]:
        before = list(carry)
        for _ in range(MAX_ROUNDS):
            found = step(before)
            after = [_either([a, b], _NONE) for a, b in zip(before, found, strict=False)]
            if after == before:
                break
            before = after
        return [*before, *found[len(before) :]]

    def other(self, eqn: Any, inputs: list[FlowValue], place: ProgramPlace) -> Sequence[FlowValue]:
        """Handle an equation that is not a call, branch or loop."""
        raise NotImplementedError

    def decides(self, eqn: Any, names: Names, place: ProgramPlace) -> None:
        """Called with the dependences of a branch or loop."""

    def line(self, eqn: Any, place: ProgramPlace) -> _Line | None:
        if id(eqn) not in self._lines:
            line = lines.source_of(eqn, place.calls)
            self._lines[id(eqn)] = None if line is None else line.place
        return self._lines[id(eqn)]


class _Program(JaxprWalk):
    """A whole program, up to its kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: dict[str, Dependence] = {}

    def other(self, eqn: Any, inputs: list[FlowValue], place: ProgramPlace) -> Sequence[FlowValue]:
        names = names_of(inputs) | place.names
        if eqn.primitive in hook.PRIMITIVES.values():
            digest = programs.digest(eqn)
            _kernel(self.kernels.setdefault(digest, Dependence()), eqn, inputs, place)
        else:
            for inner in nested.within(eqn.params):
                count = len(jaxcompat.opened(inner)[0].invars)
                same = inputs if count == len(inputs) else [names] * count
                self.run(inner, same, place)
        return [names] * len(eqn.outvars)


def _kernel(found: Dependence, eqn: Any, inputs: Sequence[FlowValue], place: ProgramPlace) -> None:
    """Walk a kernel until nothing changes."""
    mapping = eqn.params.get("grid_mapping")
    names = [names_of([value]) for value in inputs]
    if mapping is None:  # over a mesh
        jaxprs = nested.within(eqn.params)
        everything = place.names.union(*names)
        memories = [
            [KernelMemory(everything) for _ in jaxcompat.opened(j)[0].invars] for j in jaxprs
        ]
        for jaxpr, contents in zip(jaxprs, memories, strict=True):
            KernelWalk(found).run(jaxpr, contents, place)
        return
    first = mapping.num_dynamic_grid_bounds
    inside = place.under(_NONE.union(*names[:first]))
    jaxpr = eqn.params["jaxpr"]
    memories_of = [KernelMemory(n) for n in names[first:]]
    memories_of += [KernelMemory() for _ in range(len(jaxpr.invars) - len(memories_of))]
    aliases = dict(eqn.params.get("input_output_aliases") or ())
    for source, output in aliases.items():
        memories_of[len(names) - first + output].add(names[first + source])
    walk = KernelWalk(found)
    tables = memories_of[: mapping.num_index_operands]
    for block in mapping.block_mappings:
        closed = block.index_map_jaxpr
        count = len(jaxcompat.opened(closed)[0].invars) - len(tables)
        walk.index_map(closed, [*itertools.repeat(_NONE, count), *tables], inside)
    for _ in range(MAX_ROUNDS):
        before = [memory.names for memory in memories_of]
        walk.run(jaxpr, memories_of, inside)
        if [memory.names for memory in memories_of] == before:
            return


class KernelWalk(JaxprWalk):
    """The jaxpr of a kernel, or of an index map."""

    def __init__(self, found: Dependence) -> None:
        super().__init__()
        self._found = found
        self._is_index_map = False
        self._plain_stores: set[int] = set()

    def run(self, jaxpr: Any, args: Sequence[FlowValue], place: ProgramPlace) -> list[FlowValue]:
        self._plain_stores |= refs.plain_stores(jaxcompat.opened(jaxpr)[0])
        return super().run(jaxpr, args, place)

    def index_map(self, jaxpr: Any, args: Sequence[FlowValue], place: ProgramPlace) -> None:
        """Walk an index map, whose values are all indices."""
        self._is_index_map = True
        self.run(jaxpr, args, place)
        self._is_index_map = False

    def decides(self, eqn: Any, names: Names, place: ProgramPlace) -> None:
        self.add(eqn, place, values=names, accesses=names)

    def other(self, eqn: Any, inputs: list[FlowValue], place: ProgramPlace) -> Sequence[FlowValue]:
        primitive = eqn.primitive
        memories = [value for value in inputs if isinstance(value, KernelMemory)]
        is_store = id(eqn) in self._plain_stores
        names = names_of([value for value in inputs if not (is_store and value in memories)])
        first = 1 if primitive.name.startswith("scatter") else FIRST_INDEX.get(primitive.name)
        plain = inputs[first:] if first is not None else inputs if memories else []
        if primitive.name in _MASKED:
            plain = _indices_and_mask(eqn, inputs)
        elif primitive is pallas_primitives.run_scoped_p:
            plain = []  # its inputs are the values that its function closes over
        indices = names_of([value for value in plain if not isinstance(value, KernelMemory)])
        self.add(eqn, place, values=names, accesses=names if self._is_index_map else indices)
        names |= place.names
        if primitive is pallas_primitives.run_scoped_p:
            inner = eqn.params["jaxpr"]
            scoped = [KernelMemory() for _ in inner.invars]
            return self.run(inner, [*inputs, *scoped], place)
        for inner in nested.within(eqn.params):
            count = len(jaxcompat.opened(inner)[0].invars)
            everything = [KernelMemory(names) if memories else names for _ in range(count)]
            self.run(inner, inputs if count == len(inputs) else everything, place)
        if primitive not in _READS:
            for memory in _written(eqn, inputs, memories):
                memory.add(names)
        return [names] * len(eqn.outvars)

    def add(self, eqn: Any, place: ProgramPlace, *, values: Names, accesses: Names) -> None:
        line = self.line(eqn, place)
        if line is not None:
            self._found.values[line] |= values | place.names
            self._found.accesses[line] |= accesses | place.names


_MASKED = ("masked_load", "masked_swap", "atomic_rmw", "atomic_cas")
"""Primitives whose operands are not only indices and values."""


def _indices_and_mask(eqn: Any, inputs: Sequence[FlowValue]) -> list[FlowValue]:
    """Operands that decide which elements an access selects."""
    if eqn.primitive.name == "atomic_cas":
        return []
    *_, fourth = jax.tree.unflatten(eqn.params["args_tree"], eqn.invars)
    if eqn.primitive.name == "masked_load":  # a mask, and values for the rest
        return list(inputs[1 : len(inputs) - (fourth is not None)])
    behind = len(inputs) - 1 - (fourth is not None)  # a value, and a mask
    return [*inputs[1:behind], *inputs[behind + 1 :]]


def _written(
    eqn: Any, inputs: Sequence[FlowValue], memories: Sequence[KernelMemory]
) -> list[KernelMemory]:
    """Memories that an equation writes to: for a DMA the destination, but not its semaphores.

    The count of a semaphore does not depend on the data that is copied.
    """
    if eqn.primitive.name == "dma_wait":
        return []
    if eqn.primitive.name != "dma_start":
        return list(memories)
    _, destination, *_ = jax.tree.unflatten(eqn.params["tree"], eqn.invars)
    ref = getattr(destination, "ref", destination)
    number = next((i for i, variable in enumerate(eqn.invars) if variable is ref), None)
    found = None if number is None else inputs[number]
    return [found] if isinstance(found, KernelMemory) else list(memories)


def names_of(values: Sequence[FlowValue]) -> Names:
    return _NONE.union(*(v.names if isinstance(v, KernelMemory) else v for v in values))


def _either(values: Sequence[FlowValue], names: Names) -> FlowValue:
    """One of several values, selected by a value that depends on `names`."""
    for value in values:
        if isinstance(value, KernelMemory):
            return value
    return names_of(values) | names
