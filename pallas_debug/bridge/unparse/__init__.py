"""Unparser for kernels: from a jaxpr back to a Python program.

`program_of` writes a captured kernel as a module that needs only jax. It uses jax's public API, and
binds primitives without a public function by name.

    values     numbers, dtypes, memory spaces and parameters
    page       the lines, and the names in them
    refs       reads, writes, indices, DMAs and semaphores
    equations  all other computations
    regions    loops, branches and scopes
    program    the kernel function, its blocks and its call
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pallas_debug.bridge.capture.capture import Capture

NO_PROGRAM = "# There is no program of this kernel: "
"""Start of the file for a kernel that cannot be unparsed; the reason follows."""


def program_of(captured: Capture) -> str:
    """Unparse a kernel to a module, or to a comment with the reason why that is impossible."""
    # Lazily, since scripts are made from dumps without jax, and with the names in this package.
    from pallas_debug.bridge.jaxprs import mechanisms
    from pallas_debug.bridge.unparse import program
    from pallas_debug.bridge.unparse.values import CannotUnparse

    if reason := mechanisms.refusal(captured.params):
        return f"{NO_PROGRAM}{reason}.\n"
    try:
        return program.unparsed(captured)
    except CannotUnparse as error:
        return f"{NO_PROGRAM}it has {error}.\n"
    except Exception as error:  # noqa: BLE001 - a novelty of jax must not cost a kernel its dump
        message = " ".join(f"{type(error).__name__}: {error}".split())
        return f"{NO_PROGRAM}pallas-debug failed to write it ({message}).\n"
