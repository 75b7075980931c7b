"""Tiled shadow memory of arrays too large for a full array of numbers; tiles are created on write.

If only some grid points are watched, all writes of the others share a number, so only tiles that
watched points write to are kept, as long as there is room.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Numbers = np.ndarray[Any, np.dtype[np.int32]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
Positions = np.ndarray[Any, np.dtype[np.int64]]
Key = tuple[int, ...]
Slices = tuple[slice, ...]

TILE_ELEMENTS = 1 << 16
"""Maximum number of elements of a tile; each takes 4 bytes."""

TILE_SIZES = (1024, 64)
"""Maximum sizes of a tile in the last two dimensions, the last dimension first."""


@dataclass
class ShadowRoom:
    """Room for the tiles of all arrays of a run.

    Attributes:
      limit: limit in bytes.
      used: bytes used by tiles.
      is_exhausted: whether a tile was not created because there was no room.
    """

    limit: int
    used: int = 0
    is_exhausted: bool = False

    def take(self, nbytes: int) -> bool:
        """Reserve room for a tile; return whether there was enough."""
        if self.is_exhausted or self.used + nbytes > self.limit:
            self.is_exhausted = True
            return False
        self.used += nbytes
        return True


class TiledNumbers:
    """An array of numbers, most of them equal; indexed like a numpy array.

    Args:
      default: initial number of all elements.
    """

    def __init__(self, shape: Sequence[int], default: int, room: ShadowRoom) -> None:
        self.shape = tuple(shape)
        self.default = default
        self.sizes = tile_sizes(shape)
        self._room = room
        self._tiles: dict[tuple[int, ...], Numbers] = {}

    def __getitem__(self, index: Any) -> Any:
        entries = self._entries(index)
        if any(isinstance(entry, np.ndarray) for entry in entries):
            places = self._places(entries)
            found = np.full(places[0].shape, self.default, np.int32)
            for key, mask, inner in self._scattered(places):
                if key in self._tiles:
                    found[mask] = self._tiles[key][inner]
            return found
        ranges = self._ranges(entries)
        found = np.full([len(axis) for axis in ranges], self.default, np.int32)
        for key, outer, inner in self._parts(ranges):
            if key in self._tiles:
                found[outer] = self._tiles[key][inner]
        return found.reshape(_shape(entries, ranges))[()]

    def __setitem__(self, index: Any, value: Any) -> None:
        entries, values = self._entries(index), np.asarray(value)
        if any(isinstance(entry, np.ndarray) for entry in entries):
            places = self._places(entries)
            values = np.broadcast_to(values, places[0].shape)
            for key, mask, inner in self._scattered(places):
                self._put(key, inner, values[mask])
            return
        ranges = self._ranges(entries)
        if values.ndim:
            values = np.broadcast_to(values, _shape(entries, ranges))
            values = values.reshape([len(axis) for axis in ranges])
        for key, outer, inner in self._parts(ranges):
            self._put(key, inner, values[outer] if values.ndim else values)

    def values(self) -> Iterator[int]:
        """Yield the distinct numbers."""
        yield self.default
        for tile in self._tiles.values():
            yield from np.unique(tile).tolist()

    def has(self, number: int) -> bool:
        """Return whether any element has this number."""
        return self.default == number or any((t == number).any() for t in self._tiles.values())

    def where(self, number: int) -> Mask:
        """Return a mask of the whole array: the elements that have this number."""
        found = np.full(self.shape, self.default == number)
        for key, tile in self._tiles.items():
            starts = [k * size for k, size in zip(key, self.sizes, strict=True)]
            spot = tuple(slice(a, a + n) for a, n in zip(starts, tile.shape, strict=True))
            found[spot] = tile == number
        return found

    def _put(self, key: Key, inner: Any, part: Numbers) -> None:
        tile = self._tiles.get(key)
        if tile is None:
            if bool((part == self.default).all()):
                return
            sizes = [
                min(size, n - k * size)
                for k, size, n in zip(key, self.sizes, self.shape, strict=True)
            ]
            if not self._room.take(4 * math.prod(sizes)):
                return
            tile = self._tiles[key] = np.full(sizes, self.default, np.int32)
        tile[inner] = part

    def free(self) -> None:
        """Release the room of all tiles."""
        self._room.used -= sum(tile.nbytes for tile in self._tiles.values())
        self._tiles.clear()

    # Indices

    def _entries(self, index: Any) -> tuple[Any, ...]:
        """Expand an index to an entry for each dimension."""
        given = index if isinstance(index, tuple) else (index,)
        given = tuple(entry for entry in given if entry is not Ellipsis)
        return (*given, *[slice(None)] * (len(self.shape) - len(given)))

    def _ranges(self, entries: Sequence[Any]) -> list[range]:
        return [
            range(size)[entry]
            if isinstance(entry, slice)
            else range(int(entry) % size, int(entry) % size + 1)
            for entry, size in zip(entries, self.shape, strict=True)
        ]

    def _parts(self, ranges: Sequence[range]) -> Iterator[tuple[Key, Slices, Slices]]:
        """Yield tiles that a product of ranges intersects, with slices of the product and tile."""
        cuts = [list(_cuts(axis, size)) for axis, size in zip(ranges, self.sizes, strict=True)]
        for choice in itertools.product(*cuts):
            yield (
                tuple(number for number, _, _ in choice),
                tuple(outer for _, outer, _ in choice),
                tuple(inner for _, _, inner in choice),
            )

    def _places(self, entries: Sequence[Any]) -> list[Positions]:
        """Positions of the selected elements along each dimension."""
        rank = len(self.shape)
        found = []
        for axis, size in enumerate(self.shape):
            along = np.arange(size).reshape([size if i == axis else 1 for i in range(rank)])
            found.append(np.broadcast_to(along, self.shape)[tuple(entries)])
        return found

    def _scattered(self, places: Sequence[Positions]) -> Iterator[tuple[Key, Mask, Any]]:
        """Yield tiles that contain elements, with a mask of these and positions in the tile."""
        keys = np.stack(
            [place // size for place, size in zip(places, self.sizes, strict=True)], axis=-1
        )
        for key in np.unique(keys.reshape(-1, len(places)), axis=0):
            mask = (keys == key).all(axis=-1)
            inner = tuple(
                place[mask] - k * size
                for place, k, size in zip(places, key, self.sizes, strict=True)
            )
            yield tuple(int(k) for k in key), mask, inner


def tile_sizes(shape: Sequence[int]) -> tuple[int, ...]:
    """Sizes of the tiles of an array: the largest allowed in its last dimensions."""
    room, found = TILE_ELEMENTS, list[int]()
    for i, size in enumerate(reversed(shape)):
        most = TILE_SIZES[i] if i < len(TILE_SIZES) else room
        found.append(max(min(size, most, room), 1))
        room //= found[-1]
    return tuple(reversed(found))


def _shape(entries: Sequence[Any], ranges: Sequence[range]) -> tuple[int, ...]:
    """Shape that entries without arrays select."""
    return tuple(
        len(axis) for entry, axis in zip(entries, ranges, strict=True) if isinstance(entry, slice)
    )


def _cuts(axis: range, size: int) -> Iterator[tuple[int, slice, slice]]:
    """Yield tiles along an axis: number, positions in the range, and positions in the tile."""
    done = 0
    while done < len(axis):
        number, start = divmod(axis[done], size)
        count = min(-(-(size - start) // axis.step), len(axis) - done)
        stop = start + (count - 1) * axis.step + 1
        yield number, slice(done, done + count), slice(start, stop, axis.step)
        done += count
