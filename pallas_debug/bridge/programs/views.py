"""Registers, types of memory, and views of memory that the steps of a program refer to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from pallas_debug.model import SourceLine

Dtype = np.dtype[Any]
Space = Literal["hbm", "gmem", "vmem", "smem", "semaphore", "acc", "shared"]
"""Memory space: "gmem" is the global memory of a GPU, "acc" a matrix unit's accumulators, initially
zero, "shared" a SparseCore's."""

OF_ARRAYS: frozenset[Space] = frozenset({"hbm", "gmem"})
"""Memory spaces of whole arrays, which all cores share."""

KEY: Dtype = np.dtype([("words", np.uint32, (1, 2))])
"""A key of the TPU's random number generator."""


@dataclass(frozen=True, slots=True)
class Reg:
    """Number of a register."""

    number: int


Number = Reg | int
"""A scalar: a register, or a constant."""


@dataclass(frozen=True, slots=True)
class StepSite:
    """Place of a step in the user's code.

    Attributes:
      primitive: jax's name of the operation.
      line: innermost line outside jax; None if jax kept none.
      calls: lines of the calls that lead to it within the kernel, outermost first.
    """

    primitive: str
    line: SourceLine | None
    calls: tuple[SourceLine, ...] = ()


@dataclass(frozen=True, slots=True)
class RefType:
    """Type of a buffer: an operand, a scratch buffer or a semaphore array.

    Attributes:
      semaphore: "regular", "dma" or "barrier"; None for a buffer of values.
    """

    shape: tuple[int, ...]
    dtype: Dtype
    space: Space
    semaphore: str | None = None


# Views


@dataclass(frozen=True, slots=True)
class Slice:
    """`size` elements from `start` on, every `stride`th."""

    start: Number
    size: Number
    stride: int = 1


@dataclass(frozen=True, slots=True)
class RowChoice:
    """Positions in an array, or in referenced memory, except those with a given value."""

    positions: Reg
    ignored: int


@dataclass(frozen=True, slots=True)
class Index:
    """An indexer: for each dimension a slice, or a position, which drops the dimension.

    A position may be an array, or a reference to an array, which is read when it is used.
    """

    entries: tuple[Slice | RowChoice | Number, ...]


@dataclass(frozen=True, slots=True)
class Recast:
    """A reshaped, bitcast or transposed view, in jax's terms; opaque to the machine."""

    transform: Any


View = tuple[Index | Recast, ...]


@dataclass(frozen=True, slots=True)
class RefPlace:
    """A view of a reference: what a step accesses.

    Attributes:
      located: the machine's cache of the elements that a constant view selects.
    """

    ref: Reg
    view: View = ()
    located: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def is_constant(self) -> bool:
        """True if the view refers to no register."""
        known: bool | None = self.located.get("is_constant")
        if known is None:
            known = all(
                isinstance(entry, int)
                or (isinstance(entry, Slice) and type(entry.start) is type(entry.size) is int)
                for part in self.view
                for entry in (part.entries if isinstance(part, Index) else (None,))
            )
            self.located["is_constant"] = known
        return known
