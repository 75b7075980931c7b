"""Kernel prints with their source location, for the interpret modes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import debugging
from jax._src.state.types import AbstractRef
from jax.experimental import io_callback

from pallas_debug.bridge.jaxprs import lines, rewrite
from pallas_debug.model import PrintRecord

Printed = Callable[[PrintRecord], None]


class Printer(rewrite.Visitor):
    """Visitor that records each `debug_print` of a kernel as a `PrintRecord`."""

    def __init__(self, kernel: str, grid_point: Sequence[Any], printed: Printed) -> None:
        self._kernel = kernel
        self._grid_point = list(grid_point)
        self._printed = printed
        self._done: Any = np.int32(0)
        self._outer: list[Any] = []
        self.count = 0

    def entering(self, place: rewrite.ProgramPoint) -> None:
        self._outer.append(self._done)

    def leaving(self, place: rewrite.ProgramPoint) -> None:
        self._done = self._outer.pop()

    def before(
        self, eqn: Any, inputs: Sequence[Any], place: rewrite.ProgramPoint
    ) -> Sequence[Any] | None:
        if eqn.primitive is not debugging.debug_print_p:
            return None
        self.count += 1
        params = eqn.params
        source = lines.source_at(eqn, place)
        rank, depth = len(self._grid_point), len(place.loops)

        def record(_: Any, *values: Any) -> np.int32:
            numbers = [int(v) for v in values[: rank + depth]]
            given = [np.asarray(v) for v in values[rank + depth :]]
            formatted = text(params, given)
            self._printed(
                PrintRecord(
                    kernel=self._kernel,
                    text=formatted,
                    source=source,
                    grid_point=tuple(numbers[:rank]),
                    loop=tuple(numbers[rank:]),
                    values=shown(given),
                )
            )
            return np.int32(0)

        loops = [loop.iteration for loop in place.loops]
        # jax's interpreters let a print take a reference; a callback takes its contents.
        values = [x[...] if isinstance(jax.typeof(x), AbstractRef) else x for x in inputs]
        # Chain the callbacks through a token: XLA may reorder independent ones.
        self._done = io_callback(
            record, _DONE, self._done, *self._grid_point, *loops, *values, ordered=False
        )
        return []


_DONE = jax.ShapeDtypeStruct((), "int32")

_MANY = 64
"""Array size (elements) above which a record keeps only the edges."""


def shown(values: Sequence[np.ndarray]) -> tuple[str, ...]:
    """Each value as stored in a record: large arrays with only their edges."""
    return tuple(np.array2string(value, threshold=_MANY) for value in values)


def text(params: Any, given: Sequence[np.ndarray]) -> str:
    """Format a print like jax."""
    args, kwargs = debugging.merge_callback_args(params["in_tree"], given, params["static_args"])
    options = {k: v for k, v in dict(params["np_printoptions"]).items() if k != "legacy"}
    with np.printoptions(**options):
        if params["has_placeholders"]:
            with contextlib.suppress(IndexError, KeyError, ValueError):
                return str(params["fmt"].format(*args, **kwargs))
        return " ".join([params["fmt"], *(str(a) for a in (*args, *kwargs.values()))])
