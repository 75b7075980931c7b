"""Stand-in for `python ARGUMENTS…` that asks a zygote to fork, or else starts Python itself.

    python -I -S zygote_start.py SOCKET PYTHON ARGUMENTS…

The process behaves like the one it stands for: it hands over its environment, directory and
standard streams, passes signals on, and ends as the forked process does. It is started hundreds of
times, so it imports only what is built into Python (12 ms of CPU). See `zygote.py` for the rest.
"""

import _signal
import _socket
import marshal
import os
import sys

SIGNALS = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGQUIT, _signal.SIGUSR1)


def main() -> None:
    address, python, *arguments = sys.argv[1:]
    ignored = [n for n in SIGNALS if _signal.getsignal(n) == _signal.SIG_IGN]
    _signal.signal(
        _signal.SIGINT, _signal.SIG_IGN if _signal.SIGINT in ignored else _signal.SIG_DFL
    )
    _signal.pthread_sigmask(_signal.SIG_BLOCK, SIGNALS)  # until they can be passed on
    umask = os.umask(0)
    os.umask(umask)
    request = marshal.dumps((arguments, dict(os.environ), ignored, umask))
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.connect(address)
        here = os.open(".", os.O_RDONLY)
        streams = b"".join(n.to_bytes(4, sys.byteorder) for n in (0, 1, 2, here))
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)]
        connection.sendmsg([len(request).to_bytes(8, "big")], rights)
        connection.sendall(request)
        answer, value = receive(connection)
    except OSError as error:
        answer, value = b"no", str(error).encode()
    if answer != b"pid":
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, SIGNALS)
        os.execv(python, [python, *arguments])
    pid = int(value)
    for number in SIGNALS:
        if number not in ignored:
            _signal.signal(number, lambda number, frame: pass_on(pid, number))
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, SIGNALS)
    answer, value = receive(connection)
    if answer != b"status":
        os.write(2, b"the zygote has died\n")
        os._exit(255)
    status = int(value)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number not in (_signal.SIGKILL, _signal.SIGSTOP):
            _signal.signal(number, _signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


def receive(connection: "_socket.socket") -> tuple[bytes, bytes]:
    """A word and a value, which are a line; empty ones at the end of the stream."""
    line = b""
    while not line.endswith(b"\n"):
        received = connection.recv(1)
        if not received:
            return b"", b""
        line += received
    word, _, value = line.strip().partition(b" ")
    return word, value


def pass_on(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


main()
