"""How the work at each line grows with blocks: not all of it grows along every axis of the grid.

Dimensions of values are followed from the blocks that a kernel loads through its Mosaic operations.
The row maxima of an attention step grow with the block of queries, but not with that of keys; the
scores grow with both.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property

from pallas_debug.ir import mosaic
from pallas_debug.ir.mosaic import MosaicOperation, MosaicType
from pallas_debug.ir.operations import Module
from pallas_debug.model import Kernel
from pallas_debug.profile.blocks import BlockMap
from pallas_debug.profile.changed import Followed, grows_with
from pallas_debug.profile.tracing import Place

Axes = tuple[Followed | None, ...]
"""For each dimension of a value, what it grows with: mostly an axis of the grid."""

_FREE = ("constant", "shape_cast", "broadcast", "index_cast", "bitcast")
"""Parts of names of operations that cost nothing, or are counted where their results are used."""

_PASSES = 2
"""Times that a module is read: what a loop stores in scratch is loaded above the store."""


class Growth:
    """Axes of the grid along which the operations of a kernel grow.

    Args:
      module: the module before any pass.
    """

    def __init__(self, kernel: Kernel, blocks: BlockMap, module: Module) -> None:
        self._axes: dict[str, Axes] = {}
        self._module = module
        self._names = set(module.names)
        names = {o.name: o for o in blocks.pipelined}
        parameters = mosaic.parameters(module)[len(blocks.grid) :]
        # Sizes of a dynamic grid are operands of the call, not of the kernel's function.
        operands = [operand for operand in kernel.operands if operand.kind != "dynamic_grid"]
        self._parameters = {
            operand.name: parameter
            for operand, parameter in zip(operands, parameters, strict=False)
        }
        for name, parameter in self._parameters.items():
            found = names.get(name)
            if found is not None:
                axes = tuple(grows_with(blocks, found, n) for n in range(len(found.dimensions)))
                self._axes[parameter] = axes

    def of_place(self, place: Place, factors: Mapping[Followed, float]) -> float | None:
        """Return the factor by which the work of a line grows; None if it is not known.

        Args:
          factors: factors by which blocks grow, by what they grow with.
        """
        found = self._places.get(place)
        if not found:
            return None
        weight = sum(found.values())
        return (
            sum(
                elements * math.prod(factors.get(axis, 1.0) for axis in axes)
                for axes, elements in found.items()
            )
            / weight
        )

    def of_buffer(self, name: str, factors: Mapping[Followed, float]) -> float | None:
        """Return the factor by which scratch grows with what is stored in it; None if unknown."""
        known = self._places  # follows all stores
        axes = self._axes.get(self._parameters.get(name, ""), ()) if known else ()
        if all(axis is None for axis in axes):
            return None
        return math.prod(factors.get(axis, 1.0) for axis in axes if axis is not None)

    @cached_property
    def _places(self) -> dict[Place, dict[frozenset[Followed], int]]:
        """For each line, the elements that its operations compute, by the axes that they follow."""
        found: dict[Place, dict[frozenset[Followed], int]] = {}
        names = set(filter(None, self._module.names))
        operations = list(mosaic.operations(self._module, *names))
        for _ in range(_PASSES):
            found = defaultdict(lambda: defaultdict(int))
            for operation in operations:
                vectors = [t for t in operation.types if t.kind == "vector"]
                if not vectors:
                    continue
                axes = self._follow(operation, vectors)
                chain = self._module.source(operation.line)
                if chain and not any(part in operation.name for part in _FREE):
                    elements = max(t.elements or 0 for t in vectors)
                    found[chain[0].place][axes] += elements
        return {place: dict(axes) for place, axes in found.items()}

    def _follow(
        self, operation: MosaicOperation, vectors: Sequence[MosaicType]
    ) -> frozenset[Followed]:
        """Note the axes of an operation's result; return all axes along which the work grows."""
        given = [self._axes.get(value.name, ()) for value in operation.operands]
        result: Axes = self._result(operation, given, vectors)
        for value in operation.results:
            self._axes[value.name] = result
        if "store" in operation.name and len(given) > 1:
            # MLIR's own names the value first, the TPU dialect's last.
            stored, buffer = (0, 1) if operation.name == "vector.store" else (-1, 0)
            result = given[stored]
            if any(axis is not None for axis in result):
                self._axes.setdefault(operation.operands[buffer].name, result)
        inputs = [axis for axes in given for axis in axes] if "load" not in operation.name else []
        return frozenset(axis for axis in (*inputs, *result) if axis is not None)

    def _result(
        self, operation: MosaicOperation, given: Sequence[Axes], vectors: Sequence[MosaicType]
    ) -> Axes:
        name, out = operation.name, vectors[-1]
        unknown: Axes = (None,) * len(out.shape)
        if "load" in name and given:
            buffer = next((t for t in operation.types if t.kind == "memref"), None)
            if buffer is None or len(given[0]) != len(out.shape):
                return unknown
            sizes = zip(given[0], buffer.shape, out.shape, strict=False)
            return tuple(axis if size == part else None for axis, size, part in sizes)
        if "shape_cast" in name or "reshape" in name:
            return _reshaped(given[0], vectors[0].shape, out.shape) if given else unknown
        if "multi_reduction" in name and given:
            gone = operation.dimensions
            kept = tuple(axis for n, axis in enumerate(given[0]) if n not in gone)
            return kept if len(kept) == len(out.shape) else unknown
        if "transpose" in name and given:
            order = operation.dimensions
            if sorted(order) == list(range(len(given[0]))):
                return tuple(given[0][n] for n in order)
            return unknown
        if numbers := operation.dimension_numbers:
            return _product(numbers[4], given, unknown)
        found = list(unknown)
        for axes in given:
            if len(axes) != len(out.shape):
                axes = (None,) * (len(out.shape) - len(axes)) + axes[-len(out.shape) :]
            found = [
                one if one is not None else other for one, other in zip(found, axes, strict=True)
            ]
        return tuple(found)


def _product(numbers: Sequence[int], given: Sequence[Axes], unknown: Axes) -> Axes:
    """Return the axes of a product, given an operand and its dimension for each, in turn."""
    pairs = list(zip(numbers[::2], numbers[1::2], strict=False))
    if len(pairs) != len(unknown) or len(given) < 2:
        return unknown
    return tuple(
        given[operand][n] if operand < 2 and n < len(given[operand]) else None
        for operand, n in pairs
    )


def _reshaped(axes: Axes, old: Sequence[int | None], new: Sequence[int | None]) -> Axes:
    """Return the axes after dimensions were split, merged, added or dropped.

    Dimensions are matched in runs with the same number of elements; the first dimension of a run,
    other than 1, grows with what one dimension of the old run grows with.
    """
    if len(axes) != len(old):
        return (None,) * len(new)
    found: list[Followed | None] = [None] * len(new)
    i = j = 0
    while i < len(old) and j < len(new):
        first, begin = i, j
        left, right = old[i] or 0, new[j] or 0
        i, j = i + 1, j + 1
        while left != right and (i < len(old) if left < right else j < len(new)):
            if left < right:
                left, i = left * (old[i] or 0), i + 1
            else:
                right, j = right * (new[j] or 0), j + 1
        following = {axes[n] for n in range(first, i) if old[n] != 1} - {None}
        if len(following) == 1:
            found[next((n for n in range(begin, j) if new[n] != 1), begin)] = following.pop()
    return tuple(found)
