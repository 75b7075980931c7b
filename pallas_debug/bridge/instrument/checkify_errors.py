"""What failed in a kernel, as jax's `checkify` puts it: its errors, made of our sites."""

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
from jax._src import checkify

from pallas_debug.bridge.instrument.sites import Site, shape_text

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
    """The message of a user's check, with its values; on one that holds control codes, those
    are spelled out, as it ends on a terminal."""
    error = _error(site, values)
    if not isinstance(error, checkify.FailedCheckError):
        return _UNNAMED
    wording, args, kwargs = _wording(error)
    text = wording.format(*map(_plain, args), **{k: _plain(v) for k, v in kwargs.items()})
    return "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text)


_UNNAMED = "a check failed"

_NAME = re.compile(r"\w*", re.ASCII)

_WIDE = re.compile(r"\d{4}")
"""A format specification that asks for thousands of characters, or more memory than there is."""


@dataclass(frozen=True)
class _Absent:
    """An argument of a message that is not kept: an array, or a scalar beyond the first few."""

    text: str


def _error(site: Site, values: Sequence[Any]) -> Any:
    """The error of a user's check with these values; None where it is not known which it is."""
    if site.error is None:
        return None
    given = iter(values)
    payload = [
        next(given, _Absent("…")) if shape == () else _Absent(shape_text(dtype, shape))
        for shape, dtype in site.details["payload"]
    ]
    return jax.tree.unflatten(site.error, payload)


def _wording(error: Any) -> tuple[str, list[Any], dict[str, Any]]:
    """A format string that takes nothing but scalars by their names, and those.

    What is not kept stands in it as text. So does a field that asks for an attribute or an item,
    and a string that is no format string at all: a message must never fail where a check did.
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
    """A scalar of the same kind, to try a format with."""
    return np.zeros((), jnp.result_type(value)).item()


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float)) else np.asarray(value).item()


def _oob(site: Site, values: Sequence[Any]) -> Any:
    """Jax's own words for an index: which one, along which axis, and the size there."""
    start = values[0] if values else np.int32(0)
    axis, size = np.int32(site.details["dim"]), np.int32(site.details["bound"])
    return jnp.stack([jnp.asarray(x, "int32") for x in (start, axis, size)])
