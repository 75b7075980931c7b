"""The layout of the source tree: names, sizes, floors."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    ROOT / "pallas_debug",
    ROOT / "kernels" / "pallas_debug_kernels",
    ROOT / "pytest_plugin" / "pallas_debug_pytest",
)

STILL_SHARED = {
    "BlockSizes",
    "Change",
    "Changed",
    "Clicked",
    "Filter",
    "Found",
    "Mask",
    "Operation",
    "Outcome",
    "Place",
    "Report",
    "Result",
    "Row",
    "SegmentIds",
    "Step",
    "Subject",
    "Verdict",
}
"""Class names that more than one module still uses; to be emptied."""


def classes() -> dict[str, list[str]]:
    """Where each public class is defined."""
    found = defaultdict(list)
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return found


def test_public_class_names_are_unique() -> None:
    shared = {name: places for name, places in classes().items() if len(places) > 1}
    assert not {name: places for name, places in shared.items() if name not in STILL_SHARED}
