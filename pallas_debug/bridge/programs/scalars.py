"""Units on integer scalars, which numpy evaluates faster than jax."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pallas_debug.bridge import primitives
from pallas_debug.bridge.jaxcompat import jax_core

if TYPE_CHECKING:
    from pallas_debug.bridge.programs.units import Unit

_INTEGERS = frozenset("biu")


@dataclass(frozen=True, slots=True)
class ScalarOperation:
    """An equation on scalars: a function from some slots to another slot.

    Attributes:
      divides: whether the second argument is a divisor.
    """

    function: Callable[..., Any]
    arguments: tuple[int, ...]
    result: int
    divides: bool


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
        return self.watched(values)[0]

    def watched(self, values: Sequence[Any]) -> tuple[Sequence[Any], Sequence[int]]:
        """Return the outputs, and numbers of the equations that divided by zero."""
        known, wrong = self.template.copy(), []
        for slot, value in zip(self.inputs, values, strict=True):
            known[slot] = value if isinstance(value, np.generic) else np.asarray(value)[()]
        for i, operation in enumerate(self.operations):
            given = [known[a] for a in operation.arguments]
            known[operation.result] = operation.function(*given)
            if operation.divides and given[1] == 0:
                wrong.append(i)
        return [known[slot] for slot in self.outputs], wrong


def on_scalars(unit: Unit) -> ScalarUnit | None:
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
        else:
            row = primitives.TABLE.get(name)
            if row is None or row.scalar is None:
                return None
            function = row.scalar
        args = tuple(number(atom) for atom in eqn.invars)
        divides = name in ("div", "rem")
        code.append(ScalarOperation(function, args, number(eqn.outvars[0]), divides))
    first = tuple(number(v) for v in unit.invars)
    last = tuple(number(v) for v in unit.outvars)
    return ScalarUnit(tuple(code), template, first, last)


def is_integer(aval: Any) -> bool:
    """Return whether an abstract value is an integer or boolean scalar."""
    dtype = getattr(aval, "dtype", None)
    return (
        getattr(aval, "shape", None) == ()
        and isinstance(dtype, np.dtype)
        and dtype.kind in _INTEGERS
    )
