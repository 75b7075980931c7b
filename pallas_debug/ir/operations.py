"""Operations, values, regions and locations in the lines of compiler text.

One reader for all output of the compilers and jax: MLIR (StableHLO, Mosaic, its `llo` dialect,
Triton), jaxprs, LLO text and bundles, PTX and SASS. It matches lines with regular expressions and
accepts any text: an unknown line has no operation. jaxlib's MLIR parser fails on half of the
passes, and dumps are also read on machines without jaxlib.

`read_line` reads a single line; `Module` builds the tables of a whole text: definitions and uses of
values, regions, locations behind aliases, counts of operations.
"""

from __future__ import annotations

import bisect
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

from pallas_debug.ir import assembly
from pallas_debug.ir.chains import Chains
from pallas_debug.ir.llo import HEAD, LOCATION, OPERATION
from pallas_debug.model import SourceLine

Kind = Literal["mlir", "jaxpr", "llo", "bundles", "ptx", "sass", "text"]

Noise = Literal["ssa", "loc", "attrs"]
"""Differences that a comparison may ignore: see `ir/normal.py`, which is slow to import."""

NOISE: tuple[Noise, ...] = get_args(Noise)

LONG = 1 << 16
"""Maximum characters of a line to read: a line may contain a constant of ten million characters."""

_MLIR_OPERATION = re.compile(
    r"\s*(?P<head>}? ?)"
    r"(?P<results>%[\w$.-]+(?::\d+)?(?: *, *%[\w$.-]+(?::\d+)?)* = )?"
    r'(?:"(?P<quoted>[\w$.-]+)"|(?P<name>[A-Za-z_][\w$]*(?:\.[\w$-]+)+|return|module|func|call)\b)'
)
_MLIR_VALUE = re.compile(r"%[\w$.-]+(?:#\d+)?")
_SASS_VALUE = re.compile(r"\bU?[RP]\d+\b")
_MLIR_LOCATION = re.compile(r" ?loc\((?P<body>#loc\d*|unknown)\)(?P<end>[ {]*)$")
_JAXPR_OPERATION = re.compile(
    r"\s*(?P<results>[^\s=<#][^=<#]*?) (?:= (?P<name>[A-Za-z_][\w-]*)|(?P<arrow><-))"
    r"|\s*(?P<store>[a-z]+\[[^\]]*\]) <- "
    r"|\s*(?P<bare>[a-z_]\w{2,})\[(?!.* <- )"
)
_JAXPR_BINDER = re.compile(r"(?<![\w.])(?P<name>[a-z]{1,6}):(?=[A-Za-z]\w*[\[<{])")
_JAXPR_WORD = re.compile(r"(?<![\w.:=])[a-z]{1,6}(?![\w:=(])")
_JAXPR_LOCATION = re.compile(
    r"  # (?P<file>.+?):(?P<line>\d{1,9})(?::\d+)?(?: \((?P<function>.*)\))?$"
)
_LLO_OPERATION = re.compile(rf"(?:^{HEAD}\{{ *|^\s*+|;;\s*+){OPERATION}")
_BUNDLE = re.compile(rf"^{HEAD}\{{", re.MULTILINE)
_REGION = re.compile(r"\$region\d+: ")
_MLIR = re.compile(
    r"^(?:#\w++ = |module\b|[ \t]*+(?:func\.func\b|%[\w$.-]++(?::\d++)? = ))", re.MULTILINE
)

_PARENTHESIS = re.compile(r'"(?:[^"\\]|\\.)*"|[()]')


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """A value in a line: its name and its span in characters."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """An operation on a line.

    Attributes:
      name: name as printed: `vector.load`, `llo.vadd.f32`, `dot_general`, `vld`.
    """

    line: int
    name: str
    results: tuple[Value, ...] = ()
    operands: tuple[Value, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Region:
    """Foldable lines, from the opening line, which stays visible, to the closing one."""

    start: int
    stop: int


def guess_kind(head: str) -> Kind:
    """Guess the kind of a text from its first few thousand characters."""
    if _BUNDLE.search(head):
        return "bundles"
    if _REGION.search(head):
        return "llo"
    if "{ lambda " in head:
        return "jaxpr"
    if assembly.IS_PTX.search(head):
        return "ptx"
    if assembly.IS_SASS.search(head):
        return "sass"
    if _MLIR.search(head):
        return "mlir"
    return "text"


def location_at(text: str, kind: Kind) -> tuple[int, int] | None:
    """Span of a line's location; None if there is none."""
    if kind == "mlir":
        start = text.rfind(" loc(#loc")
        if start >= 0 and text[start + 9 : -1].isdecimal() and text[-1] == ")":  # most lines
            return start, len(text)
        found = _MLIR_LOCATION.search(text, max(0, len(text) - 64))
        if found:
            return found.start(), found.end() - len(found["end"])
        start = text.rfind(" loc(", 0, LONG)
        end = closing(text, start + 5) if start >= 0 else -1
        return (start, end) if start >= 0 and not text[end:].strip(" {") else None
    found = (_JAXPR_LOCATION if kind == "jaxpr" else LOCATION).search(text, 0, LONG)
    return found.span() if found else None


def read_line(text: str, kind: Kind, *, line: int = 0) -> tuple[Operation, ...]:
    """Parse the operations of a line: at most one, except in bundles."""
    text = text[:LONG]
    if kind == "mlir":
        return _read_mlir(text, line)
    if kind == "jaxpr":
        return _read_jaxpr(text, line)
    if kind == "ptx" or kind == "sass":
        return _read_assembly(text, kind, line)
    return tuple(_read_llo(text, line)) if kind in ("llo", "bundles") else ()


def name_of(text: str, kind: Kind) -> str | None:
    """Name of a line's first operation; faster than `read_line`."""
    if kind == "mlir":
        found = _MLIR_OPERATION.match(text)
        return (found["quoted"] or found["name"]) if found else None
    if kind == "jaxpr":
        found = _JAXPR_OPERATION.match(text, 0, LONG)
        return _jaxpr_name(found) if found else None
    if kind in ("llo", "bundles"):
        found = _LLO_OPERATION.search(text, 0, LONG)
        return found["opcode"] if found else None
    return assembly.name_of(text, kind) if kind == "ptx" or kind == "sass" else None


class Module:
    """A whole text. Each table is built lazily, in one pass.

    Args:
      lines: lines of the text; for a huge text, a viewer passes only the first ones.
      kind: kind of the text; guessed by default.
    """

    def __init__(self, lines: Sequence[str], kind: Kind | None = None) -> None:
        self.lines = lines
        self.kind: Kind = kind or guess_kind("\n".join(lines[:60])[:LONG])

    @classmethod
    def of(cls, text: str, kind: Kind | None = None) -> Module:
        return cls(text.removesuffix("\n").split("\n"), kind)

    def operations(self, line: int) -> tuple[Operation, ...]:
        """Operations of one line."""
        return read_line(self.lines[line], self.kind, line=line)

    @cached_property
    def names(self) -> list[str | None]:
        """Name of each line's first operation."""
        return [name_of(text, self.kind) for text in self.lines]

    @cached_property
    def counts(self) -> Counter[str]:
        """Number of occurrences of each operation."""
        if self.kind != "bundles":
            return Counter(name for name in self.names if name is not None)
        return Counter(op.name for n in range(len(self.lines)) for op in self.operations(n))

    @cached_property
    def chains(self) -> Chains:
        """Resolver from locations to Python lines."""
        return Chains(self.lines)

    def source(self, line: int) -> tuple[SourceLine, ...]:
        """Python lines that a line of this text comes from, innermost function first."""
        text = self.lines[line]
        if self.kind == "mlir":
            body = self.location(line)
            return self.chains.resolve(body) if body else ()
        if self.kind == "jaxpr":
            found = _JAXPR_LOCATION.search(text, 0, LONG)
            if not found:
                return ()
            file, number, function = found["file"], int(found["line"]), found["function"]
            return (SourceLine(file=file, line=number, function=function),)
        if self.kind in ("ptx", "sass"):
            return self._assembled[line]
        bodies = LOCATION.finditer(text, 0, LONG)
        return tuple(dict.fromkeys(s for f in bodies for s in self.chains.resolve(f["body"])))

    @cached_property
    def _assembled(self) -> Sequence[tuple[SourceLine, ...]]:
        """Python lines of each line of PTX or SASS."""
        kind = self.kind
        return assembly.places(self.lines, kind) if kind == "ptx" or kind == "sass" else ()

    def placed(self, line: int) -> Sequence[tuple[str, tuple[SourceLine, ...]]]:
        """Names of a line's operations, each with the Python lines that it comes from."""
        sources = self.source(line)
        return [(operation.name, sources) for operation in self.operations(line)]

    def location(self, line: int) -> str | None:
        """Body of a line's `loc(…)`, as printed."""
        text = self.lines[line]
        at = location_at(text, self.kind)
        return text[slice(*at)].strip().removeprefix("loc(").removesuffix(")") if at else None

    @cached_property
    def from_source(self) -> dict[tuple[str, int], list[int]]:
        """Lines of this text that come from each Python line, keyed by file and line number.

        Every line of a call chain counts, not only the innermost one.
        """
        found: dict[tuple[str, int], list[int]] = {}
        for number, name in enumerate(self.names):
            if name is not None:
                for key in dict.fromkeys(s.place for s in self.source(number)):
                    found.setdefault(key, []).append(number)
        return found

    def make_tables(self) -> None:
        """Build all tables now, for callers that cannot block later."""
        _ = (self.names, self.from_source, self.regions, self._definitions, self._uses)

    @cached_property
    def regions(self) -> tuple[Region, ...]:
        """Regions, ordered by opening line."""
        return tuple(sorted(_regions(self.lines, self.kind), key=lambda r: (r.start, -r.stop)))

    def definition(self, name: str, line: int) -> int | None:
        """Line that defines the value that `name` refers to at `line`.

        MLIR reuses numbers in sibling regions, so the last definition in scope is returned.
        """
        lines, ends = self._definitions.get(_base(name), ((), ()))
        for at in range(bisect.bisect_right(lines, line) - 1, -1, -1):
            if ends[at] >= line:
                return lines[at]
        return None

    def uses(self, name: str, line: int) -> tuple[int, ...]:
        """Lines that use the value that `name` refers to at `line`, except its definition."""
        base = _base(name)
        defined = self.definition(base, line)
        found = self._uses.get(base, ())
        return tuple(n for n in found if n != defined and self.definition(base, n) == defined)

    @cached_property
    def _definitions(self) -> dict[str, tuple[list[int], list[int]]]:
        """For each value, the lines that define it and the last line of each scope."""
        inside, outside = self._scopes
        found: dict[str, tuple[list[int], list[int]]] = {}
        for number, name, is_argument in _defined(self.lines, self.kind):
            lines, stops = found.setdefault(name, ([], []))
            lines.append(number)
            stops.append((inside if is_argument else outside)[number])
        return found

    @cached_property
    def _scopes(self) -> tuple[list[int], list[int]]:
        """Return, for each line, the last line of the scope of its arguments, and of its results.

        The two differ on lines that open a region.
        """
        last = len(self.lines) - 1
        inside = [last] * len(self.lines)
        if self.kind != "mlir":  # in other kinds, a name has one value throughout
            return inside, inside
        outside = inside.copy()
        for region in self.regions:  # outer regions come first
            outside[region.start] = inside[region.start]
            size = region.stop - region.start
            inside[region.start : region.stop] = [region.stop] * size
            outside[region.start + 1 : region.stop] = [region.stop] * (size - 1)
        return inside, outside

    @cached_property
    def _uses(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        words = _MLIR_VALUE
        known: Iterable[str] | None = None
        if self.kind == "jaxpr":
            words, known = _JAXPR_WORD, self._definitions.keys()
        for number, text in enumerate(self.lines):
            for name in dict.fromkeys(map(_base, words.findall(text, 0, LONG))):
                if known is None or name in known:
                    found.setdefault(name, []).append(number)
        return found


def _base(name: str) -> str:
    """Strip the index of a part: `%5` for `%5#1`."""
    return name.partition("#")[0]


def closing(text: str, start: int) -> int:
    """Find the end of the parenthesis opened before `start`, skipping strings."""
    depth = 1
    for found in _PARENTHESIS.finditer(text, start, start + LONG):
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        if depth == 0:
            return found.end()
    return len(text)


def _read_mlir(text: str, line: int) -> tuple[Operation, ...]:
    found = _MLIR_OPERATION.match(text)
    if not found:
        return ()
    group = "quoted" if found["quoted"] else "name"
    at = location_at(text, "mlir")
    results = _values(_MLIR_VALUE, text, *found.span("results")) if found["results"] else ()
    operands = _values(_MLIR_VALUE, text, found.end(), at[0] if at else len(text))
    if found[group] == "scf.for":  # `%i = …` follows the name and is defined by it
        operands = operands[1:]
    return (
        Operation(
            line=line,
            name=found[group],
            results=tuple(
                Value(name=_base(v.name).partition(":")[0], start=v.start, stop=v.stop)
                for v in results
            ),
            operands=operands,
        ),
    )


def _read_assembly(text: str, kind: assembly.AssemblyKind, line: int) -> tuple[Operation, ...]:
    """Read an instruction; its first register is counted among the operands, whatever it is."""
    name = assembly.name_of(text, kind)
    if name is None:
        return ()
    registers = _MLIR_VALUE if kind == "ptx" else _SASS_VALUE
    operands = _values(registers, text, text.index(name) + len(name), len(text))
    return (Operation(line=line, name=name, operands=operands),)


def _read_jaxpr(text: str, line: int) -> tuple[Operation, ...]:
    found = _JAXPR_OPERATION.match(text)
    if not found or "{ lambda" in text[: found.end()]:
        return ()
    at = location_at(text, "jaxpr")
    end = at[0] if at else len(text)
    return (
        Operation(
            line=line,
            name=_jaxpr_name(found) or "",
            results=_values(_JAXPR_BINDER, text, 0, found.end(), "name"),
            operands=_values(_JAXPR_WORD, text, found.end(), end),
        ),
    )


def _jaxpr_name(found: re.Match[str]) -> str | None:
    """Name a ref access: `a <- b[...]` reads, and `_, b[...] <- b[...], c` swaps."""
    if found["bare"]:
        return found["bare"]
    if found["name"]:
        return found["name"] if "lambda" not in found["results"] else None
    if found["store"] or "[" in re.sub(r":\w+\[[^\]]*\]", "", found["results"]):
        return "swap"
    return "get"


def _read_llo(text: str, line: int) -> Iterator[Operation]:
    found = list(_LLO_OPERATION.finditer(text))
    for number, this in enumerate(found, 1):
        end = found[number].start() if number < len(found) else len(text)
        at = LOCATION.search(text, this.end(), end)
        operands = _values(_MLIR_VALUE, text, this.end(), at.start() if at else end)
        if this["guard"]:
            operands = _values(_MLIR_VALUE, text, *this.span("guard")) + operands
        yield Operation(
            line=line,
            name=this["opcode"],
            results=_values(_MLIR_VALUE, text, *this.span("results")),
            operands=operands,
        )


def _values(
    pattern: re.Pattern[str], text: str, start: int, stop: int, group: str | int = 0
) -> tuple[Value, ...]:
    return tuple(
        Value(name=f[group], start=f.start(group), stop=f.end(group))
        for f in pattern.finditer(text, start, stop)
    )


_ARGUMENT = re.compile(r"%[\w$.-]+(?= = |: )")


def _defined(lines: Sequence[str], kind: Kind) -> Iterator[tuple[int, str, bool]]:
    """Yield each definition: line, name, and whether it is a region's argument."""
    for number, text in enumerate(lines):
        if kind == "jaxpr":
            for name in _JAXPR_BINDER.findall(text, 0, LONG):
                yield number, name, False
        elif kind != "mlir":
            for name in _ARGUMENT.findall(text, 0, LONG):
                yield number, name, False
        else:
            stripped = text.lstrip()
            head = text.partition(" = ")[0] if stripped.startswith("%") else ""
            for name in _MLIR_VALUE.findall(head, 0, LONG):
                yield number, name, False
            # Arguments of functions, blocks and loops
            if text.endswith(("{", ":")) or stripped.startswith("^"):
                for name in _ARGUMENT.findall(text, len(head), LONG):
                    yield number, name, True


def _regions(lines: Sequence[str], kind: Kind) -> Iterator[Region]:
    if kind == "llo":
        yield from _indented(lines)
    elif kind in ("mlir", "jaxpr"):
        yield from _bracketed(lines, kind)


def _bracketed(lines: Sequence[str], kind: Kind) -> Iterator[Region]:
    opened: list[int] = []
    for number, text in enumerate(lines):
        if kind == "mlir":
            # `} else {` and `}, {` close one region and open another.
            closes, opens = text.lstrip().startswith("}"), text.endswith("{")
        else:
            code = text.partition("  # ")[0]
            balance = sum(map(code.count, "([{")) - sum(map(code.count, ")]}"))
            closes, opens = balance < 0, balance > 0
        if closes and opened:
            start = opened.pop()
            yield Region(start=start, stop=number)
        if opens:
            opened.append(number)
    while opened:  # truncated text
        start = opened.pop()
        if start < len(lines) - 1:
            yield Region(start=start, stop=len(lines) - 1)


def _indented(lines: Sequence[str]) -> Iterator[Region]:
    """LLO regions: `$region` lines, and the lines below them with more indentation."""
    opened: list[tuple[int, int]] = []
    for number, text in enumerate(lines):
        indent = len(text) - len(text.lstrip())
        if not text.strip() or (indent == 0 and not text.startswith("$")):
            continue  # continuation lines of a multi-line comment start in the first column
        while opened and opened[-1][1] >= indent:
            start, _ = opened.pop()
            if number - 1 > start:
                yield Region(start=start, stop=number - 1)
        if _REGION.match(text.lstrip()):
            opened.append((number, indent))
    while opened:
        start, _ = opened.pop()
        if len(lines) - 1 > start:
            yield Region(start=start, stop=len(lines) - 1)
