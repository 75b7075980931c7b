"""Lines without their noise: what two texts are compared by when they may differ in it.

Three kinds of noise can be left out: the numbers of SSA values (`ssa`), locations (`loc`), and the
order of attributes (`attrs`). A normal form is for comparing, not for reading. That a value is the
same one on both sides is not told by normal forms, which know no names: `ir/diff.py` follows the
names along the lines that it has matched.
"""

from __future__ import annotations

import itertools
import re
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal, get_args

from pallas_debug.ir.operations import LONG, Kind, closing

Noise = Literal["ssa", "loc", "attrs"]

NOISE: tuple[Noise, ...] = get_args(Noise)

VALUE = re.compile(r"%[\w$.-]+")
"""A value in MLIR, LLO or bundles."""

_WORD = re.compile(r"(?<![\w.])[a-z]{1,6}(?=[\s,:\])}\[(]|$)")
_VALUE_OR_END = re.compile(VALUE.pattern + r"|\n")
_WORD_OR_END = re.compile(_WORD.pattern + r"|\n")
_BINDER = re.compile(r"(?<![\w.])([a-z]{1,6}):(?=[A-Za-z]\w*[\[<{])")
_KEYWORDS = frozenset(("in", "let", "lambda"))
_LOCATION_OR_STRING = re.compile(r'"(?:[^"\\]|\\.)*"| loc\(')
_PLAIN_LOCATION = re.compile(r" loc\((?:#loc\d*|unknown)\)")
_JAXPR_LOCATION = re.compile(r"  # [^\n]*$", re.MULTILINE)
_LLO_LOCATION = re.compile(r" ?/\* loc\([^\n*]{0,4000}?\) ?\*/")
_LLO_NUMBERED = re.compile(r"(\$region|#allocation|parent=)\d+")


def normal_lines(
    lines: Sequence[str], kind: Kind, ignore: Collection[Noise]
) -> Sequence[str | None]:
    """A normal form per line; None for a line that is nothing but noise.

    Args:
      lines: of a whole text, without newlines.
      kind: what the text is.
      ignore: which noise to leave out. With nothing to leave out, the lines themselves.
    """
    if not ignore or not lines:
        return lines
    text = "\n".join(lines)  # one substitution over all: twice as fast as one per line
    if "loc" in ignore:
        text = _without_locations(text, kind)
    if "ssa" in ignore:
        text = _without_names(text, kind)
    normal: list[str | None] = list(text.split("\n"))
    if "loc" in ignore and kind == "mlir":
        for number, line in enumerate(lines):
            if line.startswith("#loc"):
                normal[number] = None
    if "attrs" in ignore:
        normal = _all_sorted(normal)
    return normal


def _all_sorted(lines: Sequence[str | None]) -> list[str | None]:
    """Each line with sorted attributes. Once the names are gone, most lines are there often."""
    known: dict[str | None, str | None] = {None: None}
    for line in lines:
        if line not in known:
            known[line] = sorted_attributes(line) if line and _SORTABLE.search(line) else line
    return list(map(known.__getitem__, lines))


class ValueNames:
    """The names of values in each line of a text.

    All are held in one tuple, which the garbage collector looks at once: with a list for each line
    it would be busy for as long as all else takes.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)  # those of a line end with a newline
        ends = (number for number, name in enumerate(self._names, 1) if name == "\n")
        self._starts = array("L", (0, *ends))

    def __getitem__(self, line: int) -> tuple[str, ...]:
        """The names in a line, in the order in which they stand there."""
        return self._names[self._starts[line] : self._starts[line + 1] - 1]

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        names = self._names
        return (names[a : b - 1] for a, b in itertools.pairwise(self._starts))


def value_names(lines: Sequence[str], kind: Kind) -> ValueNames:
    """The names of values in each line."""
    if not lines:
        return ValueNames(())
    code: Iterable[str] = lines if kind != "text" else [""] * len(lines)
    if kind == "jaxpr":
        code = (line.partition("  # ")[0] for line in lines)
    elif max(map(len, lines), default=0) > LONG:
        code = (line[:LONG] for line in lines)
    text = "\n".join(code) + "\n"
    if kind == "jaxpr":
        known = _defined(text) | {"\n"}
        return ValueNames(word for word in _WORD_OR_END.findall(text) if word in known)
    return ValueNames(_VALUE_OR_END.findall(text))


def sorted_attributes(line: str) -> str:
    """A line whose `{…}` and `<{…}>` list their `name = value` in order."""
    if "=" not in line or "{" not in line or len(line) > LONG:
        return line
    return _sorted(line, 0, "", 0)[0]


def _sorted(text: str, at: int, closed_by: str, depth: int) -> tuple[str, int]:
    """The text from `at` up to its closing bracket with sorted parts, and where that was."""
    parts: list[str] = []
    start = at
    part = ""
    while found := _STRUCTURE.search(text, at):
        part += text[at : found.start()]
        at = found.end()
        token = found[0]
        if token in _CLOSING and depth < _DEEPEST:
            inner, at = _sorted(text, at, _CLOSING[token], depth + 1)
            part += token + inner
        elif token == closed_by:
            return _joined([*parts, part], closed_by) + token, at
        elif token == "," and closed_by:
            parts.append(part)
            part = ""
        else:
            part += token
    if not closed_by:
        return part + text[at:], len(text)
    return text[start:], len(text)  # it never closes: left as it is


def _joined(parts: list[str], closed_by: str) -> str:
    if closed_by == "}" and len(parts) > 1 and all(_ATTRIBUTE.match(part) for part in parts):
        return ", ".join(sorted(part.strip() for part in parts))
    return ",".join(parts)


_DEEPEST = 100
_SORTABLE = re.compile(r"\{[^}]*=[^}]*,|\{[^}]*,[^}]*=")
_STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\](),]')
_CLOSING = {"{": "}", "[": "]", "(": ")"}
_ATTRIBUTE = re.compile(r"\s*[A-Za-z_][\w.$]*\s*(?:=|$)")


def _without_locations(text: str, kind: Kind) -> str:
    if kind == "jaxpr":
        return _JAXPR_LOCATION.sub("", text)
    if kind in ("llo", "bundles"):
        return _LLO_LOCATION.sub("", text)
    text = _PLAIN_LOCATION.sub("", text)
    if " loc(" not in text:
        return text
    return "\n".join(_without_inline(line) for line in text.split("\n"))


def _without_inline(line: str) -> str:
    """A line without the locations that are spelled out; one in a string is none."""
    if " loc(" not in line or line.startswith("#loc"):
        return line
    kept, done = "", 0
    for found in _LOCATION_OR_STRING.finditer(line, 0, LONG):
        if found.start() >= done and found[0].startswith(" "):
            kept += line[done : found.start()]
            done = closing(line, found.end())
    return kept + line[done:]


def _without_names(text: str, kind: Kind) -> str:
    if kind == "jaxpr":
        known = _defined(text)
        return _WORD.sub(lambda m: "%" if m[0] in known else m[0], text)
    text = VALUE.sub("%", text)
    return _LLO_NUMBERED.sub(r"\1", text) if kind in ("llo", "bundles") else text


def _defined(jaxpr: str) -> set[str]:
    return set(_BINDER.findall(jaxpr)) - _KEYWORDS
