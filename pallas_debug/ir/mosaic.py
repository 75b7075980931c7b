"""Operations of a Mosaic module with their types, products and copies.

`ir/operations.py` finds operations and values in the lines of any compiler text. This is for
callers that need what Mosaic's own operations say: shapes, dimension numbers, and what a copy moves
and where to. Read from the module before any pass.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pallas_debug.ir.locations import unescape
from pallas_debug.ir.operations import LONG, Module, Operation, closing, location_at

COPY = "tpu.enqueue_dma"
PRODUCT = "tpu.matmul"

_TYPE = re.compile(
    r"\b(?P<kind>vector|memref)<(?P<shape>(?:(?:\d{1,9}|\?)x)*)(?P<dtype>!?[a-z][a-z._]*\d*)"
)
_DOT = re.compile(r"#tpu\.dot_dimension_numbers<(?P<lists>(?:\[[\d, ]*\](?:, )?){7})>")
_LIST = re.compile(r"\[([\d, ]*)\]")
_DIMENSIONS = re.compile(r"\[(?P<list>\d[\d, ]*)\] :")
_FUNCTION = re.compile(r"func\.func @(?:\"((?:[^\"\\]|\\.)+)\"|([\w.$-]+))")
_PARAMETER = re.compile(r"(%[\w$.-]+): ")


@dataclass(frozen=True, kw_only=True, slots=True)
class MosaicType:
    """Type of a vector or a buffer.

    Attributes:
      shape: sizes; None for one that is known only at run time.
      dtype: type of the elements as MLIR prints it, without the format of an 8-bit float: `bf16`,
        `f8`, `!tpu.dma_semaphore`.
    """

    kind: Literal["vector", "memref"]
    shape: tuple[int | None, ...]
    dtype: str

    @property
    def elements(self) -> int | None:
        """Number of elements; None if it is known only at run time."""
        sizes = [size for size in self.shape if size is not None]
        return math.prod(sizes) if len(sizes) == len(self.shape) else None

    @property
    def bits(self) -> int | None:
        """Bits of an element; None if it is not a number of known size."""
        digits = self.dtype.lstrip("abcdefghijklmnopqrstuvwxyz")
        return int(digits) if digits.isdecimal() else None

    @property
    def bytes(self) -> int | None:
        """Size without padding; None if it is unknown."""
        if self.elements is None or self.bits is None:
            return None
        return math.ceil(self.elements * self.bits / 8)


@dataclass(frozen=True, kw_only=True, slots=True)
class MosaicOperation(Operation):
    """An operation with its text, without its location."""

    text: str

    @property
    def types(self) -> tuple[MosaicType, ...]:
        """Types of vectors and buffers as printed: those of the operands, then of the results."""
        return _types(self.text)

    def group(self, name: str) -> tuple[MosaicType, ...] | None:
        """Types in a group of operands, `source(%0 : memref<…>)`; None if there is no such group.

        Some groups, such as `device_id(%1)`, are printed without types.
        """
        found = re.search(rf"(?<!\w){name}\(", self.text)
        if found is None:
            return None
        return _types(self.text[found.end() : closing(self.text, found.end())])

    @property
    def is_remote(self) -> bool:
        """True if a copy goes to another device."""
        return self.group("device_id") is not None

    @property
    def dimensions(self) -> tuple[int, ...]:
        """Dimensions before the types: those that a reduction removes, the order of a transpose."""
        found = _DIMENSIONS.search(self.text)
        return _integers(found["list"]) if found else ()

    @property
    def dimension_numbers(self) -> tuple[tuple[int, ...], ...] | None:
        """Dimensions of a product: contracted ones of either side, others of either side, pairs of
        a side and its dimension for each of the result, and those of the batch of either side."""
        found = _DOT.search(self.text)
        return tuple(map(_integers, _LIST.findall(found["lists"]))) if found else None

    @property
    def flops(self) -> int | None:
        """Operations of a matrix product; a multiply-add counts as two. None if unreadable."""
        if len(self.types) < 3:
            return None
        lhs, _, out = self.types[:3]
        contracted = (self.dimension_numbers or ((-1,),))[0]
        if out.elements is None or any(n >= len(lhs.shape) for n in contracted):
            return None
        return 2 * out.elements * math.prod(lhs.shape[n] or 0 for n in contracted)


def operations(module: Module, *names: str) -> Iterator[MosaicOperation]:
    """Yield the operations with these names, in program order."""
    for line, name in enumerate(module.names):
        if name in names:
            text = module.lines[line][:LONG]
            at = location_at(text, "mlir")
            for found in module.operations(line):
                yield MosaicOperation(
                    line=line,
                    name=found.name,
                    results=found.results,
                    operands=found.operands,
                    text=text[: at[0]] if at else text,
                )


def function_name(text: str) -> str | None:
    """Name of the first function in a text."""
    found = _FUNCTION.search(text)
    return unescape(found[1] or found[2]) if found else None


def parameters(module: Module) -> tuple[str, ...]:
    """Names of the parameters of a kernel's function: indices of the grid, then operands."""
    return tuple(_PARAMETER.findall(_kernel(module)[1]))


def _kernel(module: Module) -> tuple[int | None, str]:
    """Return the line of the kernel's function, which is the first one, and its parameters."""
    first = next((n for n, name in enumerate(module.names) if name == "func.func"), None)
    return first, "" if first is None else module.lines[first].partition(" attributes ")[0]


def _integers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))


def _types(text: str) -> tuple[MosaicType, ...]:
    return tuple(
        MosaicType(
            kind="vector" if found["kind"] == "vector" else "memref",
            shape=tuple(None if n == "?" else int(n) for n in found["shape"].split("x")[:-1]),
            dtype=found["dtype"],
        )
        for found in _TYPE.finditer(text)
    )
