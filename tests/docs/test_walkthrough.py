"""Functions named by the walkthroughs in `docs/how-it-works.md`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-it-works.md").read_text()

STEPS = [
    (name, path)
    for name, path in re.findall(r"`([\w.]+)`\s+in\s+`([\w/]+\.py)`", PAGE)
    if not name.isupper()
]
FILES = re.findall(r"`(\w+/[\w/]+\.py)`", PAGE)


def defined(tree: ast.Module) -> set[str]:
    """Functions and classes of a module, and methods as `Class.method`."""
    names = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = (item for item in node.body if isinstance(item, ast.FunctionDef))
            names |= {f"{node.name}.{item.name}" for item in inner}
    return names


@pytest.mark.parametrize("name, path", STEPS, ids=lambda value: value.rpartition("/")[2])
def test_each_function_exists(name: str, path: str) -> None:
    assert name in defined(ast.parse((ROOT / path).read_text()))


@pytest.mark.parametrize("path", sorted(set(FILES)))
def test_each_file_exists(path: str) -> None:
    assert (ROOT / path).is_file()


def steps_of(title: str) -> list[str]:
    section = PAGE.partition(f"## {title}")[2].partition("\n## ")[0]
    return re.split(r"^\d+\. ", section, flags=re.MULTILINE)[1:]


@pytest.mark.parametrize("title", ["A kernel, from", "A finding, from"])
def test_each_step_names_a_function(title: str) -> None:
    steps = steps_of(title)
    assert len(steps) >= 8
    for step in steps:
        assert re.search(r"`[\w.]+`\s+in\s+`[\w/]+\.py`", step), step
