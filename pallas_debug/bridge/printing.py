"""Prints of a kernel that say where they come from, in the interpret modes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import debugging

from pallas_debug.bridge import lines, rewrite
from pallas_debug.model import PrintRecord

Printed = Callable[[PrintRecord], None]


class Printer(rewrite.Visitor):
    """Visits a kernel, and has each `debug_print` yield a record."""

    def __init__(self, kernel: str, grid_point: Sequence[Any], printed: Printed) -> None:
        self._kernel = kernel
        self._grid_point = list(grid_point)
        self._printed = printed
        self.count = 0

    def before(self, eqn: Any, inputs: Sequence[Any], place: rewrite.Place) -> Sequence[Any] | None:
        if eqn.primitive is not debugging.debug_print_p:
            return None
        self.count += 1
        params = eqn.params
        source = lines.source_at(eqn, place)
        rank, depth = len(self._grid_point), len(place.loops)

        def record(*values: Any) -> None:
            numbers = [int(v) for v in values[: rank + depth]]
            given = [np.asarray(v) for v in values[rank + depth :]]
            text = _text(params, given)
            self._printed(
                PrintRecord(
                    kernel=self._kernel,
                    text=text,
                    source=source,
                    grid_point=tuple(numbers[:rank]),
                    loop=tuple(numbers[rank:]),
                    values=tuple(np.array2string(v, threshold=_MANY) for v in given),
                )
            )

        loops = [loop.iteration for loop in place.loops]
        jax.debug.callback(record, *self._grid_point, *loops, *inputs)
        return []


_MANY = 64
"""Elements of an array beyond which a record keeps its edges alone."""


def _text(params: Any, given: Sequence[np.ndarray]) -> str:
    """As jax would have printed it."""
    args, kwargs = debugging.merge_callback_args(params["in_tree"], given, params["static_args"])
    options = {k: v for k, v in dict(params["np_printoptions"]).items() if k != "legacy"}
    with np.printoptions(**options):
        if params["has_placeholders"]:
            with contextlib.suppress(IndexError, KeyError, ValueError):
                return str(params["fmt"].format(*args, **kwargs))
        return " ".join([params["fmt"], *(str(a) for a in (*args, *kwargs.values()))])
