"""Recording of the first failure, in a branch before and at the end of each region.

A region is the kernel, a loop body, a branch or a scope.

Each check computes its condition in place, as a scalar or as a mask over an array. Masks of the
same shape are combined before they are reduced, so passing checks cost one reduction per shape;
everything else runs only after a failure. Only scalars are recorded: a core's scalar memory holds
nothing else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax


@dataclass(frozen=True, kw_only=True)
class Pending:
    """A site whose check has been computed but not recorded yet.

    Attributes:
      failed: a bool, or a mask of any shape, which may contain false positives.
      values: computes the scalars to record.
      confirmed: computes a precise second check as a scalar bool; None if `failed` is precise.
    """

    site: int
    failed: Any
    values: Callable[[], Sequence[Any]]
    confirmed: Callable[[], Any] | None = None


class Recorder:
    """Records failures in a ref.

    Args:
      words: the ref, `int32[1, 1, layout.words]`.
      grid_point: the program ids.
    """

    def __init__(self, words: Any, grid_point: Sequence[Any]) -> None:
        self._words = words
        self._grid_point = list(grid_point)

    def clear(self) -> None:
        """Forget all failures."""
        self._words[0, 0, 0] = np.int32(0)

    def write(self, pending: Sequence[Pending]) -> None:
        """Record the failures of sites of a region, in their order."""

        def record() -> tuple[()]:
            for one in pending:
                failed = any_of(one.failed)
                if one.confirmed is not None:
                    failed = failed & one.confirmed()
                self._write_one(one, failed)
            return ()

        lax.cond(_any_failed(pending), record, lambda: ())

    def _write_one(self, one: Pending, failed: Any) -> None:
        count, site = self._words[0, 0, 0], np.int32(one.site)
        is_counted = failed & ((count == 0) | (self._words[0, 0, 1] == site))
        self._words[0, 0, 0] = count + is_counted.astype("int32")

        def first() -> tuple[()]:
            values = map(word, one.values())
            for i, value in enumerate([site, *self._grid_point, *values], 1):
                self._words[0, 0, i] = value
            return ()

        lax.cond(failed & (count == 0), first, lambda: ())


def any_of(condition: Any) -> Any:
    """Return whether any element is set."""
    if np.ndim(condition) == 1:
        # v4 can reduce a vector of one entry per row only as a column of floats.
        column = lax.broadcast_in_dim(condition.astype("float32"), (*condition.shape, 1), (0,))
        return jnp.max(column) > 0
    axes = tuple(range(np.ndim(condition)))
    return lax.reduce(condition, np.bool_(False), lax.bitwise_or, axes) if axes else condition


def word(value: Any) -> Any:
    """Convert a scalar to int32; floats are bitcast."""
    if jnp.issubdtype(jnp.result_type(value), jnp.floating):
        return lax.bitcast_convert_type(jnp.asarray(value, "float32"), "int32")
    return value.astype("int32") if hasattr(value, "astype") else np.int32(value)


def _any_failed(pending: Sequence[Pending]) -> Any:
    by_shape: dict[tuple[int, ...], Any] = {}
    for p in pending:
        shape = np.shape(p.failed)
        by_shape[shape] = by_shape[shape] | p.failed if shape in by_shape else p.failed
    return functools.reduce(lambda a, b: a | b, [any_of(mask) for mask in by_shape.values()])
