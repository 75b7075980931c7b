"""Expressions over a kernel's values: a part of Python, parsed by `ast` and evaluated here.

    m_new[0, 3] > 1e4 and i == 2
    any(isnan(acc_ref[...])) or max(abs(s - 1)) > 3

Names are those of values, of grid axes (`i`, `j`, `k`, …) and `iteration`. Imports no jax.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import reduce
from types import EllipsisType
from typing import Any

import numpy as np

from pallas_debug.errors import PallasDebugError, UsageError

Names = Callable[[str], Any]
"""Function that returns the value of a name; raises `KeyError` if it has none."""

MAX_LENGTH = 2000
"""Maximum number of characters of an expression."""

MAX_DEPTH = 50
"""Maximum depth of nested operations, indices and calls."""

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "any": np.any,
    "all": np.all,
    "min": lambda *x: np.min(x[0]) if len(x) == 1 else np.minimum(*x),
    "max": lambda *x: np.max(x[0]) if len(x) == 1 else np.maximum(*x),
    "sum": np.sum,
    "mean": np.mean,
    "abs": np.abs,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "shape": lambda x: tuple(np.shape(x)),
}
"""Functions of one array; `min` and `max` also accept two."""

_GRID = ("program_id", "num_programs")

_ACCEPTED = (
    "\nuse names, numbers below 2**64, indices, comparisons, arithmetic, `and`, `or`, `not`, "
    f"{', '.join(FUNCTIONS)} of one array (min and max: or two), whole(NAME), program_id(AXIS), "
    "num_programs(AXIS)"
)


def _equal(a: Any, b: Any) -> Any:
    return a == b if isinstance(a, tuple) and isinstance(b, tuple) else np.equal(a, b)


def _power(a: Any, b: Any) -> Any:
    if np.ndim(a) or np.ndim(b):
        return np.power(a, b)
    with np.errstate(over="raise"):  # Python's integers could grow without limit
        return np.power(np.float64(a), np.float64(b))


_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: np.add, ast.Mult: np.multiply, ast.Div: np.true_divide, ast.Mod: np.mod,
    ast.Sub: lambda a, b: np.subtract(np.multiply(a, 1), b),  # numpy subtracts no bools
    ast.FloorDiv: np.floor_divide, ast.Pow: _power,
    ast.Eq: _equal, ast.NotEq: lambda a, b: np.logical_not(_equal(a, b)),
    ast.Lt: np.less, ast.LtE: np.less_equal, ast.Gt: np.greater, ast.GtE: np.greater_equal,
    ast.USub: np.negative, ast.UAdd: np.asarray, ast.Not: lambda a: not _truth(a),
}  # fmt: skip


class ConditionError(UsageError):
    """Text that is not an expression, or uses Python that expressions do not have."""

    def __init__(self, text: str, position: int, problem: str, advice: str = "") -> None:
        place = f"column {position + 1} of the expression"
        super().__init__(f"{place}: {problem}\n  {text}\n  {' ' * position}^{advice}")


class ConditionFailed(UsageError):
    """An expression that cannot be evaluated on the values at this place."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression."""

    text: str
    _known: frozenset[str]
    _body: ast.expr

    def evaluate(self, names: Names) -> Any:
        """Evaluate on the values of names; return a number, a bool, an array or a tuple.

        Raises:
          ConditionFailed: a name has no value, or an operation does not apply to its operands.
        """
        return self._guarded(lambda: self._value(self._body, names))

    def holds(self, names: Names) -> bool:
        """Return whether a condition is true; raises as `evaluate` does."""
        return bool(self._guarded(lambda: _truth(self._value(self._body, names))))

    def positions(self, shape: tuple[int, ...], names: Names) -> Any:
        """Return flat positions of the elements that a part selects; raises as `evaluate` does."""

        def select() -> Any:
            whole = np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape)
            indices = (self._index(index, names) for index in self.part()[1])
            return np.asarray(reduce(operator.getitem, indices, whole))

        return self._guarded(select)

    def part(self) -> tuple[str | None, list[ast.expr]]:
        """Return the name of which the expression is a part, or None, and the indices into it."""
        node, indices = self._body, list[ast.expr]()
        while isinstance(node, ast.Subscript) and self._name(node) is None:
            indices.insert(0, node.slice)
            node = node.value
        return self._name(node), indices

    def check(self) -> None:
        """Raise `ConditionError` at what expressions do not have, before anything is evaluated."""
        nodes = [(self._body, 1)]
        while nodes:
            node, depth = nodes.pop()
            position = len(self.text.encode()[: node.col_offset].decode())
            if depth > MAX_DEPTH:
                problem = f"it is nested more than {MAX_DEPTH} levels deep"
                raise ConditionError(self.text, position, problem)
            if self._name(node) is not None:
                continue
            if not _is_accepted(node):
                problem = f"`{self._segment(node):.40}` is not accepted"
                raise ConditionError(self.text, position, problem, _ACCEPTED)
            inner = node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node)
            children = [child for child in inner if isinstance(child, ast.expr)]
            nodes += ((child, depth + 1) for child in reversed(children))

    def _segment(self, node: ast.expr) -> str:
        # Columns of a tree count bytes.
        return self.text.encode()[node.col_offset : node.end_col_offset].decode()

    def _name(self, node: ast.expr) -> str | None:
        """Return the name whose value a node is: `x`, `args[1]`, `whole(x)`, `program_id(0)`."""
        match node:
            case ast.Name(id=name):
                return name if name not in ("inf", "nan") else None
            case ast.Subscript() | ast.Attribute():
                text = self._segment(node)
                return text if text in self._known else None
            case ast.Call(func=ast.Name(id="whole"), args=[operand], keywords=[]):
                inner = self._name(operand)
                return inner and f"whole({inner})"
            case ast.Call(func=ast.Name(id=called), args=[axis], keywords=[]) if called in _GRID:
                number = self._segment(axis)
                return f"{called}({number})" if number.isdecimal() else None
        return None

    def _value(self, node: ast.expr, names: Names) -> Any:
        name = self._name(node)
        if name is not None:
            return _named(name, names)
        match node:
            case ast.Name(id=word):
                return float(word)  # inf or nan
            case ast.Constant(value=int() | float() as number):
                return number
            case ast.BoolOp(op=op, values=values):
                test = any if isinstance(op, ast.Or) else all
                return test(_truth(self._value(value, names)) for value in values)
            case ast.UnaryOp(op=op, operand=operand):
                return _OPERATORS[type(op)](self._value(operand, names))
            case ast.BinOp(left=left, op=op, right=right):
                return _OPERATORS[type(op)](self._value(left, names), self._value(right, names))
            case ast.Compare(left=left, ops=ops, comparators=others):
                values = [self._value(value, names) for value in (left, *others)]
                pairs = zip(ops, values, values[1:], strict=False)
                return reduce(np.logical_and, [_OPERATORS[type(op)](a, b) for op, a, b in pairs])
            case ast.Tuple(elts=parts):
                return tuple(self._value(part, names) for part in parts)
            case ast.Subscript(value=whole, slice=index):
                value, at = self._value(whole, names), self._index(index, names)
                return value[at[0]] if isinstance(value, tuple) else np.asarray(value)[at]
            case ast.Call(func=ast.Name(id=called), args=arguments):
                return FUNCTIONS[called](*(self._value(value, names) for value in arguments))
        raise ValueError(f"`{self._segment(node)}` has no value outside an index")

    def _index(self, node: ast.expr, names: Names) -> tuple[Any, ...]:
        def integer(node: ast.expr | None) -> int | None:
            return None if node is None else operator.index(self._value(node, names))

        def entry(node: ast.expr) -> Any:
            if isinstance(node, ast.Slice):
                return slice(*map(integer, (node.lower, node.upper, node.step)))
            is_rest = isinstance(node, ast.Constant) and node.value is ...
            return ... if is_rest else integer(node)

        return tuple(map(entry, node.elts if isinstance(node, ast.Tuple) else [node]))

    def _guarded(self, compute: Callable[[], Any]) -> Any:
        try:
            with np.errstate(all="ignore"):
                return compute()
        except PallasDebugError:
            raise
        except Exception as error:
            message = " ".join(str(error).split())
            raise ConditionFailed(f"`{self.text}` cannot be evaluated: {message}") from error


def parse(text: str, known: Collection[str] = ()) -> Expression:
    """Parse an expression; `known` are names, also such as `args[2]`, of a kernel with `*args`.

    Raises:
      ConditionError: it is not Python, or uses Python that expressions do not have.
    """
    text = text.strip()
    if len(text) > MAX_LENGTH:
        problem = f"it has {len(text):,} characters, more than {MAX_LENGTH:,}"
        raise ConditionError(f"{text[:60]}…", 0, problem)
    if len(text.splitlines()) > 1:
        raise ConditionError(text.splitlines()[0], 0, "it has several lines; write it in one")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the parser, such as an invalid escape in a string
            expression = Expression(text, frozenset(known), ast.parse(text, mode="eval").body)
    except SyntaxError as error:
        position = min(error.offset - 1 if error.offset else len(text), len(text))
        found = repr(text[position : position + 12]) if position < len(text) else "the end"
        problem = f"this is not Python: {error.msg}, at {found}"
        raise ConditionError(text, position, problem, _ACCEPTED) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ConditionError(text, 0, f"Python cannot parse it: {error}") from None
    expression.check()
    return expression


def parse_part(text: str, known: Collection[str] = ()) -> tuple[str, Expression]:
    """Parse a name, or an index of one: `acc_ref`, `acc_ref[0, :8]`, `whole(out_ref)[5, 3]`.

    Returns:
      The name, `whole(…)` included, and the whole expression.

    Raises:
      ConditionError: it is something else.
    """
    expression = parse(text, known)
    name, _ = expression.part()
    if name is None:
        problem = "expected a name, or one with an index, such as acc_ref[0, 3]"
        raise ConditionError(expression.text, 0, problem)
    return name, expression


def _is_accepted(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=value):
            is_small = isinstance(value, int) and value < 2**64
            return is_small or isinstance(value, (float, EllipsisType))
        case ast.UnaryOp(op=op) | ast.BinOp(op=op):
            return type(op) in _OPERATORS
        case ast.Compare(ops=ops):
            return all(type(op) in _OPERATORS for op in ops)
        case ast.Call(func=ast.Name(id=called), args=arguments, keywords=[]):
            most = 2 if called in ("min", "max") else 1
            return called in FUNCTIONS and 1 <= len(arguments) <= most
    return isinstance(node, (ast.BoolOp, ast.Subscript, ast.Slice, ast.Tuple, ast.Name))


def _named(name: str, names: Names) -> Any:
    """Return the value of a name; bfloat16 and the like, which numpy lacks, become float32."""
    try:
        array = np.asarray(names(name))
    except KeyError:
        raise ConditionFailed(f"`{name}` has no value here") from None
    return array.astype(np.float32) if array.dtype.kind == "V" or array.dtype.num > 25 else array


def _truth(value: Any) -> bool:
    array = np.asarray(value)
    if array.size != 1:
        raise ValueError(
            f"an array of shape {array.shape} is neither true nor false; use any(…) or all(…)"
        )
    return bool(array.reshape(()))
