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
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from pallas_debug import defaults
from pallas_debug.compiler import gpu, schedules
from pallas_debug.compiler.children import STOPPED, Children, Lease
from pallas_debug.compiler.protocol import (
    DUMPS,
    GPU,
    CompileRequest,
    Reply,
    read_reply,
    write_request,
)
from pallas_debug.compiler.stages import LLO_FOLDER, ChildFlags, LeftOut
from pallas_debug.errors import LibtpuError, WorkerError
from pallas_debug.store import layout
from pallas_debug.store.scratch import PREFIX, Scratch, sweep

MOSAIC_FLAGS = ("--xla_mosaic_enable_dump_debug_info=true",)
"""Flags for every child besides the dump directory: locations on every operation."""

NO_FLAGS = ChildFlags()

_DUMP_TO = "xla_mosaic_dump_to"

_LINGER = 10.0
"""Maximum seconds to wait for a child to exit: an abort first prints its location."""

_QUIET = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",  # otherwise libtpu waits for a metadata server: jax#11668
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # compile-only processes may run concurrently
    "TPU_LOG_DIR": "disabled",
    "JAX_ENABLE_COMPILATION_CACHE": "false",
}


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
      is_loaded: whether the worker had loaded libtpu, as it has when it begins a request.
    """

    reply: Reply | None
    ended: str | None
    log: bytes
    dumps: tuple[Path, ...]
    llo: tuple[Path, ...] = ()
    began: int = 0
    is_loaded: bool = True


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
      left_out: flags that libtpu does not support, by name and chip; no chip means all.
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
        self._children = _shared() if shared else Children[_Child](keeps_idle=False)
        self.left_out: dict[tuple[str, str], LeftOut] = {}
        self._leases: dict[object, Lease[_Child]] = {}
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
            scratch = _scratch()
            stack.callback(scratch.remove)
            request = functools.partial(
                CompileRequest,
                module=module,
                topology=topology,
                num_devices=num_devices,
                options=dict(options or {}),
                wants_calls=wants_calls,
            )
            limit = min(self.settings.timeout, timeout or self.settings.timeout)
            yield self._compile(request, lease, scratch.path, limit)

    def warm(self, flags: ChildFlags | None = None) -> None:
        """Start a child in advance, unless there is one; `flags` as in `compile`."""
        check_machine(self._flags if flags is None else flags)
        self._children.warm(self._lease if flags is None else self._lease_for(flags))

    def _compile(
        self,
        request: Callable[..., CompileRequest],
        lease: Lease[_Child],
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
                is_loaded=log.exists() or child.served > 1,
            )
        finally:
            if alive:
                child.clear()
                self._children.give_back(lease, child)
            else:
                self._children.drop(lease, child)

    def _lease_for(self, flags: ChildFlags) -> Lease[_Child]:
        """Return the claim on children with these flags."""
        with self._lock:
            found = self._leases.get(flags.key)
            if found is None:
                found = self._leases[flags.key] = Lease(
                    jobs=self.settings.jobs,
                    key=lambda: _key(flags),
                    start=lambda: self._start(flags),
                )
                found.stopped = self._closed
            return found

    def _start(self, flags: ChildFlags) -> _Child:
        """Start a child; the first time, also delete the leftovers of killed runs."""
        is_swept, self._is_swept = self._is_swept, True
        if not is_swept:
            sweep(Path(tempfile.gettempdir()), PREFIX)
        return _Child(flags)

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
def _shared() -> Children[_Child]:
    """Children shared by all pools of this process."""
    return Children(keeps_idle=True)


class _Child:
    """One process with libtpu loaded, and a folder for the files that it writes."""

    taken = 0.0
    idle_since = 0.0
    served = 0

    def __init__(self, flags: ChildFlags) -> None:
        self.key = _key(flags)
        folders = {GPU if flags.gpu else _DUMP_TO: DUMPS, **flags.folders}
        self.has_llo = LLO_FOLDER in folders.values()
        self._scratch = _scratch(*dict.fromkeys(folders.values()))
        self.folder = self._scratch.path
        self._dumps = [self.folder / name for name in dict.fromkeys(folders.values())]
        self._startup = self.folder / "startup.log"
        environment = _environment(flags)
        if flags.gpu:
            environment |= gpu.dump_variables(self._dumps[0])
        # libtpu writes logs there, even if disabled; its usual folder may belong to another user
        # (pytorch/xla#7816).
        environment["TMPDIR"] = str(self.folder)
        try:
            with self._startup.open("wb") as log:
                self.process = subprocess.Popen(
                    [
                        *(sys.executable, "-P", "-m", "pallas_debug.compiler.worker"),
                        str(self.folder),
                        *(f"{flag}={folder}" for flag, folder in folders.items()),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=environment,
                    start_new_session=True,  # ctrl+c is handled by the parent
                    # The child also holds the folder's lock: it may briefly outlive us.
                    pass_fds=() if self._scratch.lock is None else (self._scratch.lock,),
                )
        except OSError as error:
            self._scratch.remove()
            raise WorkerError(f"the compiler's process could not be started: {error}") from error

    def ask(self, request: CompileRequest, timeout: float) -> tuple[Reply | None, str | None]:
        """Return the reply, or how the process ended instead."""
        overdue = threading.Event()

        def stop() -> None:
            overdue.set()
            self.stop()

        timer = threading.Timer(min(timeout, defaults.MAX_SECONDS), stop)
        timer.daemon = True
        timer.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                write_request(cast(BinaryIO, self.process.stdin), request)
            reply = read_reply(cast(BinaryIO, self.process.stdout))
        except ValueError:  # the pool was closed meanwhile, including the pipes
            reply = None
        finally:
            timer.cancel()
        if reply is not None and not overdue.is_set():
            return reply, None
        code = self._wait()
        if overdue.is_set():
            return None, "timeout"
        return None, signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def startup_log(self) -> bytes:
        return self._startup.read_bytes() if self._startup.exists() else b""

    def clear(self) -> None:
        """Delete the files of the last request."""
        written = (path for folder in self._dumps for path in folder.iterdir())
        for path in [*written, self.folder / layout.LOG]:
            path.unlink(missing_ok=True)

    def kill(self) -> None:
        """End the process and delete its folder."""
        self.stop()
        self._wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._scratch.remove()

    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def pid(self) -> int:
        return self.process.pid

    def usable(self) -> bool:
        return self.alive() and all(folder.is_dir() for folder in self._dumps)

    def disown(self) -> None:
        """Release the child in a forked process: its pipe must close when its parent ends."""
        for pipe in (self.process.stdin, self.process.stdout):
            # Not the buffer: a parent thread may hold its lock, with a partial request in it.
            cast(Any, pipe).raw.close()
        self._scratch.disown()
        self.process.returncode = 0  # nothing to wait for in this process

    def stop(self) -> None:
        """Kill the process; `ask` then returns."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def _wait(self) -> int:
        """Return the exit code of a process that closed its pipes, killing it if it lingers."""
        try:
            return self.process.wait(timeout=_LINGER)
        except subprocess.TimeoutExpired:
            self.stop()
            return self.process.wait()


def _moved(source: Path, folder: Path) -> tuple[Path, ...]:
    """Move the files of a folder to another one."""
    folder.mkdir(exist_ok=True)
    return tuple(p.rename(folder / p.name) for p in source.iterdir() if p.is_file())


def _environment(flags: ChildFlags) -> dict[str, str]:
    """Environment variables of all children."""
    environment = dict(os.environ) | _QUIET
    environment.pop("XLA_FLAGS", None)  # meant for the program, not for libtpu
    if flags.gpu:
        environment |= gpu.environment()
    environment["LIBTPU_INIT_ARGS"] = " ".join(
        # The worker adds those that name a folder.
        [*user_flags(), *MOSAIC_FLAGS, *flags.arguments]
    )
    ours = str(Path(__file__).parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(
        [ours, *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    return environment


def _key(flags: ChildFlags) -> Hashable:
    """Return everything that a child reads on startup."""
    environment = _environment(flags)
    for name in ("TMPDIR", "PYTEST_CURRENT_TEST"):  # irrelevant to a child
        environment.pop(name, None)
    directory = None
    if user_flags():  # these may name files relative to it
        with contextlib.suppress(FileNotFoundError):  # the directory was deleted
            directory = Path.cwd()
    return sys.executable, directory, frozenset(environment.items()), flags.key


def _scratch(*folders: str) -> Scratch:
    """Create a folder for the files of a compilation, with these subfolders."""
    try:
        scratch = Scratch(Path(tempfile.gettempdir()), PREFIX)
        for folder in folders:
            (scratch.path / folder).mkdir()
    except OSError as error:
        raise WorkerError(
            f"the compiler's process has nowhere to write: {error}. "
            "Set TMPDIR to a directory that is writable and has space."
        ) from error
    return scratch


def user_flags() -> list[str]:
    """Flags for libtpu in the user's environment, without a dump directory, which we set.

    libtpu accepts `--flag=value`, `--flag value` and a single dash, splits at white space and does
    not support quotes.
    """
    flags: list[str] = []
    words = iter(os.environ.get("LIBTPU_INIT_ARGS", "").split())
    for word in words:
        if word.lstrip("-") == _DUMP_TO:
            next(words, None)
        elif word.lstrip("-").partition("=")[0] != _DUMP_TO:
            flags.append(word)
    return flags
