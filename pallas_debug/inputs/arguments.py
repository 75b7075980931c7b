"""Arguments of a function, from `--arg` texts or from a function that returns them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_debug.bridge.jaxprs import arrays
from pallas_debug.errors import UsageError
from pallas_debug.inputs import contents, grammar
from pallas_debug.inputs.grammar import ArraySpec

MAX_TABLE = 1 << 14
"""Maximum number of elements of a table of integers whose values are kept in any case."""


def parse(texts: Sequence[str], *, values: bool = True) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and keyword arguments that these texts describe.

    Arrays without a fill are `jax.ShapeDtypeStruct`s, the others jax arrays.

    Args:
      values: whether to create values; if False, arrays are `jax.ShapeDtypeStruct`s, except small
        ones of integers, which are numpy arrays: a kernel's loops may depend on them.

    Raises:
      UsageError: a text is not a valid argument, or its values do not fit.
    """
    return grammar.parse(texts, _Builder(has_values=values))


@dataclass(frozen=True)
class _Builder:
    has_values: bool

    def dtype(self, name: str) -> Any:
        return arrays.dtype_named(name)

    def key(self, seed: int, *, is_raw: bool) -> Any:
        return arrays.key(seed, is_raw=is_raw, is_abstract=not self.has_values)

    def array(self, spec: ArraySpec) -> Any:
        dtype = None if spec.dtype is None else arrays.dtype_named(spec.dtype)
        if spec.fill is None:
            assert spec.shape is not None
            return arrays.shape_dtype(spec.shape, str(spec.dtype))
        if not self.has_values and spec.shape is not None and not _may_be_table(spec.shape, dtype):
            return arrays.shape_dtype(spec.shape, str(spec.dtype))
        made = contents.made(spec, dtype)
        if spec.dtype is None:  # like jax: int64 becomes int32, unless x64 is enabled
            made = contents.converted(f"--arg {spec.text!r}", made, arrays.canonical(made.dtype))
        if self.has_values:
            return arrays.put(made)
        if _may_be_table(made.shape, made.dtype):
            return made  # a jax array would need a back end
        return arrays.shape_dtype(made.shape, str(made.dtype))


def _may_be_table(shape: Sequence[int], dtype: np.dtype[Any] | None) -> bool:
    """Return whether this is the type of a small array of integers or bools."""
    return dtype is not None and dtype.kind in "biu" and math.prod(shape) <= MAX_TABLE


def from_function(function: Callable[[], Any], what: str) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments that `function()` returns.

    It returns a pair of a tuple and a dict, positional and keyword arguments; or only a tuple or
    list of positional arguments, or only a dict of keyword arguments.

    Args:
      what: name of the function, for messages.

    Raises:
      UsageError: the function returned anything else.
    """
    returned = function()
    if isinstance(returned, (tuple, list)):
        if len(returned) == 2 and isinstance(returned[0], (tuple, list)) and _is_named(returned[1]):
            return list(returned[0]), dict(returned[1])
        return list(returned), {}
    if _is_named(returned):
        return [], dict(returned)
    shown = (
        f"an array of shape {returned.shape}" if _is_array(returned) else type(returned).__name__
    )
    raise UsageError(
        f"{what} returned {shown}: it must return (args, kwargs), a tuple of positional arguments "
        "and a dict of keyword arguments, or one of the two"
    )


def _is_named(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or (hasattr(value, "shape") and hasattr(value, "dtype"))
