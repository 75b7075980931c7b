"""Closed grammar of programs: a dump's file in, newly generated text out.

A dump's program is parsed into a tree and written again, form by form, from its parsed values.
Other forms cannot be written, so they never reach the code that is run: no other import, no
builtin, no attribute that `bridge/unparse/vocabulary.py` does not list, no name that is not bound
earlier in an enclosing scope. Comments are dropped, except for types of results and names of
operands, which `lines.py` reads.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Sequence

from pallas_debug.bridge.unparse import vocabulary
from pallas_debug.errors import CannotRunError
from pallas_debug.render import one_line
from pallas_debug.reproduce.expressions import (
    Expressions,
    Inner,
    Refused,
    check_name,
    kind_of,
    path_of,
    refused,
)

MAX_PROGRAM = 1_000_000
"""Maximum length of a program in characters."""

_MAX_AXIS = 1024
_WHEN = "pl.when"
_COMMENT = re.compile(r"(?!type:)[\w\[\]<>{}(),:.*@+\- ]{1,1000}", re.ASCII)
_INDENT = "    "

_CONSTANTS = (vocabulary.ARGUMENTS, vocabulary.AXES, vocabulary.ENABLE_X64)


def emitted(program: str) -> str:
    """Rewrite a program from its parsed values.

    Raises:
      CannotRunError: it is not a kernel's program; the message names the line and the reason.
    """
    try:
        body = parsed(program).body
        return Emitter(_comments(program)).module(body)
    except Refused as error:
        raise CannotRunError(_sentence(error, program)) from None


def parsed(text: str) -> ast.Module:
    """Parse untrusted text.

    Raises:
      Refused: it is too large, too deep, or not Python.
    """
    if len(text) > MAX_PROGRAM:
        raise Refused(f"it has {len(text):,} characters, and a program at most {MAX_PROGRAM:,}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except SyntaxError as error:
        raise Refused(f"it is not valid Python: {error.msg}", error.lineno) from None
    except (RecursionError, MemoryError):
        raise Refused("it is nested too deeply") from None
    except (ValueError, UnicodeError) as error:  # NUL bytes, lone surrogates, endless numbers
        raise Refused(f"it is not valid Python: {error}") from None


def _sentence(error: Refused, program: str) -> str:
    where, quoted = "", ""
    if error.line is not None:
        lines = program.split("\n")
        line = lines[error.line - 1].strip() if 0 < error.line <= len(lines) else ""
        where, quoted = f" at line {error.line}", f" in `{one_line(line[:80])}`"
    what_to_do = error.what_to_do or (
        "pallas-debug does not write such programs: the file was changed, or written by another "
        "version. Dump the kernel again"
    )
    return (
        f"the dump's program is refused{where}: {one_line(error.why)[:300]}{quoted}. {what_to_do}"
    )


def _comments(program: str) -> dict[int, str]:
    """Return the comments that may be kept, by line."""
    found = {}
    try:
        for token in tokenize.generate_tokens(io.StringIO(program).readline):
            text = token.string[1:].strip()
            if token.type == tokenize.COMMENT and _COMMENT.fullmatch(text):
                found[token.start[0]] = text
    except (tokenize.TokenError, SyntaxError):  # the text parsed, so only its end can be at fault
        pass
    return found


class Emitter(Expressions):
    """Writes trees as text, and refuses every form that programs do not have.

    Args:
      comments: comments of the parsed text, by line.
    """

    def __init__(self, comments: dict[int, str] | None = None) -> None:
        super().__init__()
        self._comments = comments or {}
        self._lines: list[str] = []

    def module(self, body: Sequence[ast.stmt]) -> str:
        """Write a whole program."""
        at = 0
        while at < len(body) and isinstance(body[at], (ast.Import, ast.ImportFrom)):
            self._import(body[at])
            at += 1
        missing = [name for name in vocabulary.IMPORTS if name not in self.imported]
        if missing:
            raise Refused(f"it does not import {missing[0]}")
        for name in _CONSTANTS:
            self._lines += [""] if name == vocabulary.ARGUMENTS else []
            if at >= len(body):
                raise Refused(f"it has no {name}")
            self._constant(name, body[at])
            at += 1
        functions = body[at:]
        for number, function in enumerate(functions, 1):
            if not isinstance(function, ast.FunctionDef) or function.decorator_list:
                raise refused("expected a plain function", function)
            self._lines += ["", ""]
            if number == len(functions):
                self._call(function)
            elif function.name == vocabulary.CALL:
                raise refused("more follows `call`", functions[number])
            else:
                self._function(function, 0)
        if len(functions) < 2:
            raise Refused("it has no kernel and `call`")
        return "\n".join(self._lines) + "\n"

    def _import(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Import) and len(node.names) == 1:
            (alias,) = node.names
            is_module = alias.name in vocabulary.MODULES and alias.asname is None
            if is_module and alias.name not in self.imported:
                self.imported.add(alias.name)
                self._lines.append(f"import {alias.name}")
                return
            given: tuple[str | None, str, str | None] = (None, alias.name, alias.asname)
        elif isinstance(node, ast.ImportFrom) and len(node.names) == 1 and not node.level:
            (alias,) = node.names
            given = (node.module, alias.name, alias.asname)
        else:
            raise refused("programs have no such import", node)
        name = next((n for n, known in vocabulary.IMPORTS.items() if known == given), None)
        if name is None or name in self.imported:
            raise refused("programs have no such import", node)
        self.imported.add(name)
        module, what, as_ = vocabulary.IMPORTS[name]
        text = f"from {module} import {what}" if module else f"import {what}"
        self._lines.append(f"{text} as {as_}" if as_ else text)

    def _constant(self, name: str, node: ast.stmt) -> None:
        """Write one of the constants that describe arguments and devices."""
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if not isinstance(node, ast.Assign) or not isinstance(target, ast.Name):
            raise refused(f"expected {name}", node)
        if target.id != name or len(node.targets) != 1:
            raise refused(f"expected {name}", node)
        if name == vocabulary.ARGUMENTS:
            self._check_arguments(node.value)
            self._listed(f"{name} = ", node.value, "", 0)
        elif name == vocabulary.AXES:
            self._lines.append(f"{name} = {self._axes(node.value)}")
        elif isinstance(node.value, ast.Constant) and isinstance(node.value.value, bool):
            self._lines.append(f"{name} = {node.value.value}")
        else:
            raise refused(f"{name} is not a bool", node)
        self.scope.names.add(name)

    def _check_arguments(self, node: ast.expr) -> None:
        """Check that arguments are types, without any computation."""
        for item in node.elts if isinstance(node, ast.List) else ():
            path = path_of(item.func) if isinstance(item, ast.Call) else ""
            if path != "jax.ShapeDtypeStruct" and not vocabulary.is_constant(path):
                raise refused("an argument is not a `jax.ShapeDtypeStruct`", item)
            if any(isinstance(inner, ast.Call) and inner is not item for inner in ast.walk(item)):
                raise refused("an argument's type is computed", item)

    def _axes(self, node: ast.expr) -> str:
        if not isinstance(node, ast.Dict):
            raise refused("AXES is not a dict", node)
        axes = []
        for key, value in zip(node.keys, node.values, strict=True):
            size = value.value if isinstance(value, ast.Constant) else None
            if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
                raise refused("an axis of the mesh has no name", node)
            if type(size) is not int or not 0 < size <= _MAX_AXIS:
                raise refused(f"an axis of the mesh has no size from 1 to {_MAX_AXIS}", node)
            axes.append(f"{self.text(key)}: {size}")
        return "{" + ", ".join(axes) + "}"

    def _listed(self, start: str, node: ast.expr, end: str, depth: int) -> None:
        """Write a list, one item per line, with the operands' names."""
        if not isinstance(node, ast.List):
            raise refused("expected a list", node)
        indent = _INDENT * depth
        if not node.elts:
            self._lines.append(f"{indent}{start}[]{end}")
            return
        self._lines.append(f"{indent}{start}[")
        for item in node.elts:
            self._line(f"{self.text(item)},", depth + 1, item)
        self._lines.append(f"{indent}]{end}")

    def _line(self, text: str, depth: int, node: ast.stmt | ast.expr) -> None:
        comment = self._comments.get(node.end_lineno or 0)
        written = f"{_INDENT * depth}{text}"
        self._lines.append(f"{written}  # {comment}" if comment else written)

    # Functions

    def _function(self, node: ast.FunctionDef, depth: int) -> None:
        self.nested(node)
        decorators = [f"@{self._when(node, d)}" for d in node.decorator_list]
        if len(decorators) > 1:
            raise refused("a function has several decorators", node)
        self._bind(node.name, node, is_module=depth == 0)
        names = self._parameters(node.args, node)
        if node.returns is not None or getattr(node, "type_params", None):
            raise refused("a function has a type annotation", node)
        indent = _INDENT * depth
        self._lines += [indent + decorator for decorator in decorators]
        self._lines.append(f"{indent}def {node.name}({', '.join(names)}):")
        with Inner(self, names):
            for statement in node.body:
                self._statement(statement, depth + 1)
        self.depth -= 1

    def _when(self, node: ast.FunctionDef, decorator: ast.expr) -> str:
        if not isinstance(decorator, ast.Call) or path_of(decorator.func) != _WHEN:
            raise refused(f"a function is decorated by something other than `{_WHEN}`", node)
        return self.written(_WHEN, decorator, frozenset())

    def _parameters(self, node: ast.arguments, around: ast.AST) -> list[str]:
        others = [*node.posonlyargs, *node.kwonlyargs, *node.defaults, *node.kw_defaults]
        if others or node.kwarg or node.vararg:
            raise refused("a function takes more than plain arguments", around)
        return self.names_of(node.args)

    def _bind(self, name: str, node: ast.AST, *, is_module: bool = False) -> None:
        check_name(name, node)
        if is_module and (name in vocabulary.SCRIPT or name in _CONSTANTS):
            raise refused(f"{name} is a name of the script", node)
        self.scope.names.add(name)

    def _statement(self, node: ast.stmt, depth: int) -> None:
        if isinstance(node, ast.FunctionDef):
            self._function(node, depth)
            return
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            value = self.text(node.value)
            text = f"{self._target(node.targets[0])} = {value}"
        elif isinstance(node, ast.Expr):
            text = self.text(node.value)
        elif isinstance(node, ast.Return) and node.value is not None:
            text = f"return {self._open(node.value)}"
        elif isinstance(node, ast.Pass):
            text = "pass"
        else:
            raise refused(f"a kernel has no {kind_of(node)}", node)
        self._line(text, depth, node)

    def _open(self, node: ast.expr) -> str:
        """Write an expression; tuples without parentheses."""
        if isinstance(node, ast.Tuple) and len(node.elts) > 1:
            return ", ".join(self.text(item) for item in node.elts)
        return self.text(node)

    def _target(self, node: ast.expr, *, is_inner: bool = False) -> str:
        if isinstance(node, ast.Name):
            self._bind(node.id, node)
            return node.id
        if isinstance(node, ast.Tuple):
            names = [self._target(item, is_inner=True) for item in node.elts]
            if len(names) > 1 and not is_inner:
                return ", ".join(names)
            return f"({', '.join(names)}{',' if len(names) == 1 else ''})"
        if isinstance(node, ast.Subscript) and not is_inner:
            return self.text(node)
        raise refused("the target of an assignment is not a name", node)

    def _call(self, node: ast.FunctionDef) -> None:
        """Write `call`: a `pl.pallas_call` of the kernel."""
        arguments, body = node.args, node.body
        if node.name != vocabulary.CALL or ast.unparse(arguments) != "*args":
            raise refused("the last function is not `call(*args)`", node)
        if node.returns is not None or getattr(node, "type_params", None):
            raise refused("a function has a type annotation", node)
        outer = body[0].value if len(body) == 1 and isinstance(body[0], ast.Return) else None
        inner = outer.func if isinstance(outer, ast.Call) else None
        if not isinstance(outer, ast.Call) or not isinstance(inner, ast.Call):
            raise refused("`call` does not return `pl.pallas_call(…)(*args)`", body[0])
        starred = outer.args[0] if len(outer.args) == 1 and not outer.keywords else None
        is_whole = path_of(inner.func) == "pl.pallas_call" and len(inner.args) == 1
        if not is_whole or not isinstance(starred, ast.Starred):
            raise refused("`call` does not return `pl.pallas_call(…)(*args)`", body[0])
        self._lines += [f"def {vocabulary.CALL}(*args):", f"{_INDENT}return pl.pallas_call("]
        with Inner(self, ["args"]):
            self._lines.append(f"{_INDENT * 2}{self.text(inner.args[0])},")
            for name, value in self.keywords(inner, vocabulary.CALLS["pl.pallas_call"]):
                self._option(name, value)
            self._lines.append(f"{_INDENT})(*{self.text(starred.value)})")

    def _option(self, name: str, value: ast.expr) -> None:
        if name == "grid_spec":
            spec = "pltpu.PrefetchScalarGridSpec"
            if not isinstance(value, ast.Call) or path_of(value.func) != spec or value.args:
                raise refused(f"grid_spec is not a `{spec}`", value)
            self._lines.append(f"{_INDENT * 2}{name}={spec}(")
            for inner, of in self.keywords(value, vocabulary.CALLS[spec]):
                if isinstance(of, ast.List):
                    self._listed(f"{inner}=", of, ",", 3)
                else:
                    self._lines.append(f"{_INDENT * 3}{inner}={self.text(of)},")
            self._lines.append(f"{_INDENT * 2}),")
        elif isinstance(value, ast.List):
            self._listed(f"{name}=", value, ",", 2)
        else:
            self._lines.append(f"{_INDENT * 2}{name}={self.text(value)},")
