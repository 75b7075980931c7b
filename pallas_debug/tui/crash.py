"""A report of a crash, for whoever is to find out why: into the state directory, not the dumps."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import tempfile
import time
import traceback
from importlib import metadata
from pathlib import Path

REPORTS = 20
"""Reports that are kept; older ones go."""

MOST = 1 << 18
"""Characters of a traceback that are written."""

_VERSIONS = ("textual", "rich", "click", "msgspec", "jax", "jaxlib", "libtpu")


def write(error: BaseException, folder: Path, *, size: tuple[int, int]) -> Path:
    """Write down what happened.

    Args:
      folder: where it is written; the directory for temporary files takes its place if it cannot
        be written to.
      size: columns and rows of the terminal.

    Returns: The file.

    Raises:
      OSError: nothing can be written anywhere.
    """
    text = _report(error, size)
    name = time.strftime(f"browse-crash-%Y%m%d-%H%M%S-{os.getpid()}.txt")
    for where in (folder, Path(tempfile.gettempdir())):
        file = where / name
        try:
            where.mkdir(parents=True, exist_ok=True, mode=0o700)
            file.write_text(text, errors="replace")
        except OSError:
            continue
        _prune(where)
        return file
    raise OSError(f"neither {folder} nor {tempfile.gettempdir()} can be written to")


def sentence(error: BaseException, file: Path | None) -> str:
    """What is said of it on standard error."""
    what = f"browse came upon an error of its own ({type(error).__name__})"
    return f"{what}; the report is {file}" if file else f"{what}, and no report could be written"


def _report(error: BaseException, size: tuple[int, int]) -> str:
    from pallas_debug._version import __version__

    lines = [
        f"pallas-debug {__version__}, Python {platform.python_version()}, {platform.platform()}",
        ", ".join(f"{name} {_version(name)}" for name in _VERSIONS),
        f"command: {shlex.join(sys.argv)}",
        f"terminal: {size[0]} x {size[1]}, TERM={os.environ.get('TERM', '')}",
        "",
        "".join(traceback.format_exception(error))[-MOST:],
    ]
    return "\n".join(lines)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"


def _prune(folder: Path) -> None:
    for file in sorted(folder.glob("browse-crash-*.txt"))[:-REPORTS]:
        file.unlink(missing_ok=True)
