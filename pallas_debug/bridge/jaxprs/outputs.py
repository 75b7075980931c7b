"""Uses of the outputs of kernels in a program: backward dataflow, nothing runs.

This is conservative: if the flow is not known in detail, everything computed from a value counts,
and all of it is read.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from pallas_debug.bridge import jaxcompat
from pallas_debug.bridge.active import ThreadValue
from pallas_debug.bridge.dataflow.backward import Backward
from pallas_debug.bridge.jaxcompat import jax_core
from pallas_debug.bridge.jaxprs import nested
from pallas_debug.findings.outputs import Box, OutputUse, hull
from pallas_debug.guards import guarded

KERNELS = ("pallas_call", "mpmd_map")
"""Names of the primitives that call a kernel."""

_EFFECT = -1

_ALL: Final = "all"

_ONE_TO_ONE = ("shard_map", "closed_call", "core_call", "custom_vmap_call")
"""Names of further primitives that call a jaxpr with their inputs, for their outputs."""


class _Use(NamedTuple):
    """Use of a value.

    Attributes:
      results: numbers of the program's results that it reaches, or `_EFFECT`.
      part: box that contains the elements that are read; None if nothing is read.
    """

    results: frozenset[int] = frozenset()
    part: Box | Literal["all"] | None = None

    @property
    def of_all(self) -> _Use:
        """The same use, of all elements."""
        return _Use(self.results, _ALL if self.results else None)


def _either(a: _Use, b: _Use) -> _Use:
    results = a.results | b.results
    if a.part is None or b.part is None:
        return _Use(results, b.part if a.part is None else a.part)
    if a.part == _ALL or b.part == _ALL:
        return _Use(results, _ALL)
    return _Use(results, hull(a.part, b.part))


class _Uses(Backward[_Use]):
    """Walk of a program.

    Attributes:
      found: use of each output of a kernel, over all calls, by the kernel's key.
    """

    nothing = _Use()

    def __init__(self) -> None:
        self.found: dict[Any, list[_Use]] = {}

    def join(self, a: _Use, b: _Use) -> _Use:
        return _either(a, b)

    def decision(self, eqn: Any, wanted: Sequence[_Use]) -> _Use:
        # Outputs of one equation may differ in rank, as in jax's own attention.
        return functools.reduce(_either, (use.of_all for use in wanted), self.nothing)

    def transfer(self, eqn: Any, wanted: Sequence[_Use]) -> Sequence[_Use]:
        if _has_effect(eqn):
            wanted = [_Use(use.results | {_EFFECT}, _ALL) for use in wanted or [self.nothing]]
        everything = self.decision(eqn, wanted)
        name = eqn.primitive.name
        if name in KERNELS:
            key = _identity(eqn.params)
            before = self.found.get(key, [self.nothing] * len(wanted))
            self.found[key] = list(map(_either, before, wanted))
        elif name == "slice":
            starts, limits = eqn.params["start_indices"], eqn.params["limit_indices"]
            box = tuple(zip(starts, limits, strict=True))
            return [_Use(everything.results, box if everything.results else None)]
        else:
            for inner in nested.within(eqn.params):
                count = len(inner.jaxpr.outvars)
                is_same = name in _ONE_TO_ONE and count == len(wanted)
                each = [use.of_all for use in wanted] if is_same else [everything] * count
                found = self.inputs(inner, each)
                if is_same and len(found) == len(eqn.invars):
                    return [use.of_all for use in found]
        return [everything] * len(eqn.invars)


def _has_effect(eqn: Any) -> bool:
    """Return whether an equation, other than a call, branch or loop, has a side effect."""
    named = jax_core.NamedAxisEffect
    effects = [effect for effect in eqn.effects if not isinstance(effect, named)]
    return bool(effects) and not nested.within(eqn.params)


# The program that a thread is lowering, and the kernel in it.


def lowering_programs(lower: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap jax's lowering of a whole program: its kernels' lowering rules see only themselves."""

    @functools.wraps(lower)
    def lower_program(module_name: str, jaxpr: Any, *args: Any, **kwargs: Any) -> Any:
        with _program.setting(_Program(jaxpr)):
            return lower(module_name, jaxpr, *args, **kwargs)

    return lower_program


class _Program:
    def __init__(self, jaxpr: Any) -> None:
        self._jaxpr = jaxpr

    @functools.cached_property
    def _found(self) -> dict[Any, list[_Use]]:
        walk, jaxpr = _Uses(), jaxcompat.opened(self._jaxpr)[0]
        walk.run(jaxpr, [_Use(frozenset([n]), _ALL) for n in range(len(jaxpr.outvars))])
        return walk.found

    def uses(self, params: Mapping[str, Any]) -> list[OutputUse]:
        found = self._found.get(_identity(params), ())  # a lowering rule may have retraced it
        jaxpr = jaxcompat.opened(self._jaxpr)[0]
        return [
            OutputUse(
                results=use.results - {_EFFECT},
                count=len(jaxpr.outvars),
                is_certain=_EFFECT in use.results,
                program=_name(jaxpr),
                read=None if use.part == _ALL else use.part,
            )
            for use in found
        ]


_program = ThreadValue[_Program | None](None)
_uses = ThreadValue[Sequence[OutputUse]](())


def _identity(params: Mapping[str, Any]) -> tuple[int, ...]:
    """Key of a kernel within one program, which its jaxprs outlive."""
    return tuple(id(inner.jaxpr) for inner in nested.within(params))


def _name(jaxpr: Any) -> str | None:
    """Name of a jitted function; None for one of jax's own, around a kernel called on its own."""
    info = getattr(jaxpr, "debug_info", None)
    where = getattr(info, "func_filename", None) or ""
    name = getattr(info, "func_name", None)
    return None if not name or "/jax/_src/" in where.replace("\\", "/") else name


@contextlib.contextmanager
def at_kernel(params: Mapping[str, Any], report: Callable[[Any], None]) -> Iterator[None]:
    """Mark a kernel as the one that this thread lowers.

    Args:
      report: called with an error of ours; the outputs then count as used.
    """
    uses: Sequence[OutputUse] = ()
    if _program.value is not None:
        with guarded("hook", "looking at what uses a kernel's outputs", report):
            uses = _program.value.uses(params)
    with _uses.setting(uses):
        yield


def current_uses(names: Iterable[str]) -> dict[str, OutputUse]:
    """Uses of the outputs, with these names, of the kernel that this thread lowers.

    Empty if they are not known; all outputs then count as used.
    """
    names, uses = list(names), _uses.value
    return dict(zip(names, uses, strict=True)) if len(names) == len(uses) else {}
