"""Effects of a kernel, as `walker` records them: plain data, without jax's objects.

Arrays of an event broadcast against each other. Their last dimensions are those of the grid;
leading ones are iterations of loops that were walked as a whole, innermost first.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from pallas_debug.findings.facts import array_text
from pallas_debug.model import SourceLine


@dataclass(frozen=True, kw_only=True)
class KernelRef:
    """A ref of the kernel.

    Attributes:
      kind: `scalar_prefetch`, `input`, `output`, `scratch`, or `scoped` of a `run_scoped`.
      position: among the kernel's refs; None for a scoped one.
      space: memory space; `default` if Pallas chooses it.
      number: unique, unlike the name: a scope that is entered again creates a new buffer.
    """

    name: str
    kind: str
    position: int | None
    shape: tuple[int, ...]
    dtype: str
    space: str
    number: int

    def __str__(self) -> str:
        where = "VMEM" if self.space in ("default", "vmem") else self.space.upper()
        return f"{array_text(self.dtype, self.shape)} in {where}"


@dataclass(frozen=True, kw_only=True)
class Dim:
    """Index of one dimension.

    Attributes:
      start: None if unknown.
      size: number of elements; None if known only at run time.
      is_slice: false for a plain integer, which removes the dimension.
      bound: size of the dimension.
    """

    start: np.ndarray | None
    size: int | None
    stride: int
    is_slice: bool
    bound: int

    @property
    def is_whole(self) -> bool:
        return (
            self.is_slice
            and self.size == self.bound
            and self.start is not None
            and not self.start.any()
        )


@dataclass(frozen=True, kw_only=True)
class View:
    """A ref, or a part of it.

    Attributes:
      levels: dimensions of each `at[...]` in a chain; empty for the whole ref.
      is_plain: whether it only has indices, and no change of shape or dtype.
    """

    buffer: KernelRef
    levels: tuple[tuple[Dim, ...], ...] = ()
    is_plain: bool = True

    @functools.cached_property
    def box(self) -> tuple[Dim, ...] | None:
        """The part of the buffer itself; None if unknown."""
        if not self.is_plain:
            return None
        start = np.zeros((), np.int64)
        root = [
            Dim(start=start, size=n, stride=1, is_slice=True, bound=n) for n in self.buffer.shape
        ]
        for level in self.levels:
            kept = [i for i, dim in enumerate(root) if dim.is_slice]
            if len(kept) != len(level):
                return None
            for i, dim in zip(kept, level, strict=True):
                outer = root[i]
                if dim.start is None or dim.size is None or outer.start is None:
                    return None
                root[i] = Dim(
                    start=outer.start + outer.stride * dim.start.astype(np.int64),
                    size=dim.size,
                    stride=outer.stride * dim.stride,
                    is_slice=dim.is_slice,
                    bound=outer.bound,
                )
        return tuple(root)


@dataclass(frozen=True, kw_only=True)
class Event:
    """An effect of the kernel at some grid points.

    Attributes:
      what: `read`, `write`, `dma_start`, or `escape` (a ref is passed to something unknown).
      number: position in program order.
      where: the grid points at which it happens.
      certain: whether it certainly happens there, rather than under an unknown condition.
      view: view that is read, written or copied to.
      other: source of a copy.
      remote: whether a copy is between devices or cores.
    """

    what: str
    number: int
    source: SourceLine | None
    where: np.ndarray
    certain: bool
    view: View
    other: View | None = None
    remote: bool = False


@dataclass(frozen=True, kw_only=True)
class Walked:
    """All events of a kernel.

    Attributes:
      incomplete: reason why events may be missing, as a sentence; None if none are.
    """

    events: tuple[Event, ...]
    incomplete: str | None = None
