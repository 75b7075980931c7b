"""Every sentence of every finding, as provoked by the broken kernels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from broken_kernels import BROKEN

from pallas_debug.analysis import analyze
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.versions import installed
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
        "the index map of next_ref returns block 2 along dimension 0 of float32[16, 128], which "
        "has 2 blocks; it is out of bounds at 1 of 2 grid points",
        "the index map goes past the last block",
        "return a value between 0 and 1",
    ),
    "block_before_the_array": (
        "the index map of previous_ref returns block -1 along dimension 0 of float32[16, 128], "
        "which has 2 blocks; it is out of bounds at 1 of 2 grid points",
        "a negative index does not count from the end, unlike in NumPy",
        "return a value between 0 and 1",
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
        "an index map returns block indices, and this looks like an element offset: 8 is 1 x 8",
        "return a value between 0 and 3: `i` rather than `i * 8`",
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
        "put the grid axes along which the block stays the same last",
    ),
    "contraction_outermost": (
        "block (0, 0) of out_ref is visited at grid point (0, 0) and again at grid point (1, 0), "
        "with another block in between: its contents have left VMEM",
        "an output block is written back when the next one begins, and is never read back",
        "put the grid axes along which the block stays the same last",
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
        "the index follows the grid point past the end of the operand",
        "keep the index between 0 and 16 - 8, or pad the array",
    ),
    "check_without_debug": (
        "checkify.check is called in the kernel, but jax cannot run it there",
        "since 0.10.1, jax does not functionalize checks in kernels",
        "use pl.debug_check, which pallas-debug's checks evaluate",
    ),
    "unproven_lane_offset": (
        "128 columns of x_ref are accessed at an offset that must be a multiple of 128, but "
        "nothing is known about it",
        "a vector must begin at a tile boundary (every 128 lanes), and the compiler must be able "
        "to prove it",
        "if it is a multiple, declare it: pl.multiple_of(start, 128); otherwise load whole tiles "
        "and use pltpu.roll",
    ),
    "unproven_lane_store": (
        "128 columns of out_ref are accessed at an offset that must be a multiple of 128, but it "
        "is only known to be a multiple of 64",
        "a vector must begin at a tile boundary (every 128 lanes), and the compiler must be able "
        "to prove it",
        "if it is a multiple, declare it: pl.multiple_of(start, 128); otherwise load whole tiles "
        "and use pltpu.roll",
    ),
    "unaligned_dma": (
        "a copy takes 64 of 128 columns of x_ref, float32[8, 128] in ANY, but copies move whole "
        "rows of 128 lanes",
        "arrays are laid out in tiles of 128 lanes",
        "copy whole tiles into a larger buffer, and slice it there",
    ),
    "block_of_four_rows": (
        "x_ref, float32[16, 128], is divided into blocks of (4, 128): 4 is neither a multiple of "
        "8 nor the whole dimension",
        "a tile has 8 rows of 128 lanes",
        "use 8 rows or all 16; or reshape the array so that its blocks span the last two "
        "dimensions",
    ),
    "block_of_one_row": (
        "x_ref, float32[16, 128], is divided into blocks of (1, 128): 1 is neither a multiple of "
        "8 nor the whole dimension",
        "a tile has 8 rows of 128 lanes",
        "use 8 rows or all 16; or reshape the array so that its blocks span the last two "
        "dimensions",
    ),
    "block_of_100_elements": (
        "x_ref, float32[1000], is divided into blocks of (100,): 100 is neither the whole "
        "dimension, nor a multiple of 1024, nor a power of two of at least 128",
        "a vector of float32 is laid out in tiles of 128",
        "use 128 elements, or reshape the array to two dimensions",
    ),
    "int8_block_of_eight_rows": (
        "x_ref, int8[64, 128], is divided into blocks of (8, 128): 8 rows is not a multiple of 32",
        "a tile of int8 has 32 rows, and libtpu 0.0.42.1 requires whole tiles",
        "use 32 rows, or upgrade libtpu to 0.0.50",
    ),
    "blocks_over_the_limit": (
        "the kernel needs at least 32 MiB of VMEM, and may use 16 MiB on v4, v5e, v5p: x_ref 2 x "
        "float32[512, 4096] (16 MiB), out_ref 2 x float32[512, 4096] (16 MiB)",
        "VMEM holds each block once per buffer, plus the scratch",
        "use smaller blocks, less scratch or a narrower dtype; or set vmem_limit_bytes to at most "
        "64 MiB",
    ),
    "whole_arrays": (
        "the kernel needs at least 24 MiB of VMEM, and may use 16 MiB on v4, v5e, v5p: x_ref "
        "float32[3072, 1024] (12 MiB), out_ref float32[3072, 1024] (12 MiB)",
        "VMEM holds each block once per buffer, plus the scratch",
        "use smaller blocks, less scratch or a narrower dtype; or set vmem_limit_bytes to at most "
        "64 MiB",
    ),
    "scratch_over_the_capacity": (
        "the kernel needs at least 88 MiB of VMEM, and may use 16 MiB on v4; 64 MiB on v5p, "
        "tpu7x: scratch_ref float32[20, 1024, 1024] (80 MiB), x_ref float32[1024, 1024] (4 MiB), "
        "out_ref float32[1024, 1024] (4 MiB)",
        "the whole VMEM of a chip is 16 MiB on v4; 64 MiB on v5p, tpu7x: vmem_limit_bytes cannot "
        "make it larger",
        "use smaller blocks, less scratch or a narrower dtype",
    ),
    "page_table_too_large": (
        "the kernel needs at least 2 MiB of SMEM, and has 1 MiB on v4, v5e, v5p, v6e, tpu7x: "
        "page_table_ref int32[524288] (2 MiB)",
        "all scalar-prefetch operands are in SMEM while the kernel runs",
        "keep the table in HBM and copy the part in use by DMA, or call the kernel for one part "
        "of the table at a time",
    ),
    "cumulative_sum": (
        "`cumsum` has no lowering for the TPU's core",
        "interpret mode supports every jax operation, but the TPU lowering does not",
        "multiply by a triangular matrix of ones, or compute it outside the kernel",
    ),
    "sort_rows": (
        "`sort` has no lowering for the TPU's core",
        "interpret mode supports every jax operation, but the TPU lowering does not",
        "sort outside the kernel; for the largest or smallest element of a row, use max or min",
    ),
    "scan_with_outputs": (
        "a lax.scan stacks 1 output, one entry per iteration",
        "a loop on the core can carry values, but cannot stack outputs",
        "use lax.fori_loop, and store to a ref at each iteration",
    ),
    "gather_rows": (
        "float32[16, 128] is gathered with indices int32[8, 1]",
        "the core gathers along only one axis, as jnp.take_along_axis does",
        "multiply by a one-hot matrix, use jnp.take_along_axis, or index the ref with scalars",
    ),
    "float16_block": (
        "x_ref is float16[16, 128], but a TPU cannot load float16",
        "TPUs have bfloat16, but no float16",
        "cast to bfloat16 or float32 before the call",
    ),
    "int8_matmul": (
        "matrices of int8 are multiplied, which v4 cannot do",
        "the matrix unit there multiplies only bfloat16 and float32",
        "cast to bfloat16, in which products of 8-bit integers are exact",
    ),
    "uint8_matmul": (
        "matrices of uint8 are multiplied",
        "the matrix unit would treat unsigned numbers as signed",
        "cast to a signed or float dtype that holds all values",
    ),
    "bfloat16_to_float16": (
        "bfloat16 is cast to float16",
        "TPUs have no cast between the two",
        "keep bfloat16, or cast through float32 outside the kernel",
    ),
    "float_iota": (
        "an iota of float32[8, 128] is created, but the core has only integer iotas",
        "`tpu.iota` takes only integers",
        "use lax.broadcasted_iota(jnp.int32, ...), and cast it with astype",
    ),
    "float_offset": (
        "x_ref is indexed by a float32",
        "the index comes from a division with / or from a float operand: interpret mode truncates "
        "it, and the compiler rejects it or crashes",
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
        "with jax_enable_x64, a Python int is an int64",
        "return jnp.int32(0) rather than 0, or call the kernel without x64",
    ),
    "scalar_store_to_vmem": (
        "a scalar is stored to out_ref, float32[1, 1] in VMEM",
        "VMEM holds vectors; scalars live in SMEM",
        "store a (1, 1) vector, or put the output in SMEM: pl.BlockSpec(memory_space=pltpu.SMEM)",
    ),
    "direct_hbm_access": (
        "x_ref, float32[8, 128] in ANY, is loaded or stored without a copy",
        "the core can load from and store to only VMEM and SMEM",
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
