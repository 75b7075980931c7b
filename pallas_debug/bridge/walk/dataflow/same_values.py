"""Operations without effect, because their operands have the same value each time.

Values of a kernel are numbered: two have the same number if they are certainly equal. What a store
leaves in a buffer is known until anything else may write to the buffer, so a load after it has the
number of the value that was stored. Nothing runs, and each loop body is walked once.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jax._src import core as jax_core
from jax._src.lax.control_flow import conditionals, loops
from jax._src.pallas import primitives as pallas_primitives

from pallas_debug.bridge.instrument.primitives import ACCESSES
from pallas_debug.bridge.jaxprs import lines, nested
from pallas_debug.model import SourceLine

_FORMS = {"broadcast_in_dim", "reshape", "squeeze", "expand_dims", "convert_element_type", "copy"}
"""Primitives whose result is their operand in a different form."""

_TOTALS = {"reduce_sum", "reduce_max", "reduce_min"}
_OF_ZERO = {"add", "add_any", "sub", "mul", "div", "dot_general"} | _TOTALS
_OF_LARGE = {"add", "add_any", "sub", "mul", "max", "min", "lt", "le", "gt", "ge"} | _TOTALS
"""Primitives that combine a state with something else: one that begins as 0, or as an infinity."""

LARGE = 1e9
"""Magnitude from which a number stands for an infinity, as before the first maximum."""


@dataclass(frozen=True, kw_only=True)
class KnownValue:
    """A value, as far as it is known.

    Attributes:
      number: equal for values that are certainly equal, once dimensions of size 1 are broadcast.
      constant: the number that all its elements are, if that is known.
      ref: number of the ref from which it was loaded, in any form.
      stored: line of the store that left it there.
    """

    number: Hashable
    constant: float | None = None
    ref: int | None = None
    stored: SourceLine | None = None


@dataclass(frozen=True, kw_only=True)
class Cancelled:
    """A value that is subtracted from itself, or divided by itself.

    Attributes:
      ref: number of the ref from which it was loaded.
      stored: line that had stored the same value there.
    """

    operation: str
    ref: int
    source: SourceLine | None
    stored: SourceLine | None


@dataclass(kw_only=True)
class RefUses:
    """Stores to a ref, and uses of what is loaded from it.

    Attributes:
      constants: the numbers that are stored; None for any other value.
      stores: lines of the stores.
      depth: number of loops around the innermost store.
      used: lines and primitives that combine a value loaded from it with something else, and the
        number of loops around them.
      is_known: whether all accesses are loads and stores.
    """

    constants: set[float | None] = field(default_factory=set)
    stores: list[SourceLine | None] = field(default_factory=list)
    depth: int = 0
    used: list[tuple[SourceLine | None, str, int]] = field(default_factory=list)
    is_known: bool = True

    @property
    def constant(self) -> float | None:
        """The number to which all stores set it, if it is one with which a state begins."""
        if not self.is_known or len(self.constants) != 1:
            return None
        (number,) = self.constants
        begins = number is not None and (number == 0 or abs(number) >= LARGE)
        return number if begins else None

    def escapes(self) -> None:
        """Handle an access that is neither a load nor a store."""
        self.is_known = False

    def is_stored(self, source: SourceLine | None, depth: int) -> None:
        """Handle a store within some loops."""
        self.stores.append(source)
        self.depth = max(self.depth, depth)

    def combined(self, *, again: bool = False) -> SourceLine | None:
        """First line that combines it with something else.

        Args:
          again: whether only lines count that a loop repeats after a store before the loop.
        """
        wanted = _OF_ZERO if self.constant == 0 else _OF_LARGE
        found = (line for line, name, n in self.used if name in wanted and n >= self.depth + again)
        return next((line for line in found if line is not None), None)


_Value = KnownValue | int
"""A value, or the number of a ref."""


class SameValues:
    """Walk of a kernel's jaxpr.

    Attributes:
      refs: accesses by position of the ref among the kernel's; those of scopes have other numbers.
      cancelled: operations whose operands are the same. One that Python runs several times, as in
        a loop that it unrolls, may have an effect only after the first time.
    """

    def __init__(self, jaxpr: Any) -> None:
        self.refs: dict[int, RefUses] = {}
        self._cancelled: list[tuple[Cancelled, Hashable]] = []
        self._count = itertools.count()
        self._content: dict[int, KnownValue] = {}
        self._varies: set[Hashable] = set()
        self._depth = 0
        inner, _ = nested.opened(jaxpr)
        self._scopes = itertools.count(len(inner.invars))
        self._run(inner, list(range(len(inner.invars))), ())
        self.cancelled = [one for one, place in self._cancelled if place not in self._varies]

    def _new(self, ref: int | None = None) -> KnownValue:
        return KnownValue(number=next(self._count), ref=ref)

    def _run(
        self, jaxpr: Any, args: Sequence[_Value], calls: tuple[Any, ...],
        consts: Sequence[_Value] = (),
    ) -> list[_Value]:  # fmt: skip
        known: dict[Any, _Value] = {v: self._new() for v in jaxpr.constvars}
        known.update(zip(jaxpr.constvars, consts, strict=False))
        known.update(zip(jaxpr.invars, args, strict=True))

        def read(atom: Any) -> _Value:
            if isinstance(atom, jax_core.Literal):
                return _literal(atom.val)
            return known[atom]

        for eqn in jaxpr.eqns:
            inputs = [read(atom) for atom in eqn.invars]
            known.update(zip(eqn.outvars, self._equation(eqn, inputs, calls), strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(self, eqn: Any, inputs: list[_Value], calls: tuple[Any, ...]) -> Sequence[_Value]:
        inline = nested.inlined(eqn)
        if inline is not None:
            return self._run(inline[0], inputs, (*calls, eqn))
        if eqn.primitive in ACCESSES:
            return self._access(eqn, inputs, calls)
        if eqn.primitive is conditionals.cond_p:
            return self._branches(eqn, inputs, calls)
        if eqn.primitive in (loops.scan_p, loops.while_p):
            return self._loop(eqn, inputs, calls)
        if eqn.primitive is pallas_primitives.run_scoped_p:
            inner = eqn.params["jaxpr"]
            scoped = [next(self._scopes) for _ in inner.invars]
            return self._run(inner, scoped, (*calls, eqn), inputs)
        refs = [value for value in inputs if isinstance(value, int)]
        for ref in refs:
            self._of(ref).escapes()
            self._content.pop(ref, None)
        if refs or nested.within(eqn.params):
            return [self._new() for _ in eqn.outvars]
        values = [value for value in inputs if isinstance(value, KnownValue)]
        return self._plain(eqn, values, calls)

    def _plain(self, eqn: Any, inputs: list[KnownValue], calls: tuple[Any, ...]) -> list[_Value]:
        name = eqn.primitive.name
        if name in _FORMS and len(inputs) == 1:
            (value,) = inputs
            result = eqn.outvars[0].aval
            dims = eqn.params.get("broadcast_dimensions", eqn.params.get("dimensions"))
            number = value.number
            if name != "broadcast_in_dim" or dims != tuple(range(len(result.shape))):
                number = (number, name, result.shape, str(result.dtype), dims)
            return [replace(value, number=number)]
        source = lines.source_of(eqn, calls)
        for ref in {value.ref for value in inputs if value.ref is not None}:
            self._of(ref).used.append((source, name, self._depth))
        if name in ("sub", "div"):
            self._subtracts(eqn, inputs, calls, source)
        return [self._new() for _ in eqn.outvars]

    def _subtracts(
        self, eqn: Any, inputs: list[KnownValue], calls: tuple[Any, ...], source: SourceLine | None
    ) -> None:
        """Handle a difference or ratio; `x - x` in so many words may look for infinities."""
        name, place = eqn.primitive.name, lines.place_of(eqn, calls)
        by = next((v for v in inputs if v.ref is not None and v.stored is not None), None)
        if len({value.number for value in inputs}) > 1 or all(v is inputs[0] for v in inputs[1:]):
            self._varies.add((place, name))
        elif by is not None and by.ref is not None and by.constant is None:
            one = Cancelled(operation=name, ref=by.ref, source=source, stored=by.stored)
            self._cancelled.append((one, (place, name)))

    def _of(self, ref: int) -> RefUses:
        return self.refs.setdefault(ref, RefUses())

    def _access(self, eqn: Any, inputs: list[_Value], calls: tuple[Any, ...]) -> list[_Value]:
        what, first = ACCESSES[eqn.primitive]
        ref = inputs[0]
        results: list[_Value] = [self._new() for _ in eqn.outvars]
        if not isinstance(ref, int):
            return results
        if first is None:  # with a mask
            self._of(ref).escapes()
            self._content.pop(ref, None)
            return results
        shape = eqn.invars[0].aval.shape
        given = eqn.invars[1] if what == "write" else eqn.outvars[0]
        transforms = jax.tree.unflatten(eqn.params["tree"], eqn.invars[first:])
        is_whole = given.aval.shape == shape and not any(_may_move(t) for t in transforms)
        if what == "read":
            held = self._content.get(ref) if is_whole else None
            if held is None:
                return [self._new(ref)]
            return [replace(held, ref=ref)]
        value, source = inputs[1], lines.source_of(eqn, calls)
        uses = self._of(ref)
        uses.is_stored(source, self._depth)
        self._content.pop(ref, None)
        if not isinstance(value, KnownValue) or "update" in eqn.primitive.name:
            uses.constants.add(None)
            return [self._new() for _ in eqn.outvars]
        uses.constants.add(value.constant)
        if is_whole:
            self._content[ref] = replace(value, ref=ref, stored=source)
        return [self._new(ref) for _ in eqn.outvars]

    def _branches(self, eqn: Any, inputs: list[_Value], calls: tuple[Any, ...]) -> list[_Value]:
        before, after = self._content, []
        for branch in eqn.params["branches"]:
            self._content = dict(before)
            inner, _ = nested.opened(branch)
            self._run(inner, inputs[1:], (*calls, eqn))
            after.append(self._content)
        first, *rest = after
        self._content = {
            ref: value
            for ref, value in first.items()
            if all(other.get(ref) == value for other in rest)
        }
        return [self._new() for _ in eqn.outvars]

    def _loop(self, eqn: Any, inputs: list[_Value], calls: tuple[Any, ...]) -> list[_Value]:
        before = self._content
        is_repeated = eqn.params.get("length") != 1
        self._depth += is_repeated
        # Neither what is carried nor what a buffer holds is the same in each iteration.
        if eqn.primitive is loops.scan_p:
            consts, carry, xs = nested.scan_operands(eqn.params, inputs)
            runs = [(eqn.params["jaxpr"], consts, [*carry, *xs])]
        else:
            condition, body, carry = nested.while_operands(eqn.params, inputs)
            runs = [
                (eqn.params["cond_jaxpr"], condition, carry),
                (eqn.params["body_jaxpr"], body, carry),
            ]
        for jaxpr, same, changing in runs:
            inner, _ = nested.opened(jaxpr)
            self._content = {}
            new = [one if isinstance(one, int) else self._new() for one in changing]
            self._run(inner, [*same, *new], (*calls, eqn))
        self._depth -= is_repeated
        refs = {value for value in inputs if isinstance(value, int)}
        self._content = {ref: value for ref, value in before.items() if ref not in refs}
        return [self._new() for _ in eqn.outvars]


def _literal(value: Any) -> KnownValue:
    if np.ndim(value) or not np.issubdtype(np.asarray(value).dtype, np.number):
        return KnownValue(number=("literal", repr(value)))
    number = float(value)
    return KnownValue(number=("literal", number), constant=number)


def _may_move(transform: Any) -> bool:
    """Return whether a transform may select other elements than the ones at their own places."""
    indices = getattr(transform, "indices", None)
    if indices is None:
        return True
    return not all(
        isinstance(start := getattr(index, "start", None), int)
        and start == 0
        and getattr(index, "stride", 1) == 1
        for index in indices
    )
