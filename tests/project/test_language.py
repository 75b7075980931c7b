"""Plain language: phrases that documentation, docstrings, comments and messages avoid.

A phrase counts wherever it occurs, in identifiers too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

PLAIN = {
    "anew": "again",
    "aside": "hidden, apart, except for",
    "away with": "remove",
    "came upon": "found",
    "come upon": "find",
    "for lack of": "without",
    "for want of": "without",
    "heeded": "honoured",
    "makes no sense": "is invalid",
    "nobody": "no one, or the program that does it",
    "of its own account": "by itself",
    "seldom": "rarely",
    "that there is not": "unknown, missing",
    "thereof": "of it",
    "to be had": "available",
    "unless told": "by default",
    "whereof": "of which",
    "whoever": "the caller, the user",
}
"""What not to write, and what to write instead."""

_PHRASE = re.compile(
    rf"(?<![a-z])(?:{'|'.join(PLAIN)})(?![a-z])".replace(" ", r"\s+(?:#\s+)?"), re.IGNORECASE
)


VERBS = {
    "land": "move",
    "peel": "dismiss",
    "said": "message, text",
    "say": "report, print",
    "says": "text",
    "settle": "wait",
    "settled": "idle",
    "stands": "is",
    "tell": "notify, report",
    "tells": "notifies",
    "told": "notified",
}
"""Words that name no function, parameter or variable, and what to use instead."""


def sources() -> list[Path]:
    found = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    for folder in ("pallas_debug", "pytest_plugin", "kernels", "docs", "tests", "benchmarks"):
        found += [
            path
            for path in (ROOT / folder).rglob("*")
            if path.suffix in (".py", ".md") and path != Path(__file__)
        ]
    return sorted(found)


def test_plain_language() -> None:
    places = []
    for path in sources():
        text = path.read_text()
        for match in _PHRASE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            phrase = re.sub(r"[\s#]+", " ", match[0]).lower()
            places.append(f"{path.relative_to(ROOT)}:{line}: {match[0]!r}; write: {PLAIN[phrase]}")
    assert not places, "\n".join(places)


_MAY_NAME = re.compile(rf"(?<![a-z])(?:{'|'.join(VERBS)})(?:_\w+)?\s*(?:[=:(,)]|in\b|\Z)")
"""What a definition of such a name looks like; most files have nothing like it."""


def _names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Names that a module defines, with their lines."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case _:
                pass


def test_names_are_terms_of_the_field() -> None:
    places = []
    for path in sources():
        text = path.read_text()
        if path.suffix != ".py" or not _MAY_NAME.search(text):
            continue
        for line, name in _names(ast.parse(text)):
            if name.startswith("test_"):  # a sentence
                continue
            for word in VERBS.keys() & name.lower().split("_"):
                use = VERBS[word]
                places.append(f"{path.relative_to(ROOT)}:{line}: {name}; use: {use}")
    assert not places, "\n".join(places)


_PREDICATE = re.compile(r'^ *(?:async )?def [^"]*?:\n *"""Whether ', re.MULTILINE)


def test_docstrings_of_predicates_begin_with_what_they_return() -> None:
    places = [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.end()) + 1}: write `Return "
        "whether`, or `True if` for a property"
        for path in sources()
        if path.suffix == ".py" and '"""Whether ' in (text := path.read_text())
        for match in _PREDICATE.finditer(text)
    ]
    assert not places, "\n".join(places)
