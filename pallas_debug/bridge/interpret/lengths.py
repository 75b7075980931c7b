"""Detection of kernels that take too long to interpret: a huge grid, or loops of huge fixed length.

A `fori_loop` with known bounds is a `scan`. It always ends, unlike the loops of `endless`, but
possibly only after days. Loops whose length depends on data are counted as they run.

A kernel in HLO interpret mode is also stopped if it takes longer than `stop_after`: it checks the
time at each grid point and in each `fori_loop` of fixed length, and `endless` in each loop whose
length depends on data. `tpu_run` and the kernel machine do so in the other modes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax
from jax._src import core as jax_core
from jax._src.lax.control_flow import loops
from jax._src.pallas.primitives import program_id_p

from pallas_debug import defaults
from pallas_debug.bridge.interpret import tpu_run
from pallas_debug.bridge.interpret.endless import look_p
from pallas_debug.bridge.jaxprs import lines, nested
from pallas_debug.bridge.jaxprs.params import jaxprs_of, name_of
from pallas_debug.errors import InterpretModeError
from pallas_debug.findings.sighting import Sighting
from pallas_debug.findings.wording import unsupported
from pallas_debug.model import Witness
from pallas_debug.render import quoted

FEW_POINTS = 64
"""Number of grid points up to which one of them may take so long that every loop is timed."""

FIRST, EVERY = 64, 1024
"""An inner loop checks the time at each power of two from `FIRST` on, and at multiples of `EVERY`;
an outer one of a kernel with few grid points also at those before, as an iteration may be long."""

_I32 = jax_core.ShapedArray((), np.dtype("int32"))


@dataclass(frozen=True, kw_only=True)
class _Length:
    """Steps of a jaxpr: iterations of its innermost loops, 1 without any.

    Attributes:
      accesses: the same, counting only loops that access memory.
      loop: the equation of the longest loop.
      iterations: iterations of that loop, each time that it is entered.
    """

    steps: int = 1
    accesses: int = 1
    loop: Any = None
    iterations: int = 0


def require_short(params: Mapping[str, Any], kind: str) -> None:
    """Refuse a kernel whose grid and fixed loops would keep an interpreter busy for hours.

    Args:
      params: parameters of `pallas_call`, `core_map` or `mpmd_map`.
      kind: the interpret mode.

    Raises:
      InterpretModeError: the kernel has more steps than the limit.
    """
    mapping = params.get("grid_mapping")
    grid = () if mapping is None else tuple(mapping.grid)
    points = math.prod(size for size in grid if isinstance(size, int))
    length = max(map(_length, jaxprs_of(params)), key=lambda found: found.steps, default=_Length())
    most = defaults.MAX_STEPS if kind in ("hlo", "auto") else defaults.MAX_SIMULATED_STEPS
    accesses = points * length.accesses
    if points * length.steps <= defaults.MAX_STEPS and accesses <= most:
        return
    if points * length.steps > defaults.MAX_STEPS:
        most, accesses = defaults.MAX_STEPS, points * length.steps
    parts = [f"its grid {_text(grid)} has {points:,} points"] if points > 1 else []
    if length.loop is not None:
        source = lines.source_of(length.loop)
        at = "" if source is None else f" at {quoted(source)}"
        parts.append(f"a loop in it has {length.iterations:,} iterations{at}")
    raise InterpretModeError(
        f"kernel `{name_of(params)}` is too long to be interpreted: {' and '.join(parts)}. That "
        f"is {accesses:,} steps, but at most {most:,} are run {_MODES.get(kind, 'here')}. Call it "
        "with smaller arguments here, or run it on a TPU"
    )


def limited(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters of a kernel in HLO interpret mode that ends at the time limit, if any.

    Where `vmap` adds axes to the grid, the limit applies to each of their indices.

    Args:
      params: parameters of a Pallas primitive; only `pallas_call` has a grid.
    """
    mapping = params.get("grid_mapping")
    if mapping is None or tpu_run.time_limit() is None:
        return dict(params)
    known = [size if isinstance(size, int) else FEW_POINTS for size in mapping.grid]
    timer = _Timer(kernel=name_of(params), is_long=math.prod(known) <= FEW_POINTS)
    jaxpr = nested.replaced(params["jaxpr"], timer.loop)
    mapped = set(getattr(mapping, "vmapped_dims", ()))
    sizes = [size for axis, size in enumerate(mapping.grid) if axis not in mapped]
    if not sizes:
        return {**params, "jaxpr": jaxpr}
    grid = () if mapped else tuple(n if isinstance(n, int) else None for n in sizes)
    ids = [jax_core.Var(_I32) for _ in sizes]
    guard, _ = nested.opened(
        jax.make_jaxpr(lambda *point: look_p.bind(*point, look=_looking(jaxpr, params, grid)))(
            *(jax.ShapeDtypeStruct((), "int32") for _ in sizes)
        )
    )
    numbers = [
        jax_core.new_jaxpr_eqn([], [var], program_id_p, {"axis": axis}, jax_core.no_effects)
        for axis, var in enumerate(ids)
    ]
    looks = [eqn.replace(invars=ids) for eqn in guard.eqns]
    return {**params, "jaxpr": jaxpr.replace(eqns=[*numbers, *looks, *jaxpr.eqns])}


@dataclass(frozen=True, kw_only=True)
class _Timer:
    """Adds checks of the time to the loops of fixed length of a kernel.

    Attributes:
      is_long: whether a single iteration of an outer loop may take long.
    """

    kernel: str
    is_long: bool

    def loop(self, eqn: Any, depth: int) -> Any:
        """Return a loop of fixed length that checks the time; other equations as they are."""
        first = 0 if self.is_long and depth == 0 else FIRST
        if eqn.primitive is not loops.scan_p or eqn.params["length"] <= max(first, 1):
            return eqn
        if nested.loop_counter(eqn.params) is None:
            if any(map(nested.is_ref, nested.scan_operands(eqn.params, eqn.invars)[2])):
                return eqn  # its effects name positions behind the counter's
            eqn = nested.with_counter(eqn)
        counter = nested.loop_counter(eqn.params)
        body, _ = nested.opened(eqn.params["jaxpr"])
        look = self._looking(eqn)

        def check(i: Any) -> Any:
            is_power = (i & (i - np.int32(1))) == 0
            is_due = (is_power & (i >= first)) | ((i & np.int32(EVERY - 1)) == 0) & (i > 0)
            return lax.cond(is_due, lambda: look_p.bind(i, look=look), lambda: np.int32(0))

        guard, _ = nested.opened(jax.make_jaxpr(check)(jax.ShapeDtypeStruct((), "int32")))
        checks = nested.renamed(guard, {guard.invars[0]: counter})
        timed = nested.closed_as(eqn.params["jaxpr"], body.replace(eqns=[*checks, *body.eqns]))
        return eqn.replace(params={**eqn.params, "jaxpr": timed})

    def _looking(self, eqn: Any) -> Callable[..., np.ndarray[Any, Any]]:
        """Return the host function that a loop calls with its counter."""
        source, length = lines.source_of(eqn), int(eqn.params["length"])
        _, (start, *_), _ = nested.scan_operands(eqn.params, eqn.invars)
        is_from_zero = isinstance(start, jax_core.Literal) and start.val == 0
        begin, first, last = tpu_run.clocks(), 0, math.inf

        def look(i: Any) -> np.ndarray[Any, Any]:
            nonlocal begin, first, last
            done, limit = int(np.asarray(i)), tpu_run.time_limit()
            if done <= last:  # the loop has begun again
                begin, first = tpu_run.clocks(), done
            last = done
            seconds = tpu_run.spent_since(begin)
            if limit is not None and min(seconds) >= limit:
                witness = Witness(source=source, loop=(done,))
                seen = Sighting(kernel=self.kernel, engine="checks", witness=witness)
                total = length if is_from_zero else None
                raise tpu_run.stop(
                    unsupported.too_slow(
                        seen, "hlo", seconds=seconds[0], iterations=total, timed=done - first
                    )
                )
            return np.asarray(0, np.int32)

        return look


def _looking(
    jaxpr: Any, params: Mapping[str, Any], grid: tuple[int | None, ...]
) -> Callable[..., np.ndarray[Any, Any]]:
    """Return the host function that a kernel calls with each grid point."""
    name, source = name_of(params), lines.of_function(jaxpr.debug_info)
    begin = tpu_run.clocks()

    def look(*ids: Any) -> np.ndarray[Any, Any]:
        nonlocal begin
        point, limit = tuple(int(np.asarray(one)) for one in ids), tpu_run.time_limit()
        if not any(point):
            begin = tpu_run.clocks()
        seconds = tpu_run.spent_since(begin)
        if limit is not None and min(seconds) >= limit:
            witness = Witness(source=source, grid_point=point)
            seen = Sighting(kernel=name, engine="checks", witness=witness)
            raise tpu_run.stop(unsupported.too_slow(seen, "hlo", grid=grid, seconds=seconds[0]))
        return np.asarray(0, np.int32)

    return look


_MODES = {
    "auto": "in HLO interpret mode",
    "hlo": "in HLO interpret mode",
    "tpu": "in TPU interpret mode",
    "machine": "on the kernel machine",
}


def _length(jaxpr: Any) -> _Length:
    found = _Length()
    for eqn in jaxpr.eqns:
        found = _longer(found, _of_equation(eqn))
    return found


def _of_equation(eqn: Any) -> _Length:
    inner = _Length()
    for one in nested.within(eqn.params):
        inner = _longer(inner, _length(nested.opened(one)[0]))
    if eqn.primitive is not loops.scan_p:
        return inner
    iterations = int(eqn.params["length"])
    is_longest = inner.loop is None or iterations >= inner.iterations
    return _Length(
        steps=iterations * inner.steps,
        accesses=inner.accesses * (iterations if eqn.effects else 1),
        loop=eqn if is_longest else inner.loop,
        iterations=iterations if is_longest else inner.iterations,
    )


def _longer(one: _Length, other: _Length) -> _Length:
    longest = max(one, other, key=lambda found: found.iterations)
    return _Length(
        steps=max(one.steps, other.steps),
        accesses=max(one.accesses, other.accesses),
        loop=longest.loop,
        iterations=longest.iterations,
    )


def _text(grid: tuple[Any, ...]) -> str:
    sizes = [str(size) if isinstance(size, int) else "?" for size in grid]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
