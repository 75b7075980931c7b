"""Patterns of differing elements: where they are, and how they relate to the expected values.

Uses only numpy. A relation is reported only if it holds for every differing element, except for
NaN, infinities, zeros, and shifts that begin outside the array, which are reported with their
share.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pallas_debug.findings.wording.regions import (
    DifferingIndices,
    DifferingRegion,
    Relation,
    RelationKind,
)

EXPLAINS = 0.1
"""Maximum share of an element's error that a relation may leave unexplained."""

MIN_ELEMENTS = 4
"""Minimum number of differing elements for a relation that few elements could satisfy by chance."""

MIN_SHARE = 0.05
"""Minimum share of the differing elements for which a partial pattern is reported."""

SAMPLES = 64
"""Number of elements on which the distance of a shift is tried before it is verified on all."""

MAX_DISTANCES = 1 << 16
"""Longest dimension along which shifts are searched for."""

EXACT_INTEGERS = 2.0**53


def region(bad: np.ndarray) -> DifferingRegion:
    """Smallest product of index sets that contains all elements of a mask."""
    dims = []
    for d in range(bad.ndim):
        others = tuple(i for i in range(bad.ndim) if i != d)
        dims.append(indices(np.flatnonzero(bad.any(axis=others)), bad.shape[d]))
    size = 1.0
    for one in dims:
        size *= one.count
    return DifferingRegion(dims=tuple(dims), share=float(bad.sum()) / size)


def indices(found: np.ndarray, size: int) -> DifferingIndices:
    """Describe a sorted set of indices of a dimension of this size."""
    steps = np.unique(np.diff(found))
    step = 1 if len(found) == 1 else int(steps[0]) if len(steps) == 1 else None
    return DifferingIndices(
        size=size, first=int(found[0]), last=int(found[-1]), count=len(found), step=step
    )


class Pair:
    """Actual and expected values, as float64 or complex128, with the elements that differ.

    Args:
      room: allowed error of each element.
      is_exact: whether the values are integers, which must be equal.
    """

    def __init__(
        self,
        actual: np.ndarray,
        expected: np.ndarray,
        bad: np.ndarray,
        room: np.ndarray,
        *,
        is_exact: bool,
    ) -> None:
        self.a, self.b, self.bad, self.room = actual, expected, bad, room
        self.is_exact = is_exact

    def explains(self, predicted: np.ndarray, room: np.ndarray, bad: np.ndarray) -> np.ndarray:
        """Elements of `bad` that a prediction explains; it has a value for each of them."""
        a, b = self.a[bad], self.b[bad]
        with np.errstate(invalid="ignore", over="ignore"):
            left, difference = np.abs(a - predicted), np.abs(a - b)
            if self.is_exact:
                return np.asarray(left == 0)
            return np.asarray((left <= room) & (left <= EXPLAINS * difference))


def relations(pair: Pair) -> tuple[Relation, ...]:
    """Relations of the differing elements to the expected values, most informative first."""
    total = int(pair.bad.sum())
    if not total:
        return ()
    is_large = pair.is_exact and (
        max(np.abs(pair.a).max(initial=0), np.abs(pair.b).max(initial=0)) >= EXACT_INTEGERS
    )
    if is_large:  # float64 cannot represent them
        return ()
    found = []
    left = pair.bad
    special: tuple[tuple[RelationKind, np.ndarray], ...] = (
        ("nan", np.isnan(pair.a)),
        ("infinite", np.isinf(pair.a)),
        ("zero", pair.a == 0),
    )
    for kind, mask in special:
        share = float((mask & pair.bad).sum()) / total
        if share == 1:
            return (Relation(kind=kind),)
        if share >= MIN_SHARE and (kind != "zero" or share >= 0.5):
            found.append(Relation(kind=kind, share=share))
        if kind != "zero":
            left = left & ~mask
    left &= np.isfinite(pair.b)
    if found or left.sum() < total:  # a relation of the others would not hold for all
        return tuple(found)
    for relate in (_constant, _scaled, _plus, _wrapped, _sliced, _transposed, _shifted):
        relation = relate(pair)
        if relation is not None:
            return (*found, relation)
    return tuple(found)


def _constant(pair: Pair) -> Relation | None:
    a, b = pair.a[pair.bad], pair.b[pair.bad]
    if len(a) < 2 or not (a == a[0]).all():
        return None
    if (b == b[0]).all():
        return Relation(kind="constant", number=_number(a[0]), other=_number(b[0]))
    return Relation(kind="constant", number=_number(a[0]))


def _scaled(pair: Pair) -> Relation | None:
    a, b, room = (x[pair.bad] for x in (pair.a, pair.b, pair.room))
    if len(a) < 2 or (b == b[0]).all():
        return None
    at = int(np.argmax(np.abs(b)))
    if b[at] == 0:
        return None
    for factor in _rounded(a[at] / b[at]):
        if pair.explains(factor * b, room * max(1.0, abs(factor)), pair.bad).all():
            if factor == -1:
                return Relation(kind="negated")
            return Relation(kind="factor", number=_number(factor))
    return None


def _rounded(value: complex) -> Iterator[complex]:
    """Format a number, preceded by a close integer or inverse of an integer."""
    if np.isreal(value) and value != 0:
        real = float(np.real(value))
        if abs(real - round(real)) < 0.01 * abs(real) and round(real):
            yield round(real)
        if abs(1 / real - round(1 / real)) < 0.01 / abs(real) and round(1 / real):
            yield 1 / round(1 / real)
    yield value


def _plus(pair: Pair) -> Relation | None:
    a, b, room = (x[pair.bad] for x in (pair.a, pair.b, pair.room))
    if len(a) < 2:
        return None
    at = int(np.argmin(np.abs(b)))
    for offset in _rounded(a[at] - b[at]):
        if pair.explains(b + offset, room, pair.bad).all():
            return Relation(kind="offset", number=_number(offset))
    return None


def _wrapped(pair: Pair) -> Relation | None:
    if not pair.is_exact or pair.bad.sum() < 2:
        return None
    off = (pair.a - pair.b)[pair.bad]
    for power in (32, 16, 8):
        if (off % 2**power == 0).all():
            return Relation(kind="wrapped", number=f"{2**power:,}")
    return None


def _sliced(pair: Pair) -> Relation | None:
    """Factor per row, column, or slice along another dimension."""
    count = int(pair.bad.sum())
    if pair.is_exact or pair.a.dtype.kind == "c":
        return None
    for dim in range(-1, -1 - pair.a.ndim, -1):
        slices = int(pair.bad.any(axis=dim).sum())
        if count < max(MIN_ELEMENTS, 3 * slices):
            continue
        size = np.where(pair.bad, np.abs(pair.b), -1.0)
        at = np.argmax(size, axis=dim, keepdims=True)
        b = np.take_along_axis(pair.b, at, dim)
        a = np.take_along_axis(pair.a, at, dim)
        factors = np.divide(a, b, out=np.zeros_like(a), where=b != 0)
        predicted = (factors * pair.b)[pair.bad]
        room = (pair.room * np.maximum(1.0, np.abs(factors)))[pair.bad]
        offsets = (pair.b + (a - b))[pair.bad]
        if pair.explains(offsets, pair.room[pair.bad], pair.bad).all():
            continue  # too similar within each slice to distinguish a factor from an offset
        if pair.explains(predicted, room, pair.bad).all():
            used = factors[pair.bad.any(axis=dim, keepdims=True)]
            return Relation(
                kind="factor per slice",
                number=_number(used.min()),
                other=_number(used.max()),
                dim=dim,
            )
    return None


def _transposed(pair: Pair) -> Relation | None:
    if pair.a.ndim < 2 or pair.a.shape[-1] != pair.a.shape[-2] or _is_few(pair):
        return None
    predicted = np.swapaxes(pair.b, -1, -2)[pair.bad]
    room = np.swapaxes(pair.room, -1, -2)[pair.bad]
    if pair.explains(predicted, room, pair.bad).all():
        return Relation(kind="transposed")
    return None


def _is_few(pair: Pair) -> bool:
    """Return whether the differing elements are too few or too similar to recognise elsewhere."""
    if pair.bad.sum() < MIN_ELEMENTS:
        return True
    return len(np.unique(pair.b[pair.bad][:SAMPLES])) < MIN_ELEMENTS


def _shifted(pair: Pair) -> Relation | None:
    """Shift or rotation along one dimension, by the shortest distance that explains it."""
    if _is_few(pair):
        return None
    places = np.argwhere(pair.bad)
    sample = places[np.linspace(0, len(places) - 1, min(SAMPLES, len(places))).astype(int)]
    found: list[Relation] = []
    for d in reversed(range(pair.a.ndim)):
        size = pair.a.shape[d]
        if 1 < size <= MAX_DISTANCES:
            found += _along(pair, d, sample, size)
    return min(found, key=lambda one: (-one.share, abs(one.by)), default=None)


def _along(pair: Pair, d: int, sample: np.ndarray, size: int) -> Iterator[Relation]:
    distances = np.concatenate([np.arange(1, size), -np.arange(1, size)])
    distances = distances[np.argsort(np.abs(distances), kind="stable")]
    source = sample[:, d][:, None] - distances  # (samples, distances)
    inside = (source >= 0) & (source < size)
    at = tuple(
        source % size if i == d else np.broadcast_to(sample[:, i][:, None], source.shape)
        for i in range(pair.a.ndim)
    )
    here = tuple(sample.T)
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(pair.a[here][:, None] - pair.b[at])
        difference = np.abs(pair.a[here] - pair.b[here])[:, None]
        fits = (error <= pair.room[at]) & (error <= (0 if pair.is_exact else EXPLAINS) * difference)
    shifts = distances[(fits | ~inside).all(axis=0) & (2 * inside.sum(axis=0) >= len(sample))][:2]
    turns = distances[fits.all(axis=0) & ~inside.all(axis=0)][:2]
    kinds: list[tuple[RelationKind, int]] = [("shifted", int(by)) for by in shifts]
    kinds += [("rotated", int(by)) for by in turns]
    for kind, by in kinds:
        bad = pair.bad if kind == "rotated" else pair.bad & _has_source(pair.bad.shape, d, by)
        predicted = np.roll(pair.b, by, axis=d)[bad]
        room = np.roll(pair.room, by, axis=d)[bad]
        if pair.explains(predicted, room, bad).all():
            share = float(bad.sum()) / float(pair.bad.sum())
            if share >= 0.5:
                yield Relation(kind=kind, share=share, dim=d - pair.a.ndim, by=by)


def _has_source(shape: tuple[int, ...], d: int, by: int) -> np.ndarray:
    """Mask of the elements whose source under a shift lies within the array."""
    source = np.arange(shape[d]) - by
    inside = (source >= 0) & (source < shape[d])
    return inside.reshape([-1 if i == d else 1 for i in range(len(shape))])


def _number(value: complex) -> str:
    number = complex(value)
    real, imaginary = (
        0.0 if abs(x) < 1e-9 * abs(number) else x for x in (number.real, number.imag)
    )
    if imaginary:
        return f"{complex(real, imaginary):.4g}"
    return f"{real:.0f}" if real == round(real) and abs(real) < 2**32 else f"{real:.4g}"
