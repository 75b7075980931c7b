"""Whole numbers, ranges and lists, as `n*64`, `1..8` and `64,128`."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pallas_debug.errors import UsageError, meant

Values = Mapping[str, Any]

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}

_FUNCTIONS: dict[str, Callable[..., int]] = {"min": min, "max": max}


@dataclass(frozen=True, kw_only=True)
class Number:
    """A whole number computed from variables with `+ - * // %`, `min` and `max`.

    Attributes:
      text: as written.
      names: of the variables.
    """

    text: str
    names: frozenset[str]
    tree: ast.expr

    def value(self, values: Values) -> int:
        """Return its value.

        Raises:
          UsageError: it divides by zero, or a variable is no whole number.
        """
        try:
            return _value(self.tree, values)
        except ZeroDivisionError as error:
            raise UsageError(f"{self.text!r} divides by zero, with {shown(values)}") from error
        except TypeError as error:
            raise UsageError(f"{self.text!r} needs whole numbers, not {shown(values)}") from error


@dataclass(frozen=True, kw_only=True)
class Range:
    """The whole numbers from one to another, both included."""

    low: Number
    high: Number

    @property
    def names(self) -> frozenset[str]:
        return self.low.names | self.high.names


def number(text: str, known: Iterable[str], where: str) -> Number:
    """Parse a number.

    Args:
      known: names of variables that it may use.
      where: what it is written in, for messages.

    Raises:
      UsageError: it is not a number, or uses an unknown variable.
    """
    known = list(known)
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        tree = ast.Constant(None)
    if not _is_number(tree):
        raise UsageError(
            f"{where}: {text.strip()!r} is not a whole number such as 128, n, n*64 or max(n, 8)"
        )
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - set(_FUNCTIONS)
    unknown = sorted(names - set(known))
    if unknown:
        raise UsageError(
            f"{where}: nothing says what {unknown[0]!r} is{meant(unknown[0], known)}; "
            f"--let {unknown[0]}=1..8 does"
        )
    return Number(text=text.strip(), names=frozenset(names), tree=tree)


def numbers_from_to(text: str, known: Iterable[str], where: str) -> Range:
    """Parse a range such as `0..n*64`, both ends included."""
    low, dots, high = text.partition("..")
    if not dots:
        raise UsageError(f"{where}: {text.strip()!r} is not a range such as 0..512")
    known = list(known)
    return Range(low=number(low, known, where), high=number(high, known, where))


def shown(values: Values) -> str:
    """Format the values of variables: `n=3, block=64`."""
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def _is_number(tree: ast.AST) -> bool:
    match tree:
        case ast.Constant(value):
            return type(value) is int
        case ast.Name():
            return True
        case ast.UnaryOp(op=ast.USub()):
            return _is_number(tree.operand)
        case ast.BinOp():
            return type(tree.op) in _OPERATORS and all(map(_is_number, (tree.left, tree.right)))
        case ast.Call(func=ast.Name(id=name), keywords=[]):
            return name in _FUNCTIONS and bool(tree.args) and all(map(_is_number, tree.args))
    return False


def _value(tree: ast.expr, values: Values) -> int:
    match tree:
        case ast.Constant(value):
            return int(value)  # type: ignore[arg-type]
        case ast.Name(id=name):
            return operator.index(values[name])
        case ast.UnaryOp():
            return -_value(tree.operand, values)
        case ast.BinOp():
            sides = _value(tree.left, values), _value(tree.right, values)
            return _OPERATORS[type(tree.op)](*sides)
        case ast.Call(func=ast.Name(id=name)):
            given = [_value(one, values) for one in tree.args]
            return min(given) if name == "min" else max(given)
    raise AssertionError(tree)


IS_NAME = re.compile(r"[A-Za-z_]\w*")
"""A variable."""
