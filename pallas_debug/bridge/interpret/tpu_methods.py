"""Replacements for methods of the interpreter's objects that handlers cannot intercept."""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from pallas_debug.bridge.interpret import interpret, tpu_handlers, tpu_hangs, tpu_run
from pallas_debug.bridge.interpret.extend import gpu
from pallas_debug.errors import KernelFault

Method = Callable[..., Any]


def adopting(method: Method) -> Method:
    @functools.wraps(method)
    def init(dma: Any, *args: Any, **keywords: Any) -> None:
        method(dma, *args, **keywords)
        tpu_handlers.adopt(dma)

    return init


def executing(method: Method, writes: bool) -> Method:
    @functools.wraps(method)
    def execute(dma: Any) -> None:
        tpu_handlers.execute(dma, functools.partial(method, dma), writes=writes)

    return execute


def checking(method: Method, writes: bool) -> Method:
    signature = inspect.signature(method)

    @functools.wraps(method)
    def check(*args: Any, **keywords: Any) -> Any:
        # jax's GPU interpreter detects races with the same class.
        if tpu_run.current_run() is None or tpu_run.current_place() is None:
            return method(*args, **keywords)
        arguments = signature.bind(*args, **keywords).arguments
        tpu_handlers.check_race(args[0], arguments, writes=writes)
        return None

    return check


def waiting(method: Method) -> Method:
    @functools.wraps(method)
    def wait(semaphore: Any, value: Any, global_core_id: Any, **keywords: Any) -> Any:
        if value == 0:  # for an empty copy, which does not signal
            return None
        with tpu_hangs.waiting(semaphore, value, global_core_id):
            return method(semaphore, value, global_core_id, **keywords)

    return wait


def failing(method: Method) -> Method:
    @functools.wraps(method)
    def check_failed(memory: Any) -> None:
        """Called before every callback, and periodically by waiting threads."""
        failure = getattr(memory, "_failure", None)
        if isinstance(failure, KernelFault):
            raise KernelFault(str(failure), failure.finding)
        method(memory)
        tpu_hangs.check_hang()

    return check_failed


def failing_alone(method: Method) -> Method:
    @functools.wraps(method)
    def set_failed(memory: Any, *args: Any, **keywords: Any) -> None:
        """Called by each device that fails, which then waits for the others to fail or end."""
        run = getattr(memory, tpu_run.MARK, None)
        if run is None or run.not_started is None:
            method(memory, *args, **keywords)

    return set_failed


class HostFunction(functools.partial[Any]):
    """Host function of TPU interpret mode that accepts numpy arrays.

    The functions of `thread_map` are excluded, because they run jax.
    """


def handing_over(implementation: Method) -> Method:
    """Pass the interpreter's callbacks their arguments as numpy arrays.

    jax would put them on the CPU first, where a thread of XLA's pool copies arrays of about 100 KB
    or more. With at least as many devices as threads in the pool, each thread waits in a callback
    for a copy that no thread is left to perform. The interpreter also accepts numpy arrays.
    """

    @functools.wraps(implementation)
    def hand_over(*args: Any, callback: Any, **keywords: Any) -> Any:
        if not isinstance(callback.callback_func, HostFunction):
            with gpu.noting_lines():
                return implementation(*args, callback=callback, **keywords)
        return jax.tree.map(np.asarray, callback(*map(np.asarray, args)))

    return hand_over


def filtering(method: Method) -> Method:
    """Drop log records for our faults: jax logs every callback exception with its stack."""

    @functools.wraps(method)
    def is_news(record: logging.LogRecord) -> Any:
        is_ours = record.exc_info and isinstance(record.exc_info[1], KernelFault)
        return False if is_ours else method(record)

    return is_news


class _WaitedFor(threading.local):
    stops: int = 0


_waited_for = _WaitedFor()


def waiting_first(method: Method) -> Method:
    @functools.wraps(method)
    def get_token_input(*args: Any, **keywords: Any) -> Any:
        """Called before a program starts, which would otherwise fail after a stopped program."""
        if _waited_for.stops != tpu_run.stops:
            before, _waited_for.stops = _waited_for.stops, tpu_run.stops
            wait_for_runs(before)
        return method(*args, **keywords)

    return get_token_input


def wait_for_runs(stops: int) -> None:
    """Wait for the programs that this thread dispatched: jax returns before they finish.

    Args:
      stops: earlier number of stopped programs. If it has increased, an exception here was already
        reported as a finding, and is raised where the program's results are used.
    """
    try:
        interpret.wait_for_runs()
    except Exception:
        if tpu_run.stops == stops:
            raise
