"""Versions of the installed packages, and the workarounds that they need.

Patches to jax list their versions in `patches.py`. Other workarounds:

| what jax does | from | to | worked around in |
|---|---|---|---|
| the state of the interpret mode has no public setter for all threads | 0.10.2 | - | `interpret` |
"""

from __future__ import annotations

import functools
import re
from importlib import metadata

from pallas_debug.installed import OLDEST_JAX

OLDEST = OLDEST_JAX

NEWEST = "0.12"
"""Newest jax series that this room was verified with."""

PACKAGES = ("jax", "jaxlib", "libtpu")


@functools.cache
def installed() -> dict[str, str]:
    """Versions of jax, jaxlib and libtpu, as far as they are installed."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def is_within(first: str, last: str) -> bool:
    """Return whether the installed jax is in a range of versions, open where a bound is empty.

    Args:
      last: a version or a series: 0.11 includes 0.11.1.
    """
    jax, until = numbers(installed().get("jax", OLDEST)), numbers(last)
    return jax >= numbers(first) and (not until or jax[: len(until)] <= until)
