"""Arguments of a function on which its kernels depend: forward dataflow, nothing runs.

Each value, including refs, has the set of arguments from which it was computed. This is
conservative: if the flow is not known in detail, an output depends on all inputs. A kernel's grid
points are walked until nothing changes, because one may read what another wrote.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from pallas_debug.bridge import jaxcompat, primitives
from pallas_debug.bridge.capture import capture
from pallas_debug.bridge.dataflow.forward import Forward
from pallas_debug.bridge.jaxprs import arrays, lines, nested
from pallas_debug.bridge.lowering import hook, trace
from pallas_debug.bridge.normal_forms import (
    AccessForm,
    AtomicForm,
    BranchForm,
    CopyForm,
    InnerJaxpr,
    LoopForm,
    ScopeForm,
)
from pallas_debug.model import Target

Names = frozenset[str]

_NONE: Names = frozenset()

_Line = tuple[str, int]


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
    _, others, _ = arrays.separated(args, kwargs)
    traced = [i for i, leaf in enumerate(others) if leaf is arrays.ARRAY]
    jaxpr = trace.jaxpr_of(function, args, kwargs, target)[0]
    kernels: dict[str, Dependence] = defaultdict(Dependence)
    given = [frozenset({named[i]}) if i in named else _NONE for i in traced]
    _Walk(kernels).run(InnerJaxpr(jaxpr, ()), given, _NONE)
    return dict(kernels)


class _Walk(Forward[FlowValue, Names]):
    """Walk with the arguments on which values depend.

    A place has those that decide whether it is reached.

    Args:
      kernels: what is known of kernels, by digest.
      found: what is known of the kernel whose jaxpr is walked; None for a program around kernels.
      is_index_map: whether it is the jaxpr of an index map, whose values are all indices.
    """

    def __init__(
        self,
        kernels: Mapping[str, Dependence],
        found: Dependence | None = None,
        *,
        is_index_map: bool = False,
    ) -> None:
        super().__init__()
        self._kernels = kernels
        self._found = found
        self._is_index_map = is_index_map
        self._plain_stores: set[int] = set()
        self._lines: dict[int, _Line | None] = {}

    def constant(self, value: Any) -> Names:
        return _NONE

    def run(
        self, region: InnerJaxpr | None, inputs: Sequence[FlowValue], place: Names
    ) -> list[FlowValue]:
        assert region is not None
        self._plain_stores |= _plain_stores(region.jaxpr)
        constants: list[FlowValue] = [_NONE] * len(region.jaxpr.constvars)
        return self.walk(region.jaxpr, constants, inputs, place)

    def is_call(self, eqn: Any) -> bool:
        return not lines.is_of_pipeline(eqn)

    def buffers(self, scope: ScopeForm) -> list[FlowValue]:
        self._plain_stores |= _plain_stores(scope.body.jaxpr)
        return [KernelMemory() for _ in scope.body.jaxpr.invars]

    def reachable(self, eqn: Any, branch: BranchForm, place: Names) -> list[tuple[int, Names]]:
        names = _names_of([branch.index])
        self._add(eqn, place, values=names, accesses=names)
        return [(number, place | names) for number in range(len(branch.branches))]

    def join(
        self, branch: BranchForm, count: int, results: Sequence[tuple[int, Sequence[FlowValue]]]
    ) -> list[FlowValue]:
        names = _names_of([branch.index])
        return [_either(v, names) for v in zip(*(found for _, found in results), strict=True)]

    def loop(self, eqn: Any, loop: LoopForm, place: Names) -> list[FlowValue]:
        """Walk the iterations until nothing changes."""
        carry = list(loop.carry)
        while True:
            there = place
            if loop.condition is not None:
                inputs = [*loop.condition_constants, *carry]
                names = _names_of(self.run(loop.condition, inputs, place))
                self._add(eqn, place, values=names, accesses=names)
                there |= names
            results = self.run(loop.body, [*loop.constants, *carry, *loop.stacked], there)
            before, carry = carry, [_either(v, _NONE) for v in zip(carry, results, strict=False)]
            if carry == before:
                return [_either([value], there) for value in (*carry, *results[len(carry) :])]

    def equation(self, eqn: Any, inputs: list[FlowValue], place: Names) -> Sequence[FlowValue]:
        if eqn.primitive.name == "run_scoped":
            self._add(eqn, place, values=_names_of(inputs), accesses=_NONE)
        return super().equation(eqn, inputs, place)

    def plain(self, eqn: Any, inputs: list[FlowValue], place: Names) -> Sequence[FlowValue]:
        if eqn.primitive in hook.PRIMITIVES.values():
            self._kernel(eqn, inputs, place)
            return [_names_of(inputs) | place] * len(eqn.outvars)
        memories = [value for value in inputs if isinstance(value, KernelMemory)]
        is_store = id(eqn) in self._plain_stores
        names = _names_of([value for value in inputs if not (is_store and value in memories)])
        indices = _names_of([v for v in _selecting(eqn, inputs) if not isinstance(v, KernelMemory)])
        self._add(eqn, place, values=names, accesses=names if self._is_index_map else indices)
        names |= place
        for inner in nested.within(eqn.params):
            count = len(inner.jaxpr.invars)
            everything = [KernelMemory(names) if memories else names for _ in range(count)]
            self.run(inner, inputs if count == len(inputs) else everything, place)
        for memory in _written(eqn, inputs, memories):
            memory.add(names)
        return [names] * len(eqn.outvars)

    def _add(self, eqn: Any, place: Names, *, values: Names, accesses: Names) -> None:
        if self._found is None:
            return
        if id(eqn) not in self._lines:
            found = lines.source_of(eqn, self.calls)
            self._lines[id(eqn)] = None if found is None else found.place
        line = self._lines[id(eqn)]
        if line is not None:
            self._found.values[line] |= values | place
            self._found.accesses[line] |= accesses | place

    def _kernel(self, eqn: Any, inputs: Sequence[FlowValue], place: Names) -> None:
        """Walk a kernel until nothing changes."""
        found = self._kernels[capture.of_equation(eqn).kernel.digest]
        mapping = eqn.params.get("grid_mapping")
        names = [_names_of([value]) for value in inputs]
        if mapping is None:  # over a mesh
            everything = place.union(*names)
            for inner in nested.within(eqn.params):
                contents = [KernelMemory(everything) for _ in inner.jaxpr.invars]
                _Walk(self._kernels, found).run(inner, contents, place)
            return
        first = mapping.num_dynamic_grid_bounds
        inside = place.union(*names[:first])
        body = InnerJaxpr(*jaxcompat.opened(eqn.params["jaxpr"]))
        memories = [KernelMemory(n) for n in names[first:]]
        memories += [KernelMemory() for _ in range(len(body.jaxpr.invars) - len(memories))]
        aliases = dict(eqn.params.get("input_output_aliases") or ())
        for source, output in aliases.items():
            memories[len(names) - first + output].add(names[first + source])
        tables = memories[: mapping.num_index_operands]
        for block in mapping.block_mappings:
            index_map = InnerJaxpr(*jaxcompat.opened(block.index_map_jaxpr))
            ids = [_NONE] * (len(index_map.jaxpr.invars) - len(tables))
            walk = _Walk(self._kernels, found, is_index_map=True)
            walk.run(index_map, [*ids, *tables], inside)
        walk, before = _Walk(self._kernels, found), None
        while before != (before := [memory.names for memory in memories]):
            walk.run(body, memories, inside)


def _plain_stores(jaxpr: Any) -> set[int]:
    """Stores whose result, the previous value, is unused."""
    used = {id(atom) for eqn in jaxpr.eqns for atom in eqn.invars} | set(map(id, jaxpr.outvars))
    return {
        id(eqn)
        for eqn in jaxpr.eqns
        if eqn.primitive.name in primitives.ACCESSES and not primitives.form(eqn).is_load
        if all(id(out) not in used for out in eqn.outvars)
    }


def _selecting(eqn: Any, inputs: Sequence[FlowValue]) -> Sequence[FlowValue]:
    """Operands that decide which elements an equation accesses."""
    form = primitives.form(eqn, inputs)
    if isinstance(form, AccessForm | AtomicForm):
        mask = () if form.mask is None else (form.mask,)
        return [*jax.tree.leaves(form.place.transforms), *mask]
    name = eqn.primitive.name
    first = 1 if name.startswith("scatter") else primitives.FIRST_INDEX.get(name)
    if first is not None:
        return inputs[first:]
    return inputs if any(isinstance(value, KernelMemory) for value in inputs) else ()


def _written(
    eqn: Any, inputs: Sequence[FlowValue], memories: Sequence[KernelMemory]
) -> Sequence[KernelMemory]:
    """Memories that an equation writes to: for a DMA the destination, but not its semaphores.

    The count of a semaphore does not depend on the data that is copied.
    """
    form = primitives.form(eqn, inputs)
    if isinstance(form, AccessForm) and form.is_load:
        return ()
    if isinstance(form, CopyForm):
        found = form.destination.ref
        wanted = [found] if isinstance(found, KernelMemory) else memories
        return () if form.is_wait else wanted
    return memories


def _names_of(values: Sequence[FlowValue]) -> Names:
    return _NONE.union(*(v.names if isinstance(v, KernelMemory) else v for v in values))


def _either(values: Sequence[FlowValue], names: Names) -> FlowValue:
    """One of several values, selected by a value that depends on `names`."""
    for value in values:
        if isinstance(value, KernelMemory):
            return value
    return _names_of(values) | names
