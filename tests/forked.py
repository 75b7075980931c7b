"""Forks of a process that has imported jax, in place of new Pythons: importing it takes 2 s of CPU.

The script `Forks.python` stands for `sys.executable`. Arguments, environment, directory and standard
streams go through a socket to a server, which forks; signals and the exit status are passed on. In
a fork, modules are imported already: tests of imports, of the start, and of what is read early
(`PYTHON…`, `JAX_…`) use `run_python`.
"""

import _signal
import _socket
import marshal
import os
import sys

SIGNALS = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGQUIT, _signal.SIGUSR1)


class Forks:
    """The server of a test process; it ends with it."""

    def __init__(self, folder: str) -> None:
        import subprocess

        self.python = f"{folder}/python"
        with open(self.python, "w") as script:
            script.write(f'#!/bin/sh\nexec {sys.executable} -ISu {__file__} {folder}/socket "$@"\n')
        os.chmod(self.python, 0o700)
        listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        listener.bind(f"{folder}/socket")
        listener.listen(64)
        command, fds = [sys.executable, __file__, str(listener.fileno())], [listener.fileno()]
        self._server = subprocess.Popen(command, pass_fds=fds, stdin=subprocess.PIPE)
        listener.close()

    def stop(self) -> None:
        self._server.communicate()  # the end of its input


def ask(address: str, words: list[str]) -> None:
    """In the process that stands for Python: let the server fork, and end as the fork does."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    connection.connect(address)
    request = marshal.dumps((words, dict(os.environ), os.getcwd()))
    streams = b"".join(n.to_bytes(4, sys.byteorder) for n in (0, 1, 2))
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)]
    connection.sendmsg([request], rights)
    pid = int.from_bytes(connection.recv(8), "big")
    for number in SIGNALS:
        _signal.signal(number, lambda number, _: os.kill(pid, number))
    status = int.from_bytes(connection.recv(8), "big")
    if os.WIFSIGNALED(status):
        _signal.signal(os.WTERMSIG(status), _signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def serve(fd: int) -> list[str]:
    """Fork for each connection, until standard input ends; in a fork, return its arguments."""
    import gc
    import importlib
    import pkgutil
    import select
    import socket

    for package in ("jax.experimental.pallas.tpu", "pytest", "pallas_debug"):
        importlib.import_module(package)
    for module in pkgutil.walk_packages(sys.modules["pallas_debug"].__path__, "pallas_debug."):
        if not module.name.endswith(("__main__", ".worker")):  # programs
            importlib.import_module(module.name)
    gc.freeze()  # else a fork's first collection copies all memory
    listener = socket.socket(fileno=fd)
    _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)  # whatever waits for a fork is not waited for
    while select.select([listener, 0], [], [])[0] == [listener]:
        connection, _ = listener.accept()
        if os.fork():
            connection.close()
            continue
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        request, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        words, environment, folder = marshal.loads(request)
        if pid := os.fork():
            connection.sendall(pid.to_bytes(8, "big"))
            child = os.pidfd_open(pid)
            if child not in select.select([child, connection], [], [])[0]:
                os.killpg(pid, _signal.SIGKILL)  # who asked was killed
            connection.sendall(os.waitpid(pid, 0)[1].to_bytes(8, "big"))
            os._exit(0)
        os.setsid()
        for n, inherited in enumerate((*streams, listener.detach(), connection.detach())):
            os.dup2(inherited, n) if n < 3 else os.close(inherited)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        return words
    os._exit(0)


def run(words: list[str]) -> None:
    """Run a program as Python does."""
    import runpy

    words = words[words[0] == "-u" :]
    option, name = (words[0], words[1]) if words[0] in ("-c", "-m") else ("", words[0])
    sys.argv[:] = [option or name, *words[1 + bool(option) :]]
    sys.path[0] = "" if option else os.path.dirname(os.path.realpath(name))
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(":"))
    if option == "-m":
        runpy._run_module_as_main(name)  # type: ignore[attr-defined]  # as `python -m` does
    elif option:
        code = compile(name, "<string>", "exec", dont_inherit=True)
        exec(code, sys.modules["__main__"].__dict__)
    else:
        runpy.run_path(name, run_name="__main__")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        ask(sys.argv[1], sys.argv[2:])
    run(serve(int(sys.argv[1])))
