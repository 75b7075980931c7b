"""Units of plain equations, evaluated together: by jax as one program, or on scalars by numpy."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import core as jax_core
from jax._src.pallas.mosaic import primitives as mosaic_primitives

from pallas_debug.bridge.instrument.flow import COMPARISONS
from pallas_debug.bridge.interpret.extend import elementwise
from pallas_debug.bridge.jaxprs import likeness, nested
from pallas_debug.bridge.programs import program as ir

if TYPE_CHECKING:
    from pallas_debug.bridge.programs.decode import PendingEquation

_compiled: likeness.SharedPrograms[Callable[..., Sequence[Any]]] = likeness.SharedPrograms()
_of_one: likeness.SharedPrograms[Callable[..., Any]] = likeness.SharedPrograms()

ALIGNMENT = 64
"""Alignment of arrays, in bytes, that XLA requires on a CPU."""

MIN_ALIGNED = 4096
"""Minimum size, in bytes, of arrays to align; smaller ones are faster to copy than to align."""


@dataclass(eq=False)
class Unit:
    """Straight-line equations over local variables.

    Attributes:
      eqns: equations in order.
      invars: variables of the inputs.
      outvars: variables of the outputs.
      sites: places of the equations.
      bits: variables of inputs that are random bits, not numbers.
      watched: the unit with tests of its arithmetic, cached by `numerics.watch`.
      behind: the inputs behind each output, by kind, cached by `made_of.inputs_behind`.
    """

    eqns: list[Any]
    invars: list[Any]
    outvars: list[Any]
    sites: list[ir.StepSite]
    bits: Collection[Any] = field(default=(), init=False)
    watched: Any = field(default=None, init=False)
    behind: dict[bool, list[frozenset[int]]] = field(default_factory=dict, init=False)

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


_BY_NAME: dict[str, Callable[..., Any]] = {
    "pack_elementwise_p": elementwise.pack,
    "unpack_elementwise_p": elementwise.unpack,
    "stochastic_round_p": elementwise.stochastic_round,
    "conv_p": _conv,  # since jax 0.12
}
EVALUATED: dict[Any, Callable[..., Any]] = {
    getattr(mosaic_primitives, name): function
    for name, function in _BY_NAME.items()
    if hasattr(mosaic_primitives, name)
}
"""Primitives that XLA does not support on a CPU, in terms of supported ones."""


def bound(eqn: Any, values: Any) -> Sequence[Any]:
    """Evaluate an equation on values."""
    if eqn.primitive in EVALUATED:
        return [EVALUATED[eqn.primitive](*values, **eqn.params)]
    values, params = list(values), eqn.primitive.get_bind_params(eqn.params)
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
    """Whether an equation casts a mask to a float."""
    return bool(
        eqn.primitive.name == "convert_element_type"
        and eqn.invars[0].aval.dtype == bool
        and jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.inexact)
    )


def compute(members: Sequence[PendingEquation], used: set[int]) -> ir.Compute:
    """The step that evaluates some equations.

    Args:
      used: registers that other steps read.
    """
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
        evaluate=_on_scalars(unit) or unit,
        unit=unit,
    )


# Conditions

_OPPOSITES = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}


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
            return _where_false(_OPPOSITES[name] if is_negated else name, inputs)
        if name == "not":
            is_negated = not is_negated
        elif name not in ("or", "reduce_and", "convert_element_type", "squeeze", "reshape"):
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


# Comparisons of a NaN, which decides them without showing in their results

_POSITIONS = {"argmax": -np.inf, "argmin": np.inf}
"""Primitives that return the position of a NaN, and the value that they skip instead."""


def may_decide(eqn: Any) -> bool:
    """Whether an equation compares floats or is an argmax; `x != x`, a test for NaN, is neither."""
    name, atoms = eqn.primitive.name, eqn.invars
    if name not in COMPARISONS and name not in _POSITIONS:
        return False
    if not jnp.issubdtype(atoms[0].aval.dtype, jnp.floating):
        return False
    return name in _POSITIONS or atoms[0] is not atoms[1]


def sees_nan(inputs: Sequence[Any]) -> Any:
    """Whether any operand contains a NaN."""
    found = [jnp.any(jnp.isnan(x)) for x in inputs]
    return found[0] if len(found) == 1 else found[0] | found[1]


def comparison_sign(eqn: Any) -> str:
    """The comparison as a Python operator, or the primitive's name."""
    name: str = eqn.primitive.name
    return COMPARISONS.get(name, name)


def turned(unit: Unit, values: Sequence[Any], otherwise: Collection[int]) -> list[Any]:
    """Evaluate a unit equation by equation.

    Args:
      otherwise: numbers of equations for which a NaN has the opposite outcome.
    """
    known = nested.JaxprValues(unit.invars, values)
    for i, eqn in enumerate(unit.eqns):
        inputs = known.read(eqn.invars)
        outputs = list(bound(eqn, inputs))
        if i in otherwise:
            outputs = [_turned(eqn, inputs, outputs[0])]
        known.bind(eqn.outvars, outputs)
    return [np.asarray(result) for result in known.read(unit.outvars)]


def _turned(eqn: Any, inputs: Sequence[Any], result: Any) -> Any:
    passed = _POSITIONS.get(eqn.primitive.name)
    if passed is not None:
        value = jnp.asarray(inputs[0])
        return bound(eqn, [jnp.where(jnp.isnan(value), passed, value)])[0]
    unordered = jnp.isnan(jnp.asarray(inputs[0])) | jnp.isnan(jnp.asarray(inputs[1]))
    return jnp.where(unordered, ~jnp.asarray(result), result)


# Scalars

_INTEGERS = frozenset("biu")


def _div(x: Any, y: Any) -> Any:
    if y == 0:
        return type(x)(-1)
    quotient = abs(int(x)) // abs(int(y))
    return np.asarray(quotient if (x < 0) == (y < 0) else -quotient).astype(x.dtype)[()]


def _shift_right(x: Any, y: Any, kind: str = "i") -> Any:
    """Right shift that fills with the sign bit (`i`) or zeros (`u`), for operands of any sign."""
    return (x.view(f"{kind}{x.itemsize}") >> y.view(f"{kind}{y.itemsize}")).view(x.dtype)


def _shift_right_logical(x: Any, y: Any) -> Any:
    return _shift_right(x, y, "u")


_BY_NUMPY: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "neg": operator.neg,
    "max": lambda x, y: y if y > x else x,
    "min": lambda x, y: y if y < x else x,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "not": operator.invert,
    "rem": lambda x, y: np.fmod(x, y) if y != 0 else x,
    "div": _div,
    "sign": np.sign,
    "abs": operator.abs,
    "shift_left": operator.lshift,
    "shift_right_arithmetic": _shift_right,
    "shift_right_logical": _shift_right_logical,
    "select_n": lambda which, *cases: cases[int(which)],
    "clamp": lambda low, x, high: low if x < low else high if x > high else x,
    "stop_gradient": lambda x: x,
}
"""Operations on integer and boolean scalars, exact as in XLA."""


@dataclass(frozen=True, slots=True)
class ScalarOperation:
    """An equation on scalars: a function from some slots to another slot.

    Attributes:
      test: returns whether the arithmetic went wrong, given operands and result; None if it cannot.
    """

    function: Callable[..., Any]
    arguments: tuple[int, ...]
    result: int
    test: Callable[..., bool] | None


@dataclass(frozen=True, slots=True)
class ScalarUnit:
    """A unit on numpy's scalars.

    Attributes:
      template: initial slots of all values, including literals.
      inputs, outputs: slots of the inputs and outputs.
    """

    operations: tuple[ScalarOperation, ...]
    template: list[Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def __call__(self, *values: Any) -> Sequence[Any]:
        known = self._known(values)
        for operation in self.operations:
            known[operation.result] = operation.function(*[known[a] for a in operation.arguments])
        return [known[slot] for slot in self.outputs]

    def watched(self, values: Sequence[Any]) -> tuple[Sequence[Any], Sequence[int]]:
        """Return the outputs, and numbers of the equations that went wrong."""
        known, wrong = self._known(values), []
        for i, operation in enumerate(self.operations):
            given = [known[a] for a in operation.arguments]
            result = operation.function(*given)
            known[operation.result] = result
            if operation.test is not None and operation.test(result, *given):
                wrong.append(i)
        return [known[slot] for slot in self.outputs], wrong

    def _known(self, values: Sequence[Any]) -> list[Any]:
        known = self.template.copy()
        for slot, value in zip(self.inputs, values, strict=True):
            known[slot] = value if isinstance(value, np.generic) else np.asarray(value)[()]
        return known


_IS_WRONG: dict[str, Callable[..., bool]] = {
    "add": lambda result, x, y: int(x) + int(y) != int(result),
    "sub": lambda result, x, y: int(x) - int(y) != int(result),
    "mul": lambda result, x, y: int(x) * int(y) != int(result),
    "neg": lambda result, x: -int(x) != int(result),
    "abs": lambda result, x: abs(int(x)) != int(result),
    "div": lambda result, x, y: y == 0 or (y == -1 and -int(x) != int(result)),
    "rem": lambda result, x, y: bool(y == 0),
    "shift_left": lambda result, x, y: x > 0 and _shift_right_logical(result, y) != x,
    "convert_element_type": lambda result, x: int(x) != int(result),
}
"""Tests of whether integer scalars wrapped, or were divided by zero."""


def _scalar_test(eqn: Any) -> Callable[..., bool] | None:
    """The test of an equation; none for unsigned integers, which wrap on purpose."""
    name, dtypes = eqn.primitive.name, [atom.aval.dtype for atom in (*eqn.outvars, *eqn.invars)]
    if name in ("div", "rem") or all(dtype.kind == "i" for dtype in dtypes):
        return _IS_WRONG.get(name)
    return None


def _on_scalars(unit: Unit) -> ScalarUnit | None:
    """The unit on numpy's scalars; None if any operation is not of integer scalars."""
    numbers: dict[Any, int] = {}
    template: list[Any] = []

    def number(atom: Any) -> int:
        if isinstance(atom, jax_core.Literal):
            template.append(np.asarray(atom.val, atom.aval.dtype)[()])
            return len(template) - 1
        if atom not in numbers:
            template.append(None)
            numbers[atom] = len(template) - 1
        return numbers[atom]

    code: list[ScalarOperation] = []
    for eqn in unit.eqns:
        if not all(is_integer(atom.aval) for atom in (*eqn.invars, *eqn.outvars)):
            return None
        name = eqn.primitive.name
        if name == "convert_element_type":
            dtype = np.dtype(eqn.params["new_dtype"])
            function: Callable[..., Any] = operator.methodcaller("astype", dtype)
            if dtype.kind == "b":
                function = dtype.type
        elif name in _BY_NUMPY:
            function = _BY_NUMPY[name]
        else:
            return None
        args = tuple(number(atom) for atom in eqn.invars)
        code.append(ScalarOperation(function, args, number(eqn.outvars[0]), _scalar_test(eqn)))
    first = tuple(number(v) for v in unit.invars)
    last = tuple(number(v) for v in unit.outvars)
    return ScalarUnit(tuple(code), template, first, last)


def is_integer(aval: Any) -> bool:
    """Whether an abstract value is a scalar of an integer or boolean dtype."""
    dtype = getattr(aval, "dtype", None)
    return (
        getattr(aval, "shape", None) == ()
        and isinstance(dtype, np.dtype)
        and dtype.kind in _INTEGERS
    )
