"""Expressions of programs: each form is rewritten from its parsed values, or refused."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pallas_debug.bridge.unparse import vocabulary
from pallas_debug.reproduce import flags

MAX_TEXT = 10_000
"""Maximum length of a string in a program."""

_MAX_NUMBER = 2**64
_MAX_DEPTH = 60
_NAME = re.compile(r"(?!__)[A-Za-z_][A-Za-z0-9_]{0,999}")

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/",
    ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^",
}  # fmt: skip
_COMPARED: dict[type[ast.cmpop], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
_UNARY: dict[type[ast.unaryop], str] = {ast.USub: "-", ast.Invert: "~"}


class Refused(Exception):
    """Part of a program that the grammar does not allow.

    Attributes:
      what_to_do: the end of the message; empty for a form that programs never have.
    """

    def __init__(self, why: str, line: int | None = None, what_to_do: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.line = line
        self.what_to_do = what_to_do


class Scope:
    """Names bound so far in a function or the module."""

    def __init__(self, around: Scope | None = None) -> None:
        self.around = around
        self.names: set[str] = set()

    def has(self, name: str) -> bool:
        return name in self.names or (self.around is not None and self.around.has(name))


class Expressions:
    """Writes expressions as text, and tracks the names that they may use.

    Attributes:
      scope: scope of the function being written.
      imported: modules, and names of modules, that the program imports.
    """

    def __init__(self) -> None:
        self.scope = Scope()
        self.imported: set[str] = set()
        self.depth = 0

    def text(self, node: ast.expr) -> str:
        """Write an expression."""
        self.nested(node)
        write = _EXPRESSIONS.get(type(node))
        if write is None:
            raise refused(f"a kernel has no {kind_of(node)}", node)
        text = write(self, node)
        self.depth -= 1
        return text

    def nested(self, node: ast.AST) -> None:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise refused(f"it is nested more than {_MAX_DEPTH} deep", node)

    def _name(self, node: ast.Name) -> str:
        if not self.scope.has(node.id):
            raise refused(f"the name {node.id!r} is not bound above", node)
        return node.id

    def _attribute(self, node: ast.Attribute) -> str:
        path = path_of(node)
        if not vocabulary.is_constant(path):
            raise refused(f"{path or node.attr!r} is not a value of a program", node)
        return path

    def _subscript(self, node: ast.Subscript) -> str:
        value, index = node.value, node.slice
        if isinstance(value, ast.Attribute) and value.attr == "at":
            base = f"{self._ref(value.value)}.at"
        else:
            base = self._ref(value)
        if isinstance(index, ast.Tuple) and index.elts:
            items = [self._index(item) for item in index.elts]
            return f"{base}[{', '.join(items)}{',' if len(items) == 1 else ''}]"
        return f"{base}[{self._index(index)}]"

    def _index(self, node: ast.expr) -> str:
        if not isinstance(node, ast.Slice):
            return self.text(node)
        bounds = [self.text(b) if b is not None else "" for b in (node.lower, node.upper)]
        if node.step is not None:
            raise refused("a slice has a step", node)
        return ":".join(bounds)

    def _ref(self, node: ast.expr) -> str:
        """Write a name, or a view of the ref it refers to."""
        if isinstance(node, ast.Name):
            return self.text(node)
        is_view = isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute)
        called = node.func if isinstance(node, ast.Call) else None
        is_method = isinstance(called, ast.Attribute) and called.attr in vocabulary.REF_METHODS
        if not (is_view or is_method):
            raise refused("the indexed object is neither a name nor a view", node)
        return self.text(node)

    def _called(self, node: ast.Call) -> str:
        path = path_of(node.func)
        if path in vocabulary.CALLS:
            return self.written(path, node, vocabulary.CALLS[path])
        if path in vocabulary.RECORDS:
            if node.args:
                raise refused(f"{path} takes fields only by name", node)
            self._check_flags(path, node)
            return self.written(path, node, None)
        primitive, _, last = path.rpartition(".")
        if last == "bind" and primitive in vocabulary.PRIMITIVES:
            module = primitive.rpartition(".")[0]
            if module not in (*vocabulary.IMPORTS, *self.imported):
                raise refused(f"{module} is not imported", node)
            return self.written(path, node, None)
        method = node.func if isinstance(node.func, ast.Attribute) else None
        if method is not None and method.attr in vocabulary.REF_METHODS:
            return self.written(f"{self._ref(method.value)}.{method.attr}", node, frozenset())
        copy = method.value if method is not None else None
        if method is not None and isinstance(copy, ast.Call):
            known = vocabulary.COPY_METHODS.get(method.attr)
            if known is not None and path_of(copy.func) in vocabulary.COPIES:
                return self.written(f"{self.text(copy)}.{method.attr}", node, known)
        raise refused(f"{path or 'this'} is not a function that programs call", node)

    def written(self, function: str, node: ast.Call, known: frozenset[str] | None) -> str:
        """Write a call whose keyword arguments are among `known`; None allows any."""
        if function.startswith(vocabulary.CHECKIFY) and vocabulary.CHECKIFY not in self.imported:
            raise refused(f"{vocabulary.CHECKIFY} is not imported", node)
        args = [self.text(argument) for argument in node.args]
        named = [f"{name}={self.text(value)}" for name, value in self.keywords(node, known)]
        return f"{function}({', '.join([*args, *named])})"

    def keywords(
        self, node: ast.Call, known: frozenset[str] | None
    ) -> Iterator[tuple[str, ast.expr]]:
        """Yield keyword arguments; those of a record, which is plain data, may have any name."""
        for keyword in node.keywords:
            name = keyword.arg
            if name is None:
                raise refused("arguments are unpacked from a dict", node)
            check_name(name, node)
            if known is not None and name not in known:
                raise refused(f"{path_of(node.func) or 'it'} is given {name}=", node)
            yield name, keyword.value

    def _check_flags(self, path: str, node: ast.Call) -> None:
        """Restrict libtpu flags of a kernel to those of the closed list."""
        field = vocabulary.FLAGS_OF.get(path)
        for keyword in node.keywords if field is not None else ():
            if keyword.arg != field or _is_none(keyword.value):
                continue
            given = keyword.value
            if not isinstance(given, ast.Dict):
                raise refused("the flags of a kernel are not a dict", node)
            for key, value in zip(given.keys, given.values, strict=True):
                name = key.value if isinstance(key, ast.Constant) else None
                set_to = value.value if isinstance(value, ast.Constant) else None
                if not isinstance(name, str) or not flags.is_known(name.lower(), str(set_to)):
                    raise Refused(
                        f"the flag {name!r} is not one that a script sets",
                        node.lineno,
                        "A script sets only flags from a closed list, as others can name a file to "
                        "write to. Remove it from the kernel's compiler_params, and dump the "
                        "kernel again",
                    )

    def _lambda(self, node: ast.Lambda) -> str:
        any_number = node.args.vararg
        others = [*node.args.posonlyargs, *node.args.kwonlyargs, *node.args.defaults]
        if others or node.args.kw_defaults or node.args.kwarg:
            raise refused("a function takes more than plain arguments", node)
        if any_number is not None and (any_number.arg != "_" or node.args.args):
            raise refused("a function takes more than plain arguments", node)
        names = self.names_of(node.args.args)
        with Inner(self, names):
            value = self.text(node.body)
        given = "*_" if any_number is not None else ", ".join(names)
        return f"lambda {given}: {value}" if given else f"lambda: {value}"

    def _binary(self, node: ast.BinOp) -> str:
        sign = _BINARY.get(type(node.op))
        if sign is None:
            raise refused(f"a kernel has no {kind_of(node.op)}", node)
        _check_no_text(node.left, node.right)
        return f"{self._operand(node.left)} {sign} {self._operand(node.right)}"

    def _compared(self, node: ast.Compare) -> str:
        sign = _COMPARED.get(type(node.ops[0])) if len(node.ops) == 1 else None
        if sign is None:
            raise refused("a kernel has no such comparison", node)
        return f"{self._operand(node.left)} {sign} {self._operand(node.comparators[0])}"

    def _unary(self, node: ast.UnaryOp) -> str:
        sign = _UNARY.get(type(node.op))
        if sign is None:
            raise refused(f"a kernel has no {kind_of(node.op)}", node)
        text = self._operand(node.operand)
        return f"{sign}({text})" if isinstance(node.operand, ast.UnaryOp) else f"{sign}{text}"

    def _operand(self, node: ast.expr) -> str:
        text = self.text(node)
        return f"({text})" if isinstance(node, (ast.BinOp, ast.Compare, ast.Lambda)) else text

    def _tuple(self, node: ast.Tuple) -> str:
        items = [self.text(item) for item in node.elts]
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"

    def _list(self, node: ast.List) -> str:
        return f"[{', '.join(self.text(item) for item in node.elts)}]"

    def _dict(self, node: ast.Dict) -> str:
        items = []
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                raise refused("a dict is unpacked", node)
            items.append(f"{self.text(key)}: {self.text(value)}")
        return "{" + ", ".join(items) + "}"

    def _literal(self, node: ast.Constant) -> str:
        value = node.value
        if value is None or value is ... or isinstance(value, bool):
            return "..." if value is ... else repr(value)
        if isinstance(value, (str, bytes)):
            if len(value) > MAX_TEXT:
                raise refused(f"a string has more than {MAX_TEXT:,} characters", node)
        elif isinstance(value, int):
            if abs(value) > _MAX_NUMBER:
                raise refused("a number needs more than 64 bits", node)
        elif not all(map(math.isfinite, (value.real, value.imag))):
            raise refused("a number is too large for its kind", node)
        return repr(value)

    def names_of(self, arguments: Sequence[ast.arg]) -> list[str]:
        for argument in arguments:
            if argument.annotation is not None:
                raise refused("an argument has a type annotation", argument)
            check_name(argument.arg, argument)
        return [argument.arg for argument in arguments]


class Inner:
    """Context manager for a nested scope."""

    def __init__(self, writer: Expressions, names: Sequence[str]) -> None:
        self._writer = writer
        self.scope = Scope(writer.scope)
        self.scope.names.update(names)

    def __enter__(self) -> None:
        self._writer.scope = self.scope

    def __exit__(self, *_: object) -> None:
        assert self.scope.around is not None
        self._writer.scope = self.scope.around


_EXPRESSIONS: dict[type[ast.expr], Callable[[Expressions, Any], str]] = {
    ast.Attribute: Expressions._attribute,
    ast.BinOp: Expressions._binary,
    ast.Call: Expressions._called,
    ast.Compare: Expressions._compared,
    ast.Constant: Expressions._literal,
    ast.Dict: Expressions._dict,
    ast.Lambda: Expressions._lambda,
    ast.List: Expressions._list,
    ast.Name: Expressions._name,
    ast.Subscript: Expressions._subscript,
    ast.Tuple: Expressions._tuple,
    ast.UnaryOp: Expressions._unary,
}


def refused(why: str, node: ast.AST) -> Refused:
    """Return the exception for a form that programs do not have."""
    return Refused(why, getattr(node, "lineno", None))


def check_name(name: str, node: ast.AST) -> None:
    if not _NAME.fullmatch(name):
        raise refused(f"{name[:80]!r} is not a name that programs bind", node)
    if name in vocabulary.IMPORTS:
        raise refused(f"{name} is the name of a module, and bound again", node)


def _check_no_text(*nodes: ast.expr) -> None:
    """Reject strings and lists as operands: multiplied by a number, they can be huge."""
    for node in nodes:
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))
        if is_text or isinstance(node, (ast.List, ast.Tuple, ast.Dict)):
            raise refused("a kernel does not compute with strings or lists", node)


def path_of(node: ast.expr) -> str:
    """Return a dotted name that begins with a module's name; empty for other expressions."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in vocabulary.IMPORTS or len(names) > 12:
        return ""
    return ".".join([node.id, *reversed(names)])


def kind_of(node: ast.AST) -> str:
    return type(node).__name__


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
