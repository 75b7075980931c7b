"""The editor and the pager that the environment names. They are run without a shell.

The file's name may come from a dump that somebody sent: an absolute path is neither an option nor
a command (`+!touch X` is one to vim), whatever the folders are called. Imports no textual: the
caller hands the terminal over first.
"""

from __future__ import annotations

import os
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

DASHES = frozenset({"vi", "vim", "nvim", "gvim", "mvim", "view", "less"})
"""Those of `PLUS_LINE` that take `--` between options and files."""

VIM = frozenset({"vim", "nvim", "gvim", "mvim"})
"""Those that are told not to obey modelines in a file, nor an `.exrc` beside it."""

UNTRUSTED = ("--cmd", "set nomodeline noexrc")

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
    path = os.path.abspath(file)  # noqa: PTH100 - links stay as named
    if name in PLUS_LINE:
        options = UNTRUSTED if name in VIM else ()
        return [*words, *options, f"+{line}", *(["--"] if name in DASHES else []), path]
    if name in GOTO | COLON and ":" in path:  # it would be split at the wrong place
        return [*words, path]
    if name in GOTO:
        return [*words, "--goto", f"{path}:{line}"]
    if name in COLON:
        return [*words, f"{path}:{line}"]
    if name in DASH_LINE:
        return [*words, "--line", str(line), path]
    return [*words, path]


def takes_line(words: Sequence[str]) -> bool:
    """Whether `command` can name the line."""
    return command(words, Path("/f"), 1) != [*words, "/f"]


def directory(roots: Iterable[Path]) -> Path | None:
    """The working directory for an editor: ours, or the home directory if ours is in a dump.

    Editors look for settings in the directory they start in (`.exrc`, `.vimrc`, `.dir-locals.el`,
    `.editorconfig`), and a dump is somebody else's.
    """
    try:
        here = Path.cwd()
    except OSError:  # it was deleted
        return Path.home()
    return Path.home() if any(here.is_relative_to(root.resolve()) for root in roots) else None


def run(words: Sequence[str], where: Path | None = None) -> str | None:
    """Run a program in the terminal; what went wrong, where something did.

    Args:
      where: its working directory; None for ours.
    """
    try:
        code = subprocess.run(words, check=False, cwd=where).returncode
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
