"""Static search for Pallas names that the installed jax does not have.

Only names that a file reaches through an alias of Pallas and without a condition are reported: code
in a branch may be for another jax, or never run.
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterable, Iterator
from pathlib import Path

from pallas_debug.bridge.jaxprs import lines
from pallas_debug.bridge.walk import names
from pallas_debug.findings.faults import NO_KERNEL, Fault
from pallas_debug.findings.refused import REPLACEMENTS, UNKNOWN_NAME
from pallas_debug.findings.sighting import Sighting
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
    found: dict[int, dict[str, tuple[str, str]]] = {}
    for module, name, line in (use for part in source.parts(at) for use in source.used(part)):
        message = None if name in source.handled else names.missing(module, name)
        if message is not None:
            today = names.replacement(module, name)
            instead = REPLACEMENTS.get(name) or (f"write {today}" if today else UNKNOWN_NAME)
            found.setdefault(line, {})[name] = (message, instead)
    findings = []
    for line, used in sorted(found.items()):
        witness = Witness(source=lines.line_of(str(file), line))
        seen = Sighting(kernel=NO_KERNEL, engine="static", witness=witness)
        messages, advice = zip(*used.values(), strict=True)
        text, instead = "\n".join(messages), "; ".join(dict.fromkeys(advice))
        findings.append(seen.of(Fault.REMOVED_NAME, messages=text, instead=instead))
    return findings


@functools.lru_cache(maxsize=16)
def _source(text: str) -> _Source | None:
    """Parse a file's text, once for all of its kernels; None if it is not valid Python."""
    try:
        return _Source(ast.parse(text))
    except (SyntaxError, ValueError, RecursionError):
        return None


class _Source:
    """A file's aliases of Pallas, and the code in which their uses count."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._aliases = _aliases(tree)
        self._reached = set(_reached(tree))
        # `hasattr(pltpu, "X")`, `pltpu.X = …`: the file handles the name itself.
        self.handled = {
            "*",
            *(str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)),
            *(
                node.attr
                for node in ast.walk(tree)
                if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load)
            ),
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

    def used(self, part: ast.AST) -> Iterator[tuple[str, str, int]]:
        """Yield uses of Pallas names that count: module, name and line."""
        for node in filter(self._reached.__contains__, ast.walk(part)):
            match node:
                case ast.Attribute(value=ast.Name(id=alias)) if alias in self._aliases:
                    yield self._aliases[alias], node.attr, node.end_lineno or node.lineno
                case ast.ImportFrom(module=str(module)) if names.is_pallas(module):
                    for one in node.names:
                        yield module, one.name, one.end_lineno or one.lineno


def _reached(tree: ast.Module) -> list[ast.AST]:
    """The code that no condition, handler or earlier exit may keep from being reached."""
    reached: list[ast.AST] = [tree]
    for node in reached:
        reached += _children(node)
    return reached


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a node that are reached whenever the node is."""
    match node:
        case ast.Try() | ast.TryStar() if node.handlers:
            yield from node.finalbody
        case ast.If() | ast.IfExp() | ast.While():
            yield node.test
        case ast.BoolOp() | ast.match_case():
            pass
        case ast.With() if any({"suppress", "raises"} & _words(i) for i in node.items):
            pass
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Module():
            decorators: list[ast.expr] = getattr(node, "decorator_list", [])
            skips = any("skip" in word for one in decorators for word in _words(one))
            if not skips and not any(map(_may_end, node.body)):
                yield from ast.iter_child_nodes(node)
        case _:
            yield from ast.iter_child_nodes(node)


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


def _aliases(tree: ast.Module) -> dict[str, str]:
    """Names that only ever refer to one Pallas module."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        for name, module in _bound(node):
            found.setdefault(name, set()).add(module)
    return {
        name: module
        for name, (module, *others) in found.items()
        if not others and names.is_pallas(module)
    }


def _bound(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield names that a node binds, with the modules that they may refer to, or an empty text."""
    match node:
        case ast.Import(names=imported):
            for alias in imported:
                top = alias.name.partition(".")[0]
                yield alias.asname or top, alias.name if alias.asname else top
        case ast.ImportFrom(names=imported, level=0):
            for alias in imported:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
            yield name, ""
        case (
            ast.FunctionDef(name=name)
            | ast.AsyncFunctionDef(name=name)
            | ast.ClassDef(name=name)
            | ast.ExceptHandler(name=str(name))
        ):
            yield name, ""
        case ast.Global(names=bound) | ast.Nonlocal(names=bound):
            yield from ((name, "") for name in bound)
