"""Forks of a process that has imported jax, in place of new Pythons: importing it takes 2 s of CPU.

The script of the fixture `forks` stands for `sys.executable`: arguments, environment, directory and
standard streams go through a socket to a server, which forks; signals and the exit status are passed
on. In a fork, modules are imported already: tests of imports, of the start, and of what is read early
(`PYTHON…`, `JAX_…`) use `run_python`.
"""

import _signal
import _socket
import marshal
import os
import sys


def ask(address: str, words: list[str]) -> None:
    """In the process that stands for Python: let the server fork, and end as the fork does."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    connection.connect(address)
    streams = b"".join(n.to_bytes(4, sys.byteorder) for n in (0, 1, 2))
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)]
    connection.sendmsg([marshal.dumps((words, dict(os.environ), os.getcwd()))], rights)
    pid = int.from_bytes(connection.recv(8), "big")
    for number in (_signal.SIGINT, _signal.SIGTERM):
        _signal.signal(number, lambda number, _: os.kill(pid, number))
    code = os.waitstatus_to_exitcode(int.from_bytes(connection.recv(8), "big"))
    if code < 0:
        _signal.signal(-code, _signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def serve(fd: int) -> list[str]:
    """Fork for each connection, until standard input ends; in a fork, return its arguments."""
    import gc
    import pkgutil
    import select
    import socket

    import pytest  # noqa: F401

    import pallas_debug

    for module in pkgutil.walk_packages(pallas_debug.__path__, "pallas_debug."):
        # Not programs, nor hypothesis, which is a plugin of pytest that has to rewrite its modules.
        if not module.name.endswith(("__main__", ".worker")) and "search" not in module.name:
            pkgutil.resolve_name(module.name)
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
        sys.stdout = os.fdopen(1, "w", closefd=False)  # the old one knows what it was open on
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        return words
    os._exit(0)


def run(words: list[str]) -> None:
    """Run a program as Python does."""
    import runpy

    words = words[words[0] == "-u" :]
    option, name, *rest = words if words[0] in ("-c", "-m") else ("", *words)
    sys.argv[:] = [option or name, *rest]
    sys.path[0] = "" if option else os.path.dirname(os.path.realpath(name))
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(":"))
    if option == "-m":
        runpy._run_module_as_main(name)  # type: ignore[attr-defined]  # as `python -m` does
    elif option == "-c":
        exec(compile(name, "<string>", "exec"), sys.modules["__main__"].__dict__)
    else:
        runpy.run_path(name, run_name="__main__")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        ask(sys.argv[1], sys.argv[2:])
    run(serve(int(sys.argv[1])))
