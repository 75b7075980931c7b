"""Lowers kernels with checks and prints put into them, and hands over what they say.

Where an observer is at work, a kernel is not lowered as it is: its instrumented form is
(`instrument.py`), and the program calls back behind the kernel, not within it, with the words that
its checks left. Where those only say that something may have failed, the callback runs the kernel
a second time to learn what (`again.py`). Prints call back where they stand, as they do without us,
but say from where.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np
from jax._src import callback as callback_lib
from jax._src import core as jax_core
from jax._src.interpreters import mlir
from jax._src.lib import xla_client
from jax._src.lib.mlir import ir

from pallas_debug.bridge.instrument import again, instrument
from pallas_debug.bridge.instrument.recording import READ
from pallas_debug.bridge.instrument.sites import Site, SiteFailure
from pallas_debug.bridge.interpret import launched
from pallas_debug.bridge.jaxprs import lines
from pallas_debug.bridge.jaxprs.params import name_of
from pallas_debug.errors import PallasDebugError
from pallas_debug.guards import problem_of
from pallas_debug.model import PrintRecord, SourceLine


@dataclass(frozen=True, kw_only=True)
class CheckedRun:
    """What the checks of one launch of a kernel said.

    Attributes:
      call: where the kernel is called, at its `grid=` if that has a line.
      failures: in the order in which they first happened.
      sites: all that were checked.
      inputs: names of the inputs that held a NaN at the start.
      outputs: for each output that holds a NaN at the end, the smallest slice with all of them.
      uncovered: names of the outputs of which the grid does not reach every block.
    """

    kernel: str
    call: SourceLine | None
    failures: Sequence[SiteFailure]
    sites: Sequence[Site]
    inputs: frozenset[str]
    outputs: Mapping[str, str]
    uncovered: frozenset[str]


class Observer(Protocol):
    """Who asks for checks and prints. Called in threads of the runtime: it must not raise."""

    checks: tuple[str, ...]
    prints: bool

    def checked(self, run: CheckedRun) -> None:
        """A kernel with checks was run."""

    def printed(self, record: PrintRecord) -> None:
        """A kernel printed."""

    def skipped(
        self, kernel: str, reason: str, *, partly: bool = False, is_fault: bool = False
    ) -> None:
        """A kernel could not be given its checks, or what they said was lost.

        Args:
          partly: whether the rest of the kernel is checked.
          is_fault: whether something went wrong, rather than that checks do not know such kernels.
        """


_lock = threading.Lock()
_observers: tuple[Observer, ...] = ()
_local = threading.local()


@contextlib.contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Kernels that are lowered meanwhile, in any thread, are checked for `observer`."""
    global _observers
    with _lock:
        _observers = (*_observers, observer)
    try:
        yield
    finally:
        with _lock:
            _observers = tuple(o for o in _observers if o is not observer)


def _innermost(observer: Observer) -> Observer:
    """Who is to be told now: a program outlives, in jax's caches, whom it was lowered for."""
    observers = _observers
    return observers[-1] if observers else observer


def is_active() -> bool:
    """Whether anybody asks for checks or prints."""
    return bool(_observers)


def is_lowering() -> bool:
    """Whether this thread is lowering a kernel that already has its checks."""
    return bool(getattr(_local, "lowering", False))


def lowered(
    primitive: jax_core.Primitive,
    params: dict[str, Any],
    context: Any,
    nodes: Sequence[Any],
    plain: Callable[[], Callable[..., Any]],
) -> Any:
    """Lower a kernel with its checks; without them where there are none, or where that fails.

    Args:
      plain: gives the lowering rule of the kernel as it is.
    """
    rule = lowering(primitive, params)
    if rule is None:
        return plain()(context, *nodes)
    block = ir.InsertionPoint.current.block
    before = len(block.operations)
    try:
        return rule(context, *nodes)
    except PallasDebugError:
        raise  # what an interpreter found as it looked at the kernel
    except Exception as error:  # noqa: BLE001 - ours is no reason for the program to fail
        for operation in reversed(list(block.operations)[before:]):
            operation.erase()
        results = plain()(context, *nodes)  # raises the same where it is the kernel's own fault
        _fault(_observers[-1], name_of(params), error, "lowering it with its checks")
        return results


def lowering(primitive: jax_core.Primitive, params: dict[str, Any]) -> Callable[..., Any] | None:
    """A lowering rule for the kernel with what the innermost observer asks for.

    None where no observer asks, where there is nothing to check in the kernel, and where its checks
    cannot be put in, of which the observer is told.
    """
    observers = _observers
    if not observers or is_lowering():
        return None
    observer = observers[-1]
    name = "?"
    try:
        name = name_of(params)
        return _lowering(primitive, params, observer, name)
    except instrument.CannotInstrument as error:
        observer.skipped(name, str(error))
    except Exception as error:  # noqa: BLE001 - ours is no reason for the program to fail
        _fault(observer, name, error, "putting checks into it")
    return None


def _lowering(
    primitive: jax_core.Primitive, params: dict[str, Any], observer: Observer, name: str
) -> Callable[..., Any] | None:
    is_interpreted = bool(params.get("interpret"))
    prints = None
    if observer.prints and is_interpreted:

        def prints(record: PrintRecord) -> None:
            _innermost(observer).printed(record)

    if not observer.checks and prints is None:
        return None
    trips = again.can_be_run_again(params)
    made = instrument.instrument(params, observer.checks, prints, trips=trips)
    if made is None or made.layout is None:
        # Nothing in it can fail a check, so that it need not run to have been checked.
        launched.notify(launched.current())
    if made is None:
        return None
    for inner in made.not_entered:
        observer.skipped(name, f"what is inside its `{inner}` is not checked", partly=True)
    return _rule(primitive, params, made, observer, name)


def _fault(observer: Observer, name: str, error: Exception, doing: str) -> None:
    problem = str(problem_of(error, "hook", doing)).removesuffix(".")
    observer.skipped(name, problem, is_fault=True)


def _rule(
    primitive: jax_core.Primitive,
    params: dict[str, Any],
    made: instrument.Instrumented,
    observer: Observer,
    name: str,
) -> Callable[..., Any]:
    def rule(context: Any, *nodes: Any, **_: Any) -> Any:
        if context.module_context.get_backend(optional=True) is None:
            # For a platform that is not here: it is looked at, or compiled for elsewhere.
            return _lower(context, lambda *args: primitive.bind(*args, **params), nodes)
        if made.layout is None:
            return _lower(context, lambda *args: made.bind(primitive, args), nodes)
        chosen, second = made, None
        if made.trips and again.is_on_one_cpu(context):
            second = again.Again(primitive, params, observer.checks, _lowering_ours)
        elif made.trips:
            whole = instrument.instrument(params, observer.checks)
            assert whole is not None  # as it could be given its tripwire
            chosen = whole
        words = chosen.params["out_avals"][-1]
        wider = context.replace(avals_out=(*context.avals_out, words))
        *results, rows = _lower(wider, lambda *args: chosen.bind(primitive, args), nodes)
        if wider.tokens_out is not None:
            context.set_tokens_out(wider.tokens_out)
        arrays, avals = _looked_at(chosen, nodes, results, context)
        told = _telling(chosen, second, observer, name, _call(chosen.params))
        _call_back(context, told, [rows, *arrays], [words, *avals])
        return results

    return rule


def _call(params: Mapping[str, Any]) -> SourceLine | None:
    """Where the kernel is called; where jax does not know, its first line."""
    return lines.of_call("grid") or lines.of_function(params["jaxpr"].debug_info)


def _looked_at(
    made: instrument.Instrumented, nodes: Sequence[Any], results: Sequence[Any], context: Any
) -> tuple[list[Any], list[Any]]:
    """The arrays that expose a NaN read from unwritten memory: inputs, then outputs.

    They are looked at by the host, and only after something failed. Not those of a device: to
    fetch them would cost more than all checks, and there unwritten memory holds anything. To run
    a kernel again, all of its operands are needed.
    """
    assert made.layout is not None
    if made.trips:
        return [*nodes, *results], [*context.avals_in, *context.avals_out]
    if not made.params.get("interpret") or not made.layout.checks("uninitialized"):
        return [], []
    inputs = len(instrument.array_names(made.params)[0])
    nodes, avals = nodes[len(nodes) - inputs :], context.avals_in[len(nodes) - inputs :]
    return [*nodes, *results], [*avals, *context.avals_out]


def _lower(context: Any, run: Callable[..., Any], nodes: Sequence[Any]) -> list[Any]:
    with _lowering_ours():
        return list(mlir.lower_fun(run, multiple_results=True)(context, *nodes))


@contextlib.contextmanager
def _lowering_ours() -> Iterator[None]:
    """In this thread, kernels that are lowered have their checks already."""
    before, _local.lowering = getattr(_local, "lowering", False), True
    try:
        yield
    finally:
        _local.lowering = before


def _telling(
    made: instrument.Instrumented,
    second: again.Again | None,
    observer: Observer,
    name: str,
    call: SourceLine | None,
) -> Callable[..., tuple[()]]:
    layout = made.layout
    assert layout is not None
    inputs, outputs = instrument.array_names(made.params)
    uncovered = instrument.uncovered(made.params)
    looks_for_nan = layout.checks("uninitialized")

    def run_again(
        second: again.Again,
        tripped: int,
        args: Sequence[np.ndarray],
        results: Sequence[np.ndarray],
    ) -> Sequence[SiteFailure]:
        if not tripped:
            return ()
        try:
            seen = second.run(args, results)
        except Exception as error:  # noqa: BLE001 - ours is no reason for the program to fail
            reason = f"{type(error).__name__} in the second run that says which one: {error}"
            _innermost(observer).skipped(
                name, f"a check failed in it, with {reason}", is_fault=True
            )
            return ()
        if seen.misses(tripped):
            _innermost(observer).skipped(
                name,
                "a check failed in it, and not again in the second run that says which one",
                is_fault=True,
            )
        return seen.failures

    tokens = launched.current()

    def tell(rows: np.ndarray, *arrays: np.ndarray) -> tuple[()]:
        launched.notify(tokens)
        try:
            read(rows, *arrays)
        except Exception as error:  # noqa: BLE001 - ours is no reason for the program to fail
            _fault(_innermost(observer), name, error, "reading what its checks said")
        return ()

    def read(rows: np.ndarray, *arrays: np.ndarray) -> None:
        split = max(len(arrays) - len(outputs), 0)
        args, results = arrays[:split], arrays[split:]
        written = zip(outputs, results, strict=False) if looks_for_nan else ()
        boxes = {n: _box_of_nan(n, a) for n, a in written}
        if second is None:
            failures: Sequence[SiteFailure] = layout.read(np.asarray(rows))
        else:
            tripped = int(np.bitwise_or.reduce(rows, axis=None))
            # Nothing comes of a NaN that was read and shows nowhere.
            matters = tripped != READ or any(boxes.values())
            failures = run_again(second, tripped, args, results) if matters else ()
        # Inputs matter only where a NaN was read or kept.
        asks = looks_for_nan and (any(boxes.values()) or bool(failures))
        with_nan = zip(reversed(inputs), reversed(args), strict=False) if asks else ()
        _innermost(observer).checked(
            CheckedRun(
                kernel=name,
                call=call,
                failures=failures,
                sites=layout.sites,
                inputs=frozenset(n for n, array in with_nan if _is_nan(array).any()),
                outputs={n: box for n, box in boxes.items() if box},
                uncovered=uncovered,
            )
        )

    return tell


def _is_nan(array: np.ndarray) -> Any:
    array = np.asarray(array)
    # ml_dtypes' floats are of no numpy kind; only floats differ from themselves.
    return array != array if array.dtype.kind in "fV" else np.zeros((), bool)


def _box_of_nan(name: str, array: np.ndarray) -> str:
    """`out_ref[16:20, 0:128]`: the smallest slice that holds all NaNs; empty for none."""
    where = _is_nan(array)
    if not where.any():
        return ""
    spans = []
    for axis in range(where.ndim):
        along = np.flatnonzero(where.any(axis=tuple(a for a in range(where.ndim) if a != axis)))
        spans.append(f"{along[0]}:{along[-1] + 1}")
    return f"{name}[{', '.join(spans)}]"


def _call_back(
    context: Any, function: Callable[..., Any], nodes: Sequence[Any], avals: Sequence[Any]
) -> None:
    """Have the program call `function` with these values; once per device under `shard_map`."""
    callback_lib.emit_python_callback(
        context.replace(avals_in=tuple(avals), avals_out=()),
        function,
        None,
        list(nodes),
        list(avals),
        [],
        has_side_effect=True,
        returns_token=False,
        sharding=_sharding(context.module_context.axis_context),
    )


def _sharding(axis_context: Any) -> Any:
    if not hasattr(axis_context, "manual_axes"):
        return None
    if jax.config.jax_use_shardy_partitioner:
        return callback_lib._get_sdy_array_list_for_callbacks(())
    sharding = xla_client.OpSharding()
    sharding.type = xla_client.OpSharding.Type.MANUAL
    return sharding
