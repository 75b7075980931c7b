"""VMEM and SMEM overflows: tables in real messages, estimates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pallas_debug import explain
from pallas_debug.explain import memory
from pallas_debug.model import Kernel, Operand

MESSAGES = Path(__file__).parent / "messages"
MAP = "{ lambda ; i:i32[]. let  in (i, 0:i32[]) }"
FIXED = "{ lambda ; i:i32[]. let  in (0:i32[], 0:i32[]) }"


def message(entry: str, core: str) -> str:
    parts = (MESSAGES / f"{entry}.txt").read_text().split("=== from: ")
    return next(part for part in parts if core in part)


def operand(name: str, kind: str, shape: tuple[int, ...], **changes: object) -> Operand:
    made = Operand(name=name, kind="input", shape=shape, dtype="float32", memory_space="default")
    return replace(made, kind=kind, **changes)  # type: ignore[arg-type]


def kernel(*operands: Operand, grid: tuple[int | None, ...] = ()) -> Kernel:
    return Kernel(name="k", digest="", primitive="pallas_call", operands=operands, grid=grid)


ROWS = kernel(
    operand("x_ref", "input", (8192, 2048), block_shape=(1024, 2048), index_map=MAP),
    operand("w_ref", "input", (2048, 2048), block_shape=(2048, 2048), index_map=FIXED),
    operand("o_ref", "output", (8192, 2048), block_shape=(1024, 2048), index_map=MAP),
    operand("sum_ref", "scratch", (1024, 2048), memory_space="vmem"),
    operand("sem", "scratch", (), memory_space="semaphore_mem", dtype="dma_sem"),
    grid=(8,),
)


def test_the_table_of_a_message_without_a_kernel() -> None:
    overflow = memory.overflow(message("vmem-capacity", "bf16[1024,2048]"))
    assert overflow is not None
    assert (overflow.used, overflow.limit) == (40 << 20, 16 << 20)
    assert [str(allocation) for allocation in overflow.allocations] == [
        "input 0: 16 MiB, f32[1024,2048] of f32[8192,2048], 2 buffers",
        "output 0: 16 MiB, f32[1024,2048] of f32[8192,2048], 2 buffers",
        "input 1: 8 MiB, bf16[1024,2048] of bf16[8192,2048], 2 buffers",
    ]
    assert not overflow.is_estimate


def test_one_allocation_that_is_too_large() -> None:
    scratch = memory.overflow(message("vmem-capacity", "scratch operand"))
    assert scratch is not None
    assert [str(a) for a in scratch.allocations] == ["scratch: 80 MiB, f32[20,1024,1024]"]
    table = memory.overflow(message("smem-overflow", "prefetched"))
    assert table is not None
    assert (table.space, table.used, table.limit) == ("smem", 2 << 20, 1 << 20)
    assert table.allocations[0].what == "scalar prefetch 0"


def test_the_compiler_counts_scalar_prefetch_among_the_inputs() -> None:
    """Seen with both releases: `operator input 1` is the first operand behind one table."""
    text = (
        "Allocation (size=33554432) would exceed memory (size=16777216) :: #allocation5 [shape = "
        "'u8[33554432]{0}', space=vmem, size = 0x2000000, scoped, tag = 'input window allocation "
        "for operator input 1. The window shape is f32[2048,4096], while the full shape is "
        "f32[2048,4096]. This allocation is single buffered.'] :: kernel.1"
    )
    table = operand("table_ref", "scalar_prefetch", (8,), memory_space="smem", dtype="int32")
    overflow = memory.overflow(text, kernel(table, *ROWS.operands))
    assert overflow is not None
    assert str(overflow.allocations[0]) == "x_ref: 32 MiB, f32[2048,4096]"


def test_an_estimate_counts_what_lies_in_vmem_as_often_as_it_does() -> None:
    assert [str(a) for a in memory.estimate(ROWS)] == [
        "x_ref: 16 MiB, float32[1024, 2048] of [8192, 2048], 2 buffers",
        "w_ref: 16 MiB, float32[2048, 2048]",
        "o_ref: 16 MiB, float32[1024, 2048] of [8192, 2048], 2 buffers",
        "sum_ref: 8 MiB, float32[1024, 2048]",
    ]
    single = replace(ROWS.operands[0], pipeline="Buffered(buffer_count=1, use_lookahead=False)")
    assert memory.estimate(kernel(single, grid=(8,)))[0].buffers == 1
    assert memory.estimate(kernel(ROWS.operands[0], grid=(1,)))[0].buffers == 1
    assert memory.estimate(kernel(ROWS.operands[0], grid=(None,)))[0].buffers == 2


def test_blocks_are_padded_to_tiles() -> None:
    tile = (8, 128)
    for dtype, rows in {"float32": 8, "bfloat16": 16, "int8": 32, "bool": 32}.items():
        assert memory.padded_bytes(tile, dtype) == memory.padded_bytes((rows, 128), dtype) == 4096
    assert memory.padded_bytes((), "int32") == memory.padded_bytes((128,), "int32") == 4096
    assert memory.padded_bytes((3, 9, 129), "float32") == 3 * 4 * 4096


def test_an_explanation_holds_all_of_it() -> None:
    text = message("scoped-vmem-overflow", "size 40.00M")
    found = explain.explain(text, kernel=ROWS)
    assert found is not None
    assert found.details[:4] == (
        "needed: 40 MiB of VMEM; limit: 16 MiB",
        "its blocks take at least:",
        "  x_ref: 16 MiB, float32[1024, 2048] of [8192, 2048], 2 buffers",
        "  w_ref: 16 MiB, float32[2048, 2048]",
    )
    without = explain.explain(text)
    assert without is not None
    assert without.details == ("needed: 40 MiB of VMEM; limit: 16 MiB",)
