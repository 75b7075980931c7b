"""Every sentence of every finding, as provoked by the broken kernels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from broken_kernels import BROKEN

from pallas_debug.analysis import analyze
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.compiler.targets import BUILTIN
from pallas_debug.findings.faults import Severity

WORDS: dict[str, tuple[str, str, str]] = {
    "read_past_the_end": (
        "x_ref[12:20, 0:128] reaches 4 past the end of dimension 0 of float32[16, 128] in VMEM",
        "the index comes from line 18, `start = pl.program_id(0) * 8 + 4`, which does not keep it "
        "within bounds",
        "keep the index between 0 and 16 - 8, or pad the array",
    ),
    "read_before_the_start": (
        "x_ref[-1:0, 0:128] begins 1 before the start of dimension 0 of float32[16, 128] in VMEM",
        "a negative index does not count from the end, unlike in NumPy",
        "keep the index between 0 and 15, or pad the array",
    ),
    "loop_one_row_too_far": (
        "x_ref[16:17, 0:128] reaches 1 past the end of dimension 0 of float32[16, 128] in VMEM",
        "the index is not bounded by the shape of the ref",
        "keep the index between 0 and 15, or pad the array",
    ),
    "scalar_read_past_the_end": (
        "lengths_ref[2] reaches 1 past the end of dimension 0 of int32[2] in SMEM",
        "the index is not bounded by the shape of the ref",
        "keep the index between 0 and 1, or pad the array",
    ),
    "write_past_the_end": (
        "out_ref[12:20, 0:128] reaches 4 past the end of dimension 0 of float32[16, 128] in VMEM",
        "the index is not bounded by the shape of the ref",
        "keep the index between 0 and 16 - 8, or pad the array",
    ),
    "block_past_the_array": (
        "the index map of next_ref returns block 2 along dimension 0 of float32[16, 128], which "
        "has 2 blocks; it is out of bounds at 1 of 2 grid points",
        "the index map goes past the last block",
        "return a value between 0 and 1: it counts blocks",
    ),
    "block_before_the_array": (
        "the index map of previous_ref returns block -1 along dimension 0 of float32[16, 128], "
        "which has 2 blocks; it is out of bounds at 1 of 2 grid points",
        "a negative index does not count from the end, unlike in NumPy",
        "return a value between 0 and 1: it counts blocks",
    ),
    "page_past_the_pool": (
        "the index map of page_ref returns block 9 along dimension 0 of float32[4, 8, 128], which "
        "has 4 blocks; it is out of bounds at 1 of 3 grid points",
        "the index map takes the block from a scalar-prefetch operand without checking it",
        "check the table before the call, or clamp the index in the index map",
    ),
    "element_offset_as_block_index": (
        "the index map of x_ref returns block 8 along dimension 0 of float32[32, 128], which has "
        "4 blocks; it is out of bounds at 3 of 4 grid points",
        "the index map goes past the last block",
        "return a value between 0 and 3: it counts blocks",
    ),
    "output_block_skipped": (
        "out_ref[16:32, 0:128] is never written, and holds whatever was in memory before: 2,048 of "
        "4,096 elements",
        "every store to out_ref is conditional, and its condition was false where it would have "
        "written this part",
        "write all of out_ref, or alias an input to it with input_output_aliases",
    ),
    "grid_rounded_down": (
        "block (2, 0) of out_ref, float32[20, 128], is never written, and holds whatever was in "
        "memory before: 1 of 3 blocks",
        "the grid has too few steps for the array: a size was rounded down",
        "use pl.cdiv(size, block) steps; the last block may reach past the end",
    ),
    "output_revisited": (
        "block (0, 0) of out_ref is visited at grid point (0,) and again at grid point (2,), with "
        "another block in between: its contents have left VMEM",
        "an output block is written back when the next one begins, and is never read back",
        "let all grid points of a block follow each other: put the grid axes along which it stays "
        "the same last, or sort the table that its index map reads",
    ),
    "contraction_outermost": (
        "block (0, 0) of out_ref is visited at grid point (0, 0) and again at grid point (1, 0), "
        "with another block in between: its contents have left VMEM",
        "an output block is written back when the next one begins, and is never read back",
        "let all grid points of a block follow each other: put the grid axes along which it stays "
        "the same last, or sort the table that its index map reads",
    ),
    "parallel_sum": (
        "block (0, 0) of out_ref, float32[8, 128], is written at grid point (1,) here and "
        "written at grid point (0,) on the other side; nothing orders the two",
        "grid dimension 0 is parallel, and the grid points of a parallel axis may run on several "
        "cores at once (v4 and v5p have two)",
        'give each grid point its own block, or make the axis "arbitrary" in dimension_semantics',
    ),
    "parallel_last_one_wins": (
        "block (0, 0) of out_ref, float32[8, 128], is written at grid point (1,) here and "
        "written at grid point (0,) on the other side; nothing orders the two",
        "grid dimension 0 is parallel, and the grid points of a parallel axis may run on several "
        "cores at once (v4 and v5p have two)",
        'give each grid point its own block, or make the axis "arbitrary" in dimension_semantics',
    ),
    "copy_past_the_end": (
        "x_ref[16:24, 0:128] reaches 8 past the end of dimension 0 of float32[16, 128] in ANY",
        "the index comes from line 201, `start = (pl.program_id(0) + 1) * 8`, which does not keep "
        "it within bounds",
        "keep the index between 0 and 16 - 8, or pad the array",
    ),
}
"""Message, cause and advice, by the name of the broken kernel."""


@pytest.mark.parametrize("name", WORDS)
def test_the_words_of_a_finding(captures: Callable[..., list[Capture]], name: str) -> None:
    (kernel,) = [b for b in BROKEN if b.name == name]
    (captured,) = captures(kernel.function, kernel.args, x64=kernel.x64)
    tables = [np.asarray(x) for x in kernel.make_args()]
    wanted = len(captured.kernel.of_kind("scalar_prefetch"))
    found = analyze(captured, BUILTIN, prefetch=tables[:wanted] or None).findings
    (finding,) = found
    assert (finding.message, finding.cause, finding.advice) == WORDS[name]
    assert finding.source is not None
    assert finding.source.text
    if finding.kind.severity >= Severity.STOPS:  # a fault of a run rather than of the compiler
        assert finding.values or finding.index
