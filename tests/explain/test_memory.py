"""VMEM and SMEM overflows: tables in real messages, estimates."""

from __future__ import annotations

from pathlib import Path

from pallas_debug.explain import memory
from pallas_debug.model import Kernel, Operand

MESSAGES = Path(__file__).parent / "messages"


def message(entry: str, core: str) -> str:
    parts = (MESSAGES / f"{entry}.txt").read_text().split("=== from: ")
    return next(part for part in parts if core in part)


def operand(name: str, kind: str = "input", space: str = "default") -> Operand:
    return Operand(name=name, kind=kind, shape=(8, 128), dtype="float32", memory_space=space)


ROWS = (operand("x_ref"), operand("w_ref"), operand("o_ref", "output"))


def test_the_table_of_a_message_without_a_kernel() -> None:
    assert memory.overflow(message("vmem-capacity", "bf16[1024,2048]")) == [
        "needs 40 MiB of VMEM, the limit is 16 MiB",
        "  input 0: 16 MiB, f32[1024,2048] of f32[8192,2048], 2 buffers",
        "  output 0: 16 MiB, f32[1024,2048] of f32[8192,2048], 2 buffers",
        "  input 1: 8 MiB, bf16[1024,2048] of bf16[8192,2048], 2 buffers",
    ]


def test_one_allocation_that_is_too_large() -> None:
    scratch = memory.overflow(message("vmem-capacity", "scratch operand"))
    assert scratch[1:] == ["  scratch: 80 MiB, f32[20,1024,1024]"]
    needed, table, *_ = memory.overflow(message("smem-overflow", "prefetched"))
    assert needed == "needs 2 MiB of SMEM, the limit is 1 MiB"
    assert table.startswith("  scalar prefetch 0: ")


def test_the_compiler_counts_scalar_prefetch_among_the_inputs() -> None:
    """Seen with both releases: `operator input 1` is the first operand behind one table."""
    text = (
        "Allocation (size=33554432) would exceed memory (size=16777216) :: #allocation5 [shape = "
        "'u8[33554432]{0}', space=vmem, size = 0x2000000, scoped, tag = 'input window allocation "
        "for operator input 1. The window shape is f32[2048,4096], while the full shape is "
        "f32[2048,4096]. This allocation is single buffered.'] :: kernel.1"
    )
    operands = (operand("table_ref", "scalar_prefetch", "smem"), *ROWS)
    named = Kernel(name="k", digest="", primitive="pallas_call", operands=operands)
    assert memory.overflow(text, named)[1] == "  x_ref: 32 MiB, f32[2048,4096]"
