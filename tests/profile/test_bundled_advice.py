"""Every piece of advice on a bundled kernel is answered in the guide that describes them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from pallas_debug_kernels import Spec, operations
from pallas_debug_kernels.registry import BundledOperation

import pallas_debug
from pallas_debug.compiler import targets
from pallas_debug.store import open_dumps
from pallas_debug.store.profiles import read_profile

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "kernels.md"
ALL = tuple(t.name for t in targets.BUILTIN)
HEADER = "| kernel | spec | targets | advice | answer |"
OLDEST = "0.0.42"
"""libtpu by which the table is complete; a later one may give less advice, and no other."""

Piece = tuple[str, str, str]
"""Kernel, spec and kind of advice."""


def answered(target: str) -> set[Piece]:
    """Pieces of advice on a target that the guide's table answers."""
    lines = GUIDE.read_text().partition(HEADER)[2].splitlines()[2:]
    found = set()
    for line in lines:
        if not line.startswith("|"):
            break
        kernel, spec, targets, kind, answer = (cell.strip() for cell in line.strip("|").split("|"))
        assert answer
        if target in targets.split(", "):
            found.add((kernel.strip("`"), spec.strip("`"), kind.strip("`")))
    return found


def advice(operation: BundledOperation, spec: Spec, target: str, to: Path) -> Iterator[Piece]:
    """Yield the advice that `stats` gives on the kernels of an operation and of its gradient."""

    def forward(*args: Any) -> Any:
        return operation.function(*args, **spec.kwargs)

    def total(*args: jax.Array) -> Any:
        return forward(*args).astype(jnp.float32).sum()

    args = [spec.values.get(i, arg) for i, arg in enumerate(spec.args)]
    functions = [forward]
    if operation.differentiable:
        functions.append(jax.grad(total, argnums=operation.differentiable))
    for function in functions:
        for dump in pallas_debug.dump(function, *args, targets=target, to=to, stages="bundles"):
            stored = open_dumps(to).find(dump.name)
            found = read_profile(stored, stored.target(target))
            assert found is not None
            name = dump.name.rpartition("-")[0] or dump.name
            yield from ((name, spec.name, piece.kind) for piece in found.profile.stats.advice)


LONG = ("dma_matmul", "flash_attention", "splash_attention")
"""Operations whose rows take 20 s and more; `benchmarks/cycles.py --advice` lists their advice."""


def cases() -> list[Any]:
    return [
        pytest.param(operation, spec, target, id=f"{operation.name}-{spec.name}-{target}")
        for operation in operations()
        if operation.name not in LONG
        for spec in operation.tagged("bench")
        for target in ALL
        if target not in spec.not_on
    ]


@pytest.mark.slow
@pytest.mark.parametrize("operation, spec, target", cases())
def test_every_piece_of_advice_is_answered(
    operation: BundledOperation, spec: Spec, target: str, tmp_path: Path
) -> None:
    found = set(advice(operation, spec, target, tmp_path))
    known = {
        piece
        for piece in answered(target)
        if piece[0].startswith(operation.name) and piece[1] == spec.name
    }
    assert found <= known
    if metadata.version("libtpu").startswith(OLDEST):
        assert known == found


def test_the_guide_has_a_table_of_answers() -> None:
    pieces = {piece for target in ALL for piece in answered(target)}
    assert pieces
