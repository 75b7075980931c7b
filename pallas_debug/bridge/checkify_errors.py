"""What failed in a kernel, as jax's `checkify` puts it: its errors, made of our sites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import checkify

from pallas_debug.bridge.sites import Site

CATEGORIES: dict[str, type[checkify.JaxException]] = {
    "user": checkify.FailedCheckError,
    "nan": checkify.NaNError,
    "index": checkify.OOBError,
    "div": checkify.DivisionByZeroError,
    "float_div": checkify.DivisionByZeroError,
}
"""The class of jax's error for each check; what it has none for, it is not asked to report."""


def checks_for(errors: Any) -> tuple[str, ...]:
    """Our checks for a set of jax's error categories."""
    return tuple(check for check, category in CATEGORIES.items() if category in errors)


def error_of(site: Site, values: Sequence[Any]) -> checkify.JaxException:
    """What jax would raise, with values that may be traced."""
    if site.check == "user":
        error: checkify.JaxException = jax.tree.unflatten(site.error, _payload(site, values))
        return error
    traceback = checkify.get_traceback()
    if site.check == "nan":
        where = f" at {site.source}" if site.source else ""
        return checkify.NaNError(traceback, f"{site.operation}{where}")
    if site.check == "index":
        shape = tuple(site.details["shape"])
        return checkify.OOBError(traceback, site.operation, shape, _oob(site, values))
    return checkify.DivisionByZeroError(traceback)


def message(site: Site, values: Sequence[Any]) -> str:
    """The message of a user's check, with its values."""
    if site.error is None:
        return "a check failed"
    error = jax.tree.unflatten(site.error, _payload(site, values))
    return str(error.fmt_string.format(*error.args, **error.kwargs))


def _payload(site: Site, values: Sequence[Any]) -> list[Any]:
    """The arguments of the message; of arrays, whose values are not kept, zeros."""
    given = iter(values)
    payload = []
    for shape, dtype in site.details["payload"]:
        value = next(given, None) if shape == () else None
        payload.append(jnp.zeros(shape, dtype) if value is None else jnp.asarray(value, dtype))
    return payload


def _oob(site: Site, values: Sequence[Any]) -> Any:
    """Jax's own words for an index: which one, along which axis, and the size there."""
    start = values[0] if values else np.int32(0)
    axis, size = np.int32(site.details["dim"]), np.int32(site.details["bound"])
    return jnp.stack([jnp.asarray(x, "int32") for x in (start, axis, size)])
