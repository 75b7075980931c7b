"""Executor of worker processes on this machine, each running one setting at a time.

Unlike with `concurrent.futures.ProcessPoolExecutor`, a process that dies or hangs affects only one
setting: it is replaced, and the others continue.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib
import multiprocessing
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from pallas_debug import defaults
from pallas_debug.errors import DumpDirectoryError, NoDumpsError, WorkerError

_START = 120.0
"""Time limit in seconds for a process to import jax."""

_MAIN = (
    "the script that starts the sweep, which it imports, does its own work then: put that under "
    "`if __name__ == '__main__':`"
)

_ENDING: Mapping[str, type[DumpDirectoryError]] = {
    error.__name__: error for error in (DumpDirectoryError, NoDumpsError)
}
"""Exceptions that end a sweep, by name."""


class WorkerDied(WorkerError):
    """A worker process ended before it answered."""


class SettingTimeout(WorkerError):
    """A setting took too long, and its process was killed."""


@dataclass(frozen=True)
class _Failed:
    """An exception of a task in a worker, as text, because not every exception can be sent."""

    type: str
    text: str


class LocalWorkers(concurrent.futures.Executor):
    """Processes that run tasks; use as a context manager.

    Args:
      jobs: number of processes; started with the first tasks.
      timeout: seconds after which a task's process is killed.
      preload: module to import before the first task, whose time does not count.
    """

    def __init__(
        self, jobs: int, timeout: float, preload: str = "pallas_debug.sweeps.task"
    ) -> None:
        self._jobs = jobs
        self._preload = preload
        self._timeout = timeout
        self._waiting: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._processes: set[_Process] = set()
        self._is_stopped = False

    def submit(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._waiting.put(_Item(future, fn, args, kwargs))
        if len(self._threads) < self._jobs:
            thread = threading.Thread(
                target=self._serve, name=f"pallas-debug-sweep-{len(self._threads)}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop; with `cancel_futures`, kill the processes in the middle of their tasks."""
        if cancel_futures:
            with self._lock:
                self._is_stopped = True
                processes = list(self._processes)
            for process in processes:
                process.kill()
        for _ in self._threads:
            self._waiting.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def pids(self) -> list[int]:
        """Return the process IDs of the workers."""
        with self._lock:
            return [p.pid for p in self._processes]

    def _serve(self) -> None:
        process: _Process | None = None
        while (item := self._waiting.get()) is not None:
            if self._is_stopped or not item.future.set_running_or_notify_cancel():
                item.future.cancel()
                continue
            try:
                if process is None or not process.is_alive():
                    process = self._started(process)
                item.future.set_result(process.ask(item, self._timeout))
            except BaseException as error:  # noqa: BLE001 - it belongs to the future
                item.future.set_exception(error)
                if process is not None and isinstance(error, WorkerError):
                    self._end(process)
                    process = None
        if process is not None:
            self._end(process)

    def _started(self, before: _Process | None) -> _Process:
        if before is not None:
            self._end(before)
        process = _Process(self._preload)
        with self._lock:
            self._processes.add(process)
        try:
            if self._is_stopped:
                raise WorkerDied("the sweep was stopped")
            process.wait_until_ready()
        except WorkerError:
            self._end(process)
            raise
        return process

    def _end(self, process: _Process) -> None:
        process.kill()
        with self._lock:
            self._processes.discard(process)


@dataclass(frozen=True)
class _Item:
    future: concurrent.futures.Future[Any]
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _Process:
    """One worker process."""

    def __init__(self, preload: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, preload), daemon=True)
        # ctrl+c reaches all processes of a terminal; this one is ended by its parent.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def wait_until_ready(self) -> None:
        """Wait until the process can take tasks.

        Raises:
          WorkerDied: the process ended, or takes too long.
        """
        try:
            if self._ours.poll(_START):
                self._ours.recv()
                return
        except (EOFError, OSError):
            self._process.join(defaults.WORKER_EXIT)
            raise WorkerDied(
                f"a worker process ended during startup ({self._how()}). Either it cannot import "
                f"what it needs, or {_MAIN}. Its output is above"
            ) from None
        raise WorkerDied(f"a worker process did not start within {_START:.0f} s")

    def ask(self, item: _Item, timeout: float) -> Any:
        """Run a task in the process.

        Raises:
          SettingTimeout: the task takes too long.
          WorkerDied: the process ended.
        """
        try:
            self._ours.send((item.function, item.args, item.kwargs))
            if not self._ours.poll(timeout):
                raise SettingTimeout(
                    f"it took longer than {timeout:.0f} s, and its process was killed; "
                    "allow more with --timeout"
                )
            answer = self._ours.recv()
        except (EOFError, OSError):
            self._process.join(defaults.WORKER_EXIT)
            raise WorkerDied(f"the worker process that ran it died ({self._how()})") from None
        if isinstance(answer, _Failed):
            if answer.type in _ENDING:  # as in this process
                raise _ENDING[answer.type](answer.text)
            raise RuntimeError(f"{answer.type}: {answer.text}")
        return answer

    def kill(self) -> None:
        """End the process; its compiler ends with it."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self._process.kill()
        self._process.join(defaults.WORKER_EXIT)
        with contextlib.suppress(OSError):
            self._ours.close()

    def _how(self) -> str:
        code = self._process.exitcode
        if code is None:
            return "it closed its pipe"
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _work(pipe: Connection, preload: str) -> None:
    """Main function of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)  # standard output is the parent's table
    sys.stdout = sys.stderr
    importlib.import_module(preload)
    pipe.send("ready")
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            function, args, kwargs = pipe.recv()
            try:
                answer: Any = function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - the parent reports it
                answer = _Failed(type(error).__name__, str(error))
            pipe.send(answer)
