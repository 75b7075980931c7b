"""Repository-relative paths: below the current directory, with slashes."""

from __future__ import annotations

from pathlib import Path


def below(file: str) -> str:
    """Return `src/rows.py` for a file below the current directory, else the path unchanged."""
    try:
        return Path(file).resolve().relative_to(Path.cwd()).as_posix()
    except (ValueError, OSError):
        return file
