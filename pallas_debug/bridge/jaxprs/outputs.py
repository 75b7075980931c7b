"""Uses of the outputs of kernels in a program: backward dataflow, nothing runs.

This is conservative: if the flow is not known in detail, everything computed from a value counts.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pallas_debug.bridge import jaxcompat
from pallas_debug.bridge.jaxcompat import conditionals, jax_core, loops
from pallas_debug.bridge.jaxprs import nested, reads
from pallas_debug.bridge.jaxprs.reads import KERNELS
from pallas_debug.findings.outputs import Box, OutputUse
from pallas_debug.guards import guarded

Results = frozenset[int]
"""Numbers of a program's results, or `_EFFECT`."""

_NONE: Results = frozenset()
_EFFECT = -1

_ONE_TO_ONE = ("shard_map", "closed_call", "core_call", "custom_vmap_call")
"""Names of further primitives that call a jaxpr with their inputs, for their outputs."""


def reached(program: Any, kernel: Callable[[Any], Any]) -> dict[Any, list[Results]]:
    """Results of a program that each output of a kernel reaches, over all calls of the kernel.

    Args:
      program: a jaxpr.
      kernel: returns the key of the kernel that an equation calls.
    """
    walk = _Walk(kernel)
    walk.run(program, [frozenset([n]) for n in range(len(jaxcompat.opened(program)[0].outvars))])
    return walk.reached


def is_effect(results: Results) -> bool:
    """Return whether a value is used for something other than results, such as a print."""
    return _EFFECT in results


class _Walk:
    """Walks a program backwards, from its results to their inputs."""

    def __init__(self, kernel: Callable[[Any], Any]) -> None:
        self.reached: dict[Any, list[Results]] = {}
        self._kernel = kernel

    def run(self, jaxpr: Any, outputs: Sequence[Results]) -> list[Results]:
        """Return what each input of a jaxpr reaches, by what its outputs do."""
        inner, _ = jaxcompat.opened(jaxpr)
        known: dict[Any, Results] = {}

        def add(atoms: Sequence[Any], results: Sequence[Results]) -> None:
            for atom, found in zip(atoms, results, strict=True):
                if not isinstance(atom, jax_core.Literal):
                    known[atom] = known.get(atom, _NONE) | found

        add(inner.outvars, outputs)
        for eqn in reversed(inner.eqns):
            out = [known.get(var, _NONE) for var in eqn.outvars]
            if _has_effect(eqn):
                out = [results | {_EFFECT} for results in out]
            add(eqn.invars, self._equation(eqn, out))
        return [known.get(var, _NONE) for var in inner.invars]

    def _equation(self, eqn: Any, out: Sequence[Results]) -> Sequence[Results]:
        all_of_it = _NONE.union(*out)
        if _has_effect(eqn):
            all_of_it |= {_EFFECT}
        if eqn.primitive.name in KERNELS:
            self._add(eqn, out)
        elif nested.inlined(eqn) is not None:
            inner = eqn.params.get("jaxpr") or eqn.params["call_jaxpr"]
            found = self.run(inner, out)
            if len(found) == len(eqn.invars):
                return found
        elif eqn.primitive is conditionals.cond_p:
            return self._cond(eqn, out, all_of_it)
        elif eqn.primitive is loops.scan_p:
            return self._scan(eqn, out)
        elif eqn.primitive is loops.while_p:
            return self._while(eqn, out, all_of_it)
        else:
            same = eqn.primitive.name in _ONE_TO_ONE
            for inner in nested.within(eqn.params):
                count = len(jaxcompat.opened(inner)[0].outvars)
                is_same = same and count == len(out)
                found = self.run(inner, out if is_same else [all_of_it] * count)
                if is_same and len(found) == len(eqn.invars):
                    return found
        return [all_of_it] * len(eqn.invars)

    def _add(self, eqn: Any, out: Sequence[Results]) -> None:
        key = self._kernel(eqn)
        before = self.reached.get(key, [_NONE] * len(out))
        self.reached[key] = [a | b for a, b in zip(before, out, strict=True)]

    def _cond(self, eqn: Any, out: Sequence[Results], all_of_it: Results) -> list[Results]:
        found = [self.run(branch, out) for branch in eqn.params["branches"]]
        return [all_of_it, *(_NONE.union(*results) for results in zip(*found, strict=True))]

    def _scan(self, eqn: Any, out: Sequence[Results]) -> list[Results]:
        n_consts, n_carry = jaxcompat.scan_sizes(eqn.params)
        split = n_consts + n_carry
        carry = list(out[:n_carry])
        while True:
            found = self.run(eqn.params["jaxpr"], [*carry, *out[n_carry:]])
            following = _either(carry, found[n_consts:split])
            if following == carry:
                return [*found[:n_consts], *carry, *found[split:]]
            carry = following

    def _while(self, eqn: Any, out: Sequence[Results], all_of_it: Results) -> list[Results]:
        n_cond, n_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        decides = self.run(eqn.params["cond_jaxpr"], [all_of_it])
        carry = _either(out, decides[n_cond:])
        while True:
            found = self.run(eqn.params["body_jaxpr"], carry)
            following = _either(carry, found[n_body:])
            if following == carry:
                return [*decides[:n_cond], *found[:n_body], *carry]
            carry = following


def _either(a: Sequence[Results], b: Sequence[Results]) -> list[Results]:
    return [x | y for x, y in zip(a, b, strict=True)]


def _has_effect(eqn: Any) -> bool:
    """Return whether an equation, other than a call, branch or loop, has a side effect."""
    named = jax_core.NamedAxisEffect
    effects = [effect for effect in eqn.effects if not isinstance(effect, named)]
    return bool(effects) and not nested.within(eqn.params)


# The program that a thread is lowering, and the kernel in it.

_local = threading.local()


def lowering_programs(lower: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap jax's lowering of a whole program: its kernels' lowering rules see only themselves."""

    @functools.wraps(lower)
    def lower_program(module_name: str, jaxpr: Any, *args: Any, **kwargs: Any) -> Any:
        before = getattr(_local, "program", None)
        _local.program = _Program(jaxpr)
        try:
            return lower(module_name, jaxpr, *args, **kwargs)
        finally:
            _local.program = before

    return lower_program


class _Program:
    def __init__(self, jaxpr: Any) -> None:
        self._jaxpr = jaxpr

    @functools.cached_property
    def _read(self) -> dict[Any, list[Box | None]]:
        return reads.parts(self._jaxpr, lambda eqn: _identity(eqn.params))

    @functools.cached_property
    def _reached(self) -> dict[Any, list[Results]]:
        return reached(self._jaxpr, lambda eqn: _identity(eqn.params))

    def uses(self, params: Mapping[str, Any]) -> list[OutputUse]:
        found = self._reached.get(_identity(params), ())  # a lowering rule may have retraced it
        read = self._read.get(_identity(params), ())
        jaxpr = jaxcompat.opened(self._jaxpr)[0]
        return [
            OutputUse(
                results=results - {_EFFECT},
                count=len(jaxpr.outvars),
                is_certain=is_effect(results),
                program=_name(jaxpr),
                read=part,
            )
            for results, part in zip(found, read, strict=True)
        ]


def _identity(params: Mapping[str, Any]) -> tuple[int, ...]:
    """Key of a kernel within one program, which its jaxprs outlive."""
    return tuple(map(id, nested.within(params)))


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
    before = getattr(_local, "uses", ())
    _local.uses = ()
    program = getattr(_local, "program", None)
    if program is not None:
        with guarded("hook", "looking at what uses a kernel's outputs", report):
            _local.uses = program.uses(params)
    try:
        yield
    finally:
        _local.uses = before


def current_uses(names: Iterable[str]) -> dict[str, OutputUse]:
    """Uses of the outputs, with these names, of the kernel that this thread lowers.

    Empty if they are not known; all outputs then count as used.
    """
    uses: Sequence[OutputUse] = getattr(_local, "uses", ())
    names = list(names)
    return dict(zip(names, uses, strict=True)) if len(names) == len(uses) else {}
