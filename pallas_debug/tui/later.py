"""What is loaded once the program is drawn: what most will need next, and takes long to load.

It is loaded aside. If it is needed before, whoever needs it loads it.
"""

from __future__ import annotations

LATER = 0.5
"""Seconds after the start."""


def load() -> None:
    """Import what diffs are made with."""
    import numpy  # noqa: F401
