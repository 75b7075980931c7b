"""The installed command in a real terminal, from start to quit, and without a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import shlex
import shutil
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pallas_debug.cli.exits import Exit

COMMAND = Path(sys.executable).with_name("pallas-debug")
STARTED = (COMMAND, "browse")
"""The command with a start of Python, for tests of its start and end; others fork it."""
SECONDS = 60.0
CLEARED = ("COLUMNS", "LINES", "NO_COLOR", "VISUAL", "EDITOR", "TMUX", "STY", "COLORTERM")
_STYLE = re.compile(r"\x1b\[[\d;]*m")
Run = Callable[..., subprocess.CompletedProcess[str]]


class Terminal:
    """A pseudo-terminal with the command in it.

    Args:
      program: the command; by default a fork.
    """

    forked: ClassVar[Sequence[str | Path]] = ()

    def __init__(
        self,
        *arguments: str,
        size: tuple[int, int] = (120, 30),
        program: Sequence[str | Path] | None = None,
        **environment: str,
    ) -> None:
        self._ours, self.theirs = pty.openpty()
        columns, rows = size
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.before = termios.tcgetattr(self.theirs)
        inherited = {k: v for k, v in os.environ.items() if k not in CLEARED}
        self.process = subprocess.Popen(
            [*(program or self.forked), *arguments],
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            env={
                **inherited,
                "TERM": "xterm-256color",
                **environment,
            },
            start_new_session=True,
        )
        self.seen = ""

    def read(self) -> bool:
        """What is written now, if anything is within a moment: who does not read stops the app."""
        if not select.select([self._ours], [], [], 0.1)[0]:
            return False
        self.seen += os.read(self._ours, 1 << 16).decode(errors="replace")
        return True

    def wait_until(self, holds: Callable[[], object], what: str) -> None:
        end = time.monotonic() + SECONDS
        while not holds():
            assert time.monotonic() < end, f"{what} never came: {self.seen[-2000:]}"
            self.read()

    def wait_for(self, text: str) -> None:
        """Read until `text` was written, in whatever colours."""
        self.wait_until(lambda: text in self.seen or text in _STYLE.sub("", self.seen), repr(text))

    def send(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def forget(self) -> None:
        """What was written so far is not looked at again."""
        quiet = 0
        while quiet < 4:
            quiet = 0 if self.read() else quiet + 1
        self.seen = ""

    def vanish(self) -> None:
        """The terminal is closed, as when a connection breaks, without a signal."""
        os.close(self.theirs)
        os.close(self._ours)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def quit(self) -> int:
        self.send("q")
        return self.ended()

    def ended(self) -> int:
        """Wait for the end; the terminal is as it was before."""
        self.wait_until(lambda: self.process.poll() is not None, "the end")
        while self.read():
            pass
        for before, after in (("\x1b[?1049h", "\x1b[?1049l"), ("\x1b[?25l", "\x1b[?25h")):
            assert self.seen.rfind(after) >= self.seen.rfind(before), "the old screen is not back"
        assert termios.tcgetattr(self.theirs) == self.before
        os.close(self.theirs)
        os.close(self._ours)
        return self.process.returncode


@pytest.fixture(autouse=True)
def forked(forks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of what the command does until its first screen is to import Textual."""
    monkeypatch.setattr(Terminal, "forked", (forks, COMMAND, "browse"))


@pytest.fixture
def add(raw: Path) -> str:
    """Raw dumps of a kernel that adds."""
    return str(raw / "libtpu-0.0.50" / "add")


@pytest.fixture
def recorder(tmp_path: Path) -> Path:
    """A program that writes down its words and its input, and exits with $CODE."""
    program = tmp_path / "recorder"
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, os, pathlib, sys\n"
        "text = '' if os.isatty(0) else sys.stdin.read()\n"
        "files = [w for w in sys.argv[1:] if os.path.isfile(w)]\n"
        "content = pathlib.Path(files[0]).read_text() if files else ''\n"
        "told = {'words': sys.argv[1:], 'input': text, 'content': content}\n"
        "pathlib.Path(os.environ['TOLD']).write_text(json.dumps(told))\n"
        "sys.exit(int(os.environ.get('CODE', '0')))\n"
    )
    program.chmod(0o755)
    return program


def received(terminal: Terminal, file: Path) -> dict[str, Any]:
    """What the recorder wrote down, once it has."""
    found: list[dict[str, Any]] = []

    def look() -> bool:
        with contextlib.suppress(OSError, ValueError):
            found.append(json.loads(file.read_text()))
        return bool(found)

    terminal.wait_until(look, "the program")
    return found[0]


@pytest.mark.slow
def test_in_an_installation_without_jax(tmp_path: Path, dumps: Path, jaxless: Path) -> None:
    program = (jaxless, "-m", "pallas_debug", "browse")
    with Terminal(str(dumps), program=program) as terminal:
        terminal.wait_for("vector_add")
        terminal.send("]")
        terminal.send("d")  # a comparison needs numpy
        terminal.wait_for(" lines ")
        assert terminal.quit() == 0


# Colours, and sizes.


def test_without_colours(tmp_path: Path, add: str) -> None:
    with Terminal(add, NO_COLOR="1") as terminal:
        terminal.wait_for("original")
        terminal.send("/arith\r")
        terminal.wait_for("1/")
        assert terminal.quit() == 0
    used = {n for code in re.findall(r"\x1b\[([\d;]*)m", terminal.seen) for n in code.split(";")}
    colors = {str(n) for n in [*range(30, 39), *range(40, 49), *range(90, 98), *range(100, 108)]}
    assert not used & colors
    assert {"1", "7"} <= used, "bold and reverse say what colours would"


def test_a_terminal_with_colours_gets_some(tmp_path: Path, add: str) -> None:
    with Terminal(add) as terminal:
        terminal.wait_for("original")
        assert terminal.quit() == 0
    assert re.search(r"\x1b\[[\d;]*[34]8;[25];", terminal.seen)


# What it is started with.


def test_without_a_terminal(command: Run, dumps: Path) -> None:
    done = command("browse", dumps)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("pallas-debug: browse needs a terminal. Without one: ")
    assert {"ls", "show", "diff", "report"} <= set(re.findall(r"\w+", done.stderr))


def test_a_terminal_that_cannot_move_its_cursor(add: str) -> None:
    with Terminal(add, TERM="dumb", size=(300, 30)) as terminal:
        terminal.wait_for("browse needs a terminal other than TERM=dumb. Without one: `pallas-")
        terminal.wait_until(lambda: terminal.process.poll() is not None, "the end")
        assert terminal.process.returncode == Exit.CANNOT_RUN
        assert "\x1b[" not in terminal.seen


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nothing"], "no such directory: nothing"),
        (["{add}", "nothing"], "no such directory: nothing"),
        (["{add}", "file"], "browse takes two directories, and file is a file"),
        (["a", "b", "c"], "browse takes two directories at most, not 3"),
        (["{add}", "--kernel", "other"], "no kernel 'other' in "),
        (["{add}", "--target", "v5e"], "add has no target 'v5e'; there are: raw"),
        (["{add}", "--pass", "99"], "no stage or pass '99': 00 deserialization, 01 original"),
        (["{add}", "--pass", "canonicalize"], "no stage or pass 'canonicalize'; several match: "),
    ],
)
def test_what_cannot_be_browsed(
    tmp_path: Path, add: str, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    words = [word.format(add=add) for word in arguments]
    with Terminal(*words, size=(500, 30)) as terminal:
        terminal.wait_for(message)
        terminal.wait_until(lambda: terminal.process.poll() is not None, "the end")
        assert terminal.process.returncode == 2
        before = terminal.seen.partition(message)[0]  # said on the screen that was there before
        assert before.count("\x1b[?1049h") == before.count("\x1b[?1049l")


def test_a_kernel_a_pass_and_a_line_are_opened(tmp_path: Path, dumps: Path) -> None:
    options = ["--kernel", "vector_add", "--target", "v6e", "--pass", "mosaic", "--line", "3"]
    with Terminal(str(dumps), *options) as terminal:
        terminal.wait_for("v6e › mosaic")
        terminal.wait_for(" 3 of ")
        assert terminal.quit() == 0


@pytest.mark.parametrize("part", ["vector_add", "vector_add-*", "vector_add-*/v6e"])
def test_a_kernel_or_a_target_is_named_by_its_path(tmp_path: Path, dumps: Path, part: str) -> None:
    (path,) = dumps.glob(part) if "*" in part else [dumps / part]
    with Terminal(str(path)) as terminal:
        terminal.wait_for("v6e › " if "v6e" in part else "v5e › ")
        assert terminal.quit() == 0


def test_a_file_is_shown_alone(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("".join(f"line {n} of many\n" for n in range(1, 501)))
    with Terminal(str(file), "--line", "400") as terminal:
        terminal.wait_for("line 400 of many")
        terminal.wait_for("? help")
        terminal.forget()  # the file's first lines stood there before
        terminal.send("g")
        terminal.wait_for("line 1 of many")
        terminal.send("/line 77 \r")
        terminal.wait_for("1/1")
        assert terminal.quit() == 0


# The editor.


def test_the_source_is_opened_in_the_editor(tmp_path: Path, dumps: Path, recorder: Path) -> None:
    file = tmp_path / "told.json"
    vim = recorder.rename(tmp_path / "vim")
    editor = shlex.join([str(vim), "--a flag"])
    with Terminal(str(dumps), VISUAL=editor, EDITOR="no", TOLD=str(file)) as terminal:
        terminal.wait_for("vector_add")
        terminal.send("]")
        terminal.wait_for("› 00 deserialization")
        terminal.send("/addf\r")
        terminal.wait_for("1/1")
        terminal.send("e")
        found = received(terminal, file)
        terminal.wait_for("addf")  # it is drawn again
        assert terminal.quit() == 0
    flag, *safely, line, end, path = found["words"]
    assert flag == "--a flag"
    assert safely == ["--cmd", "set nomodeline noexrc"]
    assert line.startswith("+")
    assert end == "--"
    assert "x_ref[...] + y_ref[...]" in found["content"].splitlines()[int(line[1:]) - 1]
    assert path.endswith("vector_add/kernel.py")


def test_a_source_that_has_changed_is_opened_with_a_note(
    tmp_path: Path, dumps: Path, recorder: Path
) -> None:
    changed, source = tmp_path / "dumps", tmp_path / "kernel.py"
    shutil.copytree(dumps, changed)
    source.write_text("as it is\n")
    (manifest,) = changed.glob("*/kernel.json")
    kernel = json.loads(manifest.read_text())
    kernel["source"]["file"] = str(source)
    manifest.write_text(json.dumps(kernel))
    file = tmp_path / "told.json"
    environment = {"EDITOR": str(recorder), "TOLD": str(file)}
    with Terminal(str(changed), size=(300, 30), **environment) as terminal:
        terminal.wait_for("vector_add")
        terminal.send("e")
        found = received(terminal, file)
        terminal.wait_for("kernel.py has changed since the dump; E in the stage source opens its")
        assert terminal.quit() == 0
    assert found["words"] == [str(source)]


@pytest.mark.slow
def test_the_text_is_opened_in_the_editor(tmp_path: Path, add: str, recorder: Path) -> None:
    file = tmp_path / "told.json"
    environment = {"EDITOR": str(recorder), "TOLD": str(file)}
    with Terminal(add, size=(300, 30), **environment) as terminal:
        terminal.wait_for("original")
        terminal.send("E")
        edited = received(terminal, file)
        terminal.send("]]d")
        terminal.wait_for("what it changed")
        terminal.send("E")
        terminal.wait_for("there is no file of this text")
        assert terminal.quit() == 0
    (path,) = edited["words"]
    assert Path(path).parent == Path(add)


@pytest.mark.parametrize(
    "environment, message",
    [
        ({}, "neither $VISUAL nor $EDITOR is set; set one to the editor of your choice; the file"),
        ({"EDITOR": "/nowhere/ed"}, "/nowhere/ed cannot be run: No such file or directory"),
        ({"EDITOR": "vi 'x"}, '$EDITOR is "vi \'x", which is not a command: No closing quotation'),
        ({"EDITOR": "sh -c 'kill -9 $$'"}, "sh was ended by signal 9"),
    ],
)
def test_an_editor_that_cannot_be_run(
    tmp_path: Path, add: str, environment: dict[str, str], message: str
) -> None:
    with Terminal(add, size=(300, 30), **environment) as terminal:
        terminal.wait_for("original")
        terminal.send("E")
        terminal.wait_for(message)
        assert terminal.quit() == 0


# How it ends.


@pytest.mark.slow
def test_an_error_of_its_own_is_reported(tmp_path: Path, add: str) -> None:
    script = tmp_path / "broken.py"
    script.write_text(
        "import sys\n"
        "from pallas_debug.cli import main\n"
        "from pallas_debug.tui.app import BrowseApp\n"
        "def broken(app, direction): return {}['a fault']\n"
        "BrowseApp.action_move_changed = broken\n"
        "main()\n"
    )
    program = [sys.executable, script, "browse"]
    with Terminal(add, program=program, size=(300, 30)) as terminal:
        terminal.wait_for("original")
        terminal.send("]")
        assert terminal.ended() == Exit.CANNOT_RUN
    message = terminal.seen[terminal.seen.index("\x1b[?25h") :]
    assert "pallas-debug: internal error in pallas-debug while running the command (plea" in message
    assert "'a fault')" in message
    assert "Traceback" not in message


@pytest.mark.slow
def test_a_terminal_that_goes_away_ends_it(tmp_path: Path, add: str) -> None:
    with Terminal(add, program=STARTED) as terminal:
        terminal.wait_for("original")
        terminal.send("]]")
        terminal.wait_for("canonicalize-memory-space")
        terminal.vanish()
        assert terminal.process.wait(timeout=SECONDS) == Exit.CANNOT_RUN


@pytest.mark.slow
def test_a_process_that_is_ended_leaves_the_terminal_as_it_was(tmp_path: Path, add: str) -> None:
    with Terminal(add, program=STARTED) as terminal:
        terminal.wait_for("original")
        terminal.process.terminate()
        assert terminal.ended() == Exit.CANNOT_RUN
