"""Conversion of our sites to the errors of jax's `checkify`."""

from __future__ import annotations

import itertools
import re
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_debug.bridge.instrument.sites import Site
from pallas_debug.bridge.jaxcompat import checkify
from pallas_debug.findings.facts import array_text

CATEGORIES: dict[str, type[checkify.JaxException]] = {
    "user": checkify.FailedCheckError,
    "nan": checkify.NaNError,
    "index": checkify.OOBError,
    "div": checkify.DivisionByZeroError,
    "float_div": checkify.DivisionByZeroError,
}
"""Error class of jax for each check. Other checks are not available through `checkify`."""


def checks_for(errors: Any) -> tuple[str, ...]:
    """Return our checks for a set of jax's error categories."""
    return tuple(check for check, category in CATEGORIES.items() if category in errors)


def error_of(site: Site, values: Sequence[Any]) -> checkify.JaxException:
    """Build the error that jax would raise; `values` may be traced."""
    traceback = checkify.get_traceback()
    if site.check == "user":
        error = _error(site, values)
        if not isinstance(error, checkify.FailedCheckError):
            return checkify.FailedCheckError(traceback, _literal(_UNNAMED))
        wording, args, kwargs = _wording(error)
        return checkify.FailedCheckError(error.traceback_info, wording, *args, **kwargs)
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
    if not isinstance(error, checkify.FailedCheckError):
        return _UNNAMED
    wording, args, kwargs = _wording(error)
    text = wording.format(*map(_plain, args), **{k: _plain(v) for k, v in kwargs.items()})
    return "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text)


_UNNAMED = "a check failed"

_NAME = re.compile(r"\w*", re.ASCII)

_WIDE = re.compile(r"\d{4}")
"""Format specs that request thousands of characters, or more memory than is available."""


@dataclass(frozen=True)
class _Absent:
    """A message argument that was not recorded: an array, or a scalar beyond the first few."""

    text: str


def _error(site: Site, values: Sequence[Any]) -> Any:
    """Build the error of a user's check with these values; None if its kind is unknown."""
    if site.error is None:
        return None
    given = iter(values)
    payload = [
        next(given, _Absent("…")) if shape == () else _Absent(array_text(dtype, shape))
        for shape, dtype in site.details["payload"]
    ]
    return jax.tree.unflatten(site.error, payload)


def _wording(error: Any) -> tuple[str, list[Any], dict[str, Any]]:
    """Return a format string that only refers to scalars by name, and those scalars.

    Anything that was not recorded is inlined as text, and so are fields that access an attribute or
    item, and malformed format strings: formatting the message of a failed check must never fail.
    """
    try:
        fields = list(string.Formatter().parse(error.fmt_string))
        numbers = itertools.count()
        parts = [_literal(text) + _field(error, numbers, *rest) for text, *rest in fields]
        wording = "".join(parts)
        args = [_or_zero(x) for x in error.args]
        kwargs = {k: _or_zero(v) for k, v in error.kwargs.items()}
        wording.format(*map(_sample, args), **{k: _sample(v) for k, v in kwargs.items()})
    except (ValueError, TypeError, LookupError, AttributeError):
        return _literal(error.fmt_string), [], {}
    return wording, args, kwargs


def _field(
    error: Any,
    numbers: Iterator[int],
    name: str | None,
    spec: str | None,
    conversion: str | None,
) -> str:
    if name is None:
        return ""
    first = _NAME.match(name)
    key = first[0] if first else ""
    rest = name[len(key) :]
    key = key or str(next(numbers))
    value = error.args[int(key)] if key.isdigit() else error.kwargs[key]
    shown = f"!{conversion}" if conversion else ""
    if rest:
        return _literal(f"{{{name}}}")
    if isinstance(value, _Absent):
        return _literal(value.text)
    if not _is_scalar(value):
        return "…"
    if not spec or "{" in spec or _WIDE.search(spec):
        return f"{{{key}{shown}}}"
    return f"{{{key}{shown}:{spec}}}"


def _literal(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, (_Absent, tuple, list, dict)) and jnp.shape(value) == ()


def _or_zero(value: Any) -> Any:
    return value if _is_scalar(value) else np.int32(0)


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
