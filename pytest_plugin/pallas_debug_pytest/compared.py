"""Arrays that a failed test compared, from the frames of its traceback. No jax.

Nothing is evaluated again. Of an `assert`, pytest keeps each intermediate value in a variable of
the frame; rewriting the statement once more tells which is which.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import ast
import linecache
import re
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

Pair = tuple[Any, Any]

_NUMPY = re.compile(r"[/\\]numpy[/\\]testing[/\\]")
_JAX_TESTS = re.compile(r"[/\\]jax[/\\]_src[/\\](public_)?test_util\.py$")
_CHEX = re.compile(r"[/\\]chex[/\\]_src[/\\]asserts_internal\.py$")
_UNITTEST = re.compile(r"[/\\](unittest[/\\]case|absl[/\\]testing[/\\]absltest)\.py$")
_COMPARES = ("assert_allclose", "assert_array_almost_equal", "assert_array_equal")
_COMPARES_IN_JAX = ("assertAllClose", "assertArraysAllClose")
_COMPARES_IN_CHEX = ("assert_trees_all_close", "assert_trees_all_equal")

_CLOSE = ("allclose", "array_equal")
_OPERANDS = ("a", "b", "a1", "a2")
_DISTANCE = ("abs", "absolute")
_LESS, _GREATER = (ast.Lt, ast.LtE), (ast.Gt, ast.GtE)
_LESS_IN_UNITTEST = ("assertLess", "assertLessEqual")


def arrays(error: BaseException, config: pytest.Config) -> Pair | None:
    """Return the arrays whose comparison failed a test, actual values first; None if unknown."""
    if not isinstance(error, AssertionError):
        return None
    frames = list(_frames(error))
    if not frames:
        return None
    called = _of_a_function(frames)
    if called is not None:
        return called
    frame, line = frames[-1]
    for outer, at in reversed(frames):
        if not _UNITTEST.search(outer.f_code.co_filename):
            frame, line = outer, at
            break
    return _of_a_statement(frame, line, config)


def _frames(error: BaseException) -> Iterator[tuple[types.FrameType, int]]:
    """Yield the frames of a traceback and their lines, innermost last."""
    traceback = error.__traceback__
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next


def _of_a_function(frames: list[tuple[types.FrameType, int]]) -> Pair | None:
    """Arrays that NumPy compares, as the test utilities of jax or chex got them.

    jax's widen narrow floats, and chex raises an exception of its own.
    """
    given: Pair | None = None
    for frame, _ in frames:
        code, values = frame.f_code, frame.f_locals
        if _CHEX.search(code.co_filename) and values.get("name") in _COMPARES_IN_CHEX:
            return _both(values["args"])
        if code.co_name in _COMPARES_IN_JAX and _JAX_TESTS.search(code.co_filename):
            given = _both((values.get("actual"), values.get("desired"))) or given
        elif code.co_name in _COMPARES and _NUMPY.search(code.co_filename):
            return given or (values["actual"], values["desired"])
    return None


def _both(values: tuple[Any, ...]) -> Pair | None:
    """Return two values if they are arrays, not trees of them."""
    if len(values) != 2 or not all(hasattr(value, "dtype") for value in values):
        return None
    return values[0], values[1]


def _of_a_statement(frame: types.FrameType, line: int, config: pytest.Config) -> Pair | None:
    """Arrays that a failed `assert`, `assertTrue` or `assertLess` compares."""
    file = frame.f_code.co_filename
    source = "".join(linecache.getlines(file, frame.f_globals))
    if not source:
        return None
    statement = _statement_at(ast.parse(source), line)
    values = {**frame.f_globals, **frame.f_locals}
    if isinstance(statement, ast.Assert):
        if any(name.startswith("@py_") for name in frame.f_locals):
            return _of_rewritten(source, file, statement, values, config)
        return _pair(statement.test, values, {})
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="assertTrue"), args=[test, *_])):
            return _pair(test, values, {})
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name), args=[distance, *_])):
            if name in _LESS_IN_UNITTEST:
                return _resolved(_difference(distance, {}), values)
    return None


def _statement_at(tree: ast.Module, line: int) -> ast.stmt | None:
    """Return the innermost statement at a line."""
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, (ast.Assert, ast.Expr))
        and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return max(found, key=lambda node: node.lineno, default=None)


def _of_rewritten(
    source: str, file: str, statement: ast.Assert, values: Mapping[str, Any], config: pytest.Config
) -> Pair | None:
    from _pytest.assertion.rewrite import rewrite_asserts

    tree = ast.Module([statement], [])  # each statement numbers its variables from 1
    rewrite_asserts(tree, source.encode(), file, config)
    assigned: dict[str, ast.expr] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(value=ast.Constant(value=None)):
                pass  # cleared at the end
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name.startswith("@py_"):
                assigned[name] = value
    for name, value in assigned.items():
        result = values.get(name)
        if result is None or np.all(np.asarray(result)):
            continue  # not evaluated, or it holds
        pair = _pair(value, values, assigned)
        if pair is not None:
            return pair
    return None


def _pair(
    test: ast.expr, values: Mapping[str, Any], assigned: Mapping[str, ast.expr]
) -> Pair | None:
    """Arrays that an expression compares, which is false.

    Args:
      values: values of names.
      assigned: expressions that names stand for.
    """
    match test:
        case ast.Call(func=func, args=args) if _name(func, assigned) in _CLOSE:
            named = {keyword.arg: keyword.value for keyword in test.keywords}
            both = [*args, *(named[name] for name in _OPERANDS if name in named)]
            return _resolved((both[0], both[1]), values) if len(both) > 1 else None
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            if isinstance(op, _LESS):
                return _resolved(_difference(left, assigned), values)
            if isinstance(op, _GREATER):
                return _resolved(_difference(right, assigned), values)
    return None


def _name(function: ast.expr, assigned: Mapping[str, ast.expr]) -> str:
    """Last part of a function's name."""
    if isinstance(function, ast.Name):
        return _name(assigned[function.id], assigned) if function.id in assigned else function.id
    return function.attr if isinstance(function, ast.Attribute) else ""


def _difference(
    distance: ast.expr, assigned: Mapping[str, ast.expr]
) -> tuple[ast.expr, ast.expr] | None:
    """Find the operands of `abs(a - b)`, or of its largest element or mean."""
    distance = _opened(distance, assigned)
    if not isinstance(distance, ast.Call):
        return None
    name, function = _name(distance.func, assigned), _opened(distance.func, assigned)
    inner = distance.args[0] if distance.args else getattr(function, "value", None)
    if inner is None:
        return None
    if name not in _DISTANCE:
        return _difference(inner, assigned) if name in ("max", "mean", "amax") else None
    match _opened(inner, assigned):
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return left, right
    return None


def _opened(expression: ast.expr, assigned: Mapping[str, ast.expr]) -> ast.expr:
    while isinstance(expression, ast.Name) and expression.id in assigned:
        expression = assigned[expression.id]
    return expression


def _resolved(pair: tuple[ast.expr, ast.expr] | None, values: Mapping[str, Any]) -> Pair | None:
    """Values of two expressions, if they are names."""
    if pair is None:
        return None
    names = [one.id for one in pair if isinstance(one, ast.Name) and one.id in values]
    return (values[names[0]], values[names[1]]) if len(names) == len(pair) else None
