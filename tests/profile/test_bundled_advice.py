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
    """What `stats` advises on the kernels of an operation, and on those of its gradient."""

    def forward(*args: Any) -> Any:
        return operation.function(*args, **spec.kwargs)

    def total(*args: jax.Array) -> Any:
        return forward(*args).astype(jnp.float32).sum()

    args = [spec.values.get(i, arg) for i, arg in enumerate(spec.args)]
    functions = [forward]
    if operation.differentiable:
        functions.append(jax.grad(total, argnums=operation.differentiable))
    for function in functions:
        for dump in pallas_debug.dump(function, *args, targets=target, to=to, stages="estimate"):
            stored = open_dumps(to).find(dump.name)
            found = read_profile(stored, stored.target(target))
            assert found is not None
            name = dump.name.rpartition("-")[0] or dump.name
            yield from ((name, spec.name, piece.kind) for piece in found.profile.stats.advice)


@pytest.mark.large
@pytest.mark.parametrize("target", ALL)
@pytest.mark.parametrize("operation", operations(), ids=lambda operation: operation.name)
def test_every_piece_of_advice_is_answered(
    operation: BundledOperation, target: str, tmp_path: Path
) -> None:
    specs = [s for s in operation.tagged("bench") if target not in s.not_on]
    found = {piece for spec in specs for piece in advice(operation, spec, target, tmp_path)}
    known = answered(target)
    assert found <= known
    if metadata.version("libtpu") == OLDEST:
        assert {piece for piece in known if piece[0].startswith(operation.name)} == found


def test_the_guide_has_a_table_of_answers() -> None:
    pieces = {piece for target in ALL for piece in answered(target)}
    assert pieces
