"""Share of a vector register that holds data, from the layouts that Mosaic chose.

After its pass `relayout-insertion`, a module states the layout of every vector, and each change of
a layout is an operation of its own. Element-wise operations, loads and stores then make one
instruction for each register, of which the layout says how many elements are padding.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property

from pallas_debug.chips import LANES, SUBLANES
from pallas_debug.ir.bundles import Instruction
from pallas_debug.ir.locations import first_place
from pallas_debug.ir.mosaic import MosaicOperation, operations
from pallas_debug.ir.operations import Module

_LAYOUT = re.compile(r"#\w+\.vpad<\"([^\"]*)\">")
_VECTOR = re.compile(
    r"(?P<bits>\d{1,2}),\{(?P<sublane>\d{1,4}|\*),(?P<lane>\d{1,4}|\*)\},"
    r"\((?P<rows>\d{1,3}),(?P<columns>\d{1,3})\)(?:,-(?P<implicit>[12]))?"
)
_SCALAR = "none"


@dataclass(frozen=True, kw_only=True)
class RegisterFill:
    """Fill of the registers of instructions.

    Attributes:
      text: text after the pass `relayout-insertion`; None if there is none.
    """

    text: str | None

    def of(self, instruction: Instruction) -> float | None:
        """Return the share of the register with data; None if it is not known.

        Only right for the instructions that arithmetic, loads and stores are made of.
        """
        places = {first_place(location) for location in instruction.locations}
        return self._places.get(places.pop()) if len(places) == 1 else None

    @cached_property
    def _places(self) -> dict[str, float | None]:
        """Fill by place of the source; None for a place with operations of different fills."""
        if self.text is None:
            return {}
        module = Module.of(self.text, "mlir")
        names = {
            name
            for name, line in zip(module.names, module.lines, strict=True)
            if name is not None and name != "arith.constant" and '.vpad<"' in line
        }
        found: dict[str, set[float | None]] = {}
        for operation in operations(module, *names):
            layouts = set(_LAYOUT.findall(operation.text)) - {_SCALAR}
            location = module.location(operation.line)
            if not layouts or location is None or _is_free(operation, layouts):
                continue
            place = first_place(module.chains.without_aliases(location))
            found.setdefault(place, set()).add(_fill(operation, layouts))
        return {
            place: next(iter(fills)) if len(fills) == 1 else None for place, fills in found.items()
        }


def _is_free(operation: MosaicOperation, layouts: set[str]) -> bool:
    """Return whether an operation only repeats a scalar, for which there is one register."""
    is_copy = operation.name.endswith((".broadcast", ".relayout"))
    return is_copy and any(",{*,*}," in layout for layout in layouts)


def _fill(operation: MosaicOperation, layouts: set[str]) -> float | None:
    """Return the fill of the registers of an operation whose vectors are all alike."""
    shapes = {t.shape for t in operation.types if t.kind == "vector"}
    layout = _VECTOR.fullmatch(next(iter(layouts)))
    if len(shapes) != 1 or len(layouts) != 1 or layout is None:
        return None
    if "*" in (layout["sublane"], layout["lane"]):
        return None
    shape = [size or 0 for size in next(iter(shapes))]
    if layout["implicit"]:
        shape.insert(len(shape) + 1 - int(layout["implicit"]), 1)
    bits, rows, columns = (int(layout[name]) for name in ("bits", "rows", "columns"))
    if len(shape) < 2 or not (bits and rows and columns and all(shape)):
        return None
    register = SUBLANES * LANES * 32 // bits
    across = columns * max(register // (rows * columns), 1)
    *outer, height, width = shape
    registers = (
        math.prod(outer)
        * math.ceil((int(layout["sublane"]) + height) / rows)
        * math.ceil((int(layout["lane"]) + width) / across)
    )
    return math.prod(shape) / (registers * register)
