"""Recording of failures, in a single branch at the end of each loop body, branch or scope.

Each check computes its condition in place, as a scalar or as a mask over an array. Masks of the
same shape are combined before they are reduced, so passing checks cost one reduction per shape;
everything else runs only after a failure.

XLA takes a long time to compile the full recording code. If a kernel can be run a second time, a
`Tripwire` records only that something may have failed.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_debug.bridge.instrument import conditions
from pallas_debug.bridge.instrument.flow import NanFlow
from pallas_debug.bridge.instrument.sites import MAX_LOOPS, MAX_VALUES, RecordLayout


def _nothing() -> Sequence[Any]:
    return ()


@dataclass(frozen=True, kw_only=True)
class Pending:
    """A site whose check has been computed but not recorded yet.

    Attributes:
      failed: a bool, or a mask of any shape, which may contain false positives. None for a
        tripwire, which checks `nan_in` itself.
      confirmed: computes a precise second check as a scalar bool; None if `failed` is precise.
      values: computes the scalars to record.
      nan_in: the array that contains a NaN if this failed; None for checks other than NaN.
      is_read: whether the NaN has only been read so far.
      is_fill: whether it failed because an integer equals the interpreter's fill value.
    """

    site: int
    failed: Any
    confirmed: Callable[[], Any] | None = None
    values: Callable[[], Sequence[Any]] = field(default=_nothing)
    nan_in: Any = None
    is_read: bool = False
    is_fill: bool = False


@dataclass(frozen=True, kw_only=True)
class CheckedRegion:
    """The kernel, a loop body, a branch or a scope, without the regions nested in it."""

    pending: list[Pending] = field(default_factory=list)
    flow: NanFlow = field(default_factory=NanFlow)


class Recorder:
    """Records failures in a ref.

    Args:
      words: the ref, `int32[1, 1, layout.words]`.
      grid_point: the program ids.
      vectors: whether the ref supports vector access, as in the interpret modes; scalar memory of
        a real core supports only scalars.
    """

    def __init__(
        self, words: Any, layout: RecordLayout, grid_point: Sequence[Any], *, vectors: bool
    ) -> None:
        self._words = words
        self._layout = layout
        self._grid_point = list(grid_point)
        self.vectors = vectors

    def clear(self) -> None:
        """Reset all failure records."""
        if self.vectors:
            self._words[...] = lax.full(self._words.shape, 0, "int32")
            return

        def clear_one(site: Any, _: Any) -> None:
            self._words[0, 0, self._layout.base(site)] = np.int32(0)

        lax.fori_loop(np.int32(0), np.int32(self._layout.capacity), clear_one, None)

    def write(self, region: CheckedRegion, loops: Sequence[Any]) -> None:
        """Record the failures of a region."""
        pending = region.pending
        flags, any_failed = (_packed if self.vectors else _joined)(pending)

        def record() -> tuple[()]:
            failed = [
                flag() if p.confirmed is None else flag() & p.confirmed()
                for p, flag in zip(pending, flags, strict=True)
            ]
            place = [*self._grid_point, *_padded(loops[-MAX_LOOPS:], MAX_LOOPS)]
            if self.vectors:
                for run in _runs(pending):
                    self._write_rows(pending[run], failed[run], place)
            else:
                for one, is_set in zip(pending, failed, strict=True):
                    self._write_one(one, is_set, place)
            return ()

        lax.cond(any_failed, record, lambda: ())

    def _write_rows(
        self, pending: Sequence[Pending], failed: Sequence[Any], place: Sequence[Any]
    ) -> None:
        """Update the records of consecutively numbered sites at once, one row per site."""
        width, count = self._layout.record, len(pending)
        start = self._layout.base(pending[0].site)
        at = slice(start, start + count * width)
        old = lax.reshape(self._words[0, 0, at], (count, width))
        values = self._values(pending)
        is_set = _row([f.astype("int32") for f in failed])
        fresh = [
            lax.broadcast_in_dim(lax.full((), 1, "int32"), (count, 1), ()),
            lax.broadcast_in_dim(_row(place), (count, len(place)), (1,)),
            values,
        ]
        is_first = (old[:, 0] == 0) & (is_set != 0)
        again = lax.pad(
            lax.reshape(is_set, (count, 1)), np.int32(0), ((0, 0, 0), (0, width - 1, 0))
        )
        rows = lax.select(
            lax.broadcast_in_dim(is_first, (count, width), (0,)),
            lax.concatenate(fresh, 1),
            old + again,
        )
        self._words[0, 0, at] = lax.reshape(rows, (count * width,))

    def _values(self, pending: Sequence[Pending]) -> Any:
        """Stack the recorded values, one row per site; padding is a single constant per row."""
        rows = []
        for p in pending:
            kept = [word(v) for v in p.values()]
            empty = lax.full((1, MAX_VALUES - len(kept)), 0, "int32")
            rows.append(
                lax.concatenate([lax.reshape(_row(kept), (1, len(kept))), empty], 1)
                if 0 < len(kept) < MAX_VALUES
                else _row(kept).reshape(1, MAX_VALUES)
                if kept
                else empty
            )
        return lax.concatenate(rows, 0)

    def _write_one(self, one: Pending, failed: Any, place: Sequence[Any]) -> None:
        base = self._layout.base(one.site)
        count = self._words[0, 0, base]
        self._words[0, 0, base] = count + failed.astype("int32")

        def first() -> tuple[()]:
            for i, value in enumerate([*place, *(word(v) for v in one.values())]):
                self._words[0, 0, base + 1 + i] = value
            return ()

        lax.cond(failed & (count == 0), first, lambda: ())


CERTAIN, PERHAPS, READ, FILL = 1, 2, 4, 8
"""Tripwire flags: something failed; something may have failed, because there is a NaN; a NaN was
read, but does not show in anything that was computed from it or written; an integer was read that
may be unwritten memory."""


class Tripwire:
    """Records in a single word, `int32[1, 1, 1]`, whether anything may have failed."""

    vectors = True

    def __init__(self, word: Any) -> None:
        self._word = word

    def clear(self) -> None:
        """Reset the flags."""
        self._word[...] = lax.full(self._word.shape, 0, "int32")

    def write(self, region: CheckedRegion, loops: Sequence[Any]) -> None:
        """Set the flags for checks that may have failed in a region."""
        kinds: dict[int, int] = {}
        for p in region.pending:
            kinds[id(p.nan_in)] = kinds.get(id(p.nan_in), 0) | (READ if p.is_read else PERHAPS)
        arrays = [p.nan_in for p in region.pending if p.nan_in is not None]
        failed = [
            (FILL if p.is_fill else PERHAPS if p.confirmed else CERTAIN, p.failed)
            for p in region.pending
            if p.nan_in is None
        ]
        for array in region.flow.ends(arrays):
            kind = READ if kinds[id(array)] == READ else PERHAPS
            failed.append((kind, conditions.is_nan(array)))
        by_shape: dict[tuple[int, ...], list[Any]] = {}
        for kind, mask in failed:
            shape = np.shape(mask)
            by_shape.setdefault(shape, []).append(lax.select(mask, *_full(shape, kind)))
        found = _or([_any_bits(_or(masks)) for masks in by_shape.values()])
        self._word[0, 0, 0] = self._word[0, 0, 0] | found


def any_of(condition: Any) -> Any:
    """Whether any element is set."""
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


def _joined(pending: Sequence[Pending]) -> tuple[list[Callable[[], Any]], Any]:
    """Return a lazily computed flag for each site, and whether any of them is set."""
    by_shape: dict[tuple[int, ...], Any] = {}
    for p in pending:
        shape = np.shape(p.failed)
        by_shape[shape] = by_shape[shape] | p.failed if shape in by_shape else p.failed
    flags: list[Callable[[], Any]] = [functools.partial(any_of, p.failed) for p in pending]
    return flags, _or([any_of(mask) for mask in by_shape.values()])


def _packed(pending: Sequence[Pending]) -> tuple[list[Callable[[], Any]], Any]:
    """Like `_joined`, but pack masks of one shape as bits into one array and reduce it once."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, p in enumerate(pending):
        shape = np.shape(p.failed)
        number = sum(len(g) for key, g in groups.items() if key[0] == shape)
        groups.setdefault((shape, number // _BITS), []).append(i)
    flags: list[Callable[[], Any]] = [lambda: None] * len(pending)
    reduced = []
    for members in groups.values():
        bits = _or(
            [
                lax.select(pending[i].failed, *_full(np.shape(pending[i].failed), 1 << bit))
                for bit, i in enumerate(members)
            ]
        )
        bits = _any_bits(bits)
        reduced.append(bits)
        for bit, i in enumerate(members):
            flags[i] = functools.partial(_bit, bits, bit)
    return flags, _or(reduced) != 0


_BITS = 31


def _full(shape: tuple[int, ...], word: int) -> tuple[Any, Any]:
    return lax.full(shape, word, "int32"), lax.full(shape, 0, "int32")


def _any_bits(bits: Any) -> Any:
    # Reduce all axes at once: each further step is one more loop for XLA to compile.
    axes = tuple(range(np.ndim(bits)))
    return lax.reduce(bits, np.int32(0), lax.bitwise_or, axes) if axes else bits


def _bit(bits: Any, bit: int) -> Any:
    return (bits & np.int32(1 << bit)) != 0


def _runs(pending: Sequence[Pending]) -> list[slice]:
    """Split into runs of consecutive site numbers; an inner region's sites leave gaps."""
    starts = [i for i, p in enumerate(pending) if i == 0 or p.site != pending[i - 1].site + 1]
    return [slice(a, b) for a, b in itertools.pairwise([*starts, len(pending)])]


def _or(values: Sequence[Any]) -> Any:
    joined = values[0]
    for value in values[1:]:
        joined = joined | value
    return joined


def _row(scalars: Sequence[Any]) -> Any:
    return lax.concatenate([jnp.asarray(x, "int32").reshape(1) for x in scalars], 0)


def _padded(values: Sequence[Any], length: int) -> list[Any]:
    return [*values, *([np.int32(0)] * (length - len(values)))]
