"""Zygote: a process with jax and pallas_debug imported that forks a child in place of a new Python.

A Python that imports jax and pallas_debug spends 1.5 to 2 s of CPU before it does anything; a fork
of one that has imported them takes some 10 ms. `Zygote.python` is the start of a command line that
stands for `sys.executable`: what runs it (`subprocess`, `bash`, `pytester`) sees a process with the
output, exit status and reactions to signals of the child. The parts:

- `zygote_start.py`, the stand-in, passes its arguments, environment, directory, umask, ignored
  signals and standard streams through a socket, and waits.
- The zygote, one per test process, started with the first stand-in. It has no threads, no backend
  of jax, no libtpu and no compiler processes, imports nothing after its start, and only forks. It
  ends with the test process.
- The child, in a session of its own: it takes over what it was passed, and then runs a module,
  script or `-c` text as `__main__`, as Python does. It is killed when its stand-in dies.

A child differs from a fresh process in that modules are already imported. So the stand-in starts
Python itself wherever that could matter:

- the environment differs in a variable that was read while the zygote imported its modules, or
  that Python, jax or the C library read (`JAX_PLATFORMS` and `PYTHONPATH` are carried over);
- a directory that comes first on `sys.path` has a module with the name of an imported one;
- Python has options other than `-c`, `-m` and `-P`.

Tests of lazy imports, start-up time, a missing jax, signals during start-up, resource limits or a
terminal use a real start: the fixture `real_command`, or `sys.executable`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import importlib.machinery
import importlib.util
import marshal
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

START = Path(__file__).with_name("zygote_start.py")

MODULES = (
    "jax",
    "jax.numpy",
    "jax.experimental.pallas",
    "jax.experimental.pallas.tpu",
    "pytest",
    "pallas_debug",
    "pallas_debug_kernels",
)
"""Imported before the first fork. pytest rewrites our plugin as it imports it, so that is not."""

LEFT_OUT = ("pallas_debug.tui", "pallas_debug.compiler.worker", "pallas_debug.reproduce.boot")
"""Modules of ours that are left out: textual reads the environment, the others are programs."""

CARRIED_OVER = {"JAX_PLATFORMS", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE"}
"""Read early, but a child can take over its own."""

READ_EARLY = ("PYTHON", "JAX_", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_")
"""Prefixes of variables that are read at a process's start, or by code that is not Python's."""

REFUSALS = "refusals"

_LENGTH = 8
_REQUEST_SECONDS = 10.0


class Zygote:
    """One process's zygote, seen from that process; started with its first use."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        # Entries of PYTHONPATH are a child's own.
        self._environment = {k: v for k, v in environment.items() if k != "PYTHONPATH"}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def python(self) -> list[str]:
        """The start of a command line: what `[sys.executable]` is without a zygote."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="zygote-")
            self._process = self._start()
        return [sys.executable, "-I", "-S", str(START), self._address, sys.executable]

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def refusals(self) -> list[str]:
        """Why stand-ins started Python itself, oldest first."""
        log = Path(self._address).with_name(REFUSALS)
        return log.read_text().splitlines() if log.exists() else []

    def stop(self) -> None:
        if self._process is not None and self._folder is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()  # children that still run are killed
            self._process.wait()
            self._folder.cleanup()
            self._process = self._folder = None

    @property
    def _address(self) -> str:
        assert self._folder is not None
        return str(Path(self._folder.name, "socket"))

    def _start(self) -> subprocess.Popen[bytes]:
        # Connections wait in the listener until the zygote has imported everything.
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self._address)
            listener.listen(64)
            return subprocess.Popen(
                [sys.executable, __file__, str(listener.fileno())],
                env=self._environment,
                pass_fds=[listener.fileno()],
                stdin=subprocess.PIPE,  # its end says that this process is gone
                stdout=subprocess.DEVNULL,
            )


# What follows runs in the zygote and its children.


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a stand-in asks for.

    Attributes:
      arguments: those of Python.
      ignored: signals that are ignored; all others have their default action.
      fds: standard streams, and the working directory.
    """

    arguments: tuple[str, ...]
    environment: dict[str, str]
    ignored: tuple[int, ...]
    umask: int
    fds: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a process reads before our modules run, and what importing them made of it.

    Attributes:
      read: names of variables that were read.
      before: the environment at the start.
      set: variables that imports have set, and their values.
      top: top-level modules that are imported, and where they are.
      refusals: the file to log refusals in.
    """

    read: frozenset[str]
    before: Mapping[str, str]
    set: Mapping[str, str]
    top: Mapping[str, str]
    refusals: str

    def refusal(self, request: Request) -> str | None:
        """The reason why a child would not be what a fresh process is; None if it would."""
        names = {*request.environment, *self.before, *self.read}
        for name in sorted(names - CARRIED_OVER):
            if name in self.read or name.startswith(READ_EARLY):
                wanted = request.environment.get(name)
                if (wanted or None) != (self.before.get(name) or None) and (
                    wanted is None or wanted != self.set.get(name)
                ):
                    return f"{name} is {wanted}"
        if program(request.arguments) is None:
            return f"options {request.arguments}"
        return None

    def shadowed(self, folders: list[str]) -> str | None:
        """A file in these folders that a fresh process would import in place of an imported one."""
        for folder in folders:
            with contextlib.suppress(OSError):
                for name in os.listdir(folder or "."):
                    stem, _, suffix = name.partition(".")
                    path = os.path.join(os.path.realpath(folder or "."), stem)
                    package = os.path.join(path, "__init__.py")
                    if not (suffix.endswith(("py", "pyc", "so")) or os.path.exists(package)):
                        continue
                    if stem in ("sitecustomize", "usercustomize") or (
                        stem in self.top and self.top[stem] != path
                    ):
                        return os.path.join(folder, name)
        return None


def program(arguments: tuple[str, ...]) -> tuple[str, str, list[str], bool] | None:
    """Kind of a program (-c, -m or a script), its name or text, its arguments, and whether `-P`.

    None where Python has other options.
    """
    safe = bool(arguments) and arguments[0] == "-P"
    rest = list(arguments[safe:])
    if not rest or rest[0] == "-":
        return None
    first = rest.pop(0)
    if not first.startswith("-"):
        return "script", first, rest, safe
    kind, text = first[:2], first[2:]
    if kind not in ("-c", "-m") or not (text or rest):
        return None
    return kind, text or rest.pop(0), rest, safe


def path_entries(request: Request) -> list[str]:
    """The entries of `sys.path` before those of the standard library."""
    found = program(request.arguments)
    assert found is not None
    kind, name, _, safe = found
    first = {"-c": "", "-m": os.getcwd()}.get(kind)
    if first is None:
        first = os.path.dirname(os.path.realpath(name))
    entries = [] if safe else [first]
    searched = request.environment.get("PYTHONPATH", "")
    return entries + [
        os.path.abspath(e) if e else os.getcwd() for e in searched.split(":") if searched
    ]


def main() -> None:
    listener = socket.socket(fileno=int(sys.argv[1]))
    script = sys.modules["__main__"]  # kept: its functions go on
    sys.path.pop(0)
    start = imported(os.path.join(os.path.dirname(listener.getsockname()), REFUSALS))
    request = serve(listener, start)
    if request is not None:
        run(request)
    del script


def imported(refusals: str) -> Start:
    """Import everything, and note what that reads of the environment and sets in it."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # else numpy starts threads
    before = dict(os.environ)
    read: set[str] = set()
    getitem = os._Environ.__getitem__

    def noting(self: os._Environ[str], name: str) -> str:
        read.add(name)
        return getitem(self, name)

    os._Environ.__getitem__ = noting  # type: ignore[method-assign, assignment]
    try:
        for name in MODULES:
            importlib.import_module(name)
        for name in of_ours():
            importlib.import_module(name)
    finally:
        os._Environ.__getitem__ = getitem  # type: ignore[method-assign]
    del os.environ["OPENBLAS_NUM_THREADS"]
    read.discard("OPENBLAS_NUM_THREADS")
    names = {name.partition(".")[0] for name in sys.modules} - {"__main__"}
    top = {name: os.path.join(folder_of(name), name) for name in names}
    gc.collect()
    gc.freeze()
    changed = {name: value for name, value in os.environ.items() if before.get(name) != value}
    return Start(read=frozenset(read), before=before, set=changed, top=top, refusals=refusals)


def of_ours() -> Iterator[str]:
    import pallas_debug

    def walk(package: types.ModuleType) -> Iterator[str]:
        for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if info.name in LEFT_OUT or info.name.endswith("__main__"):
                continue
            yield info.name
            if info.ispkg:
                yield from walk(importlib.import_module(info.name))

    return walk(pallas_debug)


def folder_of(name: str) -> str:
    """Where a module stands; empty for what is built in or frozen."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if not file:
        return ""
    folder = os.path.dirname(os.path.realpath(file))
    return os.path.dirname(folder) if hasattr(module, "__path__") else folder


def serve(listener: socket.socket, start: Start) -> Request | None:
    """Fork a child for each request; returns in the children, with what each is to run."""
    children: dict[int, tuple[int, socket.socket]] = {}  # by pidfd
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(0, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj == 0:
                    for pid, _ in children.values():
                        kill(pid)
                    os._exit(0)
                if key.fileobj is listener:
                    connection, _ = listener.accept()
                    request = received(connection)
                    pid = None if request is None else fork(request, start, connection)
                    if pid == 0:
                        for opened in [connection, *(c for _, c in children.values()), listener]:
                            opened.close()
                        for pidfd in children:
                            os.close(pidfd)
                        return request
                    if request is not None:
                        for fd in request.fds:
                            os.close(fd)
                    if pid is None:
                        connection.close()
                        continue
                    pidfd = os.pidfd_open(pid)
                    children[pidfd] = pid, connection
                    selector.register(pidfd, selectors.EVENT_READ, pidfd)
                    selector.register(connection, selectors.EVENT_READ, pidfd)
                elif key.data in children:
                    pid, connection = children[key.data]
                    if key.fileobj is connection:  # the stand-in has died
                        selector.unregister(connection)
                        kill(pid)
                        continue
                    _, status = os.waitpid(pid, 0)
                    with contextlib.suppress(KeyError):
                        selector.unregister(connection)
                    selector.unregister(key.data)
                    del children[key.data]
                    os.close(key.data)
                    answer(connection, f"status {status}")
                    connection.close()


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def received(connection: socket.socket) -> Request | None:
    connection.settimeout(_REQUEST_SECONDS)
    try:
        length, fds, _, _ = socket.recv_fds(connection, _LENGTH, 4)
        data = bytearray()
        while len(data) < int.from_bytes(length, "big"):
            data += connection.recv(1 << 16) or b"\0" * (1 << 20)
        arguments, environment, ignored, umask = marshal.loads(data)
    except (OSError, ValueError, TypeError, EOFError):  # killed while it was asking
        return None
    connection.settimeout(None)
    return Request(
        arguments=tuple(arguments),
        environment=environment,
        ignored=tuple(ignored),
        umask=umask,
        fds=tuple(fds),
    )


def answer(connection: socket.socket, line: str) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(f"{line}\n".encode())


def fork(request: Request, start: Start, connection: socket.socket) -> int | None:
    """The child's process number, 0 in the child; None, and an answer, where there is to be none."""
    refusal = start.refusal(request)
    if refusal is None:
        os.fchdir(request.fds[3])
        shadowed = start.shadowed(path_entries(request))
        refusal = shadowed and f"{shadowed} comes first"
    if refusal is not None:
        answer(connection, f"no {refusal}")
        with open(start.refusals, "a") as log:
            log.write(f"{refusal}\n")
        return None
    assert threading.active_count() == 1
    pid = os.fork()
    if pid == 0:
        take_over(request, start)
    else:
        answer(connection, f"pid {pid}")
    return pid


def take_over(request: Request, start: Start) -> None:
    """Make this process what a fresh one with that request would be after its imports."""
    os.setsid()
    for target, fd in enumerate(request.fds[:3]):
        os.dup2(fd, target)
    for fd in request.fds:
        os.close(fd)
    os.umask(request.umask)
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGUSR1,
    ):
        default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in request.ignored else default)
    os.environ.clear()
    os.environ.update({**start.set, **request.environment})
    sys.dont_write_bytecode = bool(request.environment.get("PYTHONDONTWRITEBYTECODE"))
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    sys.path[:0] = path_entries(request)
    import jax
    import numpy

    jax.config.update("jax_platforms", request.environment.get("JAX_PLATFORMS"))
    numpy.random.seed()


def run(request: Request) -> None:
    found = program(request.arguments)
    assert found is not None
    kind, name, arguments, _ = found
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = module
    sys.argv[:] = [name if kind == "script" else kind, *arguments]
    try:
        if kind == "-m":
            import runpy

            runpy._run_module_as_main(name)  # type: ignore[attr-defined]  # as `python -m` does
        elif kind == "-c":
            exec(compile(name, "<string>", "exec", dont_inherit=True), module.__dict__)
        else:
            module.__file__ = name
            module.__loader__ = importlib.machinery.SourceFileLoader("__main__", name)
            code = compile(Path(name).read_bytes(), name, "exec", dont_inherit=True)
            exec(code, module.__dict__)
    except SystemExit as stop:
        code = stop.code
    except BaseException as error:
        code = 1
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next  # our own frames
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        if isinstance(error, KeyboardInterrupt):
            code = -signal.SIGINT
    else:
        code = 0
    end(code)


def end(code: object) -> NoReturn:
    """End as Python does, except that modules are not taken apart: that copies all their memory."""
    if code is not None and not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.modules["__main__"].__dict__.clear()
    gc.collect()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except OSError:
        sys.exit(code)  # Python tries again, and says what is wrong
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    main()
