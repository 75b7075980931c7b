"""Hook on the lowering of kernels in their final form, and on runs of programs that contain them.

While there are watchers, the lowering rules of the Pallas primitives are replaced with rules that
report the equation and then call jax's own. A lowering rule sees the kernel after vmap and grad,
however it was imported, and changes nothing.

A function that jax compiled earlier would never be lowered again. Watching therefore sets a context
that is part of jax's cache keys (`jax.make_user_context`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol, cast

import jax
import jax.numpy as jnp

from pallas_debug.bridge import chip, inline, patches
from pallas_debug.bridge.active import ActiveStack, ThreadValue, user_context
from pallas_debug.bridge.hosted import launched
from pallas_debug.bridge.hosted.lowering import NotPrepared
from pallas_debug.bridge.instrument import observe
from pallas_debug.bridge.interpret import interpret
from pallas_debug.bridge.jaxcompat import jax_core, mlir, mpmd, pallas_call, source_info_util
from pallas_debug.bridge.jaxprs import outputs, windows
from pallas_debug.errors import PallasDebugError
from pallas_debug.explain import asserted
from pallas_debug.guards import guarded
from pallas_debug.ir.hlo import LABEL

PRIMITIVES: dict[str, jax_core.Primitive] = {
    "pallas_call": pallas_call.pallas_call_p,
    "mpmd_map": mpmd.mpmd_map_p,
}
"""Primitives that lower to a kernel. `core_map` is discharged to one of these before lowering."""


class LoweringWatcher(Protocol):
    """Subscriber to lowerings and runs, called within jax in the thread that lowers or runs.

    It should not raise; exceptions are passed to its `report`, and the program continues.
    """

    def lowered(self, primitive: str, context: Any, params: dict[str, Any]) -> object | None:
        """Handle the lowering of a kernel; return a token that `ran` receives when it runs."""

    def ran(self, tokens: tuple[object, ...]) -> None:
        """Handle a run of a program that contains the kernels of these tokens."""

    def failed(self, error: Exception) -> None:
        """Handle an exception from a program with kernels, before its caller sees it."""

    def report(self, problem: PallasDebugError) -> None:
        """Handle an internal error in the hook."""


_epoch = user_context()
_epochs = itertools.count(1)
_watchers: ActiveStack[LoweringWatcher] = ActiveStack()
_collected = ThreadValue[list[object] | None](None)
_unwatched, _unannounced, _stubbed = ThreadValue(False), ThreadValue(False), ThreadValue(False)
_labelled = ThreadValue(False)


@contextlib.contextmanager
def watching(
    watcher: LoweringWatcher,
    *,
    epoch: object | None = None,
    runs: bool = False,
) -> Iterator[None]:
    """Notify `watcher` of every kernel lowered in this context, in any thread.

    Args:
      epoch: programs jitted under an equal epoch are not traced again; defaults to a new one.
      runs: whether to also notify it of every run of a program with kernels. Such programs then go
        through jax's Python dispatch, which costs about 50 microseconds per call.
    """
    areas = (patches.LOWERING, patches.LINES, *([patches.RUNS] if runs else []))
    shared = in_epoch(epoch if epoch is not None else _new_epoch())
    with patches.installed(*areas), _watchers.adding(watcher), shared:
        yield


def _new_epoch() -> object:
    return ("pallas-debug", next(_epochs))


@contextlib.contextmanager
def in_epoch(value: object) -> Iterator[None]:
    """In all threads, reuse only jax cache entries that were jitted under an equal epoch."""
    before = _epoch.get_global()
    _epoch.set_global(value)
    try:
        yield
    finally:
        _epoch.set_global(before)


def without_caches() -> contextlib.AbstractContextManager[object]:
    """Bypass jax's caches of earlier jitted functions in this thread."""
    return cast(contextlib.AbstractContextManager[object], _epoch(_new_epoch()))


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Disable capture in this thread while we lower the kernel ourselves."""
    with _unwatched.setting(True), interpret.suspended(), chip.lowering_ourselves():
        yield


@contextlib.contextmanager
def unannounced() -> Iterator[None]:
    """Run kernels in this thread in `auto` mode, without checks or notifying watchers.

    For our own runs, which do not belong to the program; the caller provides the host.
    """
    in_mode = interpret.interpreting("auto")
    with _unannounced.setting(True), in_mode, patches.installed(patches.LOWERING), without_caches():
        yield


def stubbed() -> contextlib.AbstractContextManager[None]:
    """Report kernels in this thread without lowering them; their outputs are zeros.

    For programs that are traced only to find their kernels: a kernel that jax cannot lower would
    hide the kernels after it.
    """
    return _stubbed.setting(True)


def labelled() -> contextlib.AbstractContextManager[None]:
    """Lower kernels in this thread as they are, each with its watcher's token as a label.

    The label is in the metadata of the call, where it survives XLA's passes: see `ir.hlo`.
    """
    return _labelled.setting(True)


def _announce(primitive: str, context: Any, params: dict[str, Any]) -> object | None:
    """Notify watchers that a kernel is being lowered; return the innermost one's token."""
    if _unwatched.value:
        return None
    innermost = None
    for watcher in _watchers:
        token = None
        with guarded("hook", "looking at a kernel that jax lowers", watcher.report):
            token = watcher.lowered(primitive, context, params)
        if token is None:
            continue
        innermost = token
        if _collected.value is not None:
            _collected.value.append(token)
        else:  # lowered ahead of time, or by a transformation: there is no run to wait for
            _notify_ran(watcher, (token,))
    return innermost


def _report(problem: PallasDebugError) -> None:
    for watcher in _watchers:
        watcher.report(problem)


def reporting(entry: Any, name: str) -> Any:
    """Wrap the entry of a Pallas primitive in jax's table of lowering rules."""
    rule: Callable[..., Any] = entry.rule

    @functools.wraps(rule)
    def report_and_lower(context: Any, *nodes: Any, **params: Any) -> Any:
        __tracebackhide__ = True
        if _unannounced.value:
            return _in_mode(rule, params)(context, *nodes)
        if observe.is_lowering():  # the kernel was announced before its checks were inserted
            return lower(None, context, *nodes, **params)
        with outputs.at_kernel(params, _report):
            return lower(_announce(name, context, params), context, *nodes, **params)

    def lower(token: object | None, context: Any, *nodes: Any, **params: Any) -> Any:
        __tracebackhide__ = True
        if _stubbed.value:
            return mlir.lower_fun(_zeros(context.avals_out), multiple_results=True)(context, *nodes)
        if _labelled.value and token is not None:
            metadata = {**(params["metadata"] or {}), LABEL: str(token)}
            return rule(context, *nodes, **{**params, "metadata": metadata})
        if _unwatched.value:
            return rule(context, *nodes, **params)
        if interpret.is_for_another_platform(context):
            return interpret.lower_as_written(rule, context, nodes, params)
        with launched.lowering(token):
            if interpret.current_kind() != "off":
                if params.get("interpret"):
                    observe.unobserved(params)
                return _in_mode(rule, params)(context, *nodes)
            return observe.lowered(
                PRIMITIVES[name], params, context, nodes, lambda: _in_mode(rule, params)
            )

    return dataclasses.replace(entry, rule=report_and_lower)


def _in_mode(rule: Callable[..., Any], params: dict[str, Any]) -> Callable[..., Any]:
    """Lowering rule adapted to the interpret mode; jax's own, if our code fails."""
    is_interpreted = interpret.current_kind() != "off"
    otherwise = functools.partial(
        rule, **{**params, "interpret": True} if is_interpreted else params
    )
    with guarded("hook", "adapting a kernel to its interpret mode", _report):
        adapted = interpret.lowering(rule, params)

        def lower(context: Any, *nodes: Any) -> Any:
            try:
                return adapted(context, *nodes)
            except NotPrepared as failed:
                if failed.problem is not None:
                    _report(failed.problem)
                return otherwise(context, *nodes)

        return lower
    return otherwise


def _zeros(avals: Any) -> Callable[..., Any]:
    def zeros(*_: Any) -> Any:
        # A semaphore is an integer.
        physical = map(jax_core.physical_aval, avals)
        return [jnp.zeros(aval.shape, aval.dtype) for aval in physical]

    return zeros


def emitting_callbacks(emit: Callable[..., Any]) -> Callable[..., Any]:
    """Replace callbacks by zeros in programs that are only traced (`stubbed`)."""

    @functools.wraps(emit)
    def emit_or_leave_out(
        ctx: Any, callback: Any, token: Any, operands: Any, operand_avals: Any, result_avals: Any,
        **options: Any,
    ) -> Any:  # fmt: skip
        if not (_stubbed.value or _labelled.value):
            return emit(ctx, callback, token, operands, operand_avals, result_avals, **options)
        zeros = _zeros(result_avals)
        return inline.lowered(ctx, zeros, operand_avals, result_avals, operands), token, None

    return emit_or_leave_out


@contextlib.contextmanager
def _without_outer_line() -> Iterator[None]:
    # Not `user_context(None)`: it keeps the current traceback.
    context = source_info_util._source_info_context
    before = context.context
    context.context = source_info_util.SourceInfo(None, before.name_stack)
    try:
        yield
    finally:
        context.context = before


def with_own_lines(trace: Callable[..., Any]) -> Callable[..., Any]:
    """Keep a kernel's own source lines; name jax's assertions and windows.

    When a function with a custom derivative is traced for its gradient, jax replays it under the
    traceback of the outer call, and assigns the line of that call to every equation inside.
    """

    @functools.wraps(trace)
    def trace_kernel(*args: Any, **kwargs: Any) -> Any:
        with contextlib.ExitStack() as stack:
            with guarded("hook", "keeping the lines of a kernel that jax traces", _report):
                stack.enter_context(_without_outer_line())
            try:
                jaxpr, *others = trace(*args, **kwargs)
            except AssertionError as error:
                if (failed := asserted.named(error)) is None:
                    raise
                raise failed from error
        with guarded("hook", "naming the windows of a pipeline", _report):
            jaxpr = windows.with_names(jaxpr)
        return (jaxpr, *others)

    return trace_kernel


_kernels_of: weakref.WeakKeyDictionary[Any, tuple[object, ...]] = weakref.WeakKeyDictionary()
"""Tokens of the kernels of each program, by its jaxpr."""

_with_kernels: weakref.WeakSet[Any] = weakref.WeakSet()
"""Executables of programs with kernels."""


def following(call: Callable[..., Any]) -> Callable[..., Any]:
    """Track runs of compiled programs, and the kernels with which they were lowered.

    jax's C++ dispatch bypasses Python once it knows a program. `refusing` keeps programs with
    kernels out of it, so each of their calls passes through here.
    """

    @functools.wraps(call)
    def call_and_notify(*args: Any, jaxpr: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True  # hidden by pytest, because it is not the user's code
        collected: list[object] = []
        try:
            with _collected.setting(collected):
                result = call(*args, jaxpr=jaxpr, **kwargs)
            if collected or jaxpr in _kernels_of:
                with guarded("hook", "noting which program ran", _report):
                    _with_kernels.add(result[1])
                if observe.is_active():
                    # Wait, so that the callbacks have run before the call returns.
                    jax.block_until_ready(result[0])
        except Exception as error:
            for watcher in _watchers:
                with guarded("hook", "noting an exception of the program", watcher.report):
                    watcher.failed(error)
            raise
        finally:
            with guarded("hook", "recording which kernels a program holds", _report):
                if collected:
                    _kernels_of[jaxpr] = tuple(collected)
                # Also of a program that failed: its kernels ran, or were lowered.
                _notify_all_ran(_kernels_of.get(jaxpr, ()))
        return result

    return call_and_notify


def refusing(fastpath: Callable[..., Any]) -> Callable[..., Any]:
    """Keep programs with kernels out of jax's C++ dispatch."""

    @functools.wraps(fastpath)
    def fastpath_unless_kernels(executable: Any, *args: Any, **kwargs: Any) -> Any:
        if executable in _with_kernels:
            return None
        return fastpath(executable, *args, **kwargs)

    return fastpath_unless_kernels


def _notify_all_ran(tokens: tuple[object, ...]) -> None:
    for watcher in _watchers:
        _notify_ran(watcher, tokens)


def _notify_ran(watcher: LoweringWatcher, tokens: tuple[object, ...]) -> None:
    with guarded("hook", "recording which kernels ran", watcher.report):
        watcher.ran(tokens)
