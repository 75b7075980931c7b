"""Operations of a kernel, with the properties that jax's TPU lowering depends on."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import jax

from pallas_debug.bridge import jaxcompat, primitives
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.jaxcompat import (
    checkify,
    conditionals,
    indexing,
    jax_core,
    loops,
    lowering,
    pallas_primitives,
    state_primitives,
    tpu_core,
    tpu_primitives,
)
from pallas_debug.bridge.jaxprs import lines, nested
from pallas_debug.bridge.jaxprs.params import jaxprs_of, static_shape
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
      turns_lanes: whether a vector of bools along the lanes becomes a column.
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
    turns_lanes: bool = False


def operations(captured: Capture) -> Iterator[Equation]:
    """Yield every operation of a kernel in program order, including loops and branches."""
    jaxpr, _ = jaxcompat.opened(jaxprs_of(captured.params)[0])
    refs = dict(zip(jaxpr.invars, nested.arg_names(jaxpr), strict=True))
    core = getattr(captured.params.get("compiler_params"), "kernel_type", tpu_core.CoreType.TC)
    rules = lowering.lowering_rules.get(core, lowering.lowering_rules[tpu_core.CoreType.TC])
    yield from _inside(jaxpr, rules, refs, {}, ())


def _inside(
    jaxpr: Any, rules: Mapping[Any, Any], refs: Mapping[Any, str], multiples: dict[Any, int],
    calls: tuple[Any, ...],
) -> Iterator[Equation]:  # fmt: skip
    lanes: set[Any] = set()
    for eqn in jaxpr.eqns:
        inline = nested.inlined(eqn)
        if inline is None:
            operation = _operation(eqn, refs, multiples, calls, eqn.primitive in rules)
            yield replace(operation, turns_lanes=_turns_lanes(eqn, lanes))
        if _lies_along_lanes(eqn, lanes):
            lanes.add(eqn.outvars[0])
        for inner, args in _jaxprs(eqn):
            yield from _inside(
                inner,
                rules,
                {v: refs[a] for v, a in args if _is_variable(a) and a in refs},
                {v: _multiple(a, multiples) for v, a in args if a is not None},
                (*calls, eqn) if inline is not None else calls,
            )
        for out in eqn.outvars:
            multiples[out] = _proven(eqn, multiples) if out is eqn.outvars[0] else ANYTHING


def _jaxprs(eqn: Any) -> Iterator[tuple[Any, list[tuple[Any, Any]]]]:
    """Inner jaxprs, each with the outer operand of each input; None for new values."""
    params = eqn.params
    if eqn.primitive is conditionals.cond_p:
        for branch in params["branches"]:
            inner, _ = jaxcompat.opened(branch)
            yield inner, list(zip(inner.invars, eqn.invars[1:], strict=False))
    elif eqn.primitive is loops.scan_p:
        inner, _ = jaxcompat.opened(params["jaxpr"])
        n_consts, _ = jaxcompat.scan_sizes(params)
        yield inner, _partly(inner, eqn.invars, n_consts)
    elif eqn.primitive is loops.while_p:
        n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
        inner, _ = jaxcompat.opened(params["body_jaxpr"])
        yield inner, _partly(inner, eqn.invars[n_cond:], n_body)
    elif eqn.primitive is pallas_primitives.run_scoped_p:
        inner = params["jaxpr"]
        yield inner, list(zip(inner.constvars, eqn.invars, strict=False))
    else:
        inline = nested.inlined(eqn)
        if inline is not None:
            yield inline[0], list(zip(inline[0].invars, eqn.invars, strict=False))


def _partly(inner: Any, atoms: Sequence[Any], n_consts: int) -> list[tuple[Any, Any]]:
    """Pair a loop body's inputs with outer operands, or None for carried values except refs."""
    return [
        (variable, atom if i < n_consts or nested.is_ref(atom) else None)
        for i, (variable, atom) in enumerate(zip(inner.invars, atoms, strict=False))
    ]


def _is_variable(atom: Any) -> bool:
    return atom is not None and not isinstance(atom, jax_core.Literal)


def _operation(
    eqn: Any, refs: Mapping[Any, str], multiples: Mapping[Any, int], calls: tuple[Any, ...],
    has_rule: bool,
) -> Equation:  # fmt: skip
    start, size = _lane_slice(eqn, multiples)
    first = eqn.invars[0] if eqn.invars else None
    stacked = 0
    if eqn.primitive is loops.scan_p:
        stacked = len(eqn.outvars) - jaxcompat.scan_sizes(eqn.params)[1]
    return Equation(
        name=eqn.primitive.name,
        source=lines.source_of(eqn, calls),
        inputs=tuple(_typed(atom.aval) for atom in eqn.invars),
        outputs=tuple(_typed(out.aval) for out in eqn.outvars),
        has_rule=has_rule,
        stacked=stacked,
        is_debug=eqn.primitive is checkify.check_p and bool(eqn.params.get("debug")),
        lane_start=start,
        lane_size=size,
        ref=refs.get(first, "") if _is_variable(first) else "",
        float_index=_float_index(eqn),
    )


@functools.lru_cache(maxsize=1 << 12)
def _typed(aval: Any) -> Typed:
    space = None
    if hasattr(aval, "inner_aval"):
        given = getattr(aval, "memory_space", None)
        space = "vmem" if given is None else str(getattr(given, "value", given)).lower()
        space = "vmem" if space == "default" else space
    return Typed(shape=static_shape(aval), dtype=str(getattr(aval, "dtype", "")), space=space)


_COPIES = (tpu_primitives.dma_start_p, tpu_primitives.dma_wait_p)


def _first_index(eqn: Any) -> int | None:
    """Position of the first index among the inputs of an access."""
    row = primitives.TABLE.get(eqn.primitive.name)
    is_access = row is not None and row.kind == "access"
    return primitives.FIRST_INDEX.get(eqn.primitive.name) if is_access else None


def _float_index(eqn: Any) -> str:
    """Dtype of a float used as an index; empty if there is none.

    Operands of an access after the ref and the stored value are indices; operands of a copy are
    refs, indices and a device number.
    """
    first = 0 if eqn.primitive in _COPIES else _first_index(eqn)
    for atom in () if first is None else eqn.invars[first:]:
        dtype = "" if nested.is_ref(atom) else str(getattr(atom.aval, "dtype", ""))
        if dtype.startswith(("float", "bfloat")):
            return dtype
    return ""


def _lies_along_lanes(eqn: Any, lanes: set[Any]) -> bool:
    """Return whether the result certainly is one row of lanes, as loaded.

    The result of a reduction or an index along another dimension may lie along the sublanes, where
    it is already a column.
    """
    if len(eqn.outvars) != 1:
        return False
    shape = eqn.outvars[0].aval.shape
    if not shape or any(size != 1 for size in shape[:-1]):
        return False
    if eqn.primitive is state_primitives.get_p:
        transforms = jax.tree.unflatten(eqn.params["tree"], eqn.invars[1:])
        if not transforms:
            return True
        indexers = [t for t in transforms if isinstance(t, indexing.NDIndexer)]
        return len(indexers) == len(transforms) == 1 and isinstance(
            indexers[0].indices[-1], indexing.Slice
        )
    row = primitives.TABLE.get(eqn.primitive.name)
    if row is None or not row.is_by_element:
        return False
    arrays = [atom for atom in eqn.invars if atom.aval.shape]
    return bool(arrays) and all(_is_variable(atom) and atom in lanes for atom in arrays)


def _turns_lanes(eqn: Any, lanes: set[Any]) -> bool:
    """Return whether a row of bools becomes a column.

    One of two known releases of libtpu rejects it, and the other crashes. Numbers are fine.
    """
    if eqn.primitive.name not in ("broadcast_in_dim", "reshape"):
        return False
    given, made = eqn.invars[0], eqn.outvars[0].aval
    if not _is_variable(given) or given not in lanes or str(given.aval.dtype) != "bool":
        return False
    size = given.aval.shape[-1]
    is_column = len(made.shape) >= 2 and made.shape[-2:] == (size, 1)
    if eqn.primitive.name == "broadcast_in_dim":
        kept = eqn.params["broadcast_dimensions"]
        is_column = is_column and kept[-1] == len(made.shape) - 2
    return bool(size != 1 and is_column)


def _lane_slice(eqn: Any, multiples: Mapping[Any, int]) -> tuple[int | None, int]:
    """Known divisor of the start of the last dimension's slice, and the slice's size."""
    first = _first_index(eqn)
    if first is None:
        return None, 0
    transforms = jax.tree.unflatten(eqn.params["tree"], eqn.invars[first:])
    if len(transforms) != 1 or not isinstance(transforms[0], indexing.NDIndexer):
        return None, 0
    indices = transforms[0].indices
    last = indices[-1] if indices else None
    if len(indices) < 2 or not isinstance(last, indexing.Slice):
        return None, 0
    if not _is_variable(last.start) or isinstance(last.start, int):
        return None, 0
    return _multiple(last.start, multiples), last.size if isinstance(last.size, int) else 0


def _multiple(atom: Any, multiples: Mapping[Any, int]) -> int:
    """Known divisor of a scalar."""
    if isinstance(atom, jax_core.Literal):
        return abs(int(atom.val)) if _is_integer(atom.aval) else ANYTHING
    return multiples.get(atom, ANYTHING)


def _is_integer(aval: Any) -> bool:
    return getattr(aval, "shape", None) == () and str(getattr(aval, "dtype", "")).startswith("int")


def _proven(eqn: Any, multiples: Mapping[Any, int]) -> int:
    """Divisor of a scalar that follows from products, sums and hints.

    For other operations, the compiler may know more than this.
    """
    if not eqn.outvars or not _is_integer(eqn.outvars[0].aval):
        return ANYTHING
    name = eqn.primitive.name
    if eqn.primitive is state_primitives.get_p or name == "program_id":
        return 1
    given = [_multiple(atom, multiples) for atom in eqn.invars]
    if name == "multiple_of":
        return ANYTHING if not given[0] else max(given[0], *eqn.params["values"])
    if name == "convert_element_type":
        return given[0]
    if name == "mul" and len(given) == 2:
        return given[0] * given[1]
    if name in ("add", "sub") and all(given):
        return gcd(*given)
    return ANYTHING
