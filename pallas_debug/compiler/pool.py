"""A pool of compiler processes.

A few threads take requests in turn, each with a child process that has libtpu loaded and compiles
many kernels. If a child aborts, hangs or is killed, only one kernel has no result, and the child is
replaced. Sessions of one process share its children (`children.py`).
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import importlib.util
import os
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pallas_debug import defaults
from pallas_debug.compiler import gpu, schedules
from pallas_debug.compiler.child import Child, key_of, scratch
from pallas_debug.compiler.children import STOPPED, Children, Lease
from pallas_debug.compiler.protocol import DUMPS, CompileRequest, Reply
from pallas_debug.compiler.stages import LLO_FOLDER, ChildFlags, LeftOut
from pallas_debug.errors import LibtpuError, WorkerError
from pallas_debug.store import layout
from pallas_debug.store.scratch import PREFIX, sweep

NO_FLAGS = ChildFlags()


@dataclass(frozen=True, kw_only=True)
class RequestOutcome:
    """Raw result of one request.

    Attributes:
      reply: the worker's reply; None if it died or was stopped.
      ended: `timeout`, or how the process ended (`SIGABRT`, `exit code 1`); None with a reply.
      log: the compiler's output.
      dumps: Mosaic's passes; deleted when the request is done, like `llo`.
      llo: the LLO files that it wrote.
      began: time at which it was sent, in nanoseconds.
    """

    reply: Reply | None
    ended: str | None
    log: bytes
    dumps: tuple[Path, ...]
    llo: tuple[Path, ...] = ()
    began: int = 0


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """Settings of children.

    Attributes:
      jobs: maximum number of children; each takes about 400 MB once it has compiled.
      timeout: seconds per compilation.
    """

    jobs: int = 2
    timeout: float = defaults.COMPILE_TIMEOUT


def default_jobs() -> int:
    """One child per core, at most four."""
    return max(1, min(defaults.MAX_JOBS, os.cpu_count() or 1))


def check_machine(flags: ChildFlags = NO_FLAGS) -> None:
    """Fail early if nothing can be compiled here.

    Args:
      flags: of the child that would compile.

    Raises:
      LibtpuError: the machine is not x86-64 Linux, or libtpu is not installed.
      CannotRunError: the same of what the back ends for GPUs need.
    """
    if flags.gpu:
        gpu.require(flags.gpu)
        return
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        raise LibtpuError(
            f"libtpu runs on x86-64 Linux only and this is {platform.machine()} {sys.platform}. "
            "Kernels are still captured; compile them on a Linux machine, or in a container."
        )
    library = os.environ.get("TPU_LIBRARY_PATH")
    if importlib.util.find_spec("libtpu") is None and not (library and Path(library).exists()):
        raise LibtpuError(
            "libtpu is not installed, so nothing can be compiled for a TPU. "
            "Install it with: pip install 'pallas-debug[tpu]'"
        )


class Pool:
    """Compiler processes, started on demand.

    Use as a context manager: leaving it finishes the compilations in progress; leaving it by an
    exception, including ctrl+c, stops them.

    Args:
      shared: whether to use the children of this process, which remain for the next pool, rather
        than children of its own, which end with it.
      flags: flags of the children that most requests need; `compile` may ask for others.

    Attributes:
      left_out: flags that libtpu does not support, by name.
    """

    def __init__(
        self,
        settings: PoolSettings | None = None,
        *,
        shared: bool = False,
        flags: ChildFlags = NO_FLAGS,
    ) -> None:
        self.settings = settings or PoolSettings(jobs=default_jobs())
        self._executor = _executor(self.settings.jobs)
        self._process = os.getpid()
        self._children = _shared() if shared else Children(keeps_idle=False)
        self.left_out: dict[str, LeftOut] = {}
        self._leases: dict[object, Lease] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._flags = flags
        self._lease = self._lease_for(flags)
        self._is_swept = False

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(stop=kind is not None)

    def submit(self, work: Callable[[], object]) -> concurrent.futures.Future[object]:
        """Run `work` in a thread of the pool, where `compile` has a child available."""
        if self._process != os.getpid():  # forked: the threads exist only in the parent
            self._executor, self._process = _executor(self.settings.jobs), os.getpid()
        self._children.add_pending(self._lease, 1)

        def counted() -> object:
            try:
                return work()
            finally:
                self._children.add_pending(self._lease, -1)

        return self._executor.submit(counted)

    @contextlib.contextmanager
    def compile(
        self,
        module: bytes,
        *,
        topology: str | None,
        num_devices: int = 1,
        options: Mapping[str, str] | None = None,
        flags: ChildFlags | None = None,
        timeout: float | None = None,
        wants_calls: bool = False,
    ) -> Iterator[RequestOutcome]:
        """Compile a module in a child, and wait for it.

        The outcome's dump files exist until the context exits.

        Args:
          flags: flags of the child; by default the pool's.
          timeout: maximum seconds, if less than the pool's.
          wants_calls: whether the reply lists the calls of labelled kernels.

        Raises:
          WorkerError: no child could be started, or its reply was invalid.
          LibtpuError: libtpu is not available here.
        """
        lease = self._lease if flags is None else self._lease_for(flags)
        check_machine(self._flags if flags is None else flags)
        with contextlib.ExitStack() as stack:
            folder = scratch()
            stack.callback(folder.remove)
            request = functools.partial(
                CompileRequest,
                module=module,
                topology=topology,
                num_devices=num_devices,
                options=dict(options or {}),
                wants_calls=wants_calls,
            )
            limit = min(self.settings.timeout, timeout or self.settings.timeout)
            yield self._compile(request, lease, folder.path, limit)

    def warm(self, flags: ChildFlags | None = None) -> None:
        """Start a child in advance, unless there is one; `flags` as in `compile`."""
        check_machine(self._flags if flags is None else flags)
        self._children.warm(self._lease if flags is None else self._lease_for(flags))

    def _compile(
        self,
        request: Callable[..., CompileRequest],
        lease: Lease,
        folder: Path,
        timeout: float,
    ) -> RequestOutcome:
        """Compile in a child, and move its files to `folder`."""
        child = self._children.take(lease)
        log = child.folder / layout.LOG
        alive = False
        try:
            began = time.time_ns()
            reply, ended = child.ask(request(log=str(log)), timeout)
            alive = reply is not None
            if lease.stopped and not alive:  # not the kernel's fault
                raise WorkerError(STOPPED)
            text = log.read_bytes() if log.exists() else b""
            if alive and child.has_llo:
                schedules.wait_for_files(child.folder / LLO_FOLDER, since=began)
            return RequestOutcome(
                reply=reply,
                ended=ended,
                log=child.startup_log() + text,
                dumps=_moved(child.folder / DUMPS, folder),
                llo=_moved(child.folder / LLO_FOLDER, folder / LLO_FOLDER) if child.has_llo else (),
                began=began,
            )
        finally:
            if alive:
                child.clear()
                self._children.give_back(lease, child)
            else:
                self._children.drop(lease, child)

    def _lease_for(self, flags: ChildFlags) -> Lease:
        """Return the claim on children with these flags."""
        with self._lock:
            found = self._leases.get(flags.key)
            if found is None:
                found = self._leases[flags.key] = Lease(
                    jobs=self.settings.jobs,
                    key=lambda: key_of(flags),
                    start=lambda: self._start(flags),
                )
                found.stopped = self._closed
            return found

    def _start(self, flags: ChildFlags) -> Child:
        """Start a child; the first time, also delete the leftovers of killed runs."""
        is_swept, self._is_swept = self._is_swept, True
        if not is_swept:
            sweep(Path(tempfile.gettempdir()), PREFIX)
        return Child(flags)

    def close(self, *, stop: bool = False) -> None:
        """Finish compilations in progress, or stop them at once. Nothing compiles afterwards."""
        if stop:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._release(stop=True)
        self._executor.shutdown(wait=True)
        self._release(stop=stop)

    def _release(self, *, stop: bool) -> None:
        with self._lock:
            self._closed = True
            leases = list(self._leases.values())
        for lease in leases:
            self._children.release(lease, stop=stop)

    def pids(self, *, at_work: bool = False) -> list[int]:
        """Process IDs of live children, or only of those working for this pool."""
        if at_work:
            held = (child for lease in list(self._leases.values()) for child in list(lease.held))
            return [child.pid for child in held if child.usable()]
        return self._children.pids()


def _executor(jobs: int) -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(
        # One more thread than children: one kernel is lowered, and another's files are read, while
        # every child compiles.
        max_workers=jobs + 1,
        thread_name_prefix="pallas-debug-compile",
    )


@functools.cache
def _shared() -> Children:
    """Children shared by all pools of this process."""
    return Children(keeps_idle=True)


def _moved(source: Path, folder: Path) -> tuple[Path, ...]:
    """Move the files of a folder to another one."""
    folder.mkdir(exist_ok=True)
    return tuple(p.rename(folder / p.name) for p in source.iterdir() if p.is_file())
