"""`pallas-debug browse` from start to end: remembered state, the app, crash reports."""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pallas_debug.errors import UsageError
from pallas_debug.store.files import is_file
from pallas_debug.tui import terminal
from pallas_debug.tui.app import BrowseApp
from pallas_debug.tui.model import state
from pallas_debug.tui.model.browser import Browser, SingleFile, kernel_name

MAX_REPORTS = 20
"""Number of crash reports to keep; the oldest are removed."""

MAX_TRACEBACK = 1 << 18
"""Maximum number of characters of a traceback in a report."""

_VERSIONS = ("textual", "rich", "click", "msgspec", "jax", "jaxlib", "libtpu")


@dataclass(frozen=True, kw_only=True)
class Ended:
    """End of a session.

    Attributes:
      failed: whether an internal error, a signal or a hang-up ended the session.
      message: text for standard error, if any.
    """

    failed: bool
    message: str | None = None


def browse(
    roots: Sequence[Path],
    *,
    kernel: str | None = None,
    target: str | None = None,
    step: str | None = None,
    line: int | None = None,
    theme: str | None = None,
    resume: bool = True,
    settings: terminal.Settings | None = None,
    values: Path | None = None,
) -> Ended:
    """Browse one or two directories, or a file, until the user quits.

    Args:
      resume: whether to open where the last session ended, and remember where this one ends.
      settings: terminal settings to restore at the end; by default the current ones.
      values: recording of a kernel whose values to show beside its lines.

    Raises:
      UsageError: there is no such kernel, target, pass or theme.
      RecordingError: there is no recording, or it cannot be read.
      DumpDirectoryError: a directory does not exist or cannot be listed.
    """
    browser = SingleFile(roots[0]) if is_file(roots[0]) else Browser(*roots)
    remembered, problem = state.load(state.path()) if resume else (state.State(), None)
    spot = state.asked_for(
        browser,
        remembered.spot(roots),
        kernel=kernel,
        target=target,
        step=step,
        line=line,
    )
    notes = [problem] if problem else []
    recorded = None
    if values is not None:
        from pallas_debug.stepping import recording  # imports numpy, which is slow
        from pallas_debug.stepping.computed import ComputedValues

        recorded = ComputedValues(recording.read(values))
        if not any(kernel_name(e.name) == recorded.kernel for e in browser.entries):
            notes.append(f"{values} is a recording of {recorded.kernel}, which is not here")
    colors = terminal.has_colors(os.environ)
    app = BrowseApp(browser, spot=spot, colors=colors, notes=notes, recorded=recorded)
    app.settings_before = settings
    wanted = theme or remembered.theme
    if wanted in app.available_themes:
        app.theme = wanted
    elif theme is not None:
        listed = ", ".join(sorted(app.available_themes))
        raise UsageError(f"no theme {theme!r}; there are: {listed}")
    try:
        app.run()
    finally:
        app.tidy()
    if app.fault is not None:
        return Ended(failed=True, message=_report(app.fault, app))
    if not resume or app.last is None:
        return Ended(failed=app.interrupted)
    latest, _ = state.load(state.path())  # another session may have ended meanwhile
    latest = replace(latest.with_spot(app.last), theme=app.chosen_theme or latest.theme)
    return Ended(failed=app.interrupted, message=state.save(state.path(), latest))


# Crash reports: in the state directory, not in the dumps.


def _report(error: BaseException, app: BrowseApp) -> str:
    """Write a crash report; return the message about it."""
    file: Path | None = None
    with contextlib.suppress(OSError):
        file = write_report(error, state.directory(), size=(app.size.width, app.size.height))
    return crash_message(error, file)


def write_report(error: BaseException, folder: Path, *, size: tuple[int, int]) -> Path:
    """Write a crash report into a folder, or into the temporary directory; return the file.

    Args:
      size: size of the terminal in columns and rows.

    Raises:
      OSError: neither directory can be written to.
    """
    text = _report_text(error, size)
    name = time.strftime(f"browse-crash-%Y%m%d-%H%M%S-{os.getpid()}.txt")
    for where in (folder, Path(tempfile.gettempdir())):
        file = where / name
        try:
            where.mkdir(parents=True, exist_ok=True, mode=0o700)
            file.write_text(text, errors="replace")
        except OSError:
            continue
        for old in sorted(where.glob("browse-crash-*.txt"))[:-MAX_REPORTS]:
            old.unlink(missing_ok=True)
        return file
    raise OSError(f"neither {folder} nor {tempfile.gettempdir()} can be written")


def crash_message(error: BaseException, file: Path | None) -> str:
    """Return the message for standard error."""
    where = f"the report is {file}" if file else "no report could be written"
    return f"internal error in browse ({type(error).__name__}); {where}"


def _report_text(error: BaseException, size: tuple[int, int]) -> str:
    from pallas_debug._version import __version__

    lines = [
        f"pallas-debug {__version__}, Python {platform.python_version()}, {platform.platform()}",
        ", ".join(f"{name} {_version(name)}" for name in _VERSIONS),
        f"command: {shlex.join(sys.argv)}",
        f"terminal: {size[0]} x {size[1]}, TERM={os.environ.get('TERM', '')}",
        "",
        "".join(traceback.format_exception(error))[-MAX_TRACEBACK:],
    ]
    return "\n".join(lines)


def _version(name: str) -> str:
    from importlib import metadata  # takes 20 ms, and only crash reports need it

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"
