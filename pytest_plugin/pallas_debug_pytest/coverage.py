"""`--pallas-coverage`: kernels defined in the source files of a run, but never launched.

Definitions are found in the syntax trees of imported modules below the root directory: calls of
`pallas_call`, `kernel`, `mpmd_map` and `core_map`. The session reports launches. No jax.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from pallas_debug.model import Kernel

CALLS = ("pallas_call", "core_map", "mpmd_map")
_KERNEL = "kernel"
_MODULES = ("pl", "pltpu", "plgpu", "plsc", "pallas")
"""Modules of pallas. `kernel` is a common name, so it counts only if it comes from one of them."""
_NOT_OURS = ("site-packages", "dist-packages")
MAX_LINES = 50

Line = tuple[str, int]
_Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, kw_only=True)
class Function:
    """Location of a kernel function, including its decorators."""

    file: str
    first: int
    last: int

    def holds(self, line: Line) -> bool:
        return line[0] == self.file and self.first <= line[1] <= self.last


@dataclass(frozen=True, kw_only=True)
class Definition:
    """Call that creates a kernel.

    Attributes:
      kernels: functions with which it may be called; empty if the syntax does not determine them.
      around: the enclosing function, or the call itself.
    """

    line: int
    name: str
    kernels: tuple[Function, ...]
    around: Function


class Coverage:
    """Tracks which of the defined kernels were launched in this process.

    Args:
      root: directory; only files below it count.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._kernels: set[Line] = set()
        self._calls: set[Line] = set()

    def launched(self, kernel: Kernel, calls: Iterable[Line]) -> None:
        """Record the launch of a kernel, with the lines of its callers."""
        if kernel.source is not None:
            self._kernels.add((kernel.source.file, kernel.source.line))
        self._calls.update(calls)

    def result(self) -> dict[str, bool]:
        found = {}
        for file in _files(self._root):
            for definition in definitions(file):
                place = file.relative_to(self._root)
                found[f"{place}:{definition.line} {definition.name}"] = self._was(definition)
        return found

    def _was(self, definition: Definition) -> bool:
        for function in definition.kernels:
            if any(function.holds(line) for line in self._kernels):
                return True
        # If the kernel function is unknown, its caller identifies it.
        return not definition.kernels and any(map(definition.around.holds, self._calls))


def lines(results: Iterable[Mapping[str, bool]]) -> list[str]:
    """Return summary lines on the kernels that no worker launched."""
    launched: dict[str, bool] = {}
    for result in results:
        for place, was in result.items():
            launched[place] = launched.get(place, False) or was
    if not launched:
        return ["no kernel is defined by the files of this run"]
    missing = sorted((p for p, was in launched.items() if not was), key=_in_order)
    found = [f"never launched: {place}" for place in missing[:MAX_LINES]]
    if len(missing) > MAX_LINES:
        found.append(f"… and {len(missing) - MAX_LINES} more")
    return [*found, f"{len(launched) - len(missing)} of {len(launched)} kernels launched"]


def _in_order(place: str) -> tuple[str, int]:
    file, _, rest = place.rpartition(":")
    return file, int(rest.partition(" ")[0])


def _files(root: Path) -> list[Path]:
    """Return the source files of imported modules below `root`."""
    environment = Path(sys.prefix)
    found = set()
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        if not isinstance(name, str) or not name.endswith(".py"):
            continue
        file = Path(name)
        if file.is_relative_to(root) and not _is_installed(file, environment):
            found.add(file)
    return sorted(found)


def _is_installed(file: Path, environment: Path) -> bool:
    return file.is_relative_to(environment) or not set(_NOT_OURS).isdisjoint(file.parts)


def definitions(file: Path) -> list[Definition]:
    try:
        source = file.read_text(encoding="utf-8")
        if not any(name in source for name in (*CALLS, _KERNEL)):
            return []
        tree = ast.parse(source)
    except (OSError, ValueError, SyntaxError):
        return []
    return list(_Reader(str(file), tree).read())


class _Reader:
    """Finds the definitions in one file."""

    def __init__(self, file: str, tree: ast.Module) -> None:
        self._file = file
        self._tree = tree
        self._names = _imported(tree)

    def read(self) -> Iterator[Definition]:
        yield from self._within(self._tree, (self._tree,))

    def _within(self, node: ast.AST, scopes: tuple[_Scope, ...]) -> Iterator[Definition]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from self._decorated(child)
            if isinstance(child, ast.Call) and self._makes_kernels(child.func):
                yield from self._called(child, scopes)
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                yield from self._within(child, (*scopes, child))
            else:
                yield from self._within(child, scopes)

    def _makes_kernels(self, function: ast.expr) -> bool:
        if isinstance(function, ast.Attribute):
            if function.attr == _KERNEL:
                return isinstance(function.value, ast.Name) and function.value.id in _MODULES
            return function.attr in CALLS
        return isinstance(function, ast.Name) and self._names.get(function.id) in (*CALLS, _KERNEL)

    def _decorated(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Definition]:
        """Handle `@pl.kernel(...)`, `@pl.core_map(mesh)`, `@functools.partial(pl.kernel, ...)`."""
        for decorator in function.decorator_list:
            named = [decorator]
            if isinstance(decorator, ast.Call):
                named = [decorator.func, *(decorator.args[:1] if _is_partial(decorator) else [])]
            if any(self._makes_kernels(one) for one in named):
                yield self._definition(function, function.name, (self._place(function),))

    def _called(self, call: ast.Call, scopes: tuple[_Scope, ...]) -> Iterator[Definition]:
        kernel = next((k.value for k in call.keywords if k.arg in ("kernel", "body")), None)
        kernel = call.args[0] if call.args else kernel
        is_decorator = kernel is None or self._is_decorator(call, scopes)
        if kernel is None or is_decorator:
            return
        found = tuple(dict.fromkeys(self._functions(kernel, scopes, 0)))
        name = _written(kernel) if found else _around(scopes)
        yield self._definition(call, name, found, scopes)

    def _is_decorator(self, call: ast.Call, scopes: tuple[_Scope, ...]) -> bool:
        """Return whether a call is a decorator, which takes no kernel function as its argument."""
        name = (
            call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        )
        return name == "core_map" or any(
            call in function.decorator_list
            for function in ast.walk(scopes[-1])
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        )

    def _definition(
        self,
        node: ast.expr | ast.FunctionDef | ast.AsyncFunctionDef,
        name: str,
        kernels: tuple[Function, ...],
        scopes: tuple[_Scope, ...] = (),
    ) -> Definition:
        inside = [s for s in scopes if not isinstance(s, ast.Module)]
        return Definition(
            line=node.lineno,
            name=name,
            kernels=kernels,
            around=self._place(inside[-1] if inside else node),
        )

    def _functions(
        self, node: ast.expr, scopes: tuple[_Scope, ...], depth: int
    ) -> Iterator[Function]:
        """Yield functions that an expression may refer to, judging by the file and its imports."""
        if depth > 8:  # x = partial(x)
            return
        if isinstance(node, ast.Lambda):
            yield self._place(node)
        elif isinstance(node, ast.Call) and node.args:  # functools.partial(kernel, …) and similar
            yield from self._functions(node.args[0], scopes, depth + 1)
        elif isinstance(node, ast.IfExp):
            yield from self._functions(node.body, scopes, depth + 1)
            yield from self._functions(node.orelse, scopes, depth + 1)
        elif isinstance(node, ast.Name):
            yield from self._named(node.id, scopes, depth)
        elif isinstance(node, ast.Attribute):
            yield from self._imported_function(node)

    def _named(self, name: str, scopes: tuple[_Scope, ...], depth: int) -> Iterator[Function]:
        for i in range(len(scopes), 0, -1):
            scope = scopes[i - 1]
            found = list(self._bound(name, scope, scopes[:i], depth))
            if found:
                yield from found
                return
            if name in _parameters(scope):
                return
        yield from self._imported_function(ast.Name(id=name))

    def _bound(
        self, name: str, scope: _Scope, scopes: tuple[_Scope, ...], depth: int
    ) -> Iterator[Function]:
        for node in _own_nodes(scope):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
                yield self._place(node)
            elif isinstance(node, ast.Assign) and name in _assigned(node):
                yield from self._functions(node.value, scopes, depth + 1)

    def _imported_function(self, node: ast.expr) -> Iterator[Function]:
        """Look up the function in the module object: the run has imported it."""
        module = next(
            (m for m in list(sys.modules.values()) if getattr(m, "__file__", None) == self._file),
            None,
        )
        found = _looked_up(node, module)
        while hasattr(found, "func") or hasattr(found, "__wrapped__"):
            found = getattr(found, "func", None) or getattr(found, "__wrapped__", None)
        code = getattr(found, "__code__", None)
        if code is not None:
            last = max((line for *_, line in code.co_lines() if line), default=code.co_firstlineno)
            yield Function(file=code.co_filename, first=code.co_firstlineno, last=last)

    def _place(self, node: ast.AST) -> Function:
        assert not isinstance(node, ast.Module)
        decorators = [d.lineno for d in getattr(node, "decorator_list", [])]
        first = min([node.lineno, *decorators])  # type: ignore[attr-defined]
        return Function(file=self._file, first=first, last=node.end_lineno or first)  # type: ignore[attr-defined]


def _own_nodes(scope: _Scope) -> Iterator[ast.AST]:
    """Yield the statements of a scope, without those of nested functions."""
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop(0)
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.expr):
            waiting += ast.iter_child_nodes(node)


def _assigned(node: ast.Assign) -> set[str]:
    return {target.id for target in node.targets if isinstance(target, ast.Name)}


def _parameters(scope: _Scope) -> set[str]:
    if isinstance(scope, ast.Module):
        return set()
    given = scope.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return {argument.arg for argument in every if argument is not None}


def _imported(tree: ast.Module) -> dict[str, str]:
    """Return the names in the file that refer to something in pallas, with their names there."""
    return {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and "pallas" in (node.module or "")
        for alias in node.names
    }


def _is_partial(call: ast.Call) -> bool:
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name == "partial"


def _looked_up(node: ast.expr, module: ModuleType | None) -> object:
    """Look up `name` or `module.name`; nothing else, because attributes of objects may run code."""
    if isinstance(node, ast.Name):
        return vars(module).get(node.id) if module is not None else None
    if isinstance(node, ast.Attribute):
        owner = _looked_up(node.value, module)
        return vars(owner).get(node.attr) if isinstance(owner, ModuleType) else None
    return None


def _around(scopes: tuple[_Scope, ...]) -> str:
    """Return the name of the innermost function, used if the kernel is one of its parameters."""
    names = [getattr(scope, "name", None) for scope in scopes]
    return next((name for name in reversed(names) if name), "<module>")


def _written(node: ast.expr) -> str:
    """Return the kernel's name in the call: `partial(body, 1)` is `body`."""
    if isinstance(node, ast.Call) and node.args:
        return _written(node.args[0])
    if isinstance(node, ast.Lambda):
        return "<lambda>"
    return ast.unparse(node).partition("\n")[0][:80]
