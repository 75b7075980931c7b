"""Growth of a step's work with its blocks: which grid axes the values of each line follow.

A dimension of a value follows the grid axes along which the blocks that it was loaded from change;
operations of the program propagate this. Rescaling a sum does not take longer when the blocks added
to it are larger; scores of a block with itself grow with the square of its size. Anything that is
not understood is assumed to grow along every axis.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pallas_debug.model import SourceLine
from pallas_debug.profile.advice.moves import is_vector_instruction
from pallas_debug.profile.advice.pipelines import (
    Axes,
    Powers,
    WorkGrowth,
    followed,
)
from pallas_debug.profile.advice.program import (
    LOADS,
    PASSED_ON,
    STORES,
    MosaicProgram,
    ProgramOperation,
)
from pallas_debug.profile.advice.subject import AdviceSubject
from pallas_debug.profile.advice.tiles import registers_for
from pallas_debug.profile.blocks import BlockMap, OperandBlocks
from pallas_debug.profile.units import VECTOR, units_of

MAX_ROUNDS = 4
"""Maximum passes over the program; each pass follows values through one more store to scratch."""

_SHAPED = re.compile(r"(?:vector|memref)<(?P<sizes>(?:\d{1,9}x)*)[a-z]")
_KEPT = re.compile(r" \[(?P<axes>\d{1,2}(?:, \d{1,2}){0,7})\] : ")
_ORDER = re.compile(r"\[(?P<axes>\d{1,2}(?:, \d{1,2}){1,7})\]")
_CONTRACTED = re.compile(
    r"dot_dimension_numbers<\[(?P<left>[\d, ]*)\], \[(?P<right>[\d, ]*)\], \[[\d, ]*\], "
    r"\[[\d, ]*\], \[(?P<out>[\d, ]*)\]"
)
_ELEMENTWISE = re.compile(r"arith\.\w+|math\.\w+|tpu\.\w*rotate|vector\.extract_strided_slice")
_FREE = ("tpu.iota", "arith.constant")

Sizes = tuple[int, ...]


@dataclass
class _Dimension:
    """A dimension of a value or of memory.

    Attributes:
      axes: grid axes that the dimension is known to follow.
      is_free: whether no data was loaded along the dimension, so that its size is that of the
        values it is combined with.
      wanted: axes of the values that a free dimension is combined with; None if there are none.
    """

    axes: Axes = frozenset()
    is_free: bool = False
    wanted: Axes | None = None

    def along(self, every: Axes) -> Axes:
        if not self.is_free:
            return self.axes
        return every if self.wanted is None else self.wanted

    def want(self, axes: Axes) -> None:
        self.wanted = axes | (self.wanted or frozenset())


def growth_of(subject: AdviceSubject, blocks: BlockMap) -> WorkGrowth:
    """Split the work of a kernel without loops by the grid axes along which it grows."""
    program, table = subject.program, subject.schedule.table
    every = tuple(range(len(blocks.grid)))
    if not program.operations or program.loops or table is None or not subject.executions:
        return WorkGrowth()
    lines = _Followed(subject, program, blocks).lines()
    in_bundle: dict[int, list[tuple[str, Mapping[Powers, float]]]] = defaultdict(list)
    vector = [p for p in subject.instructions if is_vector_instruction(p.opcode) and p.weight]
    # Code that runs in some steps only, such as in the first, is assumed to grow along every axis.
    weights: dict[float, int] = defaultdict(int)
    for placed in vector:
        weights[placed.weight] += 1
    usual = max(weights, key=lambda weight: weight * weights[weight], default=0.0)
    for placed in vector:
        split: Mapping[Powers, float] = {every: 1.0}
        if placed.source is not None and placed.weight >= usual:
            split = lines.get(placed.source.place, split)
        in_bundle[placed.bundle].append((placed.opcode, split))
    shares: dict[Powers, float] = defaultdict(float)
    uses: dict[str, dict[Powers, float]] = {name: defaultdict(float) for name in VECTOR}
    for at, found in in_bundle.items():
        weight = subject.executions[at]
        for opcode, split in found:
            named = [name for name in units_of(opcode, "") if name in uses]
            for powers, part in split.items():
                shares[powers] += part * weight / len(found)
                for name in named:
                    uses[name][powers] += part * weight
    total = sum(shares.values())
    # Units that are busy in a delay are not in the table.
    least = {"MXU": subject.matrix_cycles}
    needed = {
        name: max(
            sum(map(float.__mul__, map(float, subject.executions), map(float, column))) / capacity,
            least.get(name, 0.0),
        )
        for name, capacity in zip(table.names, table.capacity, strict=True)
        if name in uses and capacity and (column := table.column(name)) is not None
    }
    return WorkGrowth(
        shares={powers: share / total for powers, share in shares.items()},
        units={
            name: {powers: cycles * n / sum(used.values()) for powers, n in used.items()}
            for name, cycles in needed.items()
            if (used := uses[name])
        },
    )


class _Followed:
    """Dimensions of all values of a program, and the grid axes that they follow."""

    def __init__(self, subject: AdviceSubject, program: MosaicProgram, blocks: BlockMap) -> None:
        self._program = program
        self._every = frozenset(range(len(blocks.grid)))
        self._values: dict[tuple[int, str], list[_Dimension]] = {}
        self._memory: dict[str, list[_Dimension]] = {}
        for name in program.arguments:
            operand = subject.operand(name)
            found = [o for o in blocks.pipelined if operand is not None and o.name == operand.name]
            if found:
                self._memory[name] = _block_dimensions(found[0], blocks.grid)
            elif operand is not None and operand.kind == "scratch":
                self._memory[name] = [_Dimension() for _ in operand.shape]

    def lines(self) -> dict[tuple[str, int], dict[Powers, float]]:
        """Return the axes along which the work of each line grows, each with its share of it.

        The work of an operation is assumed to follow the registers that it reads or writes. A line
        with a matrix product, of which that is not true, has a single share.
        """
        vectors = [o for o in self._program.operations if "vector<" in o.text]
        for _ in range(MAX_ROUNDS):
            for operation in vectors:
                self._forward(operation)
        for operation in reversed(vectors):
            self._backward(operation)
        on_line: dict[tuple[str, int], list[ProgramOperation]] = defaultdict(list)
        for operation in vectors:
            source: SourceLine | None = self._program.source(operation)
            if source is not None:
                on_line[source.place].append(operation)
        return {place: self._split(operations) for place, operations in on_line.items()}

    def _split(self, operations: list[ProgramOperation]) -> dict[Powers, float]:
        weights: dict[Powers, float] = defaultdict(float)
        together: Counter[int] = Counter()
        for operation in operations:
            powers = self._powers(operation)
            together |= powers
            if operation.name not in (*PASSED_ON, *_FREE):
                weights[tuple(sorted(powers.elements()))] += _registers(operation)
        total = sum(weights.values())
        if not total or any(operation.name == "tpu.matmul" for operation in operations):
            return {tuple(sorted(together.elements())): 1.0}
        return {powers: weight / total for powers, weight in weights.items()}

    def _powers(self, operation: ProgramOperation) -> Counter[int]:
        """Return the axes of an operation's work: its result, its operands, and what it sums."""
        result = self._result(operation)
        if operation.name in _FREE and not result:
            return Counter()
        powers = self._joined(result)
        for place, (dimensions, pairs) in enumerate(self._read(operation)):
            powers |= self._joined(dimensions)
            if operation.name == "tpu.matmul" and not place:
                kept = {before for before, _ in pairs}
                summed = [d for n, d in enumerate(dimensions) if n not in kept]
                powers |= self._joined([*result, *summed])
        return powers

    def _joined(self, dimensions: Iterable[_Dimension]) -> Counter[int]:
        """Combine dimensions whose sizes multiply; of several axes, each counts once."""
        found: Counter[int] = Counter()
        of_several: Counter[int] = Counter()
        for dimension in dimensions:
            axes = dimension.along(self._every)
            if len(axes) == 1:
                found.update(axes)
            else:
                of_several |= Counter(axes)
        return found | of_several

    def _result(self, operation: ProgramOperation) -> list[_Dimension]:
        """Return the dimensions of an operation's result, or of the memory that it writes."""
        if operation.name in STORES:
            at = 1 if operation.name == "vector.store" else 0
            memory = operation.operands[at] if len(operation.operands) > at else ""
            return self._memory.get(memory) or self._unknown(operation)
        key = operation.line, operation.results[0] if operation.results else ""
        if key not in self._values:
            shape = _shapes(operation)[-1:]
            self._values[key] = [_Dimension(is_free=n > 1) for size in shape for n in size]
        return self._values[key]

    def _unknown(self, operation: ProgramOperation) -> list[_Dimension]:
        return [_Dimension(axes=self._every) for size in _shapes(operation)[-1:] for _ in size]

    def _read(
        self, operation: ProgramOperation
    ) -> Iterator[tuple[list[_Dimension], tuple[tuple[int, int], ...]]]:
        """Yield the dimensions of each operand, and the result dimensions that they become."""
        for place, name in enumerate(operation.operands):
            if operation.name in LOADS:
                dimensions = self._memory.get(name) if place == 0 else None
            else:
                dimensions = self._dimensions(name, operation.line)
            if dimensions:
                yield dimensions, tuple(_pairs(operation, place, len(dimensions)))

    def _dimensions(self, name: str, line: int) -> list[_Dimension] | None:
        made = self._program.producer(name, line)
        if made is None or "vector<" not in made.text:
            return None
        return self._values.get((made.line, name.partition("#")[0]))

    def _forward(self, operation: ProgramOperation) -> None:
        result = self._result(operation)
        if operation.name in _FREE:
            return
        if not _is_known(operation):
            for dimension in result:
                dimension.axes, dimension.is_free = self._every, False
            return
        for dimensions, pairs in self._read(operation):
            for before, after in pairs:
                if after < len(result) and not dimensions[before].is_free:
                    result[after].axes |= dimensions[before].axes
                    result[after].is_free = False
        if operation.name in LOADS and len(self._memory.get(operation.operands[0], ())) != len(
            result
        ):
            for dimension in result:
                dimension.axes, dimension.is_free = self._every, False

    def _backward(self, operation: ProgramOperation) -> None:
        result = self._result(operation)
        for dimensions, pairs in self._read(operation):
            for before, after in pairs:
                dimension = dimensions[before]
                if not dimension.is_free or after >= len(result):
                    continue
                other = result[after]
                axes = other.wanted if other.is_free else other.axes
                if axes is not None:
                    dimension.want(axes)
        for one, other in self._contracted(operation):
            for free, used in ((one, other), (other, one)):
                axes = used.wanted if used.is_free else used.axes
                if free.is_free and axes is not None:
                    free.want(axes)

    def _contracted(self, operation: ProgramOperation) -> Iterator[tuple[_Dimension, _Dimension]]:
        """Yield pairs of dimensions that a matrix product contracts."""
        found = _CONTRACTED.search(operation.text)
        if operation.name != "tpu.matmul" or found is None or len(operation.operands) < 2:
            return
        left, right = (self._dimensions(o, operation.line) for o in operation.operands[:2])
        places = ([int(n) for n in found[side].split(", ") if n] for side in ("left", "right"))
        for a, b in zip(*places, strict=False):
            if left and right and a < len(left) and b < len(right):
                yield left[a], right[b]


def _block_dimensions(operand: OperandBlocks, grid: tuple[int, ...]) -> list[_Dimension]:
    found = []
    for dimension in operand.dimensions:
        own = followed(dimension, grid)
        axes: Iterable[int] = dimension.axes if own is None else (own,)
        if dimension.strides is not None:
            axes = (axis for axis, stride in enumerate(dimension.strides) if stride)
        found.append(_Dimension(axes=frozenset(axes) if dimension.size > 1 else frozenset()))
    return found


def _shapes(operation: ProgramOperation) -> list[Sizes]:
    """Return the shapes in the types of an operation, in order."""
    types = operation.text.partition(" loc(")[0]
    return [
        tuple(int(n) for n in found["sizes"].split("x") if n) for found in _SHAPED.finditer(types)
    ]


def _registers(operation: ProgramOperation) -> int:
    """Count the registers of the largest vector that an operation reads or writes."""
    return max((registers_for(shape) for shape in _shapes(operation)), default=1)


def _is_known(operation: ProgramOperation) -> bool:
    return (
        operation.name
        in (
            *(*LOADS, *STORES, *_FREE, "vector.broadcast", "vector.shape_cast", "tpu.reshape"),
            *("vector.multi_reduction", "tpu.matmul", "vector.transpose", "tpu.transpose"),
            *("tpu.concatenate", "vector.extract"),
        )
        or _ELEMENTWISE.fullmatch(operation.name) is not None
    )


def _pairs(operation: ProgramOperation, place: int, rank: int) -> Iterator[tuple[int, int]]:
    """Yield pairs of an operand's dimension and the result dimension that it becomes."""
    shapes = _shapes(operation)
    same = ((n, n) for n in range(rank))
    match operation.name:
        case "vector.broadcast" if len(shapes) == 2:
            before, after = shapes
            shift = len(after) - len(before)
            yield from ((n, n + shift) for n in range(rank) if before[n] == after[n + shift])
        case "vector.shape_cast" | "tpu.reshape" if len(shapes) == 2:
            yield from _reshaped(*shapes)
        case "vector.multi_reduction" if place == 0:
            kept = _KEPT.search(operation.text)
            gone = [int(n) for n in kept["axes"].split(", ")] if kept else []
            left = [n for n in range(rank) if n not in gone]
            yield from ((n, at) for at, n in enumerate(left))
        case "tpu.matmul" if place < 2:
            yield from _multiplied(operation, place)
        case "vector.transpose" | "tpu.transpose":
            order = _ORDER.search(operation.text.partition(" : ")[0])
            axes = [int(n) for n in order["axes"].split(", ")] if order else []
            yield from ((n, at) for at, n in enumerate(axes))
        case "vector.extract" | "vector.broadcast" | "vector.shape_cast" | "tpu.reshape":
            return
        case _:
            yield from same


def _multiplied(operation: ProgramOperation, place: int) -> Iterator[tuple[int, int]]:
    """Yield pairs of a factor's dimension and the product dimension that it becomes."""
    found = _CONTRACTED.search(operation.text)
    numbers = [int(n) for n in found["out"].split(", ")] if found and found["out"] else []
    for at, (side, dimension) in enumerate(zip(numbers[::2], numbers[1::2], strict=False)):
        if side == place:
            yield dimension, at


def _reshaped(before: Sizes, after: Sizes) -> Iterator[tuple[int, int]]:
    """Yield pairs of dimensions before and after a reshape that splits or merges them."""
    i = j = 0
    while i < len(before) and j < len(after):
        left, right, first, second = before[i], after[j], i, j
        while left != right:
            if left < right and i + 1 < len(before):
                i += 1
                left *= before[i]
            elif right < left and j + 1 < len(after):
                j += 1
                right *= after[j]
            else:
                break
        yield from (
            (a, b)
            for a in range(first, i + 1)
            for b in range(second, j + 1)
            if before[a] > 1 and after[b] > 1
        )
        i, j = i + 1, j + 1
