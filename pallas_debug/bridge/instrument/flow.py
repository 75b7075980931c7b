"""Data flow in straight-line code of a kernel: where NaNs go, and where values come from.

A NaN operand of an addition makes the sum NaN. To detect whether there is any NaN, it is enough to
check the arrays from which nothing else is computed: a few late arrays instead of every step on the
way. A region is straight-line code, so anything computed from an array is computed whenever the
array itself is.

A finding names the values at fault: both sides of the comparison in a check, or the entry of a
scalar-prefetch table from which an index was computed. `Provenance` tracks them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax._src import core as jax_core
from jax._src.state import indexing
from jax._src.state import primitives as state_primitives

KEEPS_NAN = {
    *("add", "sub", "mul", "div", "add_any", "neg", "square", "integer_pow", "dot_general"),
    *("exp", "exp2", "log", "sqrt", "rsqrt", "abs", "reduce_sum", "convert_element_type"),
    *("broadcast_in_dim", "reshape", "transpose", "squeeze", "expand_dims", "concatenate", "copy"),
}
"""Primitives whose result contains a NaN whenever an operand does, in XLA for the CPU.

Maxima are not included: XLA may drop a NaN there (`xla_cpu_enable_fast_min_max`).
"""

_WIDE_ENOUGH = ("float16", "bfloat16", "float32", "float64")
"""Dtypes that preserve a NaN; some narrower ones cannot represent it."""


class NanFlow:
    """NaN-propagating equations of one region."""

    def __init__(self) -> None:
        self._steps: list[tuple[list[Any], Any]] = []

    def follow(self, eqn: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Record an evaluated equation."""
        if not _keeps_nan(eqn, inputs, outputs):
            return
        traced = [x for x in inputs if isinstance(x, jax_core.Tracer) and x is not outputs[0]]
        self._steps.append((traced, outputs[0]))

    def ends(self, arrays: Iterable[Any]) -> list[Any]:
        """Return the arrays whose NaNs do not show up in another array."""
        asked = {id(array): array for array in arrays}
        shown: set[int] = set()
        for inputs, output in reversed(self._steps):
            if id(output) in asked or id(output) in shown:
                shown.update(map(id, inputs))
        return [array for key, array in asked.items() if key not in shown]


def is_clean_constant(eqn: Any) -> bool:
    """Return whether an equation only fills an array with a constant that is not NaN."""
    return eqn.primitive.name == "broadcast_in_dim" and all(
        isinstance(atom, jax_core.Literal) and bool(atom.val == atom.val) for atom in eqn.invars
    )


def _keeps_nan(eqn: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
    name = eqn.primitive.name
    if name not in KEEPS_NAN or str(jnp.result_type(outputs[0])) not in _WIDE_ENOUGH:
        return False
    if name == "integer_pow" and eqn.params["y"] == 0:
        return False
    return all(jnp.size(x) for x in (*inputs, *outputs))


COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
"""Comparison primitives, with their Python operators."""

_UNSEEN = {*COMPARISONS, "argmax", "argmin", "is_finite", "sign", "sort", "round_nearest"}
"""Primitives whose results may depend on a NaN without containing one."""

_SAME = {"convert_element_type", "squeeze", "reshape", "broadcast_in_dim", "copy"}
"""Primitives that only pass on a condition."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A condition that fails.

    Attributes:
      name: the primitive whose result must be true.
      left, right: the compared values.
    """

    name: str
    left: Any
    right: Any

    @property
    def sign(self) -> str:
        return COMPARISONS[self.name]


@dataclass(frozen=True, kw_only=True)
class TableEntry:
    """An entry of a scalar-prefetch operand: its name, indices, and value."""

    table: str
    index: tuple[Any, ...]
    value: Any


class Provenance:
    """Origins of a kernel's values, by the `id` of their tracers, which are kept alive."""

    def __init__(self) -> None:
        self._alive: list[Any] = []
        self._sites: dict[int, frozenset[int]] = {}
        self._entries: dict[int, TableEntry] = {}
        self._failing: dict[int, tuple[Comparison, bool]] = {}
        self.hidden: set[int] = set()
        """Sites whose value goes into an operation that depends on a NaN without showing it."""

    def mark(self, value: Any, site: int) -> None:
        """Record that a value was produced or read at a site."""
        self._alive.append(value)
        self._sites[id(value)] = self._sites.get(id(value), frozenset()) | {site}

    def sites(self, value: Any) -> frozenset[int]:
        """Sites from which a value was computed."""
        return self._sites.get(id(value), frozenset())

    def entry(self, value: Any) -> TableEntry | None:
        """The table entry from which a value was computed, if there is exactly one."""
        return self._entries.get(id(value))

    def failed(self, predicate: Any) -> Comparison | None:
        """The comparison that is false if the predicate of a failure is true."""
        found = self._failing.get(id(predicate))
        return found[0] if found is not None and found[1] else None

    def follow(
        self, eqn: Any, inputs: Sequence[Any], outputs: Sequence[Any], tables: Mapping[int, str]
    ) -> None:
        """Record an evaluated equation; `tables` are the names of scalar-prefetch refs by id."""
        if len(outputs) != 1 or not isinstance(outputs[0], jax_core.Tracer):
            return
        (out,), name = outputs, eqn.primitive.name
        if eqn.primitive is state_primitives.get_p:
            self._table(eqn, inputs, out, tables)
            return
        traced = [x for x in inputs if isinstance(x, jax_core.Tracer)]
        sites = frozenset[int]().union(*(self.sites(x) for x in traced))
        if name in _UNSEEN or (sites and not jnp.issubdtype(jnp.result_type(out), jnp.floating)):
            self.hidden |= sites
        elif sites:
            self._keep(out, self._sites, sites)
        entries = {id(e.value): e for x in traced if (e := self.entry(x)) is not None}
        if len(entries) == 1:
            self._keep(out, self._entries, next(iter(entries.values())))
        self._condition(name, inputs, out)

    def _keep(self, value: Any, where: dict[int, Any], what: Any) -> None:
        self._alive.append(value)
        where[id(value)] = what

    def _table(self, eqn: Any, inputs: Sequence[Any], out: Any, tables: Mapping[int, str]) -> None:
        table = tables.get(id(inputs[0]))
        transforms = jax.tree.unflatten(eqn.params["tree"], inputs[1:])
        if table is None or jnp.ndim(out) or len(transforms) != 1:
            return
        indices = transforms[0].indices
        if not any(isinstance(i, indexing.Slice) or jnp.ndim(i) for i in indices):
            entry = TableEntry(table=table, index=tuple(indices), value=out)
            self._keep(out, self._entries, entry)

    def _condition(self, name: str, inputs: Sequence[Any], out: Any) -> None:
        """Follow comparisons to the predicate of a failure.

        The flag says whether a value is true if the comparison fails (`not`) or if it holds.
        """
        if name in COMPARISONS:
            held = Comparison(name=name, left=inputs[0], right=inputs[1])
            self._keep(out, self._failing, (held, False))
            return
        if name == "or" and not isinstance(inputs[0], jax_core.Tracer) and not inputs[0]:
            inputs, name = inputs[1:], "copy"  # this is how checkify adds the first check
        known = self._failing.get(id(inputs[0])) if inputs else None
        if known is None:
            return
        comparison, fails = known
        if name == "not":
            self._keep(out, self._failing, (comparison, not fails))
        elif name in _SAME or name == ("reduce_or" if fails else "reduce_and"):
            self._keep(out, self._failing, known)
