"""Operations of a kernel, with the properties that jax's TPU lowering depends on."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

from pallas_debug.bridge import jaxcompat, primitives
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.dataflow.forward import Forward
from pallas_debug.bridge.jaxcompat import checkify, indexing, lowering, tpu_core
from pallas_debug.bridge.jaxprs import lines, nested
from pallas_debug.bridge.jaxprs.params import jaxprs_of, memory_space, static_shape
from pallas_debug.bridge.normal_forms import (
    AccessForm,
    InnerJaxpr,
    LoopForm,
)
from pallas_debug.findings.facts import array_text
from pallas_debug.model import SourceLine

ANYTHING = 0
"""Divisor of a value about which nothing is known: it may be a multiple of anything."""


@dataclass(frozen=True, kw_only=True)
class Typed:
    """Type of a value: a number, a vector, or a ref with its memory space."""

    shape: tuple[int, ...]
    dtype: str
    space: str | None = None

    @property
    def is_ref(self) -> bool:
        return self.space is not None

    def __str__(self) -> str:
        return array_text(self.dtype, self.shape)


@dataclass(frozen=True, kw_only=True)
class Equation:
    """An operation of a kernel.

    Attributes:
      has_rule: whether jax's TPU lowering has a rule for it.
      stacked: number of outputs that a loop stacks, one per iteration.
      is_debug: whether a check is a `debug_check`.
      lane_start: known divisor of the start of the last dimension's slice, for accesses to refs of
        at least two dimensions; None for other operations.
      lane_size: size of that slice.
      ref: name of the accessed ref.
      float_index: dtype of a float used as an index; empty if there is none.
    """

    name: str
    source: SourceLine | None
    inputs: tuple[Typed, ...]
    outputs: tuple[Typed, ...]
    has_rule: bool
    stacked: int = 0
    is_debug: bool = False
    lane_start: int | None = None
    lane_size: int = 0
    ref: str = ""
    float_index: str = ""


def operations(captured: Capture) -> Iterator[Equation]:
    """Yield every operation of a kernel in program order, including loops and branches."""
    body = InnerJaxpr(*jaxcompat.opened(jaxprs_of(captured.params)[0]))
    core = getattr(captured.params.get("compiler_params"), "kernel_type", tpu_core.CoreType.TC)
    rules = lowering.lowering_rules.get(core, lowering.lowering_rules[tpu_core.CoreType.TC])
    walk = _Operations(rules)
    walk.run(body, [_Known(ref=name) for name in nested.arg_names(body.jaxpr)], None)
    return iter(walk.found)


@dataclass(frozen=True)
class _Known:
    """Facts about a value.

    Attributes:
      multiple: known divisor of a scalar.
      ref: name of a ref of the kernel.
    """

    multiple: int = ANYTHING
    ref: str = ""


_UNKNOWN = _Known()


class _Operations(Forward[_Known, None]):
    """Walk with what is known of values.

    Attributes:
      found: operations so far.
    """

    unknown = _UNKNOWN

    def __init__(self, rules: Mapping[Any, Any]) -> None:
        super().__init__()
        self.found: list[Equation] = []
        self._rules = rules

    def constant(self, value: Any) -> _Known:
        return _UNKNOWN

    def literal(self, atom: Any) -> _Known:
        return _Known(abs(int(atom.val))) if _is_integer(atom.aval) else _UNKNOWN

    def equation(self, eqn: Any, inputs: list[_Known], place: None) -> Sequence[_Known]:
        if nested.inlined(eqn) is None:
            self.found.append(self._operation(eqn, inputs))
        return super().equation(eqn, inputs, place)

    def plain(self, eqn: Any, inputs: list[_Known], place: None) -> Sequence[_Known]:
        count = len(eqn.outvars)
        return [_Known(_proven(eqn, inputs)), *[_UNKNOWN] * (count - 1)][:count]

    def widen(self, loop: LoopForm, place: None) -> tuple[Sequence[_Known], None]:
        return [_Known(ref=value.ref) for value in loop.carry], place

    def _operation(self, eqn: Any, inputs: Sequence[_Known]) -> Equation:
        start, size = _lane_slice(eqn, inputs)
        stacked = 0
        if eqn.primitive.name == "scan":
            stacked = len(eqn.outvars) - len(primitives.form(eqn).carry)
        return Equation(
            name=eqn.primitive.name,
            source=lines.source_of(eqn, self.calls),
            inputs=tuple(_typed(atom.aval) for atom in eqn.invars),
            outputs=tuple(_typed(out.aval) for out in eqn.outvars),
            has_rule=eqn.primitive in self._rules,
            stacked=stacked,
            is_debug=eqn.primitive is checkify.check_p and bool(eqn.params.get("debug")),
            lane_start=start,
            lane_size=size,
            ref=inputs[0].ref if inputs else "",
            float_index=_float_index(eqn),
        )


@functools.lru_cache(maxsize=1 << 12)
def _typed(aval: Any) -> Typed:
    space = None
    if hasattr(aval, "inner_aval"):
        space = memory_space(aval)
        space = "vmem" if space == "default" else space
    return Typed(shape=static_shape(aval), dtype=str(getattr(aval, "dtype", "")), space=space)


def _float_index(eqn: Any) -> str:
    """Dtype of a float used as an index; empty if there is none."""
    places = getattr(primitives.form(eqn), "places", ())
    for index in (start for at in places for _, start in at.starts()):
        dtype = str(getattr(getattr(index, "aval", None), "dtype", ""))
        if dtype.startswith(("float", "bfloat")):
            return dtype
    return ""


def _lane_slice(eqn: Any, inputs: Sequence[_Known]) -> tuple[int | None, int]:
    """Known divisor of the start of the last dimension's slice, and the slice's size."""
    form = primitives.form(eqn, inputs)
    if (
        not isinstance(form, AccessForm)
        or len(form.place.transforms) != len(form.place.indexers)
        or (len(form.place.indexers) != 1)
    ):
        return None, 0
    indices = form.place.indexers[0].indices
    last = indices[-1] if indices else None
    if len(indices) < 2 or not isinstance(last, indexing.Slice):
        return None, 0
    if not isinstance(last.start, _Known):
        return None, 0
    return last.start.multiple, last.size if isinstance(last.size, int) else 0


def _is_integer(aval: Any) -> bool:
    return getattr(aval, "shape", None) == () and str(getattr(aval, "dtype", "")).startswith("int")


def _proven(eqn: Any, inputs: Sequence[_Known]) -> int:
    """Divisor of a scalar that follows from products, sums and hints.

    For other operations, the compiler may know more than this.
    """
    if not eqn.outvars or not _is_integer(eqn.outvars[0].aval):
        return ANYTHING
    name, given = eqn.primitive.name, [value.multiple for value in inputs]
    if name in ("get", "program_id"):
        return 1
    if name == "multiple_of":
        return ANYTHING if not given[0] else max(given[0], *eqn.params["values"])
    if name == "convert_element_type":
        return given[0]
    if name == "mul" and len(given) == 2:
        return given[0] * given[1]
    if name in ("add", "sub") and all(given):
        return gcd(*given)
    return ANYTHING
