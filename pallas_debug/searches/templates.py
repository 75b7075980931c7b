"""Arguments with variables, and inputs that hypothesis draws from them.

Written `--let n=1..8` and `--arg 'i32[n] in 0..512 sorted'`:

    let       = name "=" (range | value {"," value})
    argument  = [name "="] (drawn | variable | text with arrays whose sizes are numbers)
    drawn     = dtype "[" sizes "]" ["in" range] ["sorted" | "sum" number]
    range     = number ".." number

Numbers are expressions such as `128`, `n*64` or `max(n, 8)`; both ends of a range are included.
Everything else is written as for `inputs/grammar.py`.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from pallas_debug.errors import UsageError, meant
from pallas_debug.stepping import conditions
from pallas_debug.stepping.conditions import ConditionError, Expression

_NAME = re.compile(r"[A-Za-z_]\w*")
_NAMED = re.compile(r"\s*(?P<name>[A-Za-z_]\w*)\s*=(?P<value>.*)", re.DOTALL)
_ARRAY = re.compile(r"\b(?P<dtype>[A-Za-z]\w*)\[(?P<sizes>[^\[\]'\"]*)\]")
_DRAWN = re.compile(
    rf"\s*{_ARRAY.pattern}(?:\s+in\s+(?P<range>.+?\.\..+?))?"
    r"(?:\s+(?:(?P<sorted>sorted)|sum\s+(?P<sum>.+?)))?\s*"
)
_PLAIN = re.compile(r"[\s\d,]*|\s*\.\.\.\s*")
"""Sizes without variables."""

_SIZES = re.compile(r",(?![^(]*\))")
"""A comma between sizes, but none within parentheses, as in `max(n, 8)`."""

MAX_DRAWN = 256
"""Maximum number of elements of an array that are drawn one by one."""

_FLOAT = re.compile(r"b?f(loat)?\d.*|bfloat\d+")

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Number:
    """A whole number computed from variables."""

    _expression: Expression

    @property
    def names(self) -> set[str]:
        """Names of the variables."""
        return set(_NAME.findall(self._expression.text)) - conditions.FUNCTIONS.keys()

    def value(self, values: Values) -> int:
        """Return its value.

        Raises:
          UsageError: it is no whole number, or divides by zero.
        """
        found = self._expression.evaluate(lambda name: np.array(values[name], object))
        try:
            return operator.index(np.asarray(found).item())
        except TypeError as error:
            text = self._expression.text
            raise UsageError(f"{text!r} is no whole number, with {shown(values)}") from error


@dataclass(frozen=True)
class Range:
    """The whole numbers from one to another, both included."""

    low: Number
    high: Number

    @property
    def names(self) -> set[str]:
        return self.low.names | self.high.names


Choices = Range | tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """An array of integers that are drawn one by one.

    Attributes:
      where: what it is written in, for messages.
      values: range of each.
      total: their sum; None for any.
    """

    where: str
    dtype: str
    sizes: tuple[Number, ...]
    values: Range
    is_sorted: bool = False
    total: Number | None = None

    def text(self, draw: DrawFn, values: Values) -> str:
        """Draw the array; one that is too large gets random integers."""
        sizes = [size.value(values) for size in self.sizes]
        low, high = self.values.low.value(values), self.values.high.value(values)
        assume(low <= high)
        assume(all(size >= 0 for size in sizes))
        count = math.prod(sizes)
        head = f"{self.dtype}[{','.join(map(str, sizes))}]"
        if count > MAX_DRAWN:
            if self.is_sorted or self.total is not None:
                raise UsageError(
                    f"{self.where}: {count:,} elements are too many to draw; sorted arrays and "
                    f"sums have at most {MAX_DRAWN}"
                )
            return f"{head}=randint({low},{high + 1})"
        if self.total is None:
            found = draw(st.lists(st.integers(low, high), min_size=count, max_size=count))
        else:
            found = _summing(draw, count, low, high, self.total.value(values))
        if self.is_sorted:
            found.sort()
        return f"{head}={np.reshape(found, sizes).astype(int).tolist()}".replace(" ", "")


def _summing(draw: DrawFn, count: int, low: int, high: int, total: int) -> list[int]:
    """Draw numbers within a range that add up to a total."""
    found: list[int] = []
    for left in reversed(range(count)):
        rest = total - sum(found)
        least, most = max(low, rest - left * high), min(high, rest - left * low)
        assume(least <= most)
        found.append(draw(st.integers(least, most)))
    assume(sum(found) == total)
    return found


class Variable(NamedTuple):
    """A variable that is the whole argument."""

    name: str


Template = Sequence[str | Number | Drawn | Variable]
"""An argument: text as it is, and what is inserted in it."""


@dataclass(frozen=True, kw_only=True)
class Input:
    """Arguments of a function.

    Attributes:
      values: of the variables.
      texts: the arguments, as for `--arg`.
    """

    values: Values = field(default_factory=dict)
    texts: tuple[str, ...] = ()

    def __str__(self) -> str:
        return shown(self.values) or " ".join(self.texts)


@st.composite
def inputs(draw: DrawFn, lets: Mapping[str, Choices], templates: Sequence[Template]) -> Input:
    """Draw the variables in their order, then the arguments; smaller numbers are simpler."""
    values: dict[str, Any] = {}
    for name, choices in lets.items():
        if not isinstance(choices, Range):
            values[name] = draw(st.sampled_from(choices))
            continue
        low, high = choices.low.value(values), choices.high.value(values)
        assume(low <= high)
        values[name] = draw(st.integers(low, high))

    def text(part: str | Number | Drawn | Variable) -> str:
        match part:
            case str():
                return part
            case Number():
                return str(part.value(values))
            case Drawn():
                return part.text(draw, values)
            case Variable():
                return repr(values[part.name])

    return Input(values=values, texts=tuple("".join(map(text, one)).strip() for one in templates))


def shown(values: Values) -> str:
    """Format the values of variables: `n=3, block=64`."""
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def number(text: str, known: Collection[str], where: str) -> Number:
    """Parse a number.

    Args:
      known: names of variables that it may use.
      where: what it is written in, for messages.

    Raises:
      UsageError: it is not an expression, or uses an unknown variable.
    """
    try:
        found = Number(conditions.parse(text))
    except ConditionError as error:
        raise UsageError(f"{where}: {error}") from error
    for name in sorted(found.names - set(known)):
        raise UsageError(
            f"{where}: nothing says what {name!r} is{meant(name, known)}; --let {name}=1..8 does"
        )
    return found


def _range(text: str, known: Collection[str], where: str) -> Range:
    low, _, high = text.partition("..")
    return Range(number(low, known, where), number(high, known, where))


def lets(texts: Iterable[str] | Mapping[str, Any]) -> dict[str, Choices]:
    """Parse variables: `n=1..8`, `block=64,128`; later ones may use earlier ones.

    Args:
      texts: as written, or by name: text, a `range`, or a sequence of values.

    Raises:
      UsageError: a text is invalid; the message says what is accepted.
    """
    found: dict[str, Choices] = {}
    pairs = texts.items() if isinstance(texts, Mapping) else [_pair(text) for text in texts]
    for name, given in pairs:
        where = f"--let {name}={given}"
        if not _NAME.fullmatch(name) or given in ("", ()):
            raise UsageError(f"{where}: write a variable as n=1..8, or as block=64,128")
        if name in found:
            raise UsageError(f"{where}: {name} was given before")
        if not isinstance(given, str):
            found[name] = tuple(given)
        elif ".." in given:
            found[name] = _range(given, found, where)
        else:
            found[name] = _values(given, where)
    return found


def _pair(text: str) -> tuple[str, str]:
    name, _, given = text.partition("=")
    return name.strip(), given


def _values(text: str, where: str) -> tuple[Any, ...]:
    try:
        return tuple(ast.literal_eval(f"[{text}]"))
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise UsageError(
            f"{where}: values are a range such as 1..8, or Python values such as 64,128 or "
            "'relu','gelu'"
        ) from error


def parse(
    texts: Iterable[str], let: Iterable[str] | Mapping[str, Any]
) -> tuple[list[Template], dict[str, Choices]]:
    """Parse arguments and their variables.

    Raises:
      UsageError: a text is invalid, or uses an unknown variable, or nothing uses a variable.
    """
    texts, known = list(texts), lets(let)
    found = [_template(text, known) for text in texts]
    used = set(_NAME.findall(" ".join(texts)))
    used.update(*(one.names for one in known.values() if isinstance(one, Range)))
    for name in known:
        if name not in used:
            raise UsageError(f"--let {name}: no --arg names {name}, as in f32[{name}*8,128]")
    return found, known


def _template(text: str, known: Collection[str]) -> Template:
    where = f"--arg {text!r}"
    named = _NAMED.fullmatch(text)
    value = named["value"] if named else text
    prefix = f"{named['name']}=" if named else ""
    if value.strip() in known:
        return [prefix, Variable(value.strip())]
    drawn = _DRAWN.fullmatch(value)
    if drawn is not None and drawn["range"] is not None:
        return [prefix, _drawn(drawn, known, where)]
    if drawn is not None and (drawn["sorted"] or drawn["sum"]):
        raise UsageError(f"{where}: say what the values are, as in {drawn['dtype']}[4] in 0..512")
    value = value.strip()
    parts: list[str | Number] = [prefix]
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
    return parts


def _drawn(found: re.Match[str], known: Collection[str], where: str) -> Drawn:
    if _FLOAT.fullmatch(found["dtype"]):
        raise UsageError(
            f"{where}: only integers are drawn from a range; write floats as "
            f"{found['dtype']}[{found['sizes']}]=uniform(0,1)"
        )
    return Drawn(
        where=where,
        dtype=found["dtype"],
        sizes=tuple(_sizes(found["sizes"], known, where)),
        values=_range(found["range"], known, where),
        is_sorted=found["sorted"] is not None,
        total=None if found["sum"] is None else number(found["sum"], known, where),
    )


def _sizes(text: str, known: Collection[str], where: str) -> list[Number]:
    return [number(size, known, where) for size in _SIZES.split(text) if size.strip()]
