"""Scalar prefetch values that a program passes to its kernels, if its arguments determine them.

The program is traced, and the equations that lead from arguments and constants to a kernel's tables
are evaluated on the CPU, as for a run on the kernel machine. Nothing is guessed: a table is unknown
if it depends on an argument without values, or on a kernel; also if its call may not happen, in a
branch or in a loop of unknown length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.decode import Decoder, PendingEquation
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


_Known = ir.Reg | None
"""Register of a value that is known, without being computed; None for an unknown value."""


def tables(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], target: Target
) -> dict[str, list[Tables]]:
    """Tables of each call of each kernel that takes tables, by the kernel's digest."""
    jaxpr, consts, given = programs.traced(function, args, kwargs, target)
    program = _Program()
    known = [None if arrays.is_abstract(leaf) else program.constant(leaf) for leaf in given]
    program.run(InnerJaxpr(jaxpr, consts), known, True)
    return program.computed()


class _Program(Forward[_Known, bool]):
    """Walk of a program for its kernels and the equations that lead to their tables.

    A place is whether it certainly is reached.
    """

    def __init__(self) -> None:
        super().__init__()
        self._decoder = Decoder()
        self._calls: list[tuple[str, list[_Known]]] = []

    def constant(self, value: Any) -> ir.Reg:
        if isinstance(value, np.ndarray):
            value = np.asarray(value, arrays.canonical(value.dtype))
        return self._decoder.new(value)

    def literal(self, atom: Any) -> _Known:
        dtype = getattr(atom.aval, "dtype", None)  # atom.val may be a Python scalar
        if not isinstance(dtype, np.dtype):
            return None
        return self._decoder.new(np.asarray(atom.val, dtype))

    def enters(self, eqn: Any, form: Control, inputs: Sequence[_Known]) -> bool:
        return isinstance(form, CallForm) or not self._is_computed(eqn, inputs)

    def plain(self, eqn: Any, inputs: list[_Known], place: bool) -> Sequence[_Known]:
        unknown: list[_Known] = [None] * len(eqn.outvars)
        if eqn.primitive in hook.PRIMITIVES.values():
            self._kernel(eqn, inputs if place else [None] * len(inputs))
            return unknown
        if self._is_computed(eqn, inputs):
            outputs = [self._decoder.new() for _ in eqn.outvars]
            site = ir.StepSite(eqn.primitive.name, None)
            self._decoder.pending.append(PendingEquation(eqn, list(inputs), outputs, site))
            return list(outputs)
        for closed in nested.within(eqn.params):
            inner, _ = jaxcompat.opened(closed)
            self.walk(inner, [None] * len(inner.constvars), [None] * len(inner.invars), False)
        return unknown

    def _is_computed(self, eqn: Any, inputs: Sequence[_Known]) -> bool:
        return (
            None not in inputs
            and len(self._decoder.pending) < MAX_EQUATIONS
            and _is_computable(eqn)
        )

    def reachable(self, eqn: Any, branch: BranchForm, place: bool) -> Iterator[tuple[int, bool]]:
        return ((number, False) for number in range(len(branch.branches)))

    def join(
        self, branch: BranchForm, count: int, results: Sequence[tuple[int, Sequence[Any]]]
    ) -> Sequence[None]:
        return [None] * count

    def widen(self, loop: LoopForm, place: bool) -> tuple[Sequence[None], bool]:
        # The constants are the same in all iterations; the body of a scan runs if there are any.
        return [None] * len(loop.carry), place and bool(loop.length)

    def element(self, array: _Known, number: int | None) -> None:
        return None

    def loop_results(
        self, loop: LoopForm, carry: Sequence[Any], results: Sequence[Any], place: bool
    ) -> Sequence[None]:
        return [None] * len(results)

    def _kernel(self, eqn: Any, inputs: list[_Known]) -> None:
        mapping = eqn.params.get("grid_mapping")
        count = mapping and mapping.num_dynamic_grid_bounds + mapping.num_index_operands
        if count:
            self._calls.append((capture.of_equation(eqn).kernel.digest, inputs[:count]))

    def computed(self) -> dict[str, list[Tables]]:
        """The tables of each kernel, without duplicates."""
        wanted = [value for _, given in self._calls for value in given if value is not None]
        values = iter(_evaluated(self._decoder.finish((), wanted)))
        found: dict[str, list[Tables]] = {}
        for digest, given in self._calls:
            made = tuple(None if value is None else next(values) for value in given)
            several = found.setdefault(digest, [])
            if not any(_are_equal(made, other) for other in several):
                several.append(made)
        return found


def _evaluated(program: ir.KernelProgram) -> list[np.ndarray]:
    """Results of a program that only computes."""
    registers = list(program.template)
    cpu = jax.local_devices(backend="cpu")[0]
    with hook.unwatched(), jax.default_device(cpu), np.errstate(all="ignore"):
        for step in program.steps:
            assert isinstance(step, ir.Compute)
            results = step.evaluate(*(registers[reg.number] for reg in step.inputs))
            for reg, result in zip(step.outputs, results, strict=True):
                registers[reg.number] = result
    return [np.asarray(registers[reg.number]) for reg in program.outputs]


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
