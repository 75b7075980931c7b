"""Check for a usable jax installation. jax is an extra: dumps can be read without it.

Floor 0: nothing here imports jax.
"""

from __future__ import annotations

from importlib.util import find_spec

from pallas_debug.errors import MissingJaxError

OLDEST_JAX = "0.10.2"
"""Oldest supported jax."""

REMEDY = "pip install 'pallas-debug[tpu]'"
"""Command that installs jax and libtpu beside pallas-debug."""


def jax_problem() -> str | None:
    """Return why the installed jax cannot be used, as a clause; None if it can."""
    if not _is_there("jax"):
        return "jax is not installed"
    version = _version("jax")
    if not _is_there("jaxlib"):
        return f"jax {version} is installed without jaxlib"
    if numbers(version) < numbers(OLDEST_JAX):
        return f"jax {version} is too old ({OLDEST_JAX} or later is needed)"
    return None


def require_jax(what: str) -> None:
    """Check that a usable jax is installed.

    Args:
      what: the command or function that needs jax; begins the message.

    Raises:
      MissingJaxError: no usable jax is installed.
    """
    problem = jax_problem()
    if problem is not None:
        raise MissingJaxError(f"{what} needs jax, and {problem}. To install it: {REMEDY}")


def numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: (0, 11, 1) for `0.11.1.dev3`."""
    found = []
    for part in version.split("."):
        if not part.isdecimal():
            break
        found.append(int(part))
    return tuple(found)


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ValueError:  # a module without a spec, created by hand
        return True


def _version(distribution: str) -> str:
    """Return the version; a jax without metadata, such as a checkout, counts as recent enough."""
    from importlib import metadata  # takes 20 ms

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return OLDEST_JAX
