"""The installed command in tmux, under a shell with job control."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tmux import Tmux

COMMAND = Path(sys.executable).with_name("pallas-debug")


@pytest.fixture
def tmux() -> Iterator[Tmux]:
    if shutil.which("tmux") is None or shutil.which("bash") is None:
        pytest.skip("there is no tmux, or no bash")
    # The shell's prompt is what tells that it waits for a command.
    shell = "PS1='ready: ' bash --norc --noprofile -i"
    with Tmux(program=shell) as session:
        session.wait_for("ready:")
        yield session


def test_it_does_not_draw_into_a_file(tmux: Tmux, raw: Path, tmp_path: Path) -> None:
    words = [str(COMMAND), "browse", str(raw / "libtpu-0.0.50" / "add")]
    log = tmp_path / "errors.txt"
    tmux.send(f"{shlex.join(words)} 2>{shlex.quote(str(log))}; echo it ended with $?", "Enter")
    tmux.wait_for("it ended with 3")
    assert log.read_text().startswith("pallas-debug: browse needs a terminal")


@pytest.mark.slow
def test_the_debugger_steps_both_ways(tmux: Tmux) -> None:
    words = [str(COMMAND), "step", "pallas_debug_kernels:vector_add"]
    tmux.send(shlex.join(words), "Enter")
    tmux.wait_for("vector_add · grid point (0", "q quit", "▶")
    tmux.send("p")
    tmux.wait_for("grid point (1")
    tmux.send("P")
    tmux.wait_for("grid point (0")
    tmux.send("c")
    tmux.wait_for("the run has ended")
    tmux.send("S")
    tmux.wait_for("▶     out_ref[...] =")
    tmux.send("q")
    tmux.wait_for("ready: ")
    tmux.send("echo it ended with $?", "Enter")
    tmux.wait_for("it ended with 0")
