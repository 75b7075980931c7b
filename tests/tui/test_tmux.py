"""The installed command in tmux, under a shell with job control."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).with_name("pallas-debug")
SECONDS = 60.0


class Tmux:
    """A session with a shell in it."""

    def __init__(self, home: Path) -> None:
        # A name of its own: the server of the test before may still be ending.
        self._words = ["tmux", "-L", f"pallas-debug-{uuid.uuid4().hex}", "-f", "/dev/null"]
        # The shell's prompt is what tells that it waits for a command.
        shell = f"XDG_STATE_HOME={shlex.quote(str(home))} PS1='ready: ' bash --norc --noprofile -i"
        self.run("new-session", "-d", "-x", "100", "-y", "24", shell)
        self.wait_for("ready:")

    def run(self, *words: str) -> str:
        return subprocess.run(
            [*self._words, *words], capture_output=True, text=True, timeout=SECONDS, check=False
        ).stdout

    def send(self, *keys: str) -> None:
        self.run("send-keys", *keys)

    def wait_for(self, *texts: str) -> str:
        """Wait until all of these are on the screen, and return it."""
        end = time.monotonic() + SECONDS
        while not all(text in (screen := self.run("capture-pane", "-p")) for text in texts):
            assert time.monotonic() < end, screen
            time.sleep(0.1)
        return screen


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    if shutil.which("tmux") is None or shutil.which("bash") is None:
        pytest.skip("there is no tmux, or no bash")
    session = Tmux(tmp_path)
    try:
        yield session
    finally:
        session.run("kill-server")


def test_keys_help_and_the_end(tmux: Tmux, raw: Path) -> None:
    add = raw / "libtpu-0.0.50" / "add"
    tmux.send(f"{shlex.join([str(COMMAND), 'browse', str(add)])}; echo it ended with $?", "Enter")
    tmux.wait_for("q quit")
    tmux.send("]", "]")
    tmux.wait_for("03 canonicalize-memory-space")
    tmux.send("?")
    tmux.wait_for("Moving")
    tmux.send("q")
    tmux.wait_for("q quit")
    tmux.send("q")
    tmux.wait_for("it ended with 0")


def test_standard_error_in_a_file(tmux: Tmux, raw: Path, tmp_path: Path) -> None:
    words = [str(COMMAND), "browse", str(raw / "libtpu-0.0.50" / "add")]
    log = tmp_path / "errors.txt"
    tmux.send(f"{shlex.join(words)} 2>{shlex.quote(str(log))}; echo it ended with $?", "Enter")
    tmux.wait_for("21 finalize-llo", "q quit")
    tmux.send("q")
    tmux.wait_for("it ended with 0")
    assert log.read_bytes() == b""


def test_it_is_drawn_again_after_ctrl_z_and_fg(tmux: Tmux, raw: Path) -> None:
    add = raw / "libtpu-0.0.50" / "add"
    tmux.send(shlex.join([str(COMMAND), "browse", str(add)]), "Enter")
    tmux.wait_for("21 finalize-llo", "q quit")
    tmux.send("]", "]")
    shown = "raw  ›  03 canonicalize-memory-space", "-10      7 ops", "q quit"
    tmux.wait_for(*shown)
    tmux.send("C-z")
    tmux.wait_for("Stopped", "ready: ")
    tmux.send("fg", "Enter")
    tmux.wait_for(*shown)
    tmux.send("q")
    tmux.wait_for("ready: ")


def test_the_debugger_steps_both_ways(tmux: Tmux) -> None:
    words = [str(COMMAND), "step", "pallas_debug_kernels:vector_add"]
    tmux.send(shlex.join(words), "Enter")
    tmux.wait_for("vector_add · grid point (0", "q quit", "▶")
    tmux.send("p")
    tmux.wait_for("grid point (1")
    tmux.send("P")
    tmux.wait_for("grid point (0")
    tmux.send("C-z")
    tmux.wait_for("Stopped", "ready: ")
    tmux.send("fg", "Enter")
    tmux.wait_for("vector_add · grid point (0", "q quit", "▶")
    tmux.send("c")
    tmux.wait_for("the run has ended")
    tmux.send("S")
    tmux.wait_for("▶     out_ref[...] =")
    tmux.send("q")
    tmux.wait_for("ready: ")
    tmux.send("echo it ended with $?", "Enter")
    tmux.wait_for("it ended with 0")
