"""Static search for Pallas names that the installed jax does not have.

Only names that a file reaches through an alias of Pallas and without a condition are reported: code
in a branch may be for another jax, or never run.
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from pallas_debug.bridge.jaxprs import lines
from pallas_debug.bridge.walk import names
from pallas_debug.findings.faults import NO_KERNEL
from pallas_debug.findings.sighting import Sighting
from pallas_debug.findings.wording import unsupported
from pallas_debug.model import Finding, Witness


def look(file: str | Path, at: int | None = None) -> list[Finding]:
    """Report missing names, each once per line.

    Args:
      file: Python source. A file that cannot be read or parsed yields no findings.
      at: a line in a top-level statement: only that statement and the definitions it refers to,
        directly or indirectly, are checked. None checks the whole file.
    """
    source = _source("".join(linecache.getlines(str(file))))
    if source is None:
        return []
    found: dict[int, dict[str, tuple[str, str | None]]] = {}
    for node in source.parts(at):
        for module, name, used in source.used(node):
            message = names.missing(module, name)
            if message is not None and not source.is_guarded(used, name):
                line = used.end_lineno or used.lineno
                found.setdefault(line, {})[name] = (message, _instead(module, name))
    return [_finding(str(file), line, found[line].values()) for line in sorted(found)]


def _finding(file: str, line: int, used: Collection[tuple[str, str | None]]) -> Finding:
    witness = Witness(source=lines.line_of(file, line))
    return unsupported.removed_names(
        Sighting(kernel=NO_KERNEL, engine="static", witness=witness),
        messages=[message for message, _ in used],
        instead=[instead for _, instead in used],
    )


def _instead(module: str, name: str) -> str | None:
    known = unsupported.REPLACEMENTS.get(name)
    if module == names.PALLAS and known is not None:
        return known
    today = names.replacement(module, name)
    return f"write {today}" if today else known


@functools.lru_cache(maxsize=16)
def _source(text: str) -> _Source | None:
    """Parse a file's text, once for all of its kernels; None if it is not valid Python."""
    try:
        return _Source(ast.parse(text))
    except (SyntaxError, ValueError, RecursionError):
        return None


class _Source:
    """A file's aliases of Pallas, and the guards around their uses."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._parents = {
            child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)
        }
        self._assigned = set(_assigned(tree))
        self._aliases = self._find_aliases()
        self._set = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load)
        }
        # `setattr(pltpu, "X", …)`, `getattr(pltpu, "X", None)`: a quoted name counts as handled.
        self._strings = {
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }

    def parts(self, at: int | None) -> Iterator[ast.AST]:
        """The whole tree; given a line, its top-level statement and definitions it refers to."""
        if at is None:
            yield self._tree
            return
        defined = {
            node.name: node
            for node in self._tree.body
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        }
        waiting: list[ast.stmt] = [
            node for node in self._tree.body if _first(node) <= at <= (node.end_lineno or 0)
        ]
        seen: set[ast.AST] = set()
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            yield node
            named = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            waiting += [defined[name] for name in named & defined.keys()]

    def used(self, part: ast.AST) -> Iterator[tuple[str, str, ast.expr | ast.alias]]:
        """Yield uses of Pallas names: module, name and node."""
        for node in ast.walk(part):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                module = self._aliases.get(node.value.id)
                if module is not None:
                    yield module, node.attr, node
            elif isinstance(node, ast.ImportFrom) and names.is_pallas(node.module or ""):
                for alias in node.names:
                    if alias.name != "*":
                        yield node.module or "", alias.name, alias

    def _find_aliases(self) -> dict[str, str]:
        """Names that only ever refer to one Pallas module."""
        found: dict[str, set[str]] = {}
        for node in ast.walk(self._tree):
            for name, module in _bound(node):
                found.setdefault(name, set()).add(module)
        return {
            name: next(iter(modules))
            for name, modules in found.items()
            if len(modules) == 1 and name not in self._assigned
            if names.is_pallas(next(iter(modules)))
        }

    def is_guarded(self, node: ast.AST, name: str) -> bool:
        """Return whether a name may not be reached, or be handled elsewhere in the file."""
        if name in self._strings or name in self._set:
            return True
        child: ast.AST | None = node
        while child is not None:
            above = self._parents.get(child)
            if above is not None and _guards(above, child):
                return True
            child = above
        return False


def _guards(above: ast.AST, child: ast.AST) -> bool:
    """Return whether a statement may prevent its child from being reached."""
    match above:
        case ast.Try() | ast.TryStar():
            return bool(above.handlers) and child not in above.finalbody
        case ast.If() | ast.IfExp() | ast.While():
            return child is not above.test
        case ast.BoolOp() | ast.match_case():
            return True
        case ast.With():
            return any({"suppress", "raises"} & _words(i.context_expr) for i in above.items)
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Module():
            skips = any(
                "skip" in word for d in getattr(above, "decorator_list", ()) for word in _words(d)
            )
            return skips or any(_may_end(node) for node in above.body if node is not child)
    return False


def _may_end(node: ast.stmt) -> bool:
    """Return whether a statement may end its function or module early."""
    ends = (ast.Return, ast.Raise)
    return isinstance(node, ast.Assert) or (
        isinstance(node, ast.If)
        and (
            any(isinstance(n, ends) for n in ast.walk(node))
            or bool({"exit", "skip"} & _words(node))
        )
    )


def _words(node: ast.AST) -> set[str]:
    """Names and attributes in a piece of code."""
    return {str(getattr(n, "attr", getattr(n, "id", ""))) for n in ast.walk(node)}


def _first(node: ast.stmt) -> int:
    decorators: Iterable[ast.expr] = getattr(node, "decorator_list", ())
    return min([node.lineno, *(d.lineno for d in decorators)])


def _bound(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Names that an import binds, with the modules they may refer to."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.asname:
                yield alias.asname, alias.name
            else:
                top = alias.name.partition(".")[0]
                yield top, top
    elif isinstance(node, ast.ImportFrom) and not node.level:
        for alias in node.names:
            yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _assigned(tree: ast.AST) -> Iterator[str]:
    """Names that a file binds other than by an import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            yield from node.names
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name
