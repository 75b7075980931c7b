"""Plain-English descriptions of the Mosaic compiler's vector layouts.

A value is laid out in vector registers of 8 sublanes by 128 lanes of 32 bits. The compiler writes
its layout as `#tpu.vpad<"32,{0,*},(8,128),-1">`: bits of an element, offset of the value in the
first tile (`*` if it is replicated along sublanes or lanes), tile, and a dimension of size 1 that
the layout adds to the value. Newer releases write `mosaic_tc.vpad`; messages have only the quoted
text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LAYOUT = re.compile(
    # Bounded: a text may be all digits, and Python refuses to convert very long numbers.
    r"(?<!\d)(?P<bits>\d{1,4}),\{(?P<sublane>\*|\d{1,9}),(?P<lane>\*|\d{1,9})\},"
    r"\((?P<tile>\d{1,9}(?:,\d{1,9})*)\)"
    r"(?P<implicit>(?:,-[12])*)"
)
_NO_LAYOUT = re.compile(r'vpad<"?none"?>')
_TYPE = re.compile(r"vector<[^<>]*>")
_OPERATION = re.compile(
    r'"?\b(?P<name>[a-z_]+\.[a-z_.]+)"?(?P<operands>[^{<]*).*?'
    r"in_layout = \[(?P<inputs>[^\]]*)\](?:.*?out_layout = \[(?P<outputs>[^\]]*)\])?"
)
_VALUE = re.compile(r"%[\w#]+")
_VPAD = re.compile(r'vpad<"[^"]*">')
_RELAYOUT = re.compile(
    r"(?:replicated in destination but not in source|layout change) for '?(?P<type>vector<[^>]*>)'?"
    r":?\s*(?P<source>\S+)\s*->\s*(?P<target>\S+)"
)
_SIGNATURE = re.compile(r": \(?(?P<operands>[^()]*?)\)? -> (?P<results>.+)$")

_BITS_OF_A_REGISTER = 32


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Layout of a value in vector registers.

    Attributes:
      bits: bits per element; a mask has those of the values it masks.
      offsets: sublane and lane of the first element in the first tile; None if the value is
        replicated along them.
      tile: rows and lanes of a tile.
      implicit: dimensions of size 1 that the layout adds: -1 for the last, -2 for the second last.
    """

    bits: int
    offsets: tuple[int | None, int | None]
    tile: tuple[int, ...]
    implicit: tuple[int, ...] = ()

    @property
    def packing(self) -> int:
        """Elements that share a 32-bit word."""
        return max(1, _BITS_OF_A_REGISTER // max(1, self.bits))

    def __str__(self) -> str:
        words = [f"{self.bits}-bit elements"]
        if self.packing > 1:
            words[0] += f", {self.packing} to a 32-bit word"
        words.append(f"tiles of {' x '.join(map(str, self.tile))}")
        replicated = [
            name
            for name, offset in zip(("sublanes", "lanes"), self.offsets, strict=True)
            if offset is None
        ]
        if len(replicated) == 2:
            words.append("the same in all sublanes and lanes")
        elif replicated:
            words.append(f"the same in all {replicated[0]}")
        begins = [
            f"{name} {offset}"
            for name, offset in zip(("sublane", "lane"), self.offsets, strict=True)
            if offset
        ]
        if begins:
            words.append(f"beginning at {' and '.join(begins)}")
        for dimension in self.implicit:
            lies = "a column, one element per sublane" if dimension == -1 else "a row along lanes"
            words.append(f"laid out as {lies}")
        return ", ".join(words)


def parse(text: str) -> Layout | None:
    """Parse the first layout in a text; None if there is none, or it is `none` (a scalar)."""
    match = _LAYOUT.search(text)
    if match is None:
        return None
    sublane, lane = (None if match[o] == "*" else int(match[o]) for o in ("sublane", "lane"))
    return Layout(
        bits=int(match["bits"]),
        offsets=(sublane, lane),
        tile=tuple(int(size) for size in match["tile"].split(",")),
        implicit=tuple(int(i) for i in match["implicit"].split(",") if i),
    )


def holds_layouts(text: str) -> bool:
    """Return whether a text contains a layout."""
    return _LAYOUT.search(text) is not None or _NO_LAYOUT.search(text) is not None


def describe(text: str) -> tuple[str, ...]:
    """Describe the layouts in a text, one per line.

    Args:
      text: a layout, a compiler message, or lines of a Mosaic dump.
    """
    relayout = _RELAYOUT.search(text)
    if relayout is not None:
        return _relayout(relayout)
    lines: list[str] = []
    for line in text.splitlines():
        operation = _OPERATION.search(line)
        if operation is not None:
            lines += _operation(operation, line)
    return tuple(lines) if lines else tuple(_each(text))


def _each(text: str) -> list[str]:
    lines = [f"{match[0]}: {parse(match[0])}" for match in _LAYOUT.finditer(text)]
    if _NO_LAYOUT.search(text):
        lines.append("none: a scalar, or a value that is not in vector registers")
    return list(dict.fromkeys(lines))


def _operation(match: re.Match[str], line: str) -> list[str]:
    """Describe each vector operand and result, with its type and layout."""
    signature = _SIGNATURE.search(line)
    names = _VALUE.findall(match["operands"])
    lines = [match["name"]]
    found: dict[str, list[Layout | None]] = {}
    for word, listed in (("operand", match["inputs"]), ("result", match["outputs"] or "")):
        types = _TYPE.findall(signature[f"{word}s"]) if signature else []
        layouts = [parse(layout) for layout in _VPAD.findall(listed)]
        found[word] = layouts
        for number, layout in enumerate(layouts):
            if layout is None:
                continue
            # A store does not print its operands in order.
            in_order = word == "operand" and "store" not in match["name"]
            is_named = in_order and len(names) == len(layouts)
            name = f" {names[number]}" if is_named else ""
            # Scalars are in the list of layouts, but not in that of the types.
            kind = f", {types[number]}" if len(types) == len(layouts) else ""
            lines.append(f"  {word} {number}{name}{kind}: {layout}")
    if match["name"].endswith(".relayout"):
        source, target = found["operand"][0], found["result"][0]
        if source is not None and target is not None:
            lines += [f"  so {reason}" for reason in reasons(source, target)]
    return lines if len(lines) > 1 else []


def _relayout(match: re.Match[str]) -> tuple[str, ...]:
    source, target = parse(match["source"]), parse(match["target"])
    lines = [
        f"value: {match['type']}",
        f"actual: {source or match['source']}",
        f"needed: {target or match['target']}",
    ]
    if source is not None and target is not None:
        lines += [f"so {reason}" for reason in reasons(source, target)]
    return tuple(lines)


def reasons(source: Layout, target: Layout) -> list[str]:
    """Changes needed to convert a value from one layout to another."""
    found = []
    for name, have, want in zip(("sublanes", "lanes"), source.offsets, target.offsets, strict=True):
        if have is None and want is not None:
            found.append(f"a value that is the same in all {name} must begin at {name[:-1]} {want}")
        elif want is None and have is not None:
            found.append(f"it must be repeated over all {name}")
        elif have != want:
            found.append(f"it must move from {name[:-1]} {have} to {want}")
    if source.bits != target.bits:
        found.append(f"its elements must change from {source.bits} to {target.bits} bits")
    if source.tile != target.tile:
        found.append(
            f"its tiles must be rearranged from {' x '.join(map(str, source.tile))} to "
            f"{' x '.join(map(str, target.tile))}"
        )
    if source.implicit != target.implicit:
        found.append("rows must become columns, or vice versa")
    return found
