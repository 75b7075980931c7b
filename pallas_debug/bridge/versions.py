"""Versions of the installed packages, and the workarounds that they need.

Patches to jax list their versions in `patches.py`. Other workarounds:

| what jax does | from | to | worked around in |
|---|---|---|---|
| the state of the interpret mode has no public setter for all threads | 0.10.2 | - | `interpret` |
| TPU interpret mode does not support `vmap` | 0.10.2 | - | `interpret/vmap` |
| a race is printed; there is no `on_race` | 0.10.2 | 0.12 | `interpret/params` |
"""

from __future__ import annotations

import functools
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
