"""Arguments with variables: `--let n=1..8` and `--arg 'i32[n] in 0..512 sorted'`.

    let       = name "=" (range | value {"," value})
    argument  = [name "="] (drawn | variable | text with arrays whose sizes are numbers)
    drawn     = dtype "[" sizes "]" ["in" range] ["sorted" | "sum" number]
    range     = number ".." number

Numbers are those of `numbers.py`; both ends of a range are included. Everything else is written as
for `inputs/grammar.py`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pallas_debug.errors import UsageError
from pallas_debug.searches import numbers
from pallas_debug.searches.numbers import Number, Range, Values

_NAMED = re.compile(r"\s*(?P<name>[A-Za-z_]\w*)\s*=(?P<value>.*)", re.DOTALL)
_ARRAY = re.compile(r"\b(?P<dtype>[A-Za-z]\w*)\[(?P<sizes>[^\[\]'\"]*)\]")
_DRAWN = re.compile(
    rf"\s*{_ARRAY.pattern}(?:\s+in\s+(?P<range>.+?\.\..+?))?"
    r"(?:\s+(?:(?P<sorted>sorted)|sum\s+(?P<sum>.+?)))?\s*"
)
_PLAIN = re.compile(r"[\s\d,]*|\s*\.\.\.\s*")
"""Sizes without variables."""

_FLOAT = re.compile(r"b?f(loat)?\d.*|bfloat\d+")


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """An array of integers that are drawn one by one.

    Attributes:
      values: range of each.
      total: their sum; None for any.
    """

    dtype: str
    sizes: tuple[Number, ...]
    values: Range
    is_sorted: bool = False
    total: Number | None = None


@dataclass(frozen=True, kw_only=True)
class Template:
    """An argument.

    Attributes:
      text: as written.
      prefix: the part before the value: `lengths=` or nothing.
      parts: of the value: text as it is, sizes to insert, or one array to draw.
      variable: name of the variable that is the value.
    """

    text: str
    prefix: str
    parts: tuple[str | Number | Drawn, ...] = ()
    variable: str | None = None


Choices = Range | tuple[Any, ...]


def lets(texts: Iterable[str] | Mapping[str, Any]) -> dict[str, Choices]:
    """Parse variables: `n=1..8`, `block=64,128`; later ones may use earlier ones.

    Args:
      texts: as written, or by name: text, a `range`, or a sequence of values.

    Raises:
      UsageError: a text is invalid; the message says what is accepted.
    """
    found: dict[str, Choices] = {}
    pairs: Iterable[tuple[str, Any]]
    if isinstance(texts, Mapping):
        pairs = texts.items()
    else:
        pairs = [(text.partition("=")[0].strip(), text.partition("=")[2]) for text in texts]
    for name, given in pairs:
        where = f"--let {name}={given}"
        if not numbers.IS_NAME.fullmatch(name) or given in ("", ()):
            raise UsageError(f"{where}: write a variable as n=1..8, or as block=64,128")
        if name in found:
            raise UsageError(f"{where}: {name} was given before")
        found[name] = _choices(given, tuple(found), where)
    return found


def _choices(given: Any, known: Sequence[str], where: str) -> Choices:
    if isinstance(given, str):
        if ".." in given:
            return numbers.numbers_from_to(given, known, where)
        try:
            return tuple(ast.literal_eval(f"[{given}]"))
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            raise UsageError(
                f"{where}: values are a range such as 1..8, or Python values such as 64,128 or "
                "'relu','gelu'"
            ) from error
    return tuple(given)


def refuse_unused(found: Mapping[str, Choices], texts: Iterable[str]) -> None:
    """Refuse a variable that neither an argument nor the range of another one names.

    Raises:
      UsageError: there is one.
    """
    used = set(numbers.IS_NAME.findall(" ".join(texts)))
    used.update(*(one.names for one in found.values() if isinstance(one, Range)))
    for name in found:
        if name not in used:
            raise UsageError(f"--let {name}: no --arg names {name}, as in f32[{name}*8,128]")


def template(text: str, known: Iterable[str]) -> Template:
    """Parse an argument.

    Raises:
      UsageError: a size or range is no number, or uses an unknown variable.
    """
    known, where = list(known), f"--arg {text!r}"
    named = _NAMED.fullmatch(text)
    value = named["value"] if named else text
    prefix = f"{named['name']}=" if named else ""
    if value.strip() in known:
        return Template(text=text, prefix=prefix, variable=value.strip())
    drawn = _DRAWN.fullmatch(value)
    if drawn is not None and drawn["range"] is not None:
        return Template(text=text, prefix=prefix, parts=(_drawn(drawn, known, where),))
    if drawn is not None and (drawn["sorted"] or drawn["sum"]):
        raise UsageError(f"{where}: say what the values are, as in {drawn['dtype']}[4] in 0..512")
    parts: list[str | Number | Drawn] = []
    end = 0
    for array in _ARRAY.finditer(value):
        if _PLAIN.fullmatch(array["sizes"]):
            continue
        parts.append(value[end : array.start("sizes")])
        for i, size in enumerate(_sizes(array["sizes"], known, where)):
            parts += [","] * bool(i) + [size]
        end = array.end("sizes")
    parts.append(value[end:])
    if drawn is not None and _FLOAT.fullmatch(drawn["dtype"]):
        parts.append("=normal")  # a finding that rests on made-up values would not count
    return Template(text=text, prefix=prefix, parts=tuple(parts))


def _drawn(found: re.Match[str], known: list[str], where: str) -> Drawn:
    if _FLOAT.fullmatch(found["dtype"]):
        raise UsageError(
            f"{where}: only integers are drawn from a range; write floats as "
            f"{found['dtype']}[{found['sizes']}]=uniform(0,1)"
        )
    return Drawn(
        dtype=found["dtype"],
        sizes=tuple(_sizes(found["sizes"], known, where)),
        values=numbers.numbers_from_to(found["range"], known, where),
        is_sorted=found["sorted"] is not None,
        total=None if found["sum"] is None else numbers.number(found["sum"], known, where),
    )


def _sizes(text: str, known: list[str], where: str) -> list[Number]:
    depth, sizes = 0, [""]
    for sign in text:  # commas within max(n, 8) separate no sizes
        depth += {"(": 1, ")": -1}.get(sign, 0)
        if sign == "," and not depth:
            sizes.append("")
        else:
            sizes[-1] += sign
    return [numbers.number(size, known, where) for size in sizes if size.strip()]


def written(parts: Sequence[str | Number], values: Values) -> str:
    """The text of a value that nothing is drawn for."""
    return "".join(
        part if isinstance(part, str) else str(part.value(values)) for part in parts
    ).strip()
