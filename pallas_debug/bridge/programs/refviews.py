"""Elements of a buffer that a chain of transforms selects, laid out as on a TPU.

A `RefView` shares the buffer's memory where numpy can express the chain as strides, and keeps the
position of each element otherwise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pallas_debug.bridge.jaxcompat import dtypes, state_types

Range = tuple[slice | int, ...]


class OutOfView(IndexError):
    """An indexer that is out of bounds of its reference.

    Attributes:
      chain: the transforms before the indexer, such as `.reshape(4, 2, 128)`.
      shape: shape of the indexed reference.
      dtype: dtype of the indexed reference.
      range: range that the indexer selects.
    """

    def __init__(self, chain: str, shape: tuple[int, ...], dtype: Any, range_: Range) -> None:
        super().__init__(f"{range_} is out of bounds for the reference {chain} of shape {shape}")
        self.chain = chain
        self.shape = shape
        self.dtype = dtype
        self.range = range_


def is_reshape(transform: Any) -> bool:
    return isinstance(transform, state_types.ReshapeTransform)


def num_elements(index: slice) -> int:
    """Number of elements that a slice selects."""
    return max(0, -(-int(index.stop - index.start) // (index.step or 1)))


def holds(shape: Sequence[int], range_: tuple[Any, ...]) -> bool:
    """Return whether a range is within an array of this shape."""
    for index, size in zip(range_, shape, strict=True):
        if isinstance(index, int):
            if not 0 <= index < size:
                return False
        elif isinstance(index, np.ndarray):
            if index.size and not (index.min() >= 0 and index.max() < size):
                return False
        elif count := num_elements(index):
            last = index.start + (count - 1) * (index.step or 1)
            if index.start < 0 or last >= size:
                return False
    return True


def array_position(entries: Sequence[Any]) -> int:
    """Number of slices whose dimensions precede those of arrays, by the rules of numpy and jax."""
    at = [i for i, entry in enumerate(entries) if not isinstance(entry, slice)]
    return at[0] if at[-1] - at[0] == len(at) - 1 else 0


def open_mesh(index: Sequence[Any], position: int) -> tuple[Any, ...]:
    """The same elements, with arrays in place of slices, `position` of them first."""
    block = len(np.broadcast_shapes(*(e.shape for e in index if isinstance(e, np.ndarray))))
    behind = sum(isinstance(entry, slice) for entry in index) - position
    rank = position + block + behind
    axes = iter([*range(position), *range(position + block, rank)])
    found: list[Any] = []
    for entry in index:
        if isinstance(entry, slice):
            positions = np.arange(num_elements(entry)) * (entry.step or 1) + entry.start
            found.append(positions.reshape(-1, *[1] * (rank - next(axes) - 1)))
        elif isinstance(entry, np.ndarray):
            found.append(entry.reshape(*entry.shape, *[1] * behind))
        else:
            found.append(entry)
    return tuple(found)


class RefView:
    """Part of a buffer that a chain of transforms selects.

    Elements are split into atoms, whose width is that of the narrowest dtype in the chain. The last
    `_num_axes` axes of `_atoms` hold the atoms of one element, the lowest bits first; a bitcast to
    a wider dtype adds an axis.
    """

    def __init__(self, content: np.ndarray[Any, Any], transforms: Sequence[Any]) -> None:
        """Apply the transforms.

        Args:
          content: the buffer's memory, contiguous.
          transforms: entries of an indexer, or another transform in jax's terms.

        Raises:
          OutOfView: an indexer is out of bounds.
        """
        widths = [
            dtypes.itemsize_bits(content.dtype),
            *(
                dtypes.itemsize_bits(t.dtype)
                for t in transforms
                if isinstance(t, state_types.BitcastTransform)
            ),
        ]
        self._content = content
        self._width = min(widths)
        self._memory = _split(content, self._width)
        self._is_copy = self._width < 8 and self._width < widths[0]
        self._atoms: np.ndarray[Any, Any] = self._memory
        self._has_positions = False
        self._num_axes = 1
        self._ranges: list[Range] | None = None  # asked for by each observer of an access
        self.dtype: Any = content.dtype
        for i, transform in enumerate(transforms):
            try:
                self._apply(transform)
            except OutOfView as error:
                chain = "".join(map(_shown, transforms[:i]))
                raise OutOfView(chain, error.shape, error.dtype, error.range) from None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._atoms.shape[: self._atoms.ndim - self._num_axes])

    @property
    def _by_element(self) -> tuple[int, ...]:
        """Shape of the atoms with a single last axis; there may be no elements."""
        return (*self.shape, math.prod(self._atoms.shape[len(self.shape) :]))

    def read(self) -> np.ndarray[Any, Any]:
        """Return a copy of the elements."""
        atoms = self._atoms
        if self._has_positions:
            atoms = self._memory.reshape(-1)[self._atoms]
        return _join(atoms.reshape(self._by_element), self._width, self.dtype)

    def write(self, values: np.ndarray[Any, Any]) -> None:
        """Replace the elements."""
        atoms = _split(np.ascontiguousarray(values), self._width)
        atoms = atoms.reshape(self._atoms.shape)
        if self._has_positions:
            self._memory.reshape(-1)[self._atoms] = atoms
        else:
            self._atoms[...] = atoms
        if self._is_copy:
            self._content[...] = _join(self._memory, self._width, self._content.dtype)

    def ranges(self) -> list[Range]:
        """Disjoint ranges of the buffer that cover the elements selected, wholly or in part."""
        if self._ranges is None:
            positions = _distinct(self._positions().reshape(-1) // self._memory.shape[-1])
            is_scalar = not self._content.shape
            self._ranges = [()] if is_scalar else list(cover(positions, self._content.shape))
        return self._ranges

    def _apply(self, transform: Any) -> None:
        match transform:
            case tuple():
                self._index(transform)
            case state_types.ReshapeTransform():
                self._reshape((*transform.shape, *self._atoms.shape[len(self.shape) :]))
            case state_types.BitcastTransform():
                self._bitcast(transform.dtype)
            case state_types.TransposeTransform():
                rest = range(len(self.shape), self._atoms.ndim)
                self._atoms = self._atoms.transpose(*transform.permutation, *rest)
            case _:
                raise NotImplementedError(f"{type(transform).__name__} of a reference")

    def _index(self, range_: tuple[Any, ...]) -> None:
        if not holds(self.shape, range_):
            raise OutOfView("", self.shape, self.dtype, range_)
        if any(isinstance(index, np.ndarray) for index in range_):
            self._atoms, self._has_positions = self._chosen(range_), True
        else:
            self._atoms = self._atoms[range_]

    def _reshape(self, shape: tuple[int, ...]) -> None:
        atoms = self._atoms.reshape(shape)
        is_copy = atoms.size and not np.may_share_memory(atoms, self._memory)
        if is_copy and not self._has_positions:
            atoms, self._has_positions = self._positions().reshape(shape), True
        self._atoms = atoms

    def _bitcast(self, dtype: Any) -> None:
        """Join or split rows, as on a TPU: one 32-bit row is two 16-bit rows."""
        before, after = dtypes.itemsize_bits(self.dtype), dtypes.itemsize_bits(dtype)
        self.dtype = np.dtype(dtype)
        *rows, columns = self.shape if self.shape else (1,)
        first = len(self.shape)
        own = self._atoms.shape[first:]
        if after > before:
            ratio = after // before
            self._reshape((*rows[:-1], rows[-1] // ratio, ratio, columns, *own))
            self._atoms = np.moveaxis(self._atoms, first - 1, first)
            self._num_axes += 1
        elif after < before:
            ratio = before // after
            # The highest bits are in the last row.
            self._reshape((*rows, columns, ratio, math.prod(own) // ratio))
            self._atoms = np.moveaxis(self._atoms, first, first - 1)
            self._num_axes = 1
            self._reshape((*rows[:-1], rows[-1] * ratio, columns, math.prod(own) // ratio))

    def _positions(self) -> np.ndarray[Any, Any]:
        if self._has_positions:
            return self._atoms
        found, steps = self._strides()
        for size, step in zip(self._atoms.shape, steps, strict=True):
            found = np.add.outer(found, np.arange(size) * step)
        return found

    def _chosen(self, range_: tuple[Any, ...]) -> np.ndarray[Any, Any]:
        """Positions of the elements that a range with arrays selects, without computing any others.

        A gather takes only a few rows of an array of any size.
        """
        if self._has_positions:
            return np.asarray(self._atoms[range_])
        found, steps = self._strides()
        own = (slice(0, size, 1) for size in self._atoms.shape[len(range_) :])
        entries = open_mesh((*range_, *own), array_position(range_))
        for entry, step in zip(entries, steps, strict=True):
            found = found + np.asarray(entry, np.int64) * step
        return found

    def _strides(self) -> tuple[np.ndarray[Any, Any], list[int]]:
        """Position of the first atom, and its distance to the next one along each axis."""
        first = self._atoms.__array_interface__["data"][0]
        first -= self._memory.__array_interface__["data"][0]
        size = self._memory.itemsize
        return np.array(first // size), [stride // size for stride in self._atoms.strides]


def _shown(transform: Any) -> str:
    """Format a transform as in Python."""
    match transform:
        case tuple():
            parts = (
                f"{i.start}:{i.stop}" + (f":{i.step}" if i.step not in (None, 1) else "")
                if isinstance(i, slice)
                else str(i)
                for i in transform
            )
            return f".at[{', '.join(parts)}]"
        case state_types.ReshapeTransform():
            return f".reshape({', '.join(map(str, transform.shape))})"
        case state_types.BitcastTransform():
            return f".bitcast({np.dtype(transform.dtype)})"
        case state_types.TransposeTransform():
            return f".transpose({', '.join(map(str, transform.permutation))})"
    return ""


def _split(values: np.ndarray[Any, Any], width: int) -> np.ndarray[Any, Any]:
    """Atoms of contiguous values, in an additional axis, lowest bits first."""
    bits = dtypes.itemsize_bits(values.dtype)
    raw = values.reshape(*values.shape, 1).view(f"u{values.dtype.itemsize}")
    if bits == width:
        return raw
    if width >= 8:
        return raw.view(f"u{width // 8}")
    shifts = np.arange(0, bits, width, dtype=raw.dtype)
    return ((raw >> shifts) & ((1 << width) - 1)).astype(np.uint8)


def _join(atoms: np.ndarray[Any, Any], width: int, dtype: Any) -> np.ndarray[Any, Any]:
    """Values of atoms in the last axis; always a copy."""
    dtype = np.dtype(dtype)
    bits = dtypes.itemsize_bits(dtype)
    if bits == width:
        raw = np.array(atoms[..., 0], order="C")
    elif width >= 8:
        raw = np.array(atoms, order="C").view(f"u{dtype.itemsize}")[..., 0]
    else:
        wide = atoms.astype(f"u{dtype.itemsize}") & ((1 << width) - 1)
        shifts = np.arange(0, bits, width, dtype=wide.dtype)
        raw = np.asarray(np.bitwise_or.reduce(wide << shifts, axis=-1), dtype=wide.dtype)
    values: np.ndarray[Any, Any] = raw.view(dtype)
    return values


def cover(elements: np.ndarray[Any, Any], shape: tuple[int, ...]) -> Iterator[Range]:
    """Cover elements of an array, given by their sorted positions, with disjoint ranges."""
    yield from _cover(np.stack(np.unravel_index(elements, shape), axis=-1))


def _cover(coordinates: np.ndarray[Any, Any]) -> Iterator[Range]:
    """Cover sorted, unique coordinates, of shape [elements, axes], with disjoint ranges."""
    if not len(coordinates):
        return
    if not coordinates.shape[1]:
        yield ()
        return
    used = [_distinct(axis) for axis in coordinates.T]
    if math.prod(len(axis) for axis in used) == len(coordinates):
        yield from itertools.product(*(list(_slices(axis)) for axis in used))
        return
    for value in used[0]:
        rest = coordinates[coordinates[:, 0] == value][:, 1:]
        row = slice(int(value), int(value) + 1, 1)
        yield from ((row, *range_) for range_ in _cover(rest))


def _distinct(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Sort integers, each once, as `np.unique`; they often are sorted."""
    steps = np.diff(values)
    if (steps < 0).any():
        values = np.sort(values)
        steps = np.diff(values)
    return values[np.concatenate(([True], steps != 0))] if len(values) else values


def _slices(values: np.ndarray[Any, Any]) -> Iterator[slice]:
    """Runs of consecutive values."""
    breaks = np.flatnonzero(np.diff(values) != 1) + 1
    for run in np.split(values, breaks):
        yield slice(int(run[0]), int(run[-1]) + 1, 1)
