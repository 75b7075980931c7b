"""Expressions over a kernel's values: a small grammar, parsed here and never passed to `eval`.

    m_new[0, 3] > 1e4 and i == 2
    any(isnan(acc_ref[...])) or max(abs(s - 1)) > 3

Names are those of values, of grid axes (`i`, `j`, `k`, …) and `iteration`. Imports no jax.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_debug.errors import PallasDebugError, UsageError

Names = Callable[[str], Any]
"""Function that returns the value of a name; raises `KeyError` if it has none."""

MAX_LENGTH = 2000
"""Maximum number of characters of an expression."""

MAX_DEPTH = 50
"""Maximum depth of nested parentheses, indices and calls."""


class ConditionError(UsageError):
    """An expression that does not parse.

    Attributes:
      text: the expression.
      position: position of the offending character, from 0.
      expected: what would be valid there.
    """

    def __init__(self, text: str, position: int, expected: str) -> None:
        self.text = text
        self.position = position
        self.expected = expected
        found = repr(text[position : position + 12]) if position < len(text) else "the end"
        super().__init__(
            f"column {position + 1} of the expression: expected {expected}, found {found}\n"
            f"  {text}\n  {' ' * position}^"
        )


class ConditionFailed(UsageError):
    """An expression that cannot be evaluated on the values at this place."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression.

    Attributes:
      names: names that it uses, in order.
    """

    text: str
    names: tuple[str, ...]
    _node: Node

    def evaluate(self, names: Names) -> Any:
        """Evaluate on the values of names; return a number, a bool or an array.

        Raises:
          ConditionFailed: a name has no value, or an operation does not apply to its operands.
        """
        try:
            with np.errstate(all="ignore"):
                return self._node(names)
        except PallasDebugError:
            raise
        except Exception as error:
            message = " ".join(str(error).split())
            raise ConditionFailed(f"`{self.text}` cannot be evaluated: {message}") from error

    def holds(self, names: Names) -> bool:
        """Return whether a condition is true.

        Raises:
          ConditionFailed: it cannot be evaluated, or is an array of several elements.
        """
        value = np.asarray(self.evaluate(names))
        if value.size != 1:
            raise ConditionFailed(
                f"`{self.text}` is an array of shape {value.shape}, not a condition: use any(…) "
                "or all(…)"
            )
        return bool(value.reshape(()))


Node = Callable[[Names], Any]

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<sign>\.\.\.|==|!=|<=|>=|//|\*\*|[-+*/%<>()\[\],:&|]))"
)

_WORDS = frozenset({"and", "or", "not", "True", "False", "inf", "nan"})


def _wide(value: Any) -> Any:
    """Convert a value for computing with numpy: bfloat16 and the like become float32."""
    if isinstance(value, (bool, int, float, tuple)):
        return value
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype.kind == "V" or array.dtype.num > 25 else array


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "any": lambda x: np.any(x),
    "all": lambda x: np.all(x),
    "min": lambda *x: np.min(x[0]) if len(x) == 1 else np.minimum(*x),
    "max": lambda *x: np.max(x[0]) if len(x) == 1 else np.maximum(*x),
    "sum": lambda x: np.sum(x),
    "mean": lambda x: np.mean(x),
    "abs": lambda x: np.abs(x),
    "isnan": lambda x: np.isnan(x),
    "isinf": lambda x: np.isinf(x),
    "shape": lambda x: tuple(np.shape(x)),
}
"""Functions of the grammar on one array; `min` and `max` also accept two."""

_NAMED = {"program_id", "num_programs", "whole"}


def parse(text: str, known: Collection[str] = ()) -> Expression:
    """Parse an expression; `known` are names, also such as `args[2]`, of a kernel with `*args`.

    Raises:
      ConditionError: it does not follow the grammar.
    """
    if len(text) > MAX_LENGTH:
        raise ConditionError(text, MAX_LENGTH, f"at most {MAX_LENGTH} characters")
    return _Parser(text, known).whole()


def positions(expression: Expression, name: str, shape: tuple[int, ...], names: Names) -> Any:
    """Flat positions of the elements of a value that `name[…]` selects.

    Raises:
      ConditionFailed: an index is out of bounds, or has no value itself.
    """
    whole = np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape)
    return np.asarray(expression.evaluate(lambda n: whole if n == name else names(n)))


def parse_part(text: str, known: Collection[str] = ()) -> tuple[str, Expression]:
    """Parse a name, or an index of one: `acc_ref`, `acc_ref[0, :8]`, `whole(out_ref)[5, 3]`.

    Returns:
      The name, `whole(…)` included, and the whole expression.

    Raises:
      ConditionError: it does not follow the grammar.
    """
    expression = parse(text, known)
    name = "|".join([*map(re.escape, _unusual(known)), r"[A-Za-z_]\w*"])
    part = re.fullmatch(
        rf"(?P<name>{name}|whole\s*\(\s*(?:{name})\s*\))\s*(\[.*\])?", text.strip(), re.DOTALL
    )
    if part is None:
        raise ConditionError(text, 0, "a name, or one with an index, such as acc_ref[0, 3]")
    return "".join(part["name"].split()), expression


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    position: int


def _unusual(known: Collection[str]) -> list[str]:
    """Names that are not identifiers, longest first."""
    return sorted((n for n in known if not n.isidentifier()), key=len, reverse=True)


def _tokens(text: str, known: Collection[str]) -> list[_Token]:
    unusual, found = _unusual(known), list[_Token]()
    position = 0
    while True:
        while position < len(text) and text[position].isspace():
            position += 1
        if position == len(text):
            return [*found, _Token("end", "", position)]
        if name := next((n for n in unusual if text.startswith(n, position)), None):
            found.append(_Token("name", name, position))
            position += len(name)
            continue
        match = _TOKEN.match(text, position)
        if match is None:
            raise ConditionError(text, position, "a name, a number or an operator")
        kind = str(match.lastgroup)
        found.append(_Token(kind, match[kind], match.start(kind)))
        position = match.end()


class _Parser:
    """Recursive descent, a method for each level of precedence."""

    def __init__(self, text: str, known: Collection[str]) -> None:
        self.text = text
        self.tokens = _tokens(text, known)
        self.at = 0
        self.depth = 0
        self.names: dict[str, None] = {}

    @property
    def token(self) -> _Token:
        return self.tokens[self.at]

    def error(self, expected: str) -> ConditionError:
        return ConditionError(self.text, self.token.position, expected)

    def take(self, *texts: str) -> str | None:
        if self.token.kind != "end" and self.token.text in texts:
            self.at += 1
            return self.tokens[self.at - 1].text
        return None

    def expect(self, text: str, what: str) -> None:
        if self.take(text) is None:
            raise self.error(what)

    def whole(self) -> Expression:
        node = self.either()
        if self.token.kind != "end":
            raise self.error("an operator or the end")
        return Expression(self.text, tuple(self.names), node)

    def nested(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"at most {MAX_DEPTH} nested levels")
        node = self.either()
        self.depth -= 1
        return node

    def either(self) -> Node:
        node = self.both()
        while self.take("or"):
            node = _or(node, self.both())
        return node

    def both(self) -> Node:
        node = self.negation()
        while self.take("and"):
            node = _and(node, self.negation())
        return node

    def negation(self) -> Node:
        count = 0
        while self.take("not"):
            count += 1
        node = self.comparison()
        return node if count == 0 else _not(node, count % 2 == 1)

    def comparison(self) -> Node:
        first = self.summed()
        links: list[tuple[str, Node]] = []
        while (sign := self.take(*_COMPARE)) is not None:
            links.append((sign, self.summed()))
        return first if not links else _compared(first, links)

    def summed(self) -> Node:
        node = self.product()
        while (sign := self.take("+", "-")) is not None:
            node = _binary(sign, node, self.product())
        return node

    def product(self) -> Node:
        node = self.signed()
        while (sign := self.take("*", "/", "//", "%")) is not None:
            node = _binary(sign, node, self.signed())
        return node

    def signed(self) -> Node:
        negative = False
        while (sign := self.take("-", "+")) is not None:
            negative ^= sign == "-"
        node = self.power()
        return _negative(node) if negative else node

    def power(self) -> Node:
        node = self.postfix()
        if self.take("**"):
            self.depth += 1
            if self.depth > MAX_DEPTH:
                raise self.error(f"at most {MAX_DEPTH} nested levels")
            node = _binary("**", node, self.signed())
            self.depth -= 1
        return node

    def postfix(self) -> Node:
        node = self.atom()
        while self.take("["):
            node = _indexed(node, self.index())
        return node

    def atom(self) -> Node:
        token = self.token
        if self.take("("):
            node = self.nested()
            self.expect(")", "`)`")
            return node
        if token.kind == "number":
            self.at += 1
            is_whole = token.text.isdigit()
            number = int(token.text) if is_whole else float(token.text)
            return lambda names: number
        if token.kind != "name" or token.text in ("and", "or", "not"):
            raise self.error("a value: a name, a number or `(`")
        self.at += 1
        if token.text in _WORDS:
            fixed = {"True": True, "False": False, "inf": np.inf, "nan": np.nan}[token.text]
            return lambda names: fixed
        if self.token.text == "(" and self.token.kind == "sign":
            return self.call(token)
        self.names[token.text] = None
        return _name(token.text)

    def call(self, token: _Token) -> Node:
        if token.text not in FUNCTIONS and token.text not in _NAMED:
            self.at -= 1
            known = ", ".join([*FUNCTIONS, *sorted(_NAMED)])
            raise self.error(f"a function ({known})")
        self.expect("(", "`(`")
        if token.text in _NAMED:
            argument = self.token
            wanted = "name" if token.text == "whole" else "number"
            if argument.kind != wanted or (wanted == "number" and not argument.text.isdigit()):
                raise self.error(
                    "the name of an operand" if wanted == "name" else "the number of a grid axis"
                )
            self.at += 1
            self.expect(")", "`)`")
            if wanted == "name":
                self.names[argument.text] = None
            return _name(f"{token.text}({argument.text})")
        arguments = [self.nested()]
        most = 2 if token.text in ("min", "max") else 1
        while len(arguments) < most and self.take(","):
            arguments.append(self.nested())
        self.expect(")", "`)`" if len(arguments) == most else "`,` or `)`")
        return _called(FUNCTIONS[token.text], arguments)

    def index(self) -> list[Any]:
        entries = [self.entry()]
        while self.take(","):
            entries.append(self.entry())
        self.expect("]", "`,` or `]`")
        return entries

    def entry(self) -> Any:
        if self.take("..."):
            return lambda names: Ellipsis
        parts: list[Node | None] = [None]
        is_slice = False
        while True:
            if self.take(":"):
                is_slice = True
                if len(parts) == 3:
                    self.at -= 1
                    raise self.error("`,` or `]`")
                parts.append(None)
            elif self.token.text in (",", "]") and self.token.kind == "sign":
                break
            elif parts[-1] is None:
                parts[-1] = self.nested()
            else:
                raise self.error("`:`, `,` or `]`")
        if not is_slice:
            if parts[0] is None:
                raise self.error("an index")
            return _position(parts[0])
        return _slice(parts)


def _name(name: str) -> Node:
    def node(names: Names) -> Any:
        try:
            return _wide(names(name))
        except KeyError:
            raise ConditionFailed(f"`{name}` has no value here") from None

    return node


def _or(left: Node, right: Node) -> Node:
    return lambda names: _truth(left(names)) or _truth(right(names))


def _and(left: Node, right: Node) -> Node:
    return lambda names: _truth(left(names)) and _truth(right(names))


def _not(node: Node, is_odd: bool) -> Node:
    return lambda names: _truth(node(names)) ^ is_odd


def _truth(value: Any) -> bool:
    array = np.asarray(value)
    if array.size != 1:
        raise ConditionFailed(
            f"an array of shape {array.shape} is neither true nor false: use any(…) or all(…)"
        )
    return bool(array.reshape(()))


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": np.equal,
    "!=": np.not_equal,
    "<=": np.less_equal,
    ">=": np.greater_equal,
    "<": np.less,
    ">": np.greater,
}


def _compared(first: Node, links: Sequence[tuple[str, Node]]) -> Node:
    def node(names: Names) -> Any:
        left = first(names)
        result: Any = None
        for sign, other in links:
            right = other(names)
            if isinstance(left, tuple) and isinstance(right, tuple) and sign in ("==", "!="):
                found: Any = (left == right) == (sign == "==")
            else:
                found = _COMPARE[sign](left, right)
            result = found if result is None else np.logical_and(result, found)
            left = right
        return result

    return node


_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.true_divide,
    "//": np.floor_divide,
    "%": np.mod,
    "**": np.power,
}


def _binary(sign: str, left: Node, right: Node) -> Node:
    function = _ARITHMETIC[sign]

    def node(names: Names) -> Any:
        a, b = left(names), right(names)
        if sign == "**" and np.ndim(a) == 0 and np.ndim(b) == 0:
            return np.power(np.float64(a), np.float64(b))  # integers may not be large enough
        if sign == "-" and np.asarray(a).dtype == bool and np.asarray(b).dtype == bool:
            a = np.asarray(a, int)
        return function(a, b)

    return node


def _negative(node: Node) -> Node:
    return lambda names: np.negative(node(names))


def _indexed(node: Node, entries: Sequence[Node]) -> Node:
    def indexed(names: Names) -> Any:
        value = node(names)
        index = tuple(entry(names) for entry in entries)
        if isinstance(value, tuple):
            (position,) = index
            return value[position]
        return np.asarray(value)[index]

    return indexed


def _position(node: Node) -> Node:
    def position(names: Names) -> int:
        value = np.asarray(node(names))
        if value.size != 1 or value.dtype.kind not in "iub":
            raise ConditionFailed(f"an index is {value.tolist()!r:.40}, not an integer")
        return int(value.reshape(()))

    return position


def _slice(parts: Sequence[Node | None]) -> Node:
    positions = [None if part is None else _position(part) for part in parts]
    return lambda names: slice(*(None if p is None else p(names) for p in positions))


def _called(function: Callable[..., Any], arguments: Sequence[Node]) -> Node:
    return lambda names: function(*(argument(names) for argument in arguments))
