"""Terminal access: hang-up, and the editor.

The editor runs without a shell. The file to edit may have been named by an untrusted dump, so
it is passed as an absolute path, which is neither an option nor a command (Vim would execute
`+!touch X`). Does not import Textual.
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePath

from pallas_debug.errors import UsageError

GRACE = 5.0
"""Seconds that the app has to exit after its terminal is gone."""


def watch(gone: Callable[[], object]) -> None:
    """Call a function, in another thread, when the terminal on standard input is gone.

    Textual would busy-loop reading from such a terminal, and block forever writing to it. So output
    is discarded from then on, and the process is terminated after `GRACE`.
    """
    threading.Thread(target=_watch, args=(gone,), name="terminal", daemon=True).start()


def _watch(gone: Callable[[], object]) -> None:
    fileno = sys.__stdin__.fileno()  # type: ignore[union-attr]
    poll = select.poll()
    poll.register(fileno, 0)  # POLLHUP and POLLERR are always reported
    while not any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll()):
        pass
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        os.dup2(null, stream)
    gone()
    threading.Event().wait(GRACE)
    os._exit(128 + signal.SIGHUP)


# The editor.

UNTRUSTED = ("--cmd", "set nomodeline noexrc")
"""Options of Vim that ignore modelines, and an `.exrc` next to the file."""

EDITORS: dict[str, Sequence[str]] = {
    **dict.fromkeys(("vim", "nvim", "gvim", "mvim"), (*UNTRUSTED, "+{line}", "--", "{path}")),
    **dict.fromkeys(("vi", "view", "less"), ("+{line}", "--", "{path}")),
    **dict.fromkeys(("emacs", "emacsclient", "nano", "pico", "micro"), ("+{line}", "{path}")),
    **dict.fromkeys(("joe", "jed", "mg", "ne", "kak", "mcedit", "gedit"), ("+{line}", "{path}")),
    **dict.fromkeys(("code", "code-insiders", "codium", "vscodium"), ("--goto", "{path}:{line}")),
    **dict.fromkeys(("cursor", "windsurf"), ("--goto", "{path}:{line}")),
    **dict.fromkeys(("hx", "helix", "subl", "zed", "atom", "lapce"), ("{path}:{line}",)),
    **dict.fromkeys(("kate", "kwrite", "idea", "pycharm"), ("--line", "{line}", "{path}")),
}
"""Arguments of editors for a file and a line in it."""


def editor(environment: Mapping[str, str]) -> list[str]:
    """Return the words of `$VISUAL` or `$EDITOR`.

    Raises:
      UsageError: neither is set, or its quotes do not match.
    """
    for name in ("VISUAL", "EDITOR"):
        if environment.get(name, "").strip():
            return _words(name, environment[name])
    raise UsageError("neither $VISUAL nor $EDITOR is set; set one to the editor of your choice")


def edit_command(words: Sequence[str], file: Path, line: int) -> list[str]:
    """Return the command that opens a file at a line, from 1; unknown editors open its start."""
    path = os.path.abspath(file)  # noqa: PTH100 - does not resolve links
    arguments = EDITORS.get(PurePath(words[0]).name.lower().removesuffix(".exe"), ("{path}",))
    if "{path}:{line}" in arguments and ":" in path:  # would be split in the wrong place
        arguments = ("{path}",)
    return [*words, *(part.format(path=path, line=line) for part in arguments)]


def edit_directory(roots: Iterable[Path]) -> Path | None:
    """Return the working directory for an editor: the home directory if ours is in a dump.

    Editors read settings from their working directory (`.exrc`, `.vimrc`, `.dir-locals.el`,
    `.editorconfig`), and a dump may be untrusted.
    """
    try:
        here = Path.cwd()
    except OSError:  # deleted
        return Path.home()
    return Path.home() if any(here.is_relative_to(root.resolve()) for root in roots) else None


def run(words: Sequence[str], where: Path | None = None) -> str | None:
    """Run a program in a working directory; return what went wrong, if anything."""
    try:
        code = subprocess.run(words, check=False, cwd=where).returncode
    except OSError as error:
        return f"{words[0]} cannot be run: {error.strerror}"
    return _exit_message(words[0], code)


def _exit_message(name: str, code: int) -> str | None:
    if code < 0:
        return f"{name} was ended by signal {-code}"
    return f"{name} exited with {code}" if code else None


def _words(name: str, text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"${name} is {text!r}, which is not a command: {error}") from error
    if not words:
        raise UsageError(f"${name} is {text!r}, which names no program")
    return words
