"""The zygote process itself, and the setup of its children; see `zygote.py`."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import gc
import importlib
import importlib.machinery
import io
import linecache
import marshal
import os
import pkgutil
import runpy
import selectors
import shlex
import signal
import socket
import sys
import threading
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

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

LATER = (
    "_pytest.junitxml",
    "_pytest.skipping",
    "_pytest.unittest",
    "execnet",
    "jax._src.pallas.mosaic.pallas_call_registration",
    "jax._src.pallas.mosaic_gpu.interpret.interpret_pallas_call",
    "jaxlib.mlir.dialects.mhlo",
    "packaging.requirements",
    "pallas_debug_kernels.registry",
    "pdb",
    "rich.table",
)
"""What children would import as they run. jax imports the interpreter of another chip before it runs
a kernel, which takes 0.2 s, and fails where that needs what is not installed."""

LEFT_OUT = ("pallas_debug.compiler.worker",)
"""Modules of ours that are left out, since they are programs."""

WORKER = "pallas_debug.compiler.worker"
"""The compiler process; it uses no jax, so that it need not agree with jax's variables."""

CARRIED_OVER = {"JAX_PLATFORMS", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "HOME"}
"""Read early, but a child can take over its own; sysconfig's use of HOME is none here."""

READ_EARLY = ("PYTHON", "JAX_", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_")
"""Prefixes of variables that are read at a process's start, or by code that is not Python's."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
"""Signals that a stand-in passes on."""

REQUEST_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a stand-in asks for.

    Attributes:
      words: the arguments of Python.
      ignored: signals that are ignored; all others have their default action.
      fds: standard streams, and the working directory.
    """

    words: tuple[str, ...]
    environment: dict[str, str]
    ignored: tuple[int, ...]
    umask: int
    fds: tuple[int, ...]

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


@dataclass(frozen=True, kw_only=True)
class Program:
    """What Python is to run.

    Attributes:
      kind: `-c`, `-m`, or empty for a script.
      name: the text, module or path.
      options: `-P` and `-u`.
    """

    kind: str
    name: str
    arguments: tuple[str, ...]
    options: frozenset[str]

    @classmethod
    def of(cls, words: tuple[str, ...]) -> Program | None:
        """The program that Python's arguments name; None where there are other options."""
        options = set()
        while words and words[0] in ("-P", "-u"):
            options.add(words[0])
            words = words[1:]
        if words and words[0][:2] in ("-c", "-m") and words[0][2:]:  # such as -mpytest
            words = (words[0][:2], words[0][2:], *words[1:])
        kind = words[0] if words and words[0].startswith("-") else ""
        if kind not in ("", "-c", "-m") or len(words) <= bool(kind):
            return None
        name, *arguments = words[bool(kind) :]
        if not kind and not os.path.isfile(name):
            return None
        return cls(kind=kind, name=name, arguments=tuple(arguments), options=frozenset(options))

    def path(self, environment: Mapping[str, str]) -> list[str]:
        """The entries of `sys.path` before those of the standard library."""
        script = os.path.dirname(os.path.realpath(self.name))
        first = {"-c": "", "-m": os.getcwd()}.get(self.kind, script)
        searched = environment.get("PYTHONPATH", "")
        entries = [os.path.abspath(entry) for entry in searched.split(":") if searched]
        return entries if "-P" in self.options else [first, *entries]


@dataclass(frozen=True, kw_only=True)
class Imports:
    """What importing our modules read of the environment, and what it made of it.

    Attributes:
      before: the environment at the start.
      read: names of variables that were read.
      set: variables that were set, and their values.
      places: path of each top-level module without its suffix.
    """

    before: Mapping[str, str]
    read: frozenset[str]
    set: Mapping[str, str]
    places: Mapping[str, str]

    @classmethod
    def run(cls) -> Imports:
        """Import everything."""
        before = dict(os.environ)
        os.environ["OPENBLAS_NUM_THREADS"] = "1"  # else numpy starts threads
        read: set[str] = set()
        getitem = os._Environ.__getitem__

        def noting(self: os._Environ[str], name: str) -> str:
            read.add(name)
            return getitem(self, name)

        os._Environ.__getitem__ = noting  # type: ignore[method-assign, assignment]
        for name in (*MODULES, *of_ours()):
            importlib.import_module(name)
        for name in LATER:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        os._Environ.__getitem__ = getitem  # type: ignore[method-assign]
        del os.environ["OPENBLAS_NUM_THREADS"]
        names = {name.partition(".")[0] for name in sys.modules} - {"__main__"}
        return cls(
            before=before,
            read=frozenset(read),
            set={k: v for k, v in os.environ.items() if before.get(k) != v},
            places={name: os.path.join(folder_of(name), name) for name in names},
        )

    def differing(self, program: Program, environment: Mapping[str, str]) -> str | None:
        """A variable that a fresh process would read another value of than was read here."""
        for name in sorted({*environment, *self.before, *self.read} - CARRIED_OVER):
            if program.name == WORKER and name.startswith("JAX_"):
                continue
            if name in self.read or name.startswith(READ_EARLY):
                wanted = environment.get(name)
                if (wanted or None) != (self.before.get(name) or None) and (
                    wanted is None or wanted != self.set.get(name)
                ):
                    return name
        return None

    def shadowed(self, folders: list[str]) -> str | None:
        """A file in these folders that a fresh process would import in place of an imported one."""
        for folder in map(os.path.realpath, folders):
            for name in os.listdir(folder) if os.path.isdir(folder) else ():
                stem, _, suffix = name.partition(".")
                path = os.path.join(folder, stem)
                package = os.path.join(path, "__init__.py")
                if not (suffix.endswith(("py", "pyc", "so")) or os.path.exists(package)):
                    continue
                if stem in ("sitecustomize", "usercustomize") or (
                    self.places.get(stem, path) != path
                ):
                    return os.path.join(folder, name)
        return None


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


class Server:
    """Forks a child for each request, and tells the stand-ins how their children end.

    Attributes:
      stand_in: the start of a command line that stands for Python.
      children: process number and stand-in of each child, by its pidfd.
    """

    def __init__(
        self, listener: socket.socket, imports: Imports, refusals: str, stand_in: list[str]
    ) -> None:
        self.listener = listener
        self.imports = imports
        self.refusals = refusals
        self.stand_in = stand_in
        self.children: dict[int, tuple[int, socket.socket]] = {}
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ)
        self.selector.register(0, selectors.EVENT_READ)

    def serve(self) -> Program:
        """Go on until the test process ends; returns in each child, with what that is to run."""
        while True:
            for key, _ in self.selector.select():
                if key.fileobj == 0:
                    for pid, _ in self.children.values():
                        kill(pid)
                    os._exit(0)
                elif key.fileobj is self.listener:
                    connection, _ = self.listener.accept()
                    child = self.accept(connection)
                    if child is not None:
                        return child
                elif key.data in self.children:
                    if key.fileobj == key.data:
                        self.reap(key.data)
                    else:  # the stand-in has died
                        self.selector.unregister(key.fileobj)
                        kill(self.children[key.data][0])

    def accept(self, connection: socket.socket) -> Program | None:
        """In a child that was forked for this request, what it is to run."""
        request = received(connection)
        if request is None:
            connection.close()
            return None
        os.fchdir(request.fds[3])
        program = Program.of(request.words)
        refusal = self.refusal(request, program)
        if program is None or refusal:
            answer(connection, f"no {refusal}")
            with open(self.refusals, "a") as log:
                log.write(f"{refusal}\n")
            connection.close()
            request.close()
            return None
        assert threading.active_count() == 1
        pid = os.fork()
        if pid == 0:
            self.close()
            connection.close()
            take_over(request, program, self.imports)
            fork_compilers(self.stand_in)
            return program
        answer(connection, f"pid {pid}")
        request.close()
        os.chdir("/")
        pidfd = os.pidfd_open(pid)
        self.children[pidfd] = pid, connection
        self.selector.register(pidfd, selectors.EVENT_READ, pidfd)
        self.selector.register(connection, selectors.EVENT_READ, pidfd)
        return None

    def refusal(self, request: Request, program: Program | None) -> str | None:
        """Why a child would not be what a fresh process is; None if it would."""
        if program is None:
            return f"arguments: {shlex.join(request.words)}"
        if variable := self.imports.differing(program, request.environment):
            return f"variable: {variable}"
        if file := self.imports.shadowed(program.path(request.environment)):
            return f"file: {file}"
        return None

    def reap(self, pidfd: int) -> None:
        pid, connection = self.children.pop(pidfd)
        _, status = os.waitpid(pid, 0)
        self.selector.unregister(pidfd)
        with contextlib.suppress(KeyError):
            self.selector.unregister(connection)
        os.close(pidfd)
        answer(connection, f"status {status}")
        connection.close()

    def close(self) -> None:
        """In a child: close what is the zygote's."""
        self.selector.close()
        self.listener.close()
        for pidfd, (_, connection) in self.children.items():
            os.close(pidfd)
            connection.close()


def kill(pid: int) -> None:
    """Kill a child and its group, which is there once the child has run."""
    for send in (os.kill, os.killpg):
        with contextlib.suppress(ProcessLookupError):
            send(pid, signal.SIGKILL)


def received(connection: socket.socket) -> Request | None:
    """The request of a stand-in; None if it was killed while it was asking."""
    connection.settimeout(REQUEST_SECONDS)
    try:
        length, fds, _, _ = socket.recv_fds(connection, 8, 4)
        with connection.makefile("rb") as stream:
            words, environment, ignored, umask = marshal.loads(
                stream.read(int.from_bytes(length, "big"))
            )
    except (OSError, ValueError, TypeError, EOFError):
        return None
    connection.settimeout(None)
    return Request(
        words=tuple(words),
        environment=environment,
        ignored=tuple(ignored),
        umask=umask,
        fds=tuple(fds),
    )


def answer(connection: socket.socket, line: str) -> None:
    with contextlib.suppress(OSError):  # it was killed
        connection.sendall(f"{line}\n".encode())


def take_over(request: Request, program: Program, imports: Imports) -> None:
    """Make this process what a fresh one would be after these imports."""
    os.setsid()
    for target, fd in enumerate(request.fds[:3]):
        os.dup2(fd, target)
    request.close()
    os.umask(request.umask)
    for number in SIGNALS:
        default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in request.ignored else default)
    os.environ.clear()
    os.environ.update({**imports.set, **request.environment})
    sys.dont_write_bytecode = bool(request.environment.get("PYTHONDONTWRITEBYTECODE"))
    unbuffered = "-u" in program.options or bool(request.environment.get("PYTHONUNBUFFERED"))
    assert isinstance(sys.stdout, io.TextIOWrapper)
    assert isinstance(sys.stderr, io.TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=os.isatty(1), write_through=unbuffered)
    sys.stderr.reconfigure(write_through=unbuffered)
    sys.path[:0] = program.path(request.environment)
    import jax
    import numpy

    jax.config.update("jax_platforms", request.environment.get("JAX_PLATFORMS"))
    numpy.random.seed()


def fork_compilers(stand_in: list[str]) -> None:
    """Fork the compiler processes of this one as well: most of their start is their imports."""
    from pallas_debug.compiler import pool

    pool.python = lambda: tuple(stand_in)


def run(program: Program) -> NoReturn:
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    name = program.name
    sys.argv[:] = [program.kind or name, *program.arguments]
    code: object = 0
    try:
        if program.kind == "-m":
            runpy._run_module_as_main(name)  # type: ignore[attr-defined]  # as `python -m` does
        elif program.kind == "-c":
            if sys.version_info >= (3, 13):  # shows its lines in a traceback
                lines = name.splitlines(keepends=True)
                linecache.cache["<string>"] = len(name), None, lines, "<string>"
            exec(compile(name, "<string>", "exec", dont_inherit=True), module.__dict__)
        else:
            module.__file__ = path = os.path.abspath(name)
            module.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
            text = Path(path).read_bytes()
            exec(compile(text, path, "exec", dont_inherit=True), module.__dict__)
    except SystemExit as stop:
        code = stop.code
    except BaseException as error:
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next  # our own frames
        sys.excepthook(type(error), error.with_traceback(trace), trace)
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


def main() -> None:
    script = sys.modules["__main__"]  # kept alive, as its functions are used after it is replaced
    sys.path.pop(0)
    listener = socket.socket(fileno=int(sys.argv[1]))
    imports = Imports.run()
    gc.collect()
    gc.freeze()  # else a child's first collection copies all memory
    run(Server(listener, imports, refusals=sys.argv[2], stand_in=sys.argv[3:]).serve())
    del script


if __name__ == "__main__":
    main()
