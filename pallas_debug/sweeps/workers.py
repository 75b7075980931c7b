"""Executor of processes on this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

START = 120.0
"""Time in seconds for processes to import jax."""


class LocalWorkers(ProcessPoolExecutor):
    """Processes that run tasks, which print to standard error."""

    def __init__(self, jobs: int) -> None:
        context = multiprocessing.get_context("spawn")
        super().__init__(jobs, mp_context=context, initializer=_prepare)
        self.jobs = jobs
        self._others = set(multiprocessing.active_children())

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        # ctrl+c reaches all processes of a terminal; these inherit the mask, and their parent
        # ends them.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return super().submit(fn, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def kill(self) -> None:
        """End the processes, also in the middle of tasks; their compilers end with them."""
        for process in set(multiprocessing.active_children()) - self._others:
            process.kill()
        self.shutdown()


def _prepare() -> None:
    os.dup2(2, 1)  # standard output is the parent's table
    sys.stdout = sys.stderr
