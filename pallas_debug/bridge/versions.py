"""Which jax is installed, and which shims it needs.

| what jax does | from | to | shim in |
|---|---|---|---|
| `custom_vjp` gives one line to every equation of a kernel under grad | 0.10.2 | - | `hook` |
| the state of the interpret mode has no public setter for all threads | 0.10.2 | - | `interpret` |
| TPU interpret mode knows nothing of `vmap` | 0.10.2 | - | `interpret_vmap` |
| a race is printed; there is no `on_race` | 0.10.2 | 0.12 | `interpret_params` |
| `core_map_p` stands beside `mpmd_map_p`, discharged before lowering | 0.10.2 | 0.11 | `hook` |
| a print in a kernel takes no float32 for its `{}` | 0.10.2 | 0.12 | `print_formats` |
| `tpu_info` is a module of `pallas.mosaic` | 0.10.2 | 0.11 | `chip` |
| a kernel's locations are kept apart from its serialised module | 0.11 | - | `lower` |
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
