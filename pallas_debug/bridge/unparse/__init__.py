"""Kernels as Python programs that reproduce their jaxpr.

`program_of` writes a captured kernel as a module that needs jax alone. Its lines use what jax
offers to everybody; where a primitive has no such spelling, it is bound by its own name.

    vocabulary every name that a program may use
    values     numbers, dtypes, memory spaces and parameters
    page       the lines, and the names in them
    refs       reads, writes, indices, DMAs and semaphores
    equations  everything else that computes
    regions    loops, branches and scopes
    program    the kernel function, its blocks and its call
"""

from __future__ import annotations

from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.unparse import program
from pallas_debug.bridge.unparse.values import CannotSpell

UNSPELLED = "# There is no program of this kernel: "
"""How the file begins, instead, of a kernel that cannot be written out; the reason follows."""


def program_of(captured: Capture) -> str:
    """A kernel as a module, or a comment that says why there is none."""
    try:
        return program.spelled(captured)
    except CannotSpell as error:
        return f"{UNSPELLED}it has {error}.\n"
    except Exception as error:  # noqa: BLE001 - a novelty of jax must not cost a kernel its dump
        said = " ".join(f"{type(error).__name__}: {error}".split())
        return f"{UNSPELLED}pallas-debug failed to write it ({said}).\n"
