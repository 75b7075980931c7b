"""Every sentence of every finding, as provoked by the broken kernels."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from broken_kernels import BROKEN

from pallas_debug.analysis import analyze
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.versions import installed
from pallas_debug.compiler.targets import BUILTIN
from pallas_debug.findings.faults import Fault, Severity

CARRIED = (
    "write it before this line at each grid point; or, if it is carried along a grid axis, at the "
    "first step of that axis: @pl.when(pl.program_id(axis) == 0)"
)

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
        "the index follows a loop that runs past the end of the operand",
        "keep the index between 0 and 15, or pad the array",
    ),
    "scalar_read_past_the_end": (
        "lengths_ref[2] reaches 1 past the end of dimension 0 of int32[2] in SMEM",
        "the index follows the grid point past the end of the operand",
        "keep the index between 0 and 1, or pad the array",
    ),
    "write_past_the_end": (
        "out_ref[12:20, 0:128] reaches 4 past the end of dimension 0 of float32[16, 128] in VMEM",
        "the index follows the grid point past the end of the operand",
        "keep the index between 0 and 16 - 8, or pad the array",
    ),
    "block_past_the_array": (
        "the index map of next_ref gives block 2 along dimension 0 of float32[16, 128], which "
        "has 2; it is outside at 1 of 2 grid points",
        "the index map goes past the last block",
        "return a value between 0 and 1",
    ),
    "block_before_the_array": (
        "the index map of previous_ref gives block -1 along dimension 0 of float32[16, 128], "
        "which has 2; it is outside at 1 of 2 grid points",
        "a negative index does not count from the end, unlike in NumPy",
        "return a value between 0 and 1",
    ),
    "page_past_the_pool": (
        "the index map of page_ref gives block 9 along dimension 0 of float32[4, 8, 128], "
        "which has 4; it is outside at 1 of 3 grid points",
        "the index map takes the block from a scalar prefetch operand without checking it",
        "check the table before the call, or clamp the index in the index map",
    ),
    "element_offset_as_block_index": (
        "the index map of x_ref gives block 8 along dimension 0 of float32[32, 128], which "
        "has 4; it is outside at 3 of 4 grid points",
        "an index map returns block indices, and this looks like an element offset: 8 is 1 x 8",
        "return a value between 0 and 3: `i` rather than `i * 8`",
    ),
    "accumulator_never_zeroed": (
        "acc_ref, float32[8, 128] in VMEM, is read before it was written, and what was read is "
        "kept",
        "scratch buffers and outputs hold whatever was there before",
        CARRIED,
    ),
    "accumulator_zeroed_at_the_wrong_step": (
        "acc_ref, float32[8, 128] in VMEM, is read before it was written, and what was read is "
        "kept",
        "each store to it before this line is under a condition, and none of them had written it "
        "yet",
        CARRIED,
    ),
    "counter_never_zeroed": (
        "count_ref, int32[1] in SMEM, is read before it was written, and what was read is kept",
        "scratch buffers and outputs hold whatever was there before",
        CARRIED,
    ),
    "output_never_zeroed": (
        "out_ref, float32[8, 128] in VMEM, is read before it was written, and what was read is "
        "kept",
        "scratch buffers and outputs hold whatever was there before",
        CARRIED,
    ),
    "output_block_skipped": (
        "block (2, 0) of out_ref, float32[32, 128], is never written, and holds what was "
        "there before",
        "every store to out_ref is under a condition, which was false where it would have written "
        "this",
        "write all of out_ref, or give it an input by input_output_aliases",
    ),
    "grid_rounded_down": (
        "block (2, 0) of out_ref, float32[20, 128], is never written, and holds what was "
        "there before: 1 of 3 blocks are left as they were",
        "the grid has too few steps for the array: a size was rounded down",
        "use pl.cdiv(size, block) steps; the last block may reach past the end",
    ),
    "padding_in_a_sum": (
        "`reduce_sum` goes over dimension 0 of x_ref, whose last block holds 4 of 8: the rest is "
        "undefined",
        "the last block reaches past the array's end, and no jnp.where replaces what lies there",
        "mask what lies past the end with jnp.where, or pad the array to whole blocks",
    ),
    "padding_masked_on_one_side": (
        "`dot_general` goes over dimension 0 of y_ref, whose last block holds 72 of 128: the rest "
        "is undefined",
        "the last block reaches past the array's end, and no jnp.where replaces what lies there",
        "mask what lies past the end with jnp.where, or pad the array to whole blocks",
    ),
    "output_revisited": (
        "block (0, 0) of out_ref is the output block again at grid point (2,), as it was at "
        "grid point (0,), with another block in between: what it held has left VMEM",
        "an output block is written back when the next one begins, and is never read back",
        "make the grid axes over which the block stays the same the last ones",
    ),
    "contraction_outermost": (
        "block (0, 0) of out_ref is the output block again at grid point (1, 0), as it was "
        "at grid point (0, 0), with another block in between: what it held has left VMEM",
        "an output block is written back when the next one begins, and is never read back",
        "make the grid axes over which the block stays the same the last ones",
    ),
    "parallel_sum": (
        "block (0, 0) of out_ref, float32[8, 128], is written at grid point (1,) here, and "
        "written at grid point (0,) on the other side; nothing orders the two",
        "grid dimension 0 is parallel, and the grid points of a parallel axis run on several "
        "cores at once (v4 and v5p have two)",
        'give each grid point a block of its own, or make the axis "arbitrary" in '
        "dimension_semantics",
    ),
    "parallel_last_one_wins": (
        "block (0, 0) of out_ref, float32[8, 128], is written at grid point (1,) here, and "
        "written at grid point (0,) on the other side; nothing orders the two",
        "grid dimension 0 is parallel, and the grid points of a parallel axis run on several "
        "cores at once (v4 and v5p have two)",
        'give each grid point a block of its own, or make the axis "arbitrary" in '
        "dimension_semantics",
    ),
    "parallel_scratch_carried": (
        "acc_ref, float32[8, 128] in VMEM, is read before it was written, and what was read is "
        "kept",
        "grid dimension 0 is parallel, so two cores may share it (v4 and v5p have two), and each "
        "core has scratch of its own",
        "write acc_ref at each grid point; if it is to be carried on, make grid dimension 0 "
        '"arbitrary" in dimension_semantics',
    ),
    "read_before_wait": (
        "tile_ref, float32[8, 128] in VMEM, is read here, and written by the copy of x_ref "
        "to tile_ref (semaphore sem) on the other side; nothing orders the two",
        "copied data is there only after the wait",
        "wait for the copy before this line",
    ),
    "waits_for_the_other_copy": (
        "y_tile, float32[8, 128] in VMEM, is read here, and written by the copy of y_ref to "
        "y_tile (semaphore sems[1]) on the other side; nothing orders the two",
        "copied data is there only after the wait",
        "wait for the copy before this line",
    ),
    "single_buffer_prefetch": (
        "tile_ref, float32[8, 128] in VMEM, is written by the copy of x_ref to tile_ref "
        "(semaphore sem) here, and read on the other side; nothing orders the two",
        "the copy writes into a buffer that is still to be read",
        "start the copy after the read, or give it a second buffer",
    ),
    "source_overwritten": (
        "tile_ref, float32[8, 128] in VMEM, is written here, and read by the copy of "
        "tile_ref to out_ref (semaphore sem) on the other side; nothing orders the two",
        "the copy is still in flight when its buffer is written",
        "wait for the copy before this line, or write to another buffer",
    ),
    "copy_never_awaited": (
        "the copy of x_ref to out_ref is never waited for on sem: 4,096 bytes are left on it "
        "at the end",
        "the kernel may end before the copy does, and the next kernel finds the semaphore raised",
        "wait once for each start; where the last step has nothing to fetch, do not start",
    ),
    "prefetch_never_awaited": (
        "the copy of x_ref to tile_ref is never waited for on sems[0]: 4,096 bytes are left "
        "on it at the end",
        "the kernel may end before the copy does, and the next kernel finds the semaphore raised",
        "wait once for each start; where the last step has nothing to fetch, do not start",
    ),
    "waited_twice": (
        "sem is 0 bytes, and the wait needs 4096 bytes",
        "the copies on it were all waited for before: a start is good for one wait",
        "start a copy for this wait too, or leave the wait out: wait once for each start, with "
        "the same slices and the same semaphore",
    ),
    "copy_past_the_end": (
        "x_ref[16:24, 0:128] reaches 8 past the end of dimension 0 of float32[16, 128] in ANY",
        "the index follows the grid point past the end of the operand",
        "keep the index between 0 and 16 - 8, or pad the array",
    ),
    "signal_left_over": (
        "sem is 1 at the end of the kernel, and has to be 0: signals add up to 1, waits to 0",
        "nothing waits for it",
        "wait for sem as often as it is signalled: the next kernel inherits it",
    ),
    "signal_of_two_wait_for_one": (
        "sem is 2 at the end of the kernel, and has to be 0: signals add up to 4, waits to 2",
        "it is signalled more than it is waited for",
        "wait for sem as often as it is signalled: the next kernel inherits it",
    ),
    "never_signalled": (
        "sem is 0, and the wait needs 1; all signals add up to 0, all waits to 1",
        "it is never signalled",
        "signal it once for every wait, on the device and core that waits",
    ),
    "signalled_once_too_few": (
        "sem is 0, and the wait needs 1; all signals add up to 1, all waits to 2",
        "it is signalled less often than it is waited for",
        "signal it once for every wait, on the device and core that waits",
    ),
    "false_lane_multiple": (
        "64 is not a multiple of 128, although pl.multiple_of claims so",
        "the compiler trusts pl.multiple_of, and reads or writes in another place",
        "make the value a multiple of 128, or claim 64",
    ),
    "false_row_multiple": (
        "12 is not a multiple of 8, although pl.multiple_of claims so",
        "the compiler trusts pl.multiple_of, and reads or writes in another place",
        "make the value a multiple of 8, or claim 4",
    ),
    "failing_debug_check": (
        "the condition of this check is false at 1 of 2 grid points",
        "when compiled for a TPU, debug_check is left out unless jax_pallas_enable_debug_checks "
        "is set",
        "find out where the values that it does not allow come from",
    ),
    "check_without_debug": (
        "checkify.check is called in the kernel, and jax has no way to run it there",
        "since 0.10.1, jax does not functionalize checks in kernels",
        "use pl.debug_check, which pallas-debug's checks evaluate",
    ),
    "bfloat16_accumulator": (
        "out_ref adds up 20 terms in bfloat16, which keeps 8 bits of each sum",
        "a small term is lost where the sum so far is large",
        "accumulate in a float32 scratch buffer, and cast at the last step",
    ),
    "unproven_lane_offset": (
        "128 columns of x_ref are accessed from an offset that must be a multiple of 128: nothing "
        "is known about it",
        "a vector begins at a whole tile of 128 lanes, and the compiler must be able to prove that",
        "if it is one, say so: pl.multiple_of(start, 128); otherwise load whole tiles and use "
        "pltpu.roll",
    ),
    "unproven_lane_store": (
        "128 columns of out_ref are accessed from an offset that must be a multiple of 128: "
        "only 64 is known to divide it",
        "a vector begins at a whole tile of 128 lanes, and the compiler must be able to prove that",
        "if it is one, say so: pl.multiple_of(start, 128); otherwise load whole tiles and use "
        "pltpu.roll",
    ),
    "unaligned_dma": (
        "a copy takes 64 of 128 columns of x_ref, float32[8, 128] in ANY: it moves whole rows "
        "of 128 lanes",
        "arrays are laid out in tiles of 128 lanes",
        "copy whole tiles into a larger buffer, and take the part from there",
    ),
    "block_of_four_rows": (
        "x_ref comes in blocks of (4, 128) of float32[16, 128]: 4 is neither a multiple of 8 "
        "nor the whole dimension",
        "a tile has 8 rows of 128 lanes",
        "take 8 rows, or all 16; or reshape the array so that its last two dimensions are whole",
    ),
    "block_of_one_row": (
        "x_ref comes in blocks of (1, 128) of float32[16, 128]: 1 is neither a multiple of 8 "
        "nor the whole dimension",
        "a tile has 8 rows of 128 lanes",
        "take 8 rows, or all 16; or reshape the array so that its last two dimensions are whole",
    ),
    "block_of_100_elements": (
        "x_ref comes in blocks of (100,) of float32[1000]: 100 is neither the whole dimension, "
        "nor a multiple of 1024, nor a power of two from 128 on",
        "a vector of float32 is laid out in tiles of 128",
        "take 128 elements, or reshape the array to two dimensions",
    ),
    "int8_block_of_eight_rows": (
        "x_ref comes in blocks of (8, 128) of int8[64, 128]: 8 rows are no multiple of 32",
        "a tile of int8 has 32 rows, and libtpu 0.0.42.1 takes whole tiles",
        "take 32 rows, or libtpu 0.0.50",
    ),
    "blocks_over_the_limit": (
        "the kernel takes 32 MiB of VMEM at least, and may take 16 MiB on v4, v5e, v5p: x_ref 2 x "
        "float32[512, 4096] (16 MiB), out_ref 2 x float32[512, 4096] (16 MiB)",
        "VMEM holds each block once per buffer, and the scratch besides",
        "take blocks of x_ref (256, 4096), out_ref (256, 4096), which would fit; or set "
        "vmem_limit_bytes, of at most 64 MiB",
    ),
    "whole_arrays": (
        "the kernel takes 24 MiB of VMEM at least, and may take 16 MiB on v4, v5e, v5p: x_ref "
        "float32[3072, 1024] (12 MiB), out_ref float32[3072, 1024] (12 MiB)",
        "VMEM holds each block once per buffer, and the scratch besides",
        "take a grid with blocks of x_ref (768, 1024), out_ref (768, 1024), which would fit; "
        "or set vmem_limit_bytes, of at most 64 MiB",
    ),
    "scratch_over_the_capacity": (
        "the kernel takes 88 MiB of VMEM at least, and may take 16 MiB on v4; 64 MiB on v5p, tpu7x: "
        "scratch_ref float32[20, 1024, 1024] (80 MiB), x_ref float32[1024, 1024] (4 MiB), "
        "out_ref float32[1024, 1024] (4 MiB)",
        "the whole VMEM of a chip is 16 MiB on v4; 64 MiB on v5p, tpu7x: no vmem_limit_bytes "
        "makes it larger",
        "make the scratch smaller, and go over it in more steps",
    ),
    "page_table_too_large": (
        "the kernel takes 2 MiB of SMEM at least, and has 1 MiB on v4, v5e, v5p, v6e, tpu7x: "
        "page_table_ref int32[524288] (2 MiB)",
        "all of the scalar prefetch is in SMEM while the kernel runs",
        "leave the table in HBM and copy the part at hand by DMA, or call the kernel for one part "
        "of it at a time",
    ),
    "cumulative_sum": (
        "`cumsum` has no lowering for the TPU's core",
        "interpret mode supports every operation of jax, and the lowering for TPUs does not",
        "multiply by a triangular matrix of ones, or compute it outside the kernel",
    ),
    "sort_rows": (
        "`sort` has no lowering for the TPU's core",
        "interpret mode supports every operation of jax, and the lowering for TPUs does not",
        "sort outside the kernel; for the largest or smallest of a row, use max or min",
    ),
    "scan_with_outputs": (
        "a lax.scan stacks 1 output, an entry for each iteration",
        "a loop on the core has a carry, but no stacked outputs",
        "use lax.fori_loop, and store to a ref at each iteration",
    ),
    "gather_rows": (
        "float32[16, 128] is gathered by indices int32[8, 1]",
        "the core gathers along only one axis, as jnp.take_along_axis does",
        "multiply by a one-hot matrix, use jnp.take_along_axis, or index the ref by scalars",
    ),
    "float16_block": (
        "x_ref is float16[16, 128], and a TPU cannot load float16",
        "TPUs have bfloat16, but no float16",
        "cast to bfloat16 or float32 before the call",
    ),
    "int8_matmul": (
        "matrices of int8 are multiplied, which v4 cannot",
        "its matrix unit multiplies only bfloat16 and float32",
        "cast to bfloat16, in which products of 8-bit integers are exact",
    ),
    "uint8_matmul": (
        "matrices of uint8 are multiplied",
        "the matrix unit would take unsigned numbers for signed ones",
        "cast to a signed or float dtype that holds all values",
    ),
    "bfloat16_to_float16": (
        "bfloat16 is cast to float16",
        "TPUs have no cast between the two",
        "stay with bfloat16, or cast through float32 outside the kernel",
    ),
    "float_iota": (
        "an iota of float32[8, 128] is created, and the core has only integer ones",
        "`tpu.iota` takes only integers",
        "use lax.broadcasted_iota(jnp.int32, ...), and cast it with astype",
    ),
    "float_offset": (
        "x_ref is indexed by a float32",
        "the index is the result of a division with /, or of a float operand: interpret mode "
        "truncates it, and the compiler rejects it or crashes",
        "divide with //, or cast the index with .astype(jnp.int32)",
    ),
    "mask_as_column": (
        "bool[32], which lies along the lanes, becomes bool[32, 1]",
        "the compiler cannot move bools from lanes to sublanes: libtpu 0.0.42 rejects it, and "
        "0.0.50 crashes",
        "turn the numbers into a column before comparing them, or pass them as a column",
    ),
    "x64_index_map": (
        "the index map of x_ref returns an int64 for dimension 1; the TPU's index maps return "
        "int32",
        "under jax_enable_x64 a bare Python number is an int64",
        "return jnp.int32(0) rather than 0, or call the kernel without x64",
    ),
    "scalar_store_to_vmem": (
        "a scalar is stored to out_ref, float32[1, 1] in VMEM",
        "VMEM holds vectors; scalars live in SMEM",
        "store a (1, 1) vector, or put the output in SMEM: pl.BlockSpec(memory_space=pltpu.SMEM)",
    ),
    "direct_hbm_access": (
        "x_ref, float32[8, 128] in ANY, is loaded or stored without a copy",
        "the core loads from and stores to only VMEM and SMEM",
        "copy it with pltpu.sync_copy into a VMEM scratch buffer, or give it a BlockSpec",
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
    if name == "int8_block_of_eight_rows" and not installed()["libtpu"].startswith("0.0.42"):
        pytest.skip("a libtpu that takes such blocks, or of another name")
    (finding,) = found
    assert (finding.message, finding.cause, finding.advice) == WORDS[name]
    assert finding.source is not None
    assert finding.source.text
    if finding.kind.severity >= Severity.STOPS:  # a fault of a run rather than of the compiler
        assert finding.values or finding.index


def test_the_guide_names_every_kind() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "analysis.md").read_text()
    named = {
        kind
        for row in re.findall(r"^\| (`.*) \| ", guide, re.MULTILINE)
        for kind in re.findall(r"`(\w+)`", row)
    }
    assert named == {str(fault) for fault in Fault if "static" in fault.judges}
