"""Units of plain equations, which jax evaluates together as one program."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_debug.bridge.jaxcompat import jax_core, tpu_primitives
from pallas_debug.bridge.jaxprs import likeness, nested
from pallas_debug.bridge.primitives import COMPARISONS, FORMS, OPPOSITES
from pallas_debug.bridge.programs import algorithms, elementwise, scalars
from pallas_debug.bridge.programs import program as ir

if TYPE_CHECKING:
    from pallas_debug.bridge.programs.decode import PendingEquation

_compiled: likeness.SharedPrograms[Callable[..., Sequence[Any]]] = likeness.SharedPrograms()
_of_one: likeness.SharedPrograms[Callable[..., Any]] = likeness.SharedPrograms()

ALIGNMENT = 64
"""Alignment of arrays, in bytes, that XLA requires on a CPU."""

MIN_ALIGNED = 1 << 17
"""Minimum size, in bytes, of arrays to align. XLA copies an array that is not aligned.

Measured on one core: aligning 4 KB takes 25 us, XLA's copy 19 us; at 256 KB aligning is faster, 67
against 96 us.
"""


@dataclass(eq=False)
class Unit:
    """Straight-line equations over local variables.

    Attributes:
      sites: places of the equations.
      watched: the unit with tests of its arithmetic, cached by `numerics.watch`.
    """

    eqns: list[Any]
    invars: list[Any]
    outvars: list[Any]
    sites: list[ir.StepSite]
    watched: Any = field(default=None, init=False)

    def __call__(self, *values: Any) -> Sequence[Any]:
        outputs: Sequence[Any] = self.compiled(*values)
        return outputs

    @cached_property
    def compiled(self) -> Callable[..., Sequence[Any]]:
        """The unit as one jax program, shared by all units that compute the same."""
        return _compiled.get(self.eqns, self.invars, self.outvars, lambda: jax.jit(self.traced))

    def traced(self, *values: Any) -> list[Any]:
        known = nested.JaxprValues(self.invars, values)
        for eqn in self.eqns:
            known.bind(eqn.outvars, bound(eqn, known.read(eqn.invars)))
        return known.read(self.outvars)


def aligned_copy(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a copy at an address that XLA can read without copying it again."""
    if array.nbytes < MIN_ALIGNED:
        return np.array(array)
    memory = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    copy: np.ndarray[Any, Any] = (
        memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    )
    copy[...] = array
    return copy


def _conv(x: Any, y: Any, *initial: Any, **params: Any) -> Any:
    """A convolution of Mosaic's, which may have an initial value."""
    spatial = len(params["dimension_numbers"].lhs_spec) - 2
    for name, default in (
        ("window_strides", (1,) * spatial),
        ("padding", ((0, 0),) * spatial),
        ("lhs_dilation", None),
        ("rhs_dilation", None),
    ):
        params[name] = default if params.get(name) is None else params[name]
    reversal = params.pop("window_reversal", None) or (False,) * spatial
    axes = [params["dimension_numbers"].rhs_spec[2 + i] for i in range(spatial) if reversal[i]]
    result = jax.lax.conv_general_dilated(x, jax.lax.rev(y, axes), **params)
    return sum(initial, result)


EVALUATED: dict[Any, Callable[..., Any]] = {
    tpu_primitives.pack_elementwise_p: elementwise.pack,
    tpu_primitives.unpack_elementwise_p: elementwise.unpack,
    tpu_primitives.stochastic_round_p: elementwise.stochastic_round,
    tpu_primitives.conv_p: _conv,
}
"""Primitives that XLA does not support on a CPU, in terms of supported ones."""


def bound(eqn: Any, values: Any) -> Sequence[Any]:
    """Evaluate an equation on values."""
    evaluate = EVALUATED.get(eqn.primitive)
    if evaluate is not None:
        return [evaluate(*values, **eqn.params)]
    values = list(values)
    params = eqn.primitive.get_bind_params(algorithms.on_cpu(eqn.params))
    with eqn.ctx.manager:
        try:
            results = eqn.primitive.bind(*values, **params)
        except NotImplementedError:  # jax can only compile it, like Pallas's bitcast
            results = _alone(eqn, params)(*values)
    if _is_numeric_mask(eqn):
        # XLA turns `x * mask.astype(float)` into a selection, which discards a NaN that a chip's
        # multiplication by zero keeps.
        results = jax.lax.optimization_barrier(results)
    return results if eqn.primitive.multiple_results else [results]


def _alone(eqn: Any, params: Any) -> Callable[..., Any]:
    """An equation as a jax program, shared by all equations that compute the same."""
    variables = tuple(dict.fromkeys(nested.variables(eqn.invars)))
    return _of_one.get(
        [eqn], variables, eqn.outvars,
        lambda: jax.jit(lambda *given: eqn.primitive.bind(*given, **params)),
    )  # fmt: skip


def _is_numeric_mask(eqn: Any) -> bool:
    """Return whether an equation casts a mask to a float."""
    return bool(
        eqn.primitive.name == "convert_element_type"
        and eqn.invars[0].aval.dtype == bool
        and jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.inexact)
    )


def compute(members: Sequence[PendingEquation], used: set[int]) -> ir.Compute:
    """The step that evaluates some equations, of which others read the registers in `used`."""
    variables: dict[int, Any] = {}
    eqns = []
    made: dict[int, ir.Reg] = {}
    inputs: dict[int, ir.Reg] = {}
    for item in members:
        atoms = []
        for atom, value in zip(item.eqn.invars, item.inputs, strict=True):
            if isinstance(value, ir.Reg):
                if value.number not in made:
                    inputs.setdefault(value.number, value)
                if value.number not in variables:
                    variables[value.number] = jax_core.Var(atom.aval)
                atoms.append(variables[value.number])
            else:
                atoms.append(jax_core.Literal(value, atom.aval))
        outs = []
        for variable, reg in zip(item.eqn.outvars, item.outputs, strict=True):
            made[reg.number] = reg
            variables[reg.number] = jax_core.Var(variable.aval)
            outs.append(variables[reg.number])
        eqns.append(item.eqn.replace(invars=atoms, outvars=outs))
    outputs = {number: reg for number, reg in made.items() if number in used}
    unit = Unit(
        eqns,
        [variables[n] for n in inputs],
        [variables[n] for n in outputs],
        [item.site for item in members],
    )
    return ir.Compute(
        site=members[-1].site,
        inputs=tuple(inputs.values()),
        outputs=tuple(outputs.values()),
        evaluate=scalars.on_scalars(unit) or unit,
        unit=unit,
    )


def compute_one(members: Sequence[PendingEquation]) -> ir.Compute:
    """Return a step that evaluates one equation, and keeps its results even if they are unused."""
    (item,) = members
    step = compute(members, {out.number for out in item.outputs})
    if not isinstance(step.evaluate, Unit):
        return step
    return replace(step, evaluate=_of_any_width(step.evaluate))


def _of_any_width(unit: Unit) -> Callable[..., Sequence[Any]]:
    """The compiled unit, of a kernel that may have been traced with 64-bit values."""
    names = {str(getattr(v.aval, "dtype", "")) for v in (*unit.invars, *unit.outvars)}
    if names.isdisjoint({"float64", "int64", "uint64", "complex128"}):
        return unit.compiled

    def evaluate(*values: Any) -> Sequence[Any]:
        with jax.enable_x64(True):  # otherwise jax would truncate them
            return unit.compiled(*values)

    return evaluate


def prepare(program: ir.KernelProgram) -> None:
    """Compile the equations of a program that was decoded with `fuse=False`.

    Otherwise, a step in the debugger would take the time of a compilation, about 50 ms, when it
    reaches an equation for the first time.
    """
    for step in program.all_steps():
        if not isinstance(step, ir.Compute) or not isinstance(step.unit, Unit):
            continue
        zeros = [np.zeros(v.aval.shape, v.aval.dtype) for v in step.unit.invars]
        step.evaluate(*zeros)


# Conditions


@dataclass(frozen=True)
class FalseComparison:
    """A false comparison, at the first element at which it is false.

    Attributes:
      element: element of the compared arrays.
    """

    sign: str
    left: Any
    right: Any
    element: tuple[int, ...]


def false_comparison(
    step: ir.Compute, failed: ir.Reg, values: Sequence[Any]
) -> FalseComparison | None:
    """The comparison behind a condition that failed; None if it is more than one.

    Args:
      step: step that computes `failed`, which is true, from `values`.
    """
    unit = step.unit
    if unit is None:
        return None
    known, makers = nested.JaxprValues(unit.invars, map(np.asarray, values)), {}
    for eqn in unit.eqns:
        inputs = known.read(eqn.invars)
        known.bind(eqn.outvars, map(np.asarray, bound(eqn, inputs)))
        makers.update(dict.fromkeys(eqn.outvars, (eqn, inputs)))
    atom = unit.outvars[step.outputs.index(failed)]
    is_negated = True
    while not isinstance(atom, jax_core.Literal) and atom in makers:
        eqn, inputs = makers[atom]
        name = eqn.primitive.name
        if name in COMPARISONS:
            return _where_false(OPPOSITES[name] if is_negated else name, inputs)
        if name == "not":
            is_negated = not is_negated
        elif name not in FORMS and name not in ("or", "reduce_and"):
            return None
        # checkify adds a failure to those before it: `or False`.
        operands = [a for a in eqn.invars if not isinstance(a, jax_core.Literal) or a.val]
        if len(operands) != 1:
            return None
        (atom,) = operands
    return None


def _where_false(name: str, operands: Sequence[Any]) -> FalseComparison | None:
    left, right = np.broadcast_arrays(*map(np.asarray, operands))
    places = np.argwhere(~getattr(operator, name)(left, right))
    if not len(places):
        return None
    element = tuple(int(n) for n in places[0])
    return FalseComparison(COMPARISONS[name], left[element], right[element], element)


def compared_numbers(steps: Iterable[ir.MachineStep]) -> tuple[float, ...]:
    """Numbers other than zero that the code tests values for equality with, in its order."""
    found: dict[float, None] = {}
    for step in steps:
        unit = step.unit if isinstance(step, ir.Compute) else None
        for eqn in unit.eqns if unit is not None else ():
            for atom in eqn.invars if eqn.primitive.name in ("eq", "ne") else ():
                if isinstance(atom, jax_core.Literal) and np.size(atom.val) == 1:
                    found[np.asarray(atom.val).item()] = None
    return tuple(number for number in found if number and isinstance(number, int | float))
