"""The editor and the pager that the environment names. They are run without a shell.

Imports no textual: whoever calls hands the terminal over first.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath

from pallas_debug.errors import UsageError

PLUS_LINE = frozenset(
    {
        *("vi", "vim", "nvim", "gvim", "mvim", "view", "emacs", "emacsclient", "nano", "pico"),
        *("micro", "joe", "jed", "mg", "ne", "kak", "mcedit", "gedit", "less"),
    }
)
"""Editors that take `+LINE` before the file."""

GOTO = frozenset({"code", "code-insiders", "codium", "vscodium", "cursor", "windsurf"})
"""Those that take `--goto FILE:LINE`."""

COLON = frozenset({"hx", "helix", "subl", "zed", "atom", "lapce"})
"""Those that take `FILE:LINE`."""

DASH_LINE = frozenset({"kate", "kwrite", "idea", "pycharm", "charm"})
"""Those that take `--line LINE`."""

PAGER = "less -R"


def editor(environment: Mapping[str, str]) -> list[str]:
    """The words of `$VISUAL`, or of `$EDITOR`.

    Raises:
      UsageError: neither is set, or its quotes do not match.
    """
    for name in ("VISUAL", "EDITOR"):
        if environment.get(name, "").strip():
            return _words(name, environment[name])
    raise UsageError("neither $VISUAL nor $EDITOR is set; set one to the editor of your choice")


def pager(environment: Mapping[str, str]) -> list[str]:
    """The words of `$PAGER`, or `less -R`.

    Raises:
      UsageError: its quotes do not match.
    """
    return _words("PAGER", environment.get("PAGER", "").strip() or PAGER)


def command(words: Sequence[str], file: Path, line: int) -> list[str]:
    """What opens a file at a line; at its beginning where we do not know how the editor is told.

    Args:
      line: counted from 1.
    """
    name = PurePath(words[0]).name.lower().removesuffix(".exe")
    path = str(file)
    if path.startswith("-"):
        path = f"./{path}"
    if name in PLUS_LINE:
        return [*words, f"+{line}", path]
    if name in GOTO:
        return [*words, "--goto", f"{path}:{line}"]
    if name in COLON:
        return [*words, f"{path}:{line}"]
    if name in DASH_LINE:
        return [*words, "--line", str(line), path]
    return [*words, path]


def takes_line(words: Sequence[str]) -> bool:
    """Whether `command` can name the line."""
    return command(words, Path("f"), 1) != [*words, "f"]


def run(words: Sequence[str]) -> str | None:
    """Run a program in the terminal; what went wrong, where something did."""
    try:
        code = subprocess.run(words, check=False).returncode
    except OSError as error:
        return f"{words[0]} cannot be run: {error.strerror}"
    return _ended(words[0], code)


def pipe(words: Sequence[str], pieces: Iterable[bytes]) -> str | None:
    """Run a program in the terminal that reads these; what went wrong, where something did."""
    try:
        process = subprocess.Popen(words, stdin=subprocess.PIPE)
    except OSError as error:
        return f"{words[0]} cannot be run: {error.strerror}"
    assert process.stdin is not None
    try:
        with process.stdin:
            for piece in pieces:
                process.stdin.write(piece)
    except OSError:  # it was left before its end
        pass
    return _ended(words[0], process.wait())


def _ended(name: str, code: int) -> str | None:
    if code < 0:
        return f"{name} was ended by signal {-code}"
    return f"{name} exited with {code}" if code else None


def _words(name: str, text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"${name} is {text!r}, which is no command: {error}") from error
    if not words:
        raise UsageError(f"${name} is {text!r}, which names no program")
    return words
