"""Walker over a kernel's jaxpr, at all grid points at once, that records its accesses.

Nothing runs. Values that depend only on program ids, loop counters, literals and known scalar
prefetch are computed in numpy; all others are unknown, and events that depend on them are
uncertain. A loop is walked once, with its iterations as an additional dimension.

A known value is an array that broadcasts against the grid: one that depends on a single grid
dimension has a single dimension other than 1, however large the grid is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pallas_debug.bridge import jaxcompat, primitives
from pallas_debug.bridge.dataflow.forward import Forward
from pallas_debug.bridge.jaxcompat import indexing
from pallas_debug.bridge.jaxprs import lines, nested
from pallas_debug.bridge.jaxprs.params import memory_space, static_shape
from pallas_debug.bridge.normal_forms import (
    AccessForm,
    AtomicForm,
    BranchForm,
    CopyForm,
    InnerJaxpr,
    LoopForm,
    RefChain,
    ScopeForm,
)
from pallas_debug.bridge.walk.events import Dim, Event, KernelRef, View

MAX_EQUATIONS = 10_000
"""Maximum number of equations to walk."""

MAX_ELEMENTS = 1 << 25
"""Maximum elements of one value; larger values are not computed."""

MAX_ITERATIONS = 1 << 16
"""Maximum iterations of a loop that is walked as a whole."""


class Exhausted(Exception):
    """The walk would take too long; the message names the limit that was exceeded."""


class UnknownValue:
    """Type of `UNKNOWN`."""


UNKNOWN = UnknownValue()
"""An unknown scalar, or a vector."""

Value = np.ndarray | KernelRef | UnknownValue
"""A known scalar over the grid, a ref, or `UNKNOWN`."""


@dataclass(frozen=True, kw_only=True)
class WalkState:
    """Where the walk is.

    Attributes:
      where: grid points, with leading dimensions for loops walked as a whole.
      certain: whether all enclosing conditions are known.
    """

    where: np.ndarray
    certain: bool = True


class Walker(Forward[Value, WalkState]):
    """Walks one jaxpr.

    Args:
      ids: program ids, one for each dimension of the grid in the kernel's source.
      rank: number of all dimensions, including those of `vmap`.
      tables: scalar prefetch, by position of the ref.
      deadline: `time.monotonic` value at which the walk ends.

    Attributes:
      events: events recorded so far.
      stale: positions of refs that were written to.
    """

    unknown = UNKNOWN

    def __init__(
        self,
        *,
        ids: Sequence[np.ndarray],
        sizes: Sequence[int],
        rank: int,
        tables: Mapping[int, np.ndarray] | None = None,
        deadline: float = float("inf"),
    ) -> None:
        super().__init__()
        self.ids, self.sizes, self.rank = ids, sizes, rank
        self.tables = tables or {}
        self.events: list[Event] = []
        self.stale: set[int] = set()
        self._deadline = deadline
        self._equations = 0
        self._buffers = 0
        self._sources: dict[int, Any] = {}
        self._literals: dict[int, Value] = {}

    def results(self, jaxpr: Any, args: Sequence[Value]) -> list[Value]:
        """Walk a jaxpr from its start; return its outputs.

        Raises:
          Exhausted: the walk would take too long.
        """
        start = WalkState(where=np.ones((1,) * self.rank, bool))
        with np.errstate(all="ignore"):
            return self.run(InnerJaxpr(*jaxcompat.opened(jaxpr)), args, start)

    def buffer(self, aval: Any, *, name: str, kind: str, position: int | None) -> KernelRef:
        self._buffers += 1
        return KernelRef(
            name=name,
            kind=kind,
            position=position,
            shape=static_shape(aval),
            dtype=str(getattr(aval, "dtype", "")),
            space=memory_space(aval),
            number=self._buffers,
        )

    def constant(self, value: Any) -> Value:
        if np.ndim(value) == 0 and np.asarray(value).dtype.kind in "biuf":
            return np.asarray(value).reshape((1,) * self.rank)
        return UNKNOWN

    def literal(self, atom: Any) -> Value:
        found = self._literals.get(id(atom))
        if found is None:
            found = self.constant(atom.val)
            if isinstance(found, np.ndarray) and is_number(atom.aval):
                found = found.astype(atom.aval.dtype)
            self._literals[id(atom)] = found
        return found

    def equation(self, eqn: Any, inputs: list[Value], place: WalkState) -> Sequence[Value]:
        self._equations += 1
        if self._equations > MAX_EQUATIONS:
            raise Exhausted(f"it has more than {MAX_EQUATIONS:,} operations")
        if self._equations % 16 == 1 and time.monotonic() > self._deadline:
            raise Exhausted("it takes longer than the time limit")
        return super().equation(eqn, inputs, place)

    def plain(self, eqn: Any, inputs: list[Value], place: WalkState) -> Sequence[Value]:
        unknown = [UNKNOWN] * len(eqn.outvars)
        match eqn.primitive.name:
            case "program_id":
                axis = eqn.params["axis"]
                return [self.ids[axis]] if axis < len(self.ids) else unknown
            case "num_programs":
                axis = eqn.params["axis"]
                is_known = axis < len(self.sizes)
                return [self.constant(np.int32(self.sizes[axis]))] if is_known else unknown
        form = primitives.form(eqn, inputs)
        views = [self._view(at) for at in getattr(form, "places", ())]
        if isinstance(form, AtomicForm) or not views or None in views:
            return self._computed(eqn, inputs, place)
        match form:
            case AccessForm():
                assert views[0] is not None
                return self._access(eqn, form, views[0], place) or unknown
            case CopyForm(is_wait=False):
                source, destination, *_ = views
                remote = form.device is not None or form.sent is not None
                self.emit("dma_start", eqn, place, view=destination, other=source, remote=remote)
        return unknown

    def _computed(self, eqn: Any, inputs: list[Value], place: WalkState) -> Sequence[Value]:
        for value in inputs:
            if isinstance(value, KernelRef):
                self.emit("escape", eqn, place, view=View(buffer=value))
        known = [value for value in inputs if isinstance(value, np.ndarray)]
        computed = compute(eqn, known) if len(known) == len(inputs) else None
        return [UNKNOWN] * len(eqn.outvars) if computed is None else [computed]

    # Refs

    def _access(
        self, eqn: Any, access: AccessForm, view: View, place: WalkState
    ) -> Sequence[Value] | None:
        self.emit("read" if access.is_load else "write", eqn, place, view=view)
        position = view.buffer.position
        if not access.is_load:
            if position is not None:
                self.stale.add(position)
            return None
        entry = self._entry(view)
        return None if entry is None else [entry]

    def _entry(self, view: View) -> np.ndarray | None:
        """Return an element of a known table; an index out of range is clipped."""
        position = view.buffer.position
        table = self.tables.get(-1 if position is None else position)
        if table is None or position in self.stale or len(view.levels) > 1:
            return None
        dims = view.levels[0] if view.levels else ()
        starts = [dim.start for dim in dims if dim.start is not None and not dim.is_slice]
        if len(starts) != table.ndim or too_large(*starts):
            return None
        clipped = (np.clip(s, 0, n - 1) for s, n in zip(starts, table.shape, strict=True))
        entry: np.ndarray = table[tuple(clipped)] if table.ndim else table
        return np.asarray(entry).reshape(entry.shape or (1,) * self.rank)

    def _view(self, at: RefChain) -> View | None:
        """View of a ref; None if it is one of several refs."""
        if not isinstance(at.ref, KernelRef):
            return None
        levels: list[tuple[Dim, ...]] = []
        for transform in at.transforms:
            if not isinstance(transform, indexing.NDIndexer):
                return View(buffer=at.ref, levels=tuple(levels), is_plain=False)
            levels.append(tuple(map(self._dim, transform.indices, transform.shape)))
        return View(buffer=at.ref, levels=tuple(levels))

    def _dim(self, index: Any, bound: Any) -> Dim:
        is_slice = isinstance(index, indexing.Slice)
        start, size, stride = (index.start, index.size, index.stride) if is_slice else (index, 1, 1)
        number = start if isinstance(start, (np.ndarray, UnknownValue)) else self.constant(start)
        is_static = isinstance(size, int) and isinstance(stride, int)
        return Dim(
            start=number if isinstance(number, np.ndarray) else None,
            size=size if is_static else None,
            stride=stride if is_static else 1,
            is_slice=is_slice,
            bound=bound if isinstance(bound, int) else -1,
        )

    def emit(self, what: str, eqn: Any, place: WalkState, **details: Any) -> None:
        """Record an event."""
        if id(eqn) not in self._sources:
            self._sources[id(eqn)] = lines.source_of(eqn, self.calls)
        self.events.append(
            Event(
                what=what,
                number=len(self.events),
                source=self._sources[id(eqn)],
                where=place.where,
                certain=place.certain,
                **details,
            )
        )

    # Scopes and branches

    def is_call(self, eqn: Any) -> bool:
        return not lines.is_of_pipeline(eqn)

    def buffers(self, scope: ScopeForm) -> Sequence[Value]:
        inner = scope.body.jaxpr
        return [
            self.buffer(v.aval, name=name, kind="scoped", position=None)
            for v, name in zip(inner.invars, nested.arg_names(inner, "scoped"), strict=True)
        ]

    def reachable(
        self, eqn: Any, branch: BranchForm, place: WalkState
    ) -> Iterator[tuple[int, WalkState]]:
        for number in range(len(branch.branches)):
            taken = _taken(branch, number)
            if taken is None or too_large(place.where, taken):
                yield number, replace(place, certain=False)
            elif (where := place.where & taken).any():
                yield number, replace(place, where=where)

    def join(
        self, branch: BranchForm, count: int, results: Sequence[tuple[int, Sequence[Value]]]
    ) -> Sequence[Value]:
        """Merge results, each at the grid points of its branch."""
        if not results or not isinstance(branch.index, np.ndarray):
            return [UNKNOWN] * count
        (_, values), *others = reversed(results)
        for number, more in others:
            taken = _taken(branch, number)
            assert taken is not None
            values = [_merged(taken, a, b) for a, b in zip(more, values, strict=True)]
        return values

    # Loops

    def widen(self, loop: LoopForm, place: WalkState) -> tuple[Sequence[Value], WalkState] | None:
        """Counters in all iterations, along a new leading dimension."""
        if loop.length == 0:
            return None
        if loop.length is None:
            return self._counted(loop, place)
        steps = _leading(min(loop.length, MAX_ITERATIONS), place)
        where = np.broadcast_to(place.where, (len(steps), *place.where.shape))
        if too_large(where):
            raise Exhausted("its loops have too many iterations")
        return _counters(loop, steps), replace(place, where=where)

    def _counted(
        self, loop: LoopForm, place: WalkState
    ) -> tuple[Sequence[Value], WalkState] | None:
        """Walk the condition for more and more iterations, until all grid points have ended."""
        number = 64
        # Its reads are uncertain: this may include iterations that do not exist.
        maybe = replace(place, certain=False)
        while number <= MAX_ITERATIONS:
            carry = _counters(loop, _leading(number, place))
            (more,) = self.run(loop.condition, [*loop.condition_constants, *carry], maybe)
            if not isinstance(more, np.ndarray) or more.ndim <= place.where.ndim:
                break
            if too_large(place.where, more):
                break
            if not (more[-1] & place.where).any():
                where = np.logical_and.accumulate(more, axis=0) & place.where
                return (carry, replace(place, where=where)) if where.any() else None
            number *= 8
        return _forgotten(loop.carry), maybe

    def condition(self, loop: LoopForm, carry: Sequence[Value], place: WalkState) -> None:
        pass  # `widen` has walked it

    def loop_results(self, loop: LoopForm) -> Sequence[Value]:
        count = len(loop.body.jaxpr.outvars) - len(loop.carry)
        after = _forgotten(loop.carry)
        if loop.length is not None:
            after = _counters(loop, np.full((1,) * self.rank, loop.length, np.int64))
        return [*after, *[UNKNOWN] * count]


def _taken(branch: BranchForm, number: int) -> np.ndarray | None:
    """Grid points that take a branch; None if they are unknown."""
    if not isinstance(branch.index, np.ndarray):
        return None
    index = np.clip(branch.index.astype(np.int64), 0, len(branch.branches) - 1)
    taken: np.ndarray = index == number
    return taken


def _merged(where: np.ndarray, value: Value, other: Value) -> Value:
    """One value at some grid points, and another one elsewhere."""
    if isinstance(other, KernelRef):
        return other
    if not isinstance(value, np.ndarray) or not isinstance(other, np.ndarray):
        return UNKNOWN
    return UNKNOWN if too_large(where, value, other) else np.where(where, value, other)


def _forgotten(values: Sequence[Value]) -> list[Value]:
    return [value if isinstance(value, KernelRef) else UNKNOWN for value in values]


def _leading(count: int, place: WalkState) -> np.ndarray:
    """Numbers of iterations, along a dimension before those of the grid and outer loops."""
    return np.arange(count, dtype=np.int64).reshape(-1, *(1,) * place.where.ndim)


def _counters(loop: LoopForm, numbers: np.ndarray) -> list[Value]:
    """Carried values in some iterations, by number: refs, constants and counters."""
    values: list[Value] = []
    for start, step in zip(loop.carry, loop.steps(), strict=True):
        if isinstance(start, KernelRef) or step == 0:
            values.append(start)
        elif isinstance(start, np.ndarray) and step is not None:
            values.append((start + numbers * step).astype(start.dtype))
        else:
            values.append(UNKNOWN)
    return values


# Numbers


def compute(eqn: Any, inputs: Sequence[np.ndarray]) -> np.ndarray | None:
    """Compute the only output of a scalar equation; None without a rule, or if it is too large.

    Overflows as in XLA: call it within `np.errstate(all="ignore")`.
    """
    row = primitives.TABLE.get(eqn.primitive.name)
    if row is None or row.arrays is None or len(eqn.outvars) != 1:
        return None
    out = eqn.outvars[0].aval
    if getattr(out, "shape", None) != () or not is_number(out) or too_large(*inputs):
        return None
    value: np.ndarray = np.asarray(row.arrays(*inputs)).astype(out.dtype, copy=False)
    return value


def is_number(aval: Any) -> bool:
    """Return whether numpy has this dtype, unlike jax's own (keys, semaphores) and small floats."""
    dtype = getattr(aval, "dtype", None)
    return isinstance(dtype, np.dtype) and dtype.kind in "biuf"


def too_large(*values: np.ndarray) -> bool:
    """Return whether the broadcast result has too many elements."""
    if all(value.size == 1 for value in values):
        return False
    size = 1
    for dim in np.broadcast_shapes(*(value.shape for value in values)):
        size *= dim
    return size > MAX_ELEMENTS
