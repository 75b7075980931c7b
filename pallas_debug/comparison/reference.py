"""Runs of a reference, with its exceptions reported as the reference's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pallas_debug import render
from pallas_debug.bridge.lowering import raised, trace
from pallas_debug.errors import InvalidReference, PallasDebugError


def name_of(function: Callable[..., Any]) -> str:
    """Name of a function for messages, without the name of an enclosing function."""
    if isinstance(function, functools.partial):
        return name_of(function.func)
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return str(name).rpartition("<locals>.")[2]


def result(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run a function and wait for its result; it may donate its arguments."""
    args, kwargs = trace.copied(args, kwargs)
    return trace.block_until_ready(function(*args, **kwargs))


def run(reference: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run a reference and wait for its result.

    Raises:
      InvalidReference: the reference raised an exception; the message includes its line.
    """
    try:
        return result(reference, args, kwargs)
    except PallasDebugError:
        raise
    except Exception as error:
        found = raised.failure(error)
        where = ""
        if found.source is not None:
            source = found.source
            where = f" at {render.relative(Path(source.file))}:{source.line}"
            where += f" ({source.text})" if source.text else ""
        headline = found.headline.removesuffix(".")
        raise InvalidReference(
            f"the reference {name_of(reference)} raised {type(error).__name__}{where}: "
            f"{headline}. It is called with the same arguments as the function"
        ) from error
