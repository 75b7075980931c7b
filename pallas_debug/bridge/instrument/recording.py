"""Recording of failures, in a single branch at the end of each loop body, branch or scope.

Each check computes its condition in place, as a scalar or as a mask over an array. Masks of the
same shape are combined before they are reduced, so passing checks cost one reduction per shape;
everything else runs only after a failure. Checks of one kind on one line, as in a loop that Python
unrolls, are recorded together (`CheckGroup`): XLA compiles one operation on many rows faster than
an operation for each row.

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
from pallas_debug.bridge.instrument.sites import MAX_LOOPS, MAX_VALUES, NO_EXAMPLE, RecordLayout


def _nothing() -> Sequence[Any]:
    return ()


@dataclass(frozen=True, kw_only=True)
class Pending:
    """A site whose check has been computed but not recorded yet.

    Attributes:
      failed: a bool, or a mask of any shape, which may contain false positives. None for a
        tripwire, which checks `nan_in` itself.
      confirmed: computes a precise second check as a scalar bool; None if `failed` is precise.
      values: computes the scalars to record, unless there is an example.
      example: the first element that fails.
      line: key that is equal for checks whose failures are one finding, apart from shapes.
      nan_in: the array that contains a NaN if this failed; None for checks other than NaN.
      is_read: whether the NaN has only been read so far.
      is_fill: whether it failed because an integer equals the interpreter's fill value.
    """

    site: int
    failed: Any
    confirmed: Callable[[], Any] | None = None
    values: Callable[[], Sequence[Any]] = field(default=_nothing)
    example: conditions.Example | None = None
    line: Any = None
    nan_in: Any = None
    is_read: bool = False
    is_fill: bool = False

    @property
    def kind(self) -> Any:
        """Key that is equal for checks that are recorded together."""
        example = (self.line, self.example.kind) if self.example is not None else None
        return np.shape(self.failed), self.confirmed is None, example

    def scalars(self) -> Sequence[Any]:
        """The scalars to record."""
        return self.values() if self.example is None else self.example.values()


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
        self.rows: dict[int, int] = {}
        """Row of each site that has been recorded."""

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
        place = [*self._grid_point, *_padded(loops[-MAX_LOOPS:], MAX_LOOPS)]
        start = len(self.rows)
        if self.vectors:
            groups = _grouped(region.pending)
            pending = [p for group in groups for p in group.pending]
            any_failed = _or([group.bits for group in groups]) != 0
            record = functools.partial(self._write_rows, start, groups, place)
        else:
            pending = region.pending
            flags, any_failed = _joined(pending)
            record = functools.partial(self._write_each, start, pending, flags, place)
        self.rows |= {p.site: start + i for i, p in enumerate(pending)}
        lax.cond(any_failed, record, lambda: ())

    def _write_rows(
        self, start: int, groups: Sequence[CheckGroup], place: Sequence[Any]
    ) -> tuple[()]:
        """Update the rows of a region's sites at once."""
        width = self._layout.record
        confirmed = [(group, group.confirmed()) for group in groups]
        is_set = lax.concatenate([group.flags(bits) for group, bits in confirmed], 0)
        values = [group.values(bits) for group, bits in confirmed]
        (count,) = is_set.shape
        at = slice(self._layout.base(start), self._layout.base(start + count))
        old = lax.reshape(self._words[0, 0, at], (count, width))
        fresh = [
            lax.broadcast_in_dim(lax.full((), 1, "int32"), (count, 1), ()),
            lax.broadcast_in_dim(_row(place), (count, len(place)), (1,)),
            lax.concatenate(values, 0),
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
        return ()

    def _write_each(
        self,
        start: int,
        pending: Sequence[Pending],
        flags: Sequence[Callable[[], Any]],
        place: Sequence[Any],
    ) -> tuple[()]:
        failed = [
            flag() if p.confirmed is None else flag() & p.confirmed()
            for p, flag in zip(pending, flags, strict=True)
        ]
        for i, (one, is_set) in enumerate(zip(pending, failed, strict=True)):
            self._write_one(start + i, one, is_set, place)
        return ()

    def _write_one(self, row: int, one: Pending, failed: Any, place: Sequence[Any]) -> None:
        base = self._layout.base(row)
        count = self._words[0, 0, base]
        self._words[0, 0, base] = count + failed.astype("int32")

        def first() -> tuple[()]:
            for i, value in enumerate([*place, *(word(v) for v in one.scalars())]):
                self._words[0, 0, base + 1 + i] = value
            return ()

        lax.cond(failed & (count == 0), first, lambda: ())


@dataclass(frozen=True, kw_only=True)
class CheckGroup:
    """Checks of one kind, at most `BITS`.

    Attributes:
      bits: an int32 with a bit for each that failed, or may have failed.
    """

    pending: Sequence[Pending]
    bits: Any

    def confirmed(self) -> Any:
        """Bits of the checks that failed."""
        if self.pending[0].confirmed is None:
            return self.bits
        are_confirmed = [
            lax.select(jnp.asarray(p.confirmed()), *_full((), 1 << bit))
            for bit, p in enumerate(self.pending)
            if p.confirmed is not None
        ]
        return self.bits & _or(are_confirmed)

    def flags(self, bits: Any) -> Any:
        """Return which checks failed, as zeros and ones in an `int32[count]`."""
        return lax.shift_right_logical(self._spread(bits), self._numbers()) & np.int32(1)

    def values(self, bits: Any) -> Any:
        """Rows of recorded values, `int32[count, MAX_VALUES]`.

        Only the first check of a line that fails has an example; `NO_EXAMPLE` marks the others.
        """
        examples = [p.example for p in self.pending if p.example is not None]
        if examples and examples[0].shape:
            is_set = [(bits & np.int32(1 << bit)) != 0 for bit in range(len(examples))]
            position, *others = conditions.first_of(examples, is_set).values()
            lower = lax.shift_left(lax.full_like(self._numbers(), 1), self._numbers()) - np.int32(1)
            is_first = (self._spread(bits) & lower) == 0
            columns = [
                lax.select(
                    is_first,
                    self._spread(position),
                    lax.full((len(examples),), NO_EXAMPLE, "int32"),
                ),
                *(self._spread(word(value)) for value in others),
            ]
        else:
            scalars = [[word(v) for v in p.scalars()] for p in self.pending]
            columns = [_row(c) for c in itertools.zip_longest(*scalars, fillvalue=np.int32(0))]
        columns += [lax.full((len(self.pending),), 0, "int32")] * (MAX_VALUES - len(columns))
        return lax.concatenate([lax.reshape(c, (len(self.pending), 1)) for c in columns], 1)

    def _numbers(self) -> Any:
        return lax.iota("int32", len(self.pending))

    def _spread(self, value: Any) -> Any:
        return lax.broadcast_in_dim(jnp.asarray(value, "int32"), (len(self.pending),), ())


BITS = 31


def _grouped(pending: Sequence[Pending]) -> list[CheckGroup]:
    """Group checks of one kind, and reduce their masks at once, packed as bits into one array."""
    kinds: dict[Any, list[Pending]] = {}
    for p in pending:
        kinds.setdefault(p.kind, []).append(p)
    return [
        _group(alike[start : start + BITS])
        for alike in kinds.values()
        for start in range(0, len(alike), BITS)
    ]


def _group(pending: Sequence[Pending]) -> CheckGroup:
    masks = [
        lax.select(jnp.asarray(p.failed), *_full(np.shape(p.failed), 1 << bit))
        for bit, p in enumerate(pending)
    ]
    return CheckGroup(pending=pending, bits=_any_bits(_or(masks)))


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


def _joined(pending: Sequence[Pending]) -> tuple[list[Callable[[], Any]], Any]:
    """Return a lazily computed flag for each site, and whether any of them is set."""
    by_shape: dict[tuple[int, ...], Any] = {}
    for p in pending:
        shape = np.shape(p.failed)
        by_shape[shape] = by_shape[shape] | p.failed if shape in by_shape else p.failed
    flags: list[Callable[[], Any]] = [functools.partial(any_of, p.failed) for p in pending]
    return flags, _or([any_of(mask) for mask in by_shape.values()])


def _full(shape: tuple[int, ...], word: int) -> tuple[Any, Any]:
    return lax.full(shape, word, "int32"), lax.full(shape, 0, "int32")


def _any_bits(bits: Any) -> Any:
    # Reduce all axes at once: each further step is one more loop for XLA to compile.
    axes = tuple(range(np.ndim(bits)))
    return lax.reduce(bits, np.int32(0), lax.bitwise_or, axes) if axes else bits


def _or(values: Sequence[Any]) -> Any:
    joined = values[0]
    for value in values[1:]:
        joined = joined | value
    return joined


def _row(scalars: Sequence[Any]) -> Any:
    return lax.concatenate([jnp.asarray(x, "int32").reshape(1) for x in scalars], 0)


def _padded(values: Sequence[Any], length: int) -> list[Any]:
    return [*values, *([np.int32(0)] * (length - len(values)))]
