"""Loops that never end: each `while` of an interpreted kernel counts iterations, and calls back.

The callback stops a loop if nothing that its condition depends on changes between two iterations,
or if it takes too many and too long, or longer than `stop_after` in HLO interpret mode. The loop's
own jaxpr is extended in place: its carry by a count and the identity of this entry, its body by the
guard, its condition by a term that is always true and keeps XLA from removing the guard's count.
Everything else stays as it was.

`fori_loop` with known bounds is a `scan`, which ends by itself.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src import callback
from jax._src import core as jax_core
from jax._src.interpreters import mlir
from jax._src.lax.control_flow import loops
from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter
from jax._src.state.types import ReadEffect, RefEffect

from pallas_debug import interrupts
from pallas_debug.bridge.interpret import tpu_run
from pallas_debug.bridge.jaxprs import lines, nested
from pallas_debug.bridge.jaxprs.params import name_of
from pallas_debug.findings.faults import Judge
from pallas_debug.findings.sighting import Sighting
from pallas_debug.findings.wording import order, unsupported
from pallas_debug.model import SourceLine, Witness

FIRST, EVERY = 64, 4096
"""The guard calls back at each power of two from `FIRST` on, and at multiples of `EVERY`."""

MANY: Mapping[Judge, int] = {"checks": 1 << 20, "tpu interpret": 1 << 14}
"""Iterations below which a loop may take longer than `hang_after`: at most a minute's worth, and
more than a terminating kernel needs in a test."""

SLOW_MANY, SLOW_AFTER = 1 << 10, 120.0
"""Iterations and seconds after which a slower loop is stopped, if `hang_after` has passed too."""

MAX_VALUES = 8
"""Maximum number of carried scalars that a guard reads."""

MAX_ENTRIES = 4096
"""Number of loop executions whose progress is remembered."""

_I32 = jax_core.ShapedArray((), np.dtype("int32"))


def guarded(params: Mapping[str, Any], engine: Judge) -> dict[str, Any]:
    """Return parameters of an interpreted kernel whose `while` loops end.

    Args:
      engine: `checks` for HLO interpret mode, otherwise `tpu interpret`.
    """
    guard = _Guard(name_of(params), engine)
    if "jaxpr" in params:
        mapping = guard.index_maps(params["grid_mapping"])
        return {**params, "jaxpr": guard.jaxpr(params["jaxpr"]), "grid_mapping": mapping}
    jaxprs = params["jaxprs"]
    return {**params, "jaxprs": type(jaxprs)(map(guard.jaxpr, jaxprs))}


@dataclass(frozen=True, kw_only=True)
class GuardedLoop:
    """A `while` loop of a kernel.

    Attributes:
      names: names of the carried scalars on which its condition depends.
      is_closed: whether the condition depends only on these and on memory that the loop does not
        change: then only another core or device can end it.
      reads: whether the condition depends on memory.
      unchanged: names whose values the body returns unchanged.
    """

    kernel: str
    engine: Judge
    source: SourceLine | None
    names: tuple[str, ...]
    is_closed: bool
    reads: bool
    unchanged: tuple[str, ...]


@dataclass(kw_only=True)
class _Entry:
    """One execution of a loop.

    Attributes:
      clocks: time and CPU time at its begin.
      same: iteration and time since which neither the values nor any memory have changed.
      changes: number of changes to memory, by all cores and devices.
    """

    clocks: tuple[float, float]
    same: tuple[int, float]
    values: tuple[Any, ...]
    changes: int

    def move(self, same: tuple[int, float], values: tuple[Any, ...], changes: int) -> None:
        self.same, self.values, self.changes = same, values, changes


class _Guard:
    def __init__(self, kernel: str, engine: Judge) -> None:
        self._kernel = kernel
        self._engine: Judge = engine

    def jaxpr(self, jaxpr: Any) -> Any:
        """Return a jaxpr with guards; the same object if there is no loop in it."""
        return nested.replaced(jaxpr, self._equation)

    def index_maps(self, mapping: Any) -> Any:
        """Return a grid mapping with guards in its index maps; the same object without loops."""
        old = mapping.block_mappings
        new = [self._block(block) for block in old]
        if all(one is other for one, other in zip(new, old, strict=True)):
            return mapping
        return mapping.replace(block_mappings=tuple(new))

    def _block(self, block: Any) -> Any:
        guarded_map = nested.replaced_within(block.index_map_jaxpr, self._equation)
        if guarded_map is block.index_map_jaxpr:
            return block
        return block.replace(index_map_jaxpr=guarded_map)

    def _equation(self, eqn: Any, _: int) -> Any:
        return self._loop(eqn) if eqn.primitive is loops.while_p else eqn

    def _loop(self, eqn: Any) -> Any:
        params = eqn.params
        cond, body = (
            nested.opened(params["cond_jaxpr"])[0],
            nested.opened(params["body_jaxpr"])[0],
        )
        of_body = body.invars[params["body_nconsts"] :]
        needed = _depends_on(eqn, cond, body)
        scalars = [i for i in sorted(needed.carried) if of_body[i].aval.shape == ()][:MAX_VALUES]
        given = (cond.debug_info.arg_names or ())[params["cond_nconsts"] :]
        names = [(given[i] if i < len(given) else "") or f"value {i}" for i in scalars]
        same = [body.outvars[i] is of_body[i] for i in scalars]
        loop = GuardedLoop(
            kernel=self._kernel,
            engine=self._engine,
            source=lines.source_of(eqn),
            names=tuple(names),
            is_closed=needed.carried == set(scalars) and _is_closed(eqn, cond, body, needed.refs),
            reads=bool(needed.refs),
            unchanged=tuple(name for name, is_same in zip(names, same, strict=True) if is_same),
        )
        guard, _ = nested.opened(
            jax.make_jaxpr(_guarding(loop))(
                *(jax.ShapeDtypeStruct((), "int32") for _ in range(2)),
                *(jax.ShapeDtypeStruct((), of_body[i].aval.dtype) for i in scalars),
            )
        )
        known = dict(zip(guard.invars[2:], (of_body[i] for i in scalars), strict=True))
        goes_on, _ = nested.opened(
            jax.make_jaxpr(lambda holds, count, entry: holds & (entry >= np.int32(0)))(
                jax.ShapeDtypeStruct((), "bool"), *_two_counters()
            )
        )
        holds = {goes_on.invars[0]: cond.outvars[0]}
        ends, _ = nested.opened(jax.make_jaxpr(lambda count, entry: ())(*_two_counters()))
        new_body = _extended(
            body, guard.invars[:2], [*nested.renamed(guard, known), *body.eqns], guard.outvars
        )
        new_cond = _extended(
            cond, goes_on.invars[1:], [*cond.eqns, *nested.renamed(goes_on, holds)]
        )
        zero = jax_core.Literal(np.int32(0), _I32)
        return eqn.replace(
            invars=[*eqn.invars, zero, zero],
            outvars=[*eqn.outvars, *ends.invars],
            params={
                **params,
                "cond_jaxpr": nested.closed_as(
                    params["cond_jaxpr"], new_cond.replace(outvars=list(goes_on.outvars))
                ),
                "body_jaxpr": nested.closed_as(params["body_jaxpr"], new_body),
            },
        )


def _two_counters() -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct((), "int32")] * 2


def _extended(
    jaxpr: Any, invars: Sequence[Any], eqns: Sequence[Any], outvars: Sequence[Any] = ()
) -> Any:
    """Return a jaxpr with more inputs, outputs and equations."""
    info = jaxpr.debug_info
    names, paths = info.arg_names, info.result_paths
    return jaxpr.replace(
        invars=[*jaxpr.invars, *invars],
        outvars=[*jaxpr.outvars, *outvars],
        eqns=list(eqns),
        debug_info=info._replace(
            arg_names=names and (*names, *("" for _ in invars)),
            result_paths=paths and (*paths, *("" for _ in outvars)),
        ),
    )


@dataclass(frozen=True, kw_only=True)
class _Dependency:
    """Values on which the condition of a loop depends, in this iteration or a later one.

    Attributes:
      carried: indices of carried values.
      refs: references that are read, as variables outside of the loop.
    """

    carried: frozenset[int]
    refs: frozenset[Any]


def _depends_on(eqn: Any, cond: Any, body: Any) -> _Dependency:
    n_cond, n_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    of_body, carried = body.invars[n_body:], set[int]()
    used = _used(cond, cond.outvars)
    outer = [n for n, atom in enumerate(eqn.invars) if not isinstance(atom, jax_core.Literal)]
    refs = {eqn.invars[i] for i in outer if i < n_cond and cond.invars[i] in used}
    more = {i for i, variable in enumerate(cond.invars[n_cond:]) if variable in used}
    while more - carried:
        carried |= more
        used = _used(body, [body.outvars[i] for i in carried])
        more = {i for i, variable in enumerate(of_body) if variable in used}
        within = [i for i in outer if n_cond <= i < n_cond + n_body]
        refs |= {eqn.invars[i] for i in within if body.invars[i - n_cond] in used}
    refs = set(filter(nested.is_ref, refs))
    return _Dependency(carried=frozenset(carried), refs=frozenset(refs))


def _used(jaxpr: Any, atoms: Sequence[Any]) -> set[Any]:
    """Variables on which some outputs of a jaxpr depend."""
    used = set(nested.variables(atoms))
    for eqn in reversed(jaxpr.eqns):
        if any(variable in used for variable in eqn.outvars):
            used.update(nested.variables(eqn.invars))
    return used


_HIDDEN = ("prng", "callback", "semaphore", "dma", "infeed", "rng_bit")
"""Primitives, by part of their name, with a state that is not visible as an effect."""


def _is_closed(eqn: Any, cond: Any, body: Any, refs: frozenset[Any]) -> bool:
    """Return whether a loop changes nothing its condition depends on, except carried values."""
    n_cond = eqn.params["cond_nconsts"]
    for jaxpr, first in ((cond, 0), (body, n_cond)):
        for effect in jaxpr.effects:
            if isinstance(effect, ReadEffect):
                continue
            if not isinstance(effect, RefEffect) or _outside(eqn, jaxpr, first, effect) in refs:
                return False
    return not any(
        part in name
        for jaxpr in (cond, body)
        for name in nested.primitives(jaxpr)
        for part in _HIDDEN
    )


def _outside(eqn: Any, jaxpr: Any, first: int, effect: Any) -> Any:
    """The reference that an effect of a loop's inner jaxpr is on, outside of the loop."""
    at = effect.input
    index = at if isinstance(at, int) else jaxpr.invars.index(at)
    return eqn.invars[first + index]


def _guarding(loop: GuardedLoop) -> Callable[..., Any]:
    """Return a loop's guard: a function of count, entry and values to the next count and entry."""
    look = _looking(loop)

    def guard(count: Any, entry: Any, *values: Any) -> Any:
        count = count + np.int32(1)
        is_power = (count & (count - np.int32(1))) == 0
        is_due = (is_power & (count >= FIRST)) | ((count & np.int32(EVERY - 1)) == 0)

        def ask() -> Any:
            if loop.engine == "checks":
                return look_p.bind(count, entry, *values, look=look)
            return jax.pure_callback(
                look, jax.ShapeDtypeStruct((), jnp.int32), count, entry, *values
            )

        return count, lax.cond(is_due, ask, lambda: entry)

    return guard


# Not `jax.pure_callback`: XLA removes a loop without side effects if it can replace each of its
# results by a constant, and a kernel that waits for ever would return. In TPU interpret mode it
# knows no count of a semaphore, and with jax 0.12 such a callback in a core's thread may hang.
look_p = jax_core.Primitive("pallas_debug_loop_guard")
look_p.def_abstract_eval(lambda *_, look: _I32)


def _lowered_look(context: Any, *nodes: Any, look: Callable[..., np.ndarray]) -> Any:
    results, _, _ = callback.emit_python_callback(
        context,
        lambda *values: (look(*values),),
        None,
        list(nodes),
        context.avals_in,
        context.avals_out,
        has_side_effect=True,
        returns_token=False,
        sharding=callback._callback_op_sharding(
            context.module_context.axis_context, None, context.avals_out
        ),
    )
    return results


mlir.register_lowering(look_p, _lowered_look, cacheable=False)

_lock = threading.Lock()
_entries: OrderedDict[int, _Entry] = OrderedDict()
_numbers = itertools.count(1)


def _looking(loop: GuardedLoop) -> Callable[..., np.ndarray]:
    def look(count: Any, entry: Any, *values: Any) -> np.ndarray:
        run = tpu_run.current_run()
        if run is not None:
            run.progress()
            interrupts.end_if_since(run.interrupts)
        now = tuple(np.asarray(value)[()] for value in values)
        number = _enter(loop, int(np.asarray(count)), int(np.asarray(entry)), now)
        return np.asarray(number, np.int32)

    if loop.engine == "checks":
        return look
    # Also ends the other cores and devices. jax's wrapper takes the first arguments for its own.
    failing = interpreter.fail_on_exception(lambda token, device, core, *rest: look(*rest))

    def look_and_fail(*args: Any) -> Any:
        if interpreter._shared_memory is None:
            return look(*args)
        return failing(0, 0, 0, *args)

    return look_and_fail


def _enter(loop: GuardedLoop, count: int, number: int, values: tuple[Any, ...]) -> int:
    """Record the progress of a loop, and return the number of this execution.

    Raises:
      KernelFault: the loop does not end.
    """
    run, clocks = tpu_run.current_run(), tpu_run.clocks()
    now = clocks[0]
    changes = 0 if run is None else run.changes
    with _lock:
        entry = _entries.get(number)
        if entry is None:
            number = next(_numbers) % (1 << 30) + 1
            _entries[number] = _Entry(
                clocks=clocks, same=(count, now), values=values, changes=changes
            )
            while len(_entries) > MAX_ENTRIES:
                _entries.popitem(last=False)
            return number
        # Another core or device could still change what the loop reads.
        is_certain = not loop.reads or loop.engine == "checks" or _is_alone(run)
        is_same = (is_certain or changes == entry.changes) and all(
            old.tobytes() == new.tobytes() for old, new in zip(entry.values, values, strict=True)
        )
        if not is_same:
            entry.move((count, now), values, changes)
    limit = min((r.hang_after for r in tpu_run.reporters if r.hang_after is not None), default=None)
    seconds, since = now - entry.clocks[0], None
    most = tpu_run.time_limit() if loop.engine == "checks" else None
    if most is not None and min(tpu_run.spent_since(entry.clocks)) >= most:
        seen = _seen(loop, count, values)
        raise tpu_run.stop(unsupported.too_slow(seen, "hlo", grid=(), seconds=seconds))
    if is_same and loop.is_closed:
        idle = now - entry.same[1]
        since = entry.same[0] if is_certain or (limit is not None and idle >= limit) else None
    if since is None and (limit is None or not _is_too_long(loop, count, seconds, limit)):
        return number
    with _lock:
        _entries.pop(number, None)
    raise tpu_run.stop(_finding(loop, count, seconds, values, since))


def _is_alone(run: tpu_run.KernelRun | None) -> bool:
    """Return whether the kernel runs on a single core of a single device."""
    return run is not None and len(run.devices) <= 1 and run.memory.num_cores <= 1


def _is_too_long(loop: GuardedLoop, count: int, seconds: float, limit: float) -> bool:
    return (count >= MANY[loop.engine] and seconds >= limit) or (
        count >= SLOW_MANY and seconds >= max(limit, SLOW_AFTER)
    )


def _seen(loop: GuardedLoop, count: int, values: Sequence[Any]) -> Sighting:
    shown = dict(zip(loop.names, map(str, values), strict=True))
    witness = Witness(source=loop.source, loop=(count,), values=shown)
    return Sighting(kernel=loop.kernel, engine=loop.engine, witness=witness)


def _finding(
    loop: GuardedLoop, count: int, seconds: float, values: Sequence[Any], since: int | None
) -> Any:
    seen = _seen(loop, count, values)
    shown = seen.witness.values
    return order.endless_loop(
        seen, count=count, seconds=seconds, values=shown, since=since, unchanged=loop.unchanged
    )
