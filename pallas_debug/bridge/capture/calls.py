"""Source locations of `pallas_call` calls and of their arguments.

Parses the source with `ast`; nothing is imported or run. A spec assigned to a name in the same
function resolves to the line of that assignment.
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterable

from pallas_debug.bridge.jaxprs import lines
from pallas_debug.model import SourceLine

_CALLEES = {"pallas_call"}
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class CallSite:
    """The `pl.pallas_call(...)` on the call stack that led to a kernel.

    Args:
      calls: files and lines of that stack.
    """

    def __init__(self, calls: Iterable[tuple[str, int]]) -> None:
        self._calls = tuple(calls)

    @functools.cached_property
    def _found(self) -> tuple[str, ast.Call, _Function | None] | None:
        """File, call and enclosing function; None unless exactly one call is found."""
        sites = {
            (file, call.lineno): (file, call, function)
            for file, line in self._calls
            for call, function in _calls_at(file, line)
        }
        return next(iter(sites.values())) if len(sites) == 1 else None

    def holds(self, line: SourceLine) -> bool:
        """Return whether a line is in the function that makes the call, or none was found."""
        if self._found is None:
            return True
        file, _, function = self._found
        if file != line.file or function is None:
            return file == line.file
        return function.lineno <= line.line <= (function.end_lineno or function.lineno)

    def block_line(self, index_map: SourceLine | None, group: str, index: int) -> SourceLine | None:
        """The line that determines an operand's blocks; None if it is not found.

        Args:
          index_map: line of the index map; None if jax made it.
          group: argument of the call that has the operand's spec: "in_specs" or "out_specs".
          index: index of the spec in that argument.

        Returns:
          The index map's line if it is in the function that calls the kernel, otherwise the line of
          the operand's spec among the arguments of the call.
        """
        if index_map is not None and self.holds(index_map):
            return index_map
        return self.line(group, index) or index_map

    def line(self, keyword: str | None = None, index: int = 0) -> SourceLine | None:
        """Line of an argument, or of an element of a list; without `keyword`, of the call."""
        if self._found is None:
            return None
        file, call, function = self._found
        node: ast.expr | None = call if keyword is None else _argument(call, keyword, function)
        if node is None:
            return None
        if keyword is not None:
            node = _element(node, index, function)
        name = function.name if function else None
        return lines.line_of(file, node.lineno, name)


def _calls_at(file: str, line: int) -> tuple[tuple[ast.Call, _Function | None], ...]:
    text = "".join(linecache.getlines(file))
    if not any(name in text for name in _CALLEES):  # as in most files on the stack
        return ()
    return _calls_in(lines.tree(file), line)


@functools.lru_cache(maxsize=256)
def _calls_in(tree: ast.Module, line: int) -> tuple[tuple[ast.Call, _Function | None], ...]:
    """The call that a line belongs to, if any, and its function.

    Cached, because a program may create many kernels at one line, and a search walks the whole
    tree.
    """
    function = _around(tree, line)
    here = function or tree
    calls = [node for node in ast.walk(here) if isinstance(node, ast.Call)]
    spanning = [c for c in calls if c.lineno <= line <= (c.end_lineno or c.lineno)]
    found = [c for c in spanning if _called(c) in _CALLEES]
    if not found:  # `call = pl.pallas_call(...)` earlier, `call(x)` here
        assigned = [
            _assigned(c.func.id, function) for c in spanning if isinstance(c.func, ast.Name)
        ]
        found = [c for c in assigned if isinstance(c, ast.Call) and _called(c) in _CALLEES]
    return tuple((call, function) for call in found[:1])


def _around(tree: ast.Module, line: int) -> _Function | None:
    """The innermost function that contains a line."""
    functions = [
        node
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return max(functions, key=lambda f: f.lineno, default=None)


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _argument(call: ast.Call, keyword: str, function: _Function | None) -> ast.expr | None:
    """A keyword argument of the call or of its `grid_spec`."""
    given = {k.arg: k.value for k in call.keywords}
    if keyword in given:
        return given[keyword]
    spec = given.get("grid_spec")
    if isinstance(spec, ast.Name):
        spec = _assigned(spec.id, function)
    if isinstance(spec, ast.Call):
        return next((k.value for k in spec.keywords if k.arg == keyword), None)
    return None


def _element(node: ast.expr, index: int, function: _Function | None) -> ast.expr:
    """Element `index` of a list, with names resolved within the function."""
    node = _resolved(node, function)
    if isinstance(node, (ast.List, ast.Tuple)) and index < len(node.elts):
        node = _resolved(node.elts[index], function)
    return node


def _resolved(node: ast.expr, function: _Function | None) -> ast.expr:
    if isinstance(node, ast.Name):
        return _assigned(node.id, function) or node
    return node


def _assigned(name: str, function: _Function | None) -> ast.expr | None:
    """The last value that a function assigns to a name."""
    found = None
    for node in ast.walk(function) if function else ():
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == name for target in node.targets
        ):
            found = node.value
    return found
