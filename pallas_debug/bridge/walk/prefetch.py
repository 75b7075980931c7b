"""Scalar prefetch values that a program passes to its kernels, if its arguments determine them.

The program is traced, and the equations that lead from arguments and constants to a kernel's tables
are evaluated on the CPU, as for a run on the kernel machine. Nothing is guessed: a table is unknown
if it depends on an argument without values, or on a kernel; also if its call may not happen, in a
branch or in a loop of unknown length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from pallas_debug.bridge import jaxcompat
from pallas_debug.bridge.capture import capture
from pallas_debug.bridge.dataflow.forward import Forward
from pallas_debug.bridge.jaxcompat import loops
from pallas_debug.bridge.jaxprs import arrays, nested
from pallas_debug.bridge.lowering import hook
from pallas_debug.bridge.normal_forms import BranchForm, CallForm, Control, InnerJaxpr, LoopForm
from pallas_debug.bridge.walk import programs
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


@dataclass(frozen=True, eq=False)
class _Step:
    """An equation with known inputs."""

    eqn: Any
    inputs: tuple[_Known, ...]


@dataclass(frozen=True, eq=False)
class _Known:
    """A value: a constant, or an output of a step."""

    value: Any = None
    step: _Step | None = None
    number: int = 0


def tables(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], target: Target
) -> dict[str, list[Tables]]:
    """Tables of each call of each kernel that takes tables, by the kernel's digest."""
    jaxpr, consts, given = programs.traced(function, args, kwargs, target)
    program = _Program()
    known = [None if arrays.is_abstract(leaf) else _Known(leaf) for leaf in given]
    program.run(InnerJaxpr(jaxpr, consts), known, True)
    return program.computed()


class _Program(Forward[_Known | None, bool]):
    """Walk of a program for its kernels and the equations that lead to their tables.

    A place is whether it certainly is reached.
    """

    def __init__(self) -> None:
        super().__init__()
        self._steps: list[_Step] = []  # in evaluation order
        self._calls: list[tuple[str, list[_Known | None]]] = []

    def constant(self, value: Any) -> _Known:
        return _Known(value)

    def literal(self, atom: Any) -> _Known | None:
        dtype = getattr(atom.aval, "dtype", None)  # atom.val may be a Python scalar
        return _Known(np.asarray(atom.val, dtype)) if isinstance(dtype, np.dtype) else None

    def enters(self, eqn: Any, form: Control, inputs: Sequence[_Known | None]) -> bool:
        return isinstance(form, CallForm) or not self._is_computed(eqn, inputs)

    def plain(self, eqn: Any, inputs: list[_Known | None], place: bool) -> Sequence[_Known | None]:
        unknown: list[_Known | None] = [None] * len(eqn.outvars)
        if eqn.primitive in hook.PRIMITIVES.values():
            self._kernel(eqn, inputs if place else [None] * len(inputs))
            return unknown
        if self._is_computed(eqn, inputs):
            known = [value for value in inputs if value is not None]
            step = _Step(eqn, tuple(known))
            self._steps.append(step)
            return [_Known(step=step, number=i) for i in range(len(eqn.outvars))]
        for closed in nested.within(eqn.params):
            inner, _ = jaxcompat.opened(closed)
            self.walk(inner, [None] * len(inner.constvars), [None] * len(inner.invars), False)
        return unknown

    def _is_computed(self, eqn: Any, inputs: Sequence[_Known | None]) -> bool:
        return None not in inputs and len(self._steps) < MAX_EQUATIONS and _is_computable(eqn)

    def reachable(self, eqn: Any, branch: BranchForm, place: bool) -> Iterator[tuple[int, bool]]:
        return ((number, False) for number in range(len(branch.branches)))

    def join(
        self, branch: BranchForm, count: int, results: Sequence[tuple[int, Sequence[Any]]]
    ) -> Sequence[None]:
        return [None] * count

    def widen(self, loop: LoopForm, place: bool) -> tuple[Sequence[None], bool]:
        # The constants are the same in all iterations; the body of a scan runs if there are any.
        return [None] * len(loop.carry), place and bool(loop.length)

    def element(self, array: _Known | None, number: int | None) -> None:
        return None

    def loop_results(
        self, loop: LoopForm, carry: Sequence[Any], results: Sequence[Any], place: bool
    ) -> Sequence[None]:
        return [None] * len(results)

    def _kernel(self, eqn: Any, inputs: list[_Known | None]) -> None:
        mapping = eqn.params.get("grid_mapping")
        count = mapping and mapping.num_dynamic_grid_bounds + mapping.num_index_operands
        if count:
            self._calls.append((capture.of_equation(eqn).kernel.digest, inputs[:count]))

    def computed(self) -> dict[str, list[Tables]]:
        """The tables of each kernel, without duplicates."""
        wanted = [value for _, given in self._calls for value in given if value is not None]
        values = iter(_compute(self._steps, wanted))
        found: dict[str, list[Tables]] = {}
        for digest, given in self._calls:
            made = tuple(None if value is None else next(values) for value in given)
            several = found.setdefault(digest, [])
            if not any(_are_equal(made, other) for other in several):
                several.append(made)
        return found


def _compute(steps: Sequence[_Step], wanted: Sequence[_Known]) -> list[np.ndarray]:
    """Compute values in one program, with only the steps they need."""
    needed: set[_Step] = {value.step for value in wanted if value.step is not None}
    for step in reversed(steps):
        if step in needed:
            needed.update(value.step for value in step.inputs if value.step is not None)
    chosen = [step for step in steps if step in needed]
    # Constants are arguments of that program: XLA would fold them at compile time.
    constants = {
        id(value): value
        for value in (*wanted, *(value for step in chosen for value in step.inputs))
        if value.step is None
    }

    def program(given: Sequence[Any]) -> list[Any]:
        made: dict[_Step, Sequence[Any]] = {}
        by_constant = dict(zip(constants, given, strict=True))

        def read(value: _Known) -> Any:
            if value.step is None:
                return by_constant[id(value)]
            return made[value.step][value.number]

        for step in chosen:
            eqn = step.eqn
            inputs = [read(value) for value in step.inputs]
            result = eqn.primitive.bind(*inputs, **eqn.primitive.get_bind_params(eqn.params))
            made[step] = result if eqn.primitive.multiple_results else [result]
        return [read(value) for value in wanted]

    given = [value.value for value in constants.values()]
    with hook.unwatched(), jax.default_device(jax.local_devices(backend="cpu")[0]):
        results = jax.jit(program)(given)
    return [np.asarray(result) for result in results]


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
    return all(
        _is_computable(e)
        for inner in nested.within(eqn.params)
        for e in jaxcompat.opened(inner)[0].eqns
    )


def _are_equal(a: Tables, b: Tables) -> bool:
    return all(
        (x is None and y is None) or (x is not None and y is not None and np.array_equal(x, y))
        for x, y in zip(a, b, strict=True)
    )
