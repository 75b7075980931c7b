"""Conversion of our sites to the errors of jax's `checkify`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_debug.bridge.instrument.sites import Site
from pallas_debug.bridge.jaxcompat import checkify

CATEGORIES: dict[str, type[checkify.JaxException]] = {
    "user": checkify.FailedCheckError,
    "nan": checkify.NaNError,
    "index": checkify.OOBError,
    "div": checkify.DivisionByZeroError,
    "float_div": checkify.DivisionByZeroError,
}
"""Error class of jax for each check. Other checks are not available through `checkify`."""


def error_of(site: Site, values: Sequence[Any]) -> checkify.JaxException:
    """Build the error that jax would raise; `values` may be traced."""
    traceback = checkify.get_traceback()
    if site.check == "user":
        error = _error(site, values)
        if isinstance(error, checkify.FailedCheckError):
            return error
        text = _message(error).replace("{", "{{").replace("}", "}}")
        return checkify.FailedCheckError(traceback, text)
    if site.check == "nan":
        where = f" at {site.source}" if site.source else ""
        return checkify.NaNError(traceback, f"{site.operation}{where}")
    if site.check == "index":
        shape = tuple(site.details["shape"])
        return checkify.OOBError(traceback, site.operation, shape, _oob(site, values))
    return checkify.DivisionByZeroError(traceback)


def message(site: Site, values: Sequence[Any]) -> str:
    """Format the message of a user's check, with control characters escaped for the terminal."""
    error = _error(site, values)
    text = _message(error)
    if isinstance(error, checkify.FailedCheckError):
        kwargs = {name: _plain(value) for name, value in error.kwargs.items()}
        text = error.fmt_string.format(*map(_plain, error.args), **kwargs)
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )


_WIDE = re.compile(r"\d{4}|\{[^{}]*:[^{}]*\{")
"""Format specs that may request thousands of characters, or more memory than is available."""


def _error(site: Site, values: Sequence[Any]) -> Any:
    """Build the error of a user's check with these values.

    Returns:
      The message as written, if an argument was not recorded, because it is an array or beyond the
      first few, or if formatting it may fail; None if the kind of the error is unknown.
    """
    if site.error is None:
        return None
    missing = site.details["arguments"] - len(values)
    error = jax.tree.unflatten(site.error, [*values, *[None] * missing])
    if not isinstance(error, checkify.FailedCheckError):
        return None
    if missing or _WIDE.search(error.fmt_string):
        return error.fmt_string
    try:
        samples = {name: _sample(value) for name, value in error.kwargs.items()}
        error.fmt_string.format(*map(_sample, error.args), **samples)
    except (ValueError, TypeError, LookupError, AttributeError):
        return error.fmt_string
    return error


def _message(error: Any) -> str:
    return error if isinstance(error, str) else "a check failed"


def _sample(value: Any) -> Any:
    """Return a dummy scalar of the same type, to try out a format."""
    return np.zeros((), jnp.result_type(value)).item()


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float)) else np.asarray(value).item()


def _oob(site: Site, values: Sequence[Any]) -> Any:
    """Index payload of jax's `OOBError`: the index, its axis, and the size of that axis."""
    start = values[0] if values else np.int32(0)
    axis, size = np.int32(site.details["dim"]), np.int32(site.details["bound"])
    return jnp.stack([jnp.asarray(x, "int32") for x in (start, axis, size)])
