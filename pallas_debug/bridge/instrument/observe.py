"""Lowering of kernels with checks inserted, and delivery of their results.

While an observer is active and nothing else is to run a kernel, the instrumented form of the kernel
(`instrument.py`) is lowered in its place. After the kernel, not within it, the program calls back
with the recorded failures.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pallas_debug.bridge import inline
from pallas_debug.bridge.active import ActiveStack, ThreadValue
from pallas_debug.bridge.capture import meshes
from pallas_debug.bridge.hosted import launched
from pallas_debug.bridge.instrument import instrument
from pallas_debug.bridge.instrument.sites import RecordLayout, SiteFailure
from pallas_debug.bridge.jaxcompat import jax_core, mlir
from pallas_debug.bridge.jaxprs.params import name_of
from pallas_debug.errors import PallasDebugError
from pallas_debug.guards import problem_of


@dataclass(frozen=True, kw_only=True)
class CheckedRun:
    """Check results of one launch of a kernel.

    Attributes:
      digest: digest of the kernel; empty if it is unknown.
      failures: ordered by first occurrence.
    """

    kernel: str
    digest: str
    failures: Sequence[SiteFailure]


class Observer(Protocol):
    """Receiver of checks. Called in runtime threads, so it must not raise."""

    checks: tuple[str, ...]

    def checked(self, run: CheckedRun) -> None:
        """Handle the results of a kernel run with checks."""

    def skipped(
        self,
        kernel: str,
        reason: str,
        *,
        digest: str = "",
        partly: bool = False,
        is_fault: bool = False,
    ) -> None:
        """Handle a kernel whose checks could not be inserted, or whose results were lost.

        Args:
          partly: whether the rest of the kernel is checked.
          is_fault: whether this is an error, rather than a kernel that checks do not support.
        """


_observers: ActiveStack[Observer] = ActiveStack()
_lowering = ThreadValue(False)


def observing(observer: Observer) -> contextlib.AbstractContextManager[None]:
    """Check kernels for `observer` that are lowered in this context, in any thread."""
    return _observers.adding(observer)


def unobserved(params: Mapping[str, Any]) -> None:
    """Report a kernel that one of jax's interpreters runs, which no check observes."""
    observer = _observers.innermost
    if observer is not None and observer.checks:
        observer.skipped(
            name_of(params),
            "it runs in one of jax's interpreters, as its code or the test requests, and checks "
            "run kernels on the kernel machine",
            digest=_digest(),
        )


def _digest() -> str:
    """Digest of the kernel that this thread is lowering; empty if unknown."""
    tokens = launched.current()
    return tokens[-1] if tokens else ""


def is_active() -> bool:
    """Return whether any observer is active."""
    return bool(_observers)


def is_lowering() -> bool:
    """Return whether this thread is lowering a kernel that already has its checks."""
    return _lowering.value


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
    if observer is None or not observer.checks or is_lowering():
        return plain()(context, *nodes)
    if meshes.is_partitioned(context):
        observer.skipped(name_of(params), meshes.PARTITIONED, digest=_digest())
        return plain()(context, *nodes)
    name = "?"
    undo = inline.undoing(context)
    try:
        name = name_of(params)
        made = instrument.instrument(params, observer.checks)
        for inner in made.not_entered if made else ():
            reason = f"the body of its `{inner}` is not checked"
            observer.skipped(name, reason, digest=_digest(), partly=True)
        return _lowered(primitive, params, context, nodes, made, observer)
    except instrument.CannotInstrument as error:
        observer.skipped(name, str(error), digest=_digest())
    except PallasDebugError:
        raise  # found by an interpreter while inspecting the kernel
    except Exception as error:  # noqa: BLE001 - ours is no reason for the program to fail
        undo()
        results = plain()(context, *nodes)  # raises the same error if the kernel itself is at fault
        _fault(observer, name, error, "lowering it with its checks")
        return results
    return plain()(context, *nodes)


def _lowered(
    primitive: jax_core.Primitive,
    params: dict[str, Any],
    context: Any,
    nodes: Sequence[Any],
    made: instrument.Instrumented | None,
    observer: Observer,
) -> list[Any]:
    """Lower a kernel with its checks, or, if none can fail, with a note that it ran."""
    is_run = context.module_context.get_backend(optional=True) is not None
    count = launched.num_bounds(params)
    bounds, types = nodes[:count], context.avals_in[:count]
    if made is None or not is_run:  # inspected or cross-compiled
        results = _lower(context, lambda *args: primitive.bind(*args, **params), nodes)
        if is_run:
            note = functools.partial(_note, launched.current())
            inline.called_back(context, note, bounds, types)
        return results
    words = made.params["out_avals"][-1]
    wider = context.replace(avals_out=(*context.avals_out, words))
    *results, rows = _lower(wider, lambda *args: made.bind(primitive, args), nodes)
    if wider.tokens_out is not None:
        context.set_tokens_out(wider.tokens_out)
    reporter = _Reporter(made.layout, observer, name_of(params))
    inline.called_back(context, reporter.report, [rows, *bounds], [words, *types])
    return results


def _note(tokens: launched.Tokens, *bounds: Any) -> tuple[()]:
    """Notify listeners that a kernel ran; a callback for jax."""
    launched.notify(tokens, *bounds)
    return ()


def _fault(observer: Observer, name: str, error: Exception, doing: str) -> None:
    problem = str(problem_of(error, "hook", doing)).removesuffix(".")
    observer.skipped(name, problem, digest=_digest(), is_fault=True)


def _lower(context: Any, run: Callable[..., Any], nodes: Sequence[Any]) -> list[Any]:
    """Lower a function whose kernels already have their checks."""
    with _lowering.setting(True):
        return list(mlir.lower_fun(run, multiple_results=True)(context, *nodes))


class _Reporter:
    """Reports to the observer, after each run of a lowered kernel, what its checks recorded."""

    def __init__(self, layout: RecordLayout, observer: Observer, name: str) -> None:
        self._name = name
        self._layout = layout
        self._observer = observer
        self._tokens = launched.current()

    def report(self, rows: np.ndarray, *bounds: Any) -> tuple[()]:
        """Report a run, given the words that its checks wrote."""
        launched.notify(self._tokens, *bounds)
        # jax caches programs beyond the lifetime of the observer at lowering.
        observer = _observers.innermost or self._observer
        try:
            observer.checked(
                CheckedRun(
                    kernel=self._name,
                    digest=self._tokens[-1] if self._tokens else "",
                    failures=self._layout.read(np.asarray(rows)),
                )
            )
        except Exception as error:  # noqa: BLE001 - ours is no reason for the program to fail
            _fault(observer, self._name, error, "reading the results of its checks")
        return ()
