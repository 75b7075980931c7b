"""The installed command in a real terminal, from start to quit; and where there is none."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).with_name("pallas-debug")
SECONDS = 30.0
Run = Callable[..., subprocess.CompletedProcess[str]]


class Terminal:
    """A pseudo-terminal with the command in it."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
        self.process = subprocess.Popen(
            [COMMAND, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm-256color", **environment},
            start_new_session=True,
        )
        os.close(theirs)
        self.seen = ""

    def wait_for(self, text: str) -> None:
        """Read until `text` was written."""
        end = time.monotonic() + SECONDS
        while text not in self.seen:
            assert time.monotonic() < end, f"{text!r} never came: {self.seen[-2000:]}"
            if select.select([self._ours], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self._ours, 1 << 16).decode(errors="replace")
                except OSError:  # the other side is closed
                    assert text in self.seen, self.seen[-2000:]
                    return

    def send(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def quit(self) -> int:
        self.send("q")
        self.wait_for("\x1b[?1049l")  # the screen that was there before is back
        code = self.process.wait(timeout=SECONDS)
        os.close(self._ours)
        return code


def test_from_start_to_quit(dumps: Path) -> None:
    with Terminal("browse", str(dumps)) as terminal:
        _walk(terminal)


def _walk(terminal: Terminal) -> None:
    terminal.wait_for("vector_add-")
    terminal.send("]")
    terminal.wait_for("deserialization")
    terminal.send("/addf\r")
    terminal.wait_for("1/1")
    terminal.send("?")
    terminal.wait_for("previous pass that changed something")
    terminal.seen = ""
    terminal.send("\x1b")
    terminal.wait_for("q quit")
    assert terminal.quit() == 0


def test_without_colours(dumps: Path) -> None:
    with Terminal("browse", str(dumps), NO_COLOR="1") as terminal:
        terminal.wait_for("vector_add-")
        assert terminal.quit() == 0
    used = {int(n) for n in re.findall(r"[34]8;5;(\d+)", terminal.seen)}
    assert used <= {0, 7, 8, 15, 16, 59, 102, 145, 188, 231, *range(232, 256)}, "not all are greys"


def test_without_a_terminal(command: Run, dumps: Path) -> None:
    done = command("browse", dumps)
    assert done.returncode != 0
    assert done.stdout == ""
    assert done.stderr == (
        "pallas-debug: browse needs a terminal. Without one: `pallas-debug ls` lists kernels and "
        "passes, `pallas-debug show` prints one.\n"
    )


@pytest.mark.parametrize("what, message", [("nothing", "no such directory"), ("file", "is a file")])
def test_a_directory_that_cannot_be_browsed(tmp_path: Path, what: str, message: str) -> None:
    (tmp_path / "file").write_text("")
    with Terminal("browse", str(tmp_path / what)) as terminal:
        terminal.wait_for(message)
        assert terminal.process.wait(timeout=SECONDS) != 0
