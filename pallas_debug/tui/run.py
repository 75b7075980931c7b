"""`pallas-debug browse` from start to end."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

from pallas_debug.store.files import is_file
from pallas_debug.tui.app import BrowseApp
from pallas_debug.tui.model.browser import Browser, SingleFile
from pallas_debug.tui.model.spot import find_spot


def browse(
    roots: Sequence[Path],
    *,
    kernel: str | None = None,
    target: str | None = None,
    step: str | None = None,
    line: int | None = None,
) -> bool:
    """Browse one or two directories, or a file; return whether the user ended it.

    Raises:
      UsageError: there is no such kernel, target or pass.
      DumpDirectoryError: a directory does not exist or cannot be listed.
      Exception: an internal error that ended the app.
    """
    gc.disable()
    browser = SingleFile(roots[0]) if is_file(roots[0]) else Browser(*roots)
    spot = find_spot(browser, kernel=kernel, target=target, step=step, line=line)
    app = BrowseApp(browser, spot=spot)
    app.run()
    if app.fault is not None:
        raise app.fault
    return not app.interrupted
