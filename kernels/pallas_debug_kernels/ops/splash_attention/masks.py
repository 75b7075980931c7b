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

    def __post_init__(self) -> None:
        shape = self.shape
        if not isinstance(shape, tuple) or len(shape) != 2 or not all(_is_size(n) for n in shape):
            raise ValueError(
                f"{type(self).__name__}: shape is {shape!r}. "
                "It must be (q_seq, kv_seq), two positive ints."
            )

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

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_int("CausalMask", "offset", self.offset)

    def bounds(self, q: Positions) -> Bounds:
        return None, q + self.offset


@dataclass(frozen=True)
class LocalMask(IntervalMask):
    """Mask in which query i sees the keys from i + `offset` - left to i + `offset` + right.

    `window_size` is (left, right); None is no bound on that side.
    """

    window_size: tuple[int | None, int | None]
    offset: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_int("LocalMask", "offset", self.offset)
        window = self.window_size
        if not isinstance(window, tuple) or len(window) != 2 or not all(map(_is_reach, window)):
            raise ValueError(
                f"LocalMask: window_size is {window!r}. "
                "It must be (left, right), each an int of at least 0, or None for no bound."
            )

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
        array = self.array
        if not isinstance(array, np.ndarray) or array.ndim != 2 or 0 in array.shape:
            is_array = isinstance(array, np.ndarray)
            what = f"has shape {array.shape}" if is_array else f"is a {type(array).__name__}"
            raise ValueError(
                f"NumpyMask: array {what}. It must be a numpy array [q_seq, kv_seq], not empty."
            )
        if array.dtype != np.bool_:
            raise ValueError(f"NumpyMask: array has dtype {array.dtype.name}. It must be bool.")
        object.__setattr__(self, "shape", array.shape)

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
        if not self.masks:
            raise ValueError("MultiHeadMask: masks is empty. It must hold one Mask for each head.")
        for head, mask in enumerate(self.masks):
            if not isinstance(mask, Mask):
                raise ValueError(
                    f"MultiHeadMask: masks[{head}] is a {type(mask).__name__}. It must be a Mask."
                )
            if mask.shape != self.masks[0].shape:
                raise ValueError(
                    f"MultiHeadMask: masks[{head}] has shape {mask.shape}. "
                    f"It must be {self.masks[0].shape}, the shape of masks[0]."
                )

    @property
    def shape(self) -> tuple[int, int, int]:
        """(heads, q_seq, kv_seq)"""
        return (len(self.masks), *self.masks[0].shape)


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_reach(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)


def _check_int(owner: str, name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{owner}: {name} is {value!r}. It must be an int.")
