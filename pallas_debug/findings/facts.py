"""Facts and phrases shared by messages: values, elements, lines, resets, lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from pallas_debug.quantities import size_text

if TYPE_CHECKING:  # importing it takes a tenth of `pallas-debug --help`
    from pallas_debug.model import SourceLine

Point = tuple[int, ...]

OF_TABLE = "a scalar-prefetch operand"
"""Origin of an index that comes from unknown entries of a table."""

MAX_NAMES = 4
"""Maximum number of names listed in a sentence."""


def number(value: object) -> str:
    """Format a value for a message: floats with six digits."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def array_text(dtype: str, shape: Sequence[int]) -> str:
    """Format an array type: `float32[8, 128]`."""
    return f"{dtype}[{', '.join(map(str, shape))}]"


def block_text(name: str, index: Sequence[int]) -> str:
    """Format a block: `x_ref: block (8, 0)`."""
    return f"{name}: block ({', '.join(map(str, index))}{',' if len(index) == 1 else ''})"


def element_text(name: str, index: Sequence[int]) -> str:
    """Format an element: `acc_ref[0, 3]`."""
    return f"{name}[{', '.join(map(str, index))}]"


def line_text(line: SourceLine) -> str:
    """Format a line without its folder: `kernel.py:97`."""
    return f"{PurePath(line.file).name}:{line.line}"


def loop(iterations: Sequence[int]) -> str:
    """Format loop iterations: `, iteration 2`."""
    return f", iteration {', '.join(map(str, iterations))}" if iterations else ""


def where(line: SourceLine | None, like: SourceLine | None = None) -> str:
    """Format a line: `line 12`, with its file unless that is the file of `like`."""
    if line is None:
        return "an unknown line"
    if like is None or like.file == line.file:
        return f"line {line.line}"
    return line_text(line)


def listed(names: Sequence[str]) -> str:
    """Join names: `a, b and c`."""
    shown = list(names[:MAX_NAMES])
    if len(names) > MAX_NAMES:
        return f"{', '.join(shown)} and {len(names) - MAX_NAMES} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else shown[0]


def when_zero(axes: Sequence[int]) -> str:
    """Unparse the `pl.when` that is true where the program ids of some grid axes are 0."""
    tests = [f"pl.program_id({axis}) == 0" for axis in axes]
    return f"@pl.when({tests[0] if len(tests) == 1 else ' & '.join(f'({t})' for t in tests)})"


def lines_text(lines: Sequence[int]) -> str:
    """Format line numbers: `line 12`, or `lines 12, 15 and 20`."""
    *rest, last = map(str, lines)
    return f"lines {', '.join(rest)} and {last}" if rest else f"line {last}"


def by_size(limits: Mapping[str, int]) -> str:
    """Format sizes by target: `16 MiB on v5e, v5p; 32 MiB on v6e`."""
    return "; ".join(
        f"{size_text(size, 2)} on {', '.join(t for t, s in limits.items() if s == size)}"
        for size in dict.fromkeys(limits.values())
    )


def text_of(fact: object) -> str:
    """Text of a fact: lists joined, whole numbers with separators, floats with six digits."""
    if fact is None or fact is True:
        return ""
    if isinstance(fact, float):
        return number(fact)
    if isinstance(fact, int):
        return f"{fact:,}"
    if isinstance(fact, (list, frozenset)):
        return listed([text_of(one) for one in fact])
    return str(fact)
