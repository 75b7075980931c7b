"""Attention masks, evaluated lazily, one slice at a time.

`mask[q_slice, kv_slice]` is a bool numpy array. A mask of 100,000 by 100,000 costs nothing until it
is sliced. Masks are immutable and hashable.

In most masks each query sees one interval of keys. For these, subclasses of `IntervalMask`,
kernels compute the mask from the position of the query instead of loading it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# Positions of queries: a numpy array on the host, a jax array in a kernel.
Positions = Any
Bounds = tuple[Positions | None, Positions | None]
Index = tuple[slice, slice]


class Mask(ABC):
    """A lazy bool array `[q_seq, kv_seq]`; True where the query sees the key."""

    shape: tuple[int, int]  # (q_seq, kv_seq)

    @abstractmethod
    def __getitem__(self, index: Index) -> np.ndarray:
        """Return the entries of a slice of queries and a slice of keys."""


@dataclass(frozen=True)
class IntervalMask(Mask):
    """Mask in which each query sees one interval of keys."""

    shape: tuple[int, int]

    @abstractmethod
    def bounds(self, q: Positions) -> Bounds:
        """Return the first and the last key that each of the queries `q` sees; None is no bound."""

    def __getitem__(self, index: Index) -> np.ndarray:
        q, k = (
            np.arange(*part.indices(size)) for size, part in zip(self.shape, index, strict=True)
        )
        lower, upper = self.bounds(q)
        visible = np.ones((len(q), len(k)), bool)
        if lower is not None:
            visible &= k >= lower[:, None]
        if upper is not None:
            visible &= k <= upper[:, None]
        return visible


@dataclass(frozen=True)
class FullMask(IntervalMask):
    """Mask in which every query sees every key."""

    def bounds(self, q: Positions) -> Bounds:
        del q
        return None, None


@dataclass(frozen=True)
class CausalMask(IntervalMask):
    """Mask in which query i sees the keys up to i + `offset`."""

    offset: int = 0

    def bounds(self, q: Positions) -> Bounds:
        return None, q + self.offset


@dataclass(frozen=True)
class LocalMask(IntervalMask):
    """Mask in which query i sees the keys from i + `offset` - left to i + `offset` + right.

    `window_size` is (left, right); None is no bound on that side.
    """

    window_size: tuple[int | None, int | None]
    offset: int = 0

    def bounds(self, q: Positions) -> Bounds:
        left, right = self.window_size
        return (
            None if left is None else q + (self.offset - left),
            None if right is None else q + (self.offset + right),
        )


@dataclass(frozen=True, eq=False)
class NumpyMask(Mask):
    """Mask stored as a bool array `[q_seq, kv_seq]`, which must not be modified later."""

    array: np.ndarray
    shape: tuple[int, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", self.array.shape)

    def __getitem__(self, index: Index) -> np.ndarray:
        return self.array[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NumpyMask) and np.array_equal(self.array, other.array)

    def __hash__(self) -> int:
        return hash((self.shape, self.array.tobytes()))


@dataclass(frozen=True)
class MultiHeadMask:
    """One mask for each query head, all of the same shape."""

    masks: tuple[Mask, ...]

    def __init__(self, masks: Iterable[Mask]) -> None:
        object.__setattr__(self, "masks", tuple(masks))

    @property
    def shape(self) -> tuple[int, int, int]:
        """(heads, q_seq, kv_seq)"""
        return (len(self.masks), *self.masks[0].shape)
