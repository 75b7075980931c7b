"""Lowering of kernels with checks and prints inserted, and delivery of their results.

While an observer is active, the instrumented form of a kernel (`instrument.py`) is lowered in place
of the kernel. After the kernel, not within it, the program calls back with the recorded failures.
If those only indicate that something may have failed, the callback runs the kernel a second time to
find out what (`again.py`). Prints call back in place, as usual, but include their location.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import numpy as np
from jax._src import callback as callback_lib
from jax._src import core as jax_core
from jax._src.interpreters import mlir
from jax._src.lib import xla_client

from pallas_debug.bridge import undo as undoing
from pallas_debug.bridge.active import ActiveStack
from pallas_debug.bridge.capture import meshes
from pallas_debug.bridge.instrument import again, instrument
from pallas_debug.bridge.instrument.recording import FILL, READ
from pallas_debug.bridge.instrument.sites import ArrayPart, RecordLayout, Site, SiteFailure, part_of
from pallas_debug.bridge.interpret import launched
from pallas_debug.bridge.jaxprs import lines
from pallas_debug.bridge.jaxprs import outputs as program_outputs
from pallas_debug.bridge.jaxprs.params import name_of
from pallas_debug.errors import PallasDebugError
from pallas_debug.findings.outputs import OutputUses
from pallas_debug.guards import problem_of
from pallas_debug.model import PrintRecord, SourceLine


@dataclass(frozen=True, kw_only=True)
class CheckedRun:
    """Check results of one launch of a kernel.

    Attributes:
      digests: of the kernel, outermost first: an interpreter may lower it as several others.
      call: line of the kernel call, or of its `grid=` if known.
      failures: ordered by first occurrence.
      sites: all sites that were checked.
      inputs: names of the inputs that contained a NaN at the start.
      outputs: for each output with NaNs at the end, where they are.
      filled: for each output that depends on integers that were never written, which part does.
      unwritten: names of boolean buffers that are read but were never written, and that affect
        outputs.
      sees_outputs: whether outputs were inspected; outputs on a device are not.
      uncovered: outputs with blocks that the grid does not reach, by name: whether only a partial
        block is missing.
      uses: which of its outputs the program uses.
      is_empty: whether the grid is known to have had no points.
    """

    kernel: str
    call: SourceLine | None
    failures: Sequence[SiteFailure]
    sites: Sequence[Site]
    inputs: frozenset[str]
    outputs: Mapping[str, ArrayPart]
    filled: Mapping[str, ArrayPart] = field(default_factory=dict)
    unwritten: tuple[str, ...] = ()
    sees_outputs: bool
    uncovered: Mapping[str, bool]
    uses: OutputUses = field(default_factory=dict)
    is_empty: bool = False
    digests: tuple[str, ...] = ()


class Observer(Protocol):
    """Receiver of checks and prints. Called in runtime threads, so it must not raise."""

    checks: tuple[str, ...]
    prints: bool

    def checked(self, run: CheckedRun) -> None:
        """Handle the results of a kernel run with checks."""

    def printed(self, record: PrintRecord) -> None:
        """Handle a print of a kernel."""

    def skipped(
        self, kernel: str, reason: str, *, partly: bool = False, is_fault: bool = False
    ) -> None:
        """Handle a kernel whose checks could not be inserted, or whose results were lost.

        Args:
          partly: whether the rest of the kernel is checked.
          is_fault: whether this is an error, rather than a kernel that checks do not support.
        """


_observers: ActiveStack[Observer] = ActiveStack()
_local = threading.local()


def observing(observer: Observer) -> contextlib.AbstractContextManager[None]:
    """Check kernels for `observer` that are lowered in this context, in any thread."""
    return _observers.adding(observer)


def _innermost(observer: Observer) -> Observer:
    """Current recipient: jax caches programs beyond the lifetime of the observer at lowering."""
    return _observers.innermost or observer


def is_active() -> bool:
    """Return whether any observer is active."""
    return bool(_observers)


def is_lowering() -> bool:
    """Return whether this thread is lowering a kernel that already has its checks."""
    return bool(getattr(_local, "lowering", False))


def lowered(
    primitive: jax_core.Primitive,
    params: dict[str, Any],
    context: Any,
    nodes: Sequence[Any],
    plain: Callable[[], Callable[..., Any]],
) -> Any:
    """Lower a kernel with its checks, or without them if there are none or inserting them fails.

    Args:
      plain: returns the lowering rule for the unmodified kernel.
    """
    observer = _observers.innermost
    if observer is not None and observer.checks and meshes.is_partitioned(context):
        observer.skipped(name_of(params), meshes.PARTITIONED)
        return plain()(context, *nodes)
    rule = lowering(primitive, params)
    if rule is None:
        return plain()(context, *nodes)
    undo = undoing.mark(context)
    try:
        return rule(context, *nodes)
    except PallasDebugError:
        raise  # found by an interpreter while inspecting the kernel
    except Exception as error:  # noqa: BLE001 - ours is no reason for the program to fail
        undo()
        results = plain()(context, *nodes)  # raises the same error if the kernel itself is at fault
        if observer is not None:
            _fault(observer, name_of(params), error, "lowering it with its checks")
        return results


def lowering(primitive: jax_core.Primitive, params: dict[str, Any]) -> Callable[..., Any] | None:
    """Return a lowering rule that adds the innermost observer's checks and prints.

    Returns None without an observer, without anything to check in the kernel, or if checks cannot
    be inserted, which is reported to the observer.
    """
    observer = _observers.innermost
    if observer is None or is_lowering():
        return None
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
    if made is None:
        return _noting(primitive, params) if observer.checks else None
    for inner in made.not_entered:
        observer.skipped(name, f"the body of its `{inner}` is not checked", partly=True)
    return _rule(primitive, params, made, observer, name)


def _noting(primitive: jax_core.Primitive, params: dict[str, Any]) -> Callable[..., Any]:
    """Lowering rule for a kernel in which no check can fail: records that it ran."""

    def rule(context: Any, *nodes: Any, **_: Any) -> Any:
        results = _lower(context, lambda *args: primitive.bind(*args, **params), nodes)
        if context.module_context.get_backend(optional=True) is not None:
            _note_launch(context, results)
        return results

    return rule


def _note_launch(context: Any, results: Sequence[Any]) -> None:
    """Call back after a kernel, with an element of its result, so that it has to run first."""
    tokens = launched.current()

    def note(*_: Any) -> tuple[()]:
        launched.notify(tokens)
        return ()

    outputs = [
        (node, aval)
        for node, aval in zip(results, context.avals_out, strict=False)
        if isinstance(getattr(aval, "dtype", None), np.dtype) and aval.size
    ]
    if not outputs:
        call_back(context, note, [], [])
        return
    node, aval = outputs[0]
    first = jax_core.ShapedArray((), np.dtype(np.float32))  # callbacks do not accept all dtypes
    inner = context.replace(avals_in=(aval,), avals_out=(first,), tokens_in=None, tokens_out=None)
    element = _lower(
        inner, lambda array: [array[(0,) * array.ndim].real.astype(np.float32)], [node]
    )
    call_back(context, note, element, [first])


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
            # The platform is not available here: the kernel is only inspected or cross-compiled.
            return _lower(context, lambda *args: primitive.bind(*args, **params), nodes)
        if made.layout is None:
            results = _lower(context, lambda *args: made.bind(primitive, args), nodes)
            _note_launch(context, results)
            return results
        chosen, second = made, None
        if made.trips and again.is_on_one_cpu(context):
            second = again.Again(primitive, params, observer.checks, _lowering_ours)
        elif made.trips:
            whole = instrument.instrument(params, observer.checks)
            assert whole is not None  # cannot fail, because the tripwire could be inserted
            chosen = whole
        words = chosen.params["out_avals"][-1]
        wider = context.replace(avals_out=(*context.avals_out, words))
        *results, rows = _lower(wider, lambda *args: chosen.bind(primitive, args), nodes)
        if wider.tokens_out is not None:
            context.set_tokens_out(wider.tokens_out)
        arrays, avals = _looked_at(chosen, nodes, results, context)
        reporter = _Reporter(chosen, second, observer, name, _call(chosen.params))
        call_back(context, reporter.report, [rows, *arrays], [words, *avals])
        return results

    return rule


def _call(params: Mapping[str, Any]) -> SourceLine | None:
    """Line of the kernel call; if unknown to jax, the kernel's first line."""
    return lines.of_call() or lines.of_function(params["jaxpr"].debug_info)


def _looked_at(
    made: instrument.Instrumented, nodes: Sequence[Any], results: Sequence[Any], context: Any
) -> tuple[list[Any], list[Any]]:
    """Arrays that expose a NaN read from unwritten memory: inputs, then outputs.

    The host inspects them, and only after a failure. Arrays on a device are left out: fetching them
    would cost more than all checks, and unwritten memory there can contain anything. To run a
    kernel again, all of its operands are needed.
    """
    assert made.layout is not None
    if made.trips:
        return [*nodes, *results], [*context.avals_in, *context.avals_out]
    # The kernel machine interprets kernels that are not marked so; a CPU cannot do otherwise.
    is_interpreted = made.params.get("interpret") or again.is_on_cpus(context)
    if not is_interpreted or not _looks_for_nan(made.layout):
        return [], []
    inputs = len(instrument.array_names(made.params)[0])
    nodes, avals = nodes[len(nodes) - inputs :], context.avals_in[len(nodes) - inputs :]
    return [*nodes, *results], [*avals, *context.avals_out]


def _looks_for_nan(layout: RecordLayout) -> bool:
    return layout.checks("uninitialized") or layout.checks("nan")


def _lower(context: Any, run: Callable[..., Any], nodes: Sequence[Any]) -> list[Any]:
    with _lowering_ours():
        return list(mlir.lower_fun(run, multiple_results=True)(context, *nodes))


@contextlib.contextmanager
def _lowering_ours() -> Iterator[None]:
    """Mark kernels lowered in this thread as already having their checks."""
    before, _local.lowering = getattr(_local, "lowering", False), True
    try:
        yield
    finally:
        _local.lowering = before


class _Reporter:
    """Reports to the observer, after each run of a lowered kernel, what its checks recorded.

    Attributes:
      name, call: name of the kernel, and line of its call.
      second: runs the kernel again to find out what failed; None if the first run shows it.
    """

    def __init__(
        self,
        made: instrument.Instrumented,
        second: again.Again | None,
        observer: Observer,
        name: str,
        call: SourceLine | None,
    ) -> None:
        assert made.layout is not None
        self.name = name
        self.call = call
        self.second = second
        self._made = made
        self._layout = made.layout
        self._observer = observer
        self._inputs, self._outputs = instrument.array_names(made.params)
        self._aliased = {output for _, output in made.params.get("input_output_aliases") or ()}
        self._uncovered = instrument.uncovered(made.params)
        self._looks_for_nan = _looks_for_nan(made.layout)
        self._tokens = launched.current()
        self._uses = program_outputs.current_uses(self._outputs)

    def report(self, rows: np.ndarray, *arrays: np.ndarray) -> tuple[()]:
        """Report a run, given the words that its checks wrote and the arrays to inspect."""
        launched.notify(self._tokens)
        try:
            split = max(len(arrays) - len(self._outputs), 0)
            run = self._checked(rows, arrays[:split], arrays[split:])
            if run is not None:
                _innermost(self._observer).checked(run)
        except Exception as error:  # noqa: BLE001 - ours is no reason for the program to fail
            _fault(_innermost(self._observer), self.name, error, "reading what its checks said")
        return ()

    def _checked(
        self, rows: np.ndarray, args: Sequence[np.ndarray], results: Sequence[np.ndarray]
    ) -> CheckedRun | None:
        written = zip(self._outputs, results, strict=False) if self._looks_for_nan else ()
        boxes = {n: part_of(n, _is_nan(a)) for n, a in written}
        filled: Mapping[str, ArrayPart] = {}
        unwritten: tuple[str, ...] = ()
        failures: Sequence[SiteFailure] | None
        if self.second is None:
            failures = self._layout.read(np.asarray(rows))
        else:
            tripped = int(np.bitwise_or.reduce(rows, axis=None))
            if self._may_show_fill(self.second, tripped, results):
                filled, unwritten = self._compare_fills(self.second, args, results)
            # A NaN or unwritten integer that was read but reaches no output is harmless.
            is_nan = tripped and any(boxes.values())
            matters = tripped & ~(READ | FILL) or is_nan or filled
            failures = self._run_again(self.second, tripped, args, results) if matters else ()
        if failures is None:
            return None  # what is in the outputs says nothing without what failed
        # Inputs matter only if a NaN was read or stored.
        asks = self._looks_for_nan and (any(boxes.values()) or bool(failures))
        with_nan = zip(reversed(self._inputs), reversed(args), strict=False) if asks else ()
        bounds = getattr(self._made.params.get("grid_mapping"), "num_dynamic_grid_bounds", 0)
        return CheckedRun(
            kernel=self.name,
            call=self.call,
            failures=failures,
            sites=self._layout.sites,
            inputs=frozenset(n for n, array in with_nan if _is_nan(array).any()),
            outputs={n: box for n, box in boxes.items() if box is not None},
            filled=filled,
            unwritten=unwritten,
            sees_outputs=bool(boxes) or not self._outputs,
            uncovered=self._uncovered,
            uses=self._uses,
            is_empty=bool(self._made.trips) and any(np.min(size) <= 0 for size in args[:bounds]),
            digests=self._tokens,
        )

    def _may_show_fill(
        self, second: again.Again, tripped: int, results: Sequence[np.ndarray]
    ) -> bool:
        """Return whether an output may contain unwritten memory, or depend on it."""
        if not self._looks_for_nan:
            return False
        fresh = (np.asarray(r) for i, r in enumerate(results) if i not in self._aliased)
        return (
            bool(tripped & FILL) or second.reads_narrow or any(map(second.may_be_unwritten, fresh))
        )

    def _compare_fills(
        self, second: again.Again, args: Sequence[np.ndarray], results: Sequence[np.ndarray]
    ) -> tuple[Mapping[str, ArrayPart], tuple[str, ...]]:
        """Parts of the outputs that depend on unwritten integers, and unwritten boolean buffers."""
        try:
            masks = second.filled_otherwise(args, results)
            names = second.unwritten_bools(args, results) if any(map(np.any, masks)) else ()
        except Exception as error:  # noqa: BLE001 - ours is no reason for the program to fail
            doing = "running it with other unwritten integers"
            _fault(_innermost(self._observer), self.name, error, doing)
            return {}, ()
        parts = {n: part_of(n, mask) for n, mask in zip(self._outputs, masks, strict=False)}
        return {n: part for n, part in parts.items() if part is not None}, names

    def _run_again(
        self,
        second: again.Again,
        tripped: int,
        args: Sequence[np.ndarray],
        results: Sequence[np.ndarray],
    ) -> Sequence[SiteFailure] | None:
        """The failed checks, found by a second run; None if it does not reproduce them."""
        try:
            seen = second.run(args, results)
        except Exception as error:  # noqa: BLE001 - ours is no reason for the program to fail
            reason = f"{type(error).__name__} in the second run that says which one: {error}"
            self._skipped(f"a check failed in it, with {reason}")
            return None
        if tripped and seen.misses(tripped):
            self._skipped(
                "a check failed in it, and not again in the second run that says which one"
            )
            return seen.failures or None
        return seen.failures

    def _skipped(self, reason: str) -> None:
        _innermost(self._observer).skipped(self.name, reason, is_fault=True)


def _is_nan(array: np.ndarray) -> Any:
    array = np.asarray(array)
    # ml_dtypes floats have numpy kind "V"; only floats compare unequal to themselves.
    return array != array if array.dtype.kind in "fV" else np.zeros((), bool)


def call_back(
    context: Any, function: Callable[..., Any], nodes: Sequence[Any], avals: Sequence[Any]
) -> None:
    """Emit a call back to `function` with these values; once per device under `shard_map`."""
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
