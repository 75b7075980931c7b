"""Program as removable lines: the kernel's statements as a tree.

Relies on the output of `grammar.py`: a statement is one line, a comment holds the types of its
results, and the body of a function is indented by four spaces.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

_INDENT = "    "
_TYPE = re.compile(r"(?P<kind>[a-z]+\d*)\[(?P<shape>[\d,]*)\]")
_ALIAS = re.compile(r"(?P<name>v\d+) = (?P<value>[A-Za-z_]\w*)")
_DTYPES = {
    "f": "float", "bf": "bfloat", "i": "int", "u": "uint", "bool": "bool_", "c": "complex",
}  # fmt: skip


@dataclass(frozen=True)
class Node:
    """A statement, without its indentation.

    Attributes:
      head: preceding lines: a decorator.
      body: statements of the function that it defines.
    """

    text: str
    head: tuple[str, ...] = ()
    body: tuple[Node, ...] = field(default=())

    @property
    def is_function(self) -> bool:
        return self.text.startswith("def ")

    @property
    def is_branch(self) -> bool:
        """True if this is a function executed in place, under a condition."""
        return self.is_function and bool(self.head)

    @property
    def is_return(self) -> bool:
        return self.text.startswith("return")

    @property
    def code(self) -> str:
        return _parts(self.text)[0]

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of its results, in order."""
        tree = _parsed(self.code)
        if not isinstance(tree, ast.Assign) or isinstance(tree.targets[0], ast.Subscript):
            return ()
        return tuple(n.id for n in ast.walk(tree.targets[0]) if isinstance(n, ast.Name))

    @property
    def types(self) -> str:
        return _parts(self.text)[1]

    @property
    def reads(self) -> set[str]:
        """Names that it reads, including in its body."""
        found: set[str] = set()
        for text in (*(h.removeprefix("@") for h in self.head), self.code):
            if not text.startswith("def "):
                tree = _parsed(text)
                found |= {
                    n.id
                    for n in ast.walk(tree)
                    if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
                }
        return found.union(*(node.reads for node in self.body))

    def zeros(self) -> Node | None:
        """Return the same results as zeros, or None for types that have none."""
        targets, comment = self.targets, self.types
        types = list(_TYPE.finditer(comment))
        if not targets or "Ref<" in comment or len(types) != len(targets) or "_" in targets:
            return None
        values = ", ".join(_zeros(t["kind"], t["shape"]) for t in types)
        zeros = replace(self, text=f"{', '.join(targets)} = {values}  # {comment}")
        return None if zeros == self else zeros


@dataclass(frozen=True)
class Program:
    """A program: lines, one function's statements, lines.

    Attributes:
      before, after: lines around the kernel function's body; `before` includes its `def` line.
    """

    before: tuple[str, ...]
    body: tuple[Node, ...]
    after: tuple[str, ...]

    @property
    def text(self) -> str:
        lines = [*self.before, *(_written(self.body, 1) or [f"{_INDENT}pass"]), *self.after]
        return "\n".join(lines) + "\n"

    @property
    def size(self) -> int:
        return sum(1 for _ in every(self.body))

    def with_body(self, body: Sequence[Node]) -> Program:
        """Replace the body, and drop statements that then have no effect."""
        return replace(self, body=tidied(tuple(body)))


def parse(text: str) -> Program:
    """Parse a program as `bridge/unparse` writes it, or as `Program.text` returns it."""
    lines = text.rstrip("\n").split("\n")
    start = next(i for i, line in enumerate(lines) if line.startswith("def ")) + 1
    end = start
    while end < len(lines) and (lines[end].startswith(_INDENT)):
        end += 1
    body, _ = _nodes(lines[start:end], 0, 1)
    return Program(before=tuple(lines[:start]), body=tidied(tuple(body)), after=tuple(lines[end:]))


def every(body: Sequence[Node]) -> Iterator[Node]:
    """Yield all statements, including those of nested functions."""
    for node in body:
        yield node
        yield from every(node.body)


def tidied(body: tuple[Node, ...]) -> tuple[Node, ...]:
    """Remove aliases, unused zeros, uncalled functions and empty branches.

    A computation whose result is unused is kept: it may be what fails.
    """
    while True:
        second = next(filter(None, (_ALIAS.fullmatch(node.code) for node in every(body))), None)
        if second is not None:
            body = _renamed(body, second["name"], second["value"])
            continue
        read = set().union(*(node.reads for node in every(body)))
        tidy = _tidied(body, read)
        if tidy == body:
            return body
        body = tidy


def _tidied(body: tuple[Node, ...], read: set[str]) -> tuple[Node, ...]:
    kept = []
    for node in body:
        if node.text == "pass":
            continue
        if node.is_function:
            if node.is_branch and not any(not n.is_return for n in node.body):
                continue
            name = node.text.removeprefix("def ").partition("(")[0]
            if not node.is_branch and name not in read:
                continue
            node = replace(node, body=_tidied(node.body, read))
        elif _is_zeros(node) and not set(node.targets) & read:
            continue
        kept.append(node)
    return tuple(kept)


def _is_zeros(node: Node) -> bool:
    return bool(node.targets) and node.code.partition(" = ")[2].startswith("jnp.zeros(")


def _renamed(body: Sequence[Node], name: str, value: str) -> tuple[Node, ...]:
    """Remove the assignment of an alias, and use the original name instead."""
    word = re.compile(rf"(?<![\w.]){name}(?!\w)")
    return tuple(
        replace(
            node,
            text=word.sub(value, node.text),
            head=tuple(word.sub(value, line) for line in node.head),
            body=_renamed(node.body, name, value),
        )
        for node in body
        if node.code != f"{name} = {value}"
    )


def _nodes(lines: Sequence[str], at: int, depth: int) -> tuple[list[Node], int]:
    nodes: list[Node] = []
    head: list[str] = []
    prefix = _INDENT * depth
    while at < len(lines) and lines[at].startswith(prefix):
        text = lines[at][len(prefix) :]
        at += 1
        if text.startswith("@"):
            head.append(text)
            continue
        body: list[Node] = []
        if text.startswith("def "):
            body, at = _nodes(lines, at, depth + 1)
        nodes.append(Node(text, tuple(head), tuple(body)))
        head = []
    return nodes, at


def _written(body: Sequence[Node], depth: int) -> list[str]:
    lines: list[str] = []
    for node in body:
        lines += [_INDENT * depth + text for text in (*node.head, node.text)]
        if node.is_function:
            lines += _written(node.body, depth + 1) or [_INDENT * (depth + 1) + "pass"]
    return lines


def _parts(text: str) -> tuple[str, str]:
    """Split a line into code and comment. A string may contain what looks like a comment, and ends
    in a quote."""
    code, mark, comment = text.rpartition("  # ")
    return (text, "") if not mark or set(comment) & {"'", '"'} else (code, comment)


def _parsed(code: str) -> ast.stmt:
    if code.startswith("def "):
        return ast.Pass()
    return ast.parse(code).body[0]


def _zeros(kind: str, shape: str) -> str:
    letters = kind.rstrip("0123456789")
    name = _DTYPES.get(letters, letters) + kind[len(letters) :]
    sizes = ", ".join(filter(None, shape.split(",")))
    return f"jnp.zeros(({sizes}{',' if sizes and ',' not in sizes else ''}), jnp.{name})"
