"""Wording of blocks that an array does not have."""

from __future__ import annotations

import pytest

from pallas_debug.findings.sighting import Sighting
from pallas_debug.findings.wording import bounds
from pallas_debug.model import Finding, SourceLine, Witness


def found(point: tuple[int, ...]) -> Finding:
    seen = Sighting(kernel="rows", engine="machine", witness=Witness(grid_point=point, operand="x"))
    return bounds.block_out_of_bounds(
        seen, dim=0, value=8, first=0, last=7, array="float32[64, 128]", block_size=8,
        is_offset=True,
    )  # fmt: skip


def test_an_index_that_is_the_grid_point_is_no_element_offset() -> None:
    grid = found((8,))
    assert "equals the grid point along grid dimension 0" in (grid.cause or "")
    assert grid.advice == "give dimension 0 of the grid 8 steps, or return a different index there"
    assert "looks like an element offset: 8 is 1 x 8" in (found((1,)).cause or "")
    # One past the block of the last step, as of the rows below a block: no program id is 1.
    assert found((0, 7)).cause == "the index map goes past the last block"


def test_an_index_into_one_element() -> None:
    seen = Sighting(kernel="rows", engine="machine", witness=Witness(operand="n", index="n[1]"))
    found = bounds.out_of_bounds(seen, writes=True, dim=0, start=1, size=None, bound=1)
    assert found.advice == "use index 0, the only one, or pad the array"


def test_the_advice_on_a_discarded_entry_reaches_it() -> None:
    for start, advised in ((8, "table[jnp.minimum(i, 7)]"), (-1, "table[jnp.maximum(i, 0)]")):
        witness = Witness(operand="t", index=f"t[{start}]")
        seen = Sighting(kernel="rows", engine="machine", witness=witness)
        found = bounds.out_of_bounds(seen, writes=False, dim=0, start=start, size=None, bound=8)
        assert f"`{advised}`" in (bounds.discarded(found).advice or "")


@pytest.mark.parametrize(
    "start, file, text, is_block, cause",
    [
        (9, "a.py", "i = n * 9", False,
         "the index comes from line 4, `i = n * 9`, which does not keep it within bounds"),
        (9, "a.py", "i = n * 9", True,
         "the index comes from line 4, `i = n * 9`, which does not keep it within one block"),
        (-1, "a.py", "i = n - 1", False,
         "the index comes from line 4, `i = n - 1`, and a negative index does not count from the "
         "end, unlike in NumPy"),
        (9, "b.py", None, False,
         "the index comes from b.py:4, which does not keep it within bounds"),
    ],
)  # fmt: skip
def test_the_line_that_computes_an_index(
    start: int, file: str, text: str | None, is_block: bool, cause: str
) -> None:
    at = SourceLine(file="a.py", line=7)
    seen = Sighting(kernel="rows", engine="machine", witness=Witness(operand="x", source=at))
    computed = SourceLine(file=file, line=4, text=text)
    found = bounds.out_of_bounds(
        seen, writes=False, dim=0, start=start, size=None, bound=8, is_block=is_block,
        computed=computed,
    )  # fmt: skip
    assert found.cause == cause
