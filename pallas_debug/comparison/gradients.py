"""Comparison of gradients: the functions to compare in place of a function and its reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pallas_debug.bridge.jaxprs import arrays
from pallas_debug.bridge.lowering import gradients, raised
from pallas_debug.comparison.reference import name_of
from pallas_debug.errors import UsageError
from pallas_debug.findings.facts import line_text

_UNDIFFERENTIABLE = ("reverse-mode", "program-id-under-grad")
"""Entries of the catalogue about kernels without a derivative of their own."""

RTOL = 0.02
"""Relative tolerance of derivatives that are compared with finite differences."""


@dataclass(frozen=True, kw_only=True)
class Gradients:
    """Functions whose results are compared, of the same arguments as those that were given.

    Attributes:
      rtol: tolerance of the comparison; None for that of the dtypes.
    """

    function: Callable[..., Any]
    reference: Callable[..., Any]
    rtol: float | None = None


def of(
    function: Callable[..., Any],
    reference: Callable[..., Any] | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Gradients:
    """Return the gradients of a function and its reference, for the same cotangents.

    Without a reference, they are the function's derivatives in a few random directions, from its
    gradient and from finite differences of its results.

    Raises:
      UsageError: no argument is an array of floats.
    """
    name, names = name_of(function), arrays.names_of(function, args, kwargs)
    if not gradients.has_floats(args, kwargs):
        raise UsageError(
            f"{name} has no gradient for these arguments: none of them is an array of floats. "
            "Leave out `grad`, or pass arrays of floats"
        )
    if reference is None:
        return Gradients(
            function=_named(gradients.derivatives(function, names), f"gradient of {name}"),
            reference=_named(
                gradients.finite_differences(function, names), f"finite differences of {name}"
            ),
            rtol=RTOL,
        )
    return Gradients(
        function=_named(gradients.gradient(function, names), f"gradient of {name}"),
        reference=_named(gradients.gradient(reference, names), f"gradient of {name_of(reference)}"),
    )


def refusal(error: Exception) -> str | None:
    """Return why and where jax refused to differentiate a kernel, and what to do about it.

    None if that is not what the exception is about.
    """
    found = raised.failure(error)
    known = found.explanation
    if known is None or known.id not in _UNDIFFERENTIABLE:
        return None
    where = "" if found.source is None else f" at {line_text(found.source)}"
    return (
        f"jax cannot differentiate the kernel that is called{where}: {known.cause}; {known.advice}"
    )


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    return function
