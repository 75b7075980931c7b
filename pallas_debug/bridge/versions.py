"""Which jax is installed, and which shims it needs.

| shim | from | to | where |
|---|---|---|---|
| `custom_vjp` puts one traceback on every equation of a kernel under grad | 0.10.2 | - | `hook` |
| interpret mode is read from a config state that has no public global setter | 0.10.2 | - | `interpret` |
| `core_map_p` exists beside `mpmd_map_p`, and is discharged before lowering | 0.10.2 | 0.11 | `hook` |
"""

from __future__ import annotations

import functools
from importlib import metadata

OLDEST = "0.10.2"
"""The oldest jax whose internals were read for this room."""

PACKAGES = ("jax", "jaxlib", "libtpu")


@functools.cache
def installed() -> dict[str, str]:
    """Versions of jax, jaxlib and libtpu; what is not installed is left out."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
