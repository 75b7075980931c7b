"""The table of primitives: complete, and the only one of its kind."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

from pallas_debug.bridge import primitives
from pallas_debug.bridge.primitives import TABLE

PACKAGE = Path(primitives.__file__).parents[1]

OTHER_LANGUAGES = ("ir/", "profile/", "explain/", "report/", "stepping/", "tui/", "findings/")
"""Rooms that name operations of MLIR and LLO, functions of numpy, or words for a finding."""


def test_every_primitive_that_jax_lowers_has_a_row() -> None:
    assert primitives.unknown() == []


@pytest.mark.slow
def test_there_is_no_other_table() -> None:
    """A collection of more than four names, or a dictionary from them to values, is a table.

    A dictionary from names to functions of its room, such as those of the unparser, is a dispatch.
    """
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name == "bridge/primitives.py" or name.startswith(OTHER_LANGUAGES):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Dict):
                if all(
                    isinstance(v, ast.Name | ast.Lambda | ast.Attribute | ast.Call)
                    for v in node.values
                ):
                    continue
                items: list[ast.expr | None] = list(node.keys)
            elif isinstance(node, ast.Set | ast.Tuple | ast.List):
                items = list(node.elts)
            else:
                continue
            names = [n.value for n in items if isinstance(n, ast.Constant) and n.value in TABLE]
            if len(names) > 4:
                found.append(f"{name}:{node.lineno}: {names[:4]}")
    assert found == []


@pytest.mark.parametrize("name", sorted(primitives.named(lambda row: row.scalar and row.arrays)))
@pytest.mark.parametrize("dtype", ["int32", "int8", "uint32"])
def test_scalars_and_arrays_agree(name: str, dtype: str) -> None:
    row = TABLE[name]
    assert row.scalar is not None
    assert row.arrays is not None
    count = {"clamp": 3, "select_n": 3}.get(name, 1 if name in ("neg", "abs", "sign", "not") else 2)
    count = 1 if name == "stop_gradient" else count
    rng = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        for _ in range(20):
            given = [np.dtype(dtype).type(n) for n in rng.integers(0, 7, count)]
            if name == "select_n":
                given[0] = np.int32(rng.integers(0, 2))
            if name == "clamp":
                given[0], given[2] = min(given), max(given)
            result = row.arrays(*map(np.asarray, given))
            assert np.asarray(row.scalar(*given)) == result
