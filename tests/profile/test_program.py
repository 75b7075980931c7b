"""The Mosaic program as a graph, and what rules make of programs that are cut off or hostile."""

from __future__ import annotations

import time

import pytest

from pallas_debug.ir.operations import Module
from pallas_debug.model import Kernel, Operand
from pallas_debug.profile.advice import AdviceSubject, StepCost, advise
from pallas_debug.profile.advice.program import MosaicProgram, shape_of
from pallas_debug.profile.advice.rules.mask import iterations_without_mask
from pallas_debug.profile.schedule import schedule_of
from pallas_debug.profile.tracing import trace

PROGRAM = """\
module {
  func.func @kernel(%arg0: i32 loc(unknown), %arg1: memref<64x128xf32, #tpu.memory_space<vmem>> loc("x_ref"), %arg2: memref<64x128xf32, #tpu.memory_space<vmem>> loc("out_ref")) attributes {iteration_bounds = array<i64: 4>} {
    %c0_i32 = arith.constant 0 : i32 loc(#loc1)
    %c8_i32 = arith.constant 8 : i32 loc(#loc1)
    %0 = arith.addi %c0_i32, %c8_i32 : i32 loc(#loc1)
    %c1_i32 = arith.constant 1 : i32 loc(#loc1)
    scf.for %arg3 = %c0_i32 to %0 step %c1_i32  : i32 {
      %c8_i32_0 = arith.constant 8 : i32 loc(#loc2)
      %1 = arith.muli %arg3, %c8_i32_0 : i32 loc(#loc2)
      %2 = tpu.assume_multiple %1, 8 : i32 loc(#loc2)
      %3 = arith.index_cast %2 : i32 to index loc(#loc2)
      %c0 = arith.constant 0 : index loc(#loc2)
      %4 = vector.load %arg1[%3, %c0] : memref<64x128xf32, #tpu.memory_space<vmem>>, vector<8x128xf32> loc(#loc2)
      %5 = tpu.iota {dimensions = array<i32: 0>} : vector<8x128xi32> loc(#loc3)
      %6 = vector.broadcast %1 : i32 to vector<8x128xi32> loc(#loc3)
      %7 = arith.addi %5, %6 : vector<8x128xi32> loc(#loc3)
      %c50 = arith.constant 50 : i32 loc(#loc3)
      %8 = vector.broadcast %c50 : i32 to vector<8x128xi32> loc(#loc3)
      %9 = arith.cmpi slt, %7, %8 : vector<8x128xi32> loc(#loc3)
      tpu.vector_store %arg2[%3, %c0], %4 masked %9 {strides = array<i32>} : memref<64x128xf32, #tpu.memory_space<vmem>>, vector<8x128xf32>, vector<8x128xi1> loc(#loc2)
    } loc(#loc4)
    return loc(#loc)
  } loc(#loc)
  func.func @transform_0(%arg0: i32 loc(unknown)) -> (i32, i32) {
    %c0_i32 = arith.constant 0 : i32 loc(#loc)
    return %arg0, %c0_i32 : i32, i32 loc(#loc)
  } loc(#loc)
} loc(#loc)
#loc = loc(unknown)
#loc1 = loc("k.py":3:0 to :5)
#loc2 = loc("k.py":4:0 to :5)
#loc3 = loc("k.py":5:0 to :5)
#loc4 = loc("k.py":6:0 to :5)
"""

LISTING = """\
     0   :  { %s0 = inlined_call_operand.hbm [shape: f32[8,128]] }
   0x1   :  { %v1 = vld [vmem:[%s0] sm:$0xff] /* loc("k.py":4:0 to :5) */ }
   0x2   :  { %v3 = vadd.f32 %v1, %v1 /* loc("k.py":4:0 to :5) */ }
"""

KERNEL = Kernel(
    name="kernel",
    digest="0" * 64,
    primitive="pallas_call",
    grid=(4,),
    operands=(
        Operand(name="x_ref", kind="input", shape=(256, 128), dtype="float32", memory_space="vmem"),
        Operand(
            name="out_ref", kind="output", shape=(256, 128), dtype="float32", memory_space="vmem"
        ),
    ),
)


def read(text: str) -> MosaicProgram:
    return MosaicProgram(Module.of(text, "mlir"))


def test_operations_keep_their_names_when_libtpu_calls_the_dialect_otherwise() -> None:
    """libtpu 0.0.52 turns the `tpu` dialect into one called `xir` and dumps its passes in it."""
    old, new = read(PROGRAM), read(PROGRAM.replace("tpu.", "xir."))
    assert len(list(new.named("tpu.vector_store"))) == 1
    assert [o.name for o in old.operations] == [o.name for o in new.operations]


def test_loops_and_constants() -> None:
    program = read(PROGRAM)
    (loop,) = program.loops
    assert (loop.counter, loop.start, loop.step, loop.trips) == ("%arg3", 0, 1, 8)
    assert loop.carried == ()
    (head,) = program.named("scf.for")
    source = program.source(head)
    assert source is not None
    assert source.line == 6  # after the closing brace
    (load,) = program.named("vector.load")
    assert program.loops_around(load.line) == (loop,)
    assert program.constant("%c0", load.line) == 0
    assert program.constant("%3", load.line) is None
    assert program.depends_on("%3", load.line, loop.counter)
    assert not program.depends_on("%c0", load.line, loop.counter)


def test_equal_arithmetic_on_equal_values_is_one_value() -> None:
    line = "      %1 = arith.muli %arg3, %c8_i32_0 : i32 loc(#loc2)\n"
    again = line.replace("%1", "%1_0") + line.replace("%1", "%1_1").replace("muli", "addi")
    program = MosaicProgram(Module.of(PROGRAM.replace(line, line + again), "mlir"))
    at = next(o.line for o in program.operations if o.name == "tpu.assume_multiple")
    product, same, total = (program.identity(name, at) for name in ("%1", "%1_0", "%1_1"))
    assert product == same
    assert total != product
    assert program.identity("%3", at + 2) != product  # of another operation


def test_parameters_stand_for_operands() -> None:
    schedule = schedule_of(LISTING)
    subject = AdviceSubject(
        kernel=KERNEL,
        schedule=schedule,
        tracing=trace(schedule.listing),
        mosaic=Module.of(PROGRAM, "mlir"),
    )
    assert subject.program is not None
    assert subject.program.arguments == ("%arg1", "%arg2")
    operand = subject.operand("%arg2")
    assert operand is not None
    assert operand.name == "out_ref"
    assert subject.operand("%arg0") is None


@pytest.mark.parametrize(
    "line, compares, expected",
    [
        ("slt, %7, %8", 50, 6),  # rows 0 to 47 are below 50
        ("sle, %7, %8", 47, 6),
        ("sge, %7, %8", 0, 8),
        ("sgt, %7, %8", 0, 7),
        ("ult, %7, %8", 64, 8),
        ("ne, %7, %8", 64, 8),
        ("eq, %7, %8", 64, 0),
        ("unheard_of, %7, %8", 64, 0),
    ],
)
def test_iterations_in_which_a_mask_is_true(line: str, compares: int, expected: int) -> None:
    text = PROGRAM.replace("slt, %7, %8", line).replace("constant 50", f"constant {compares}")
    program = read(text)
    (store,) = program.named("tpu.vector_store")
    assert iterations_without_mask(program, program.loops[0], "%9", store.line) == expected


def test_shapes() -> None:
    assert shape_of("memref<8x128xf32>, vector<1x256xbf16> loc(#loc)") == ((1, 256), "bf16")
    assert shape_of("vector<i1>") == ((), "i1")
    assert shape_of("no type") is None


def subject_of(text: str) -> AdviceSubject:
    schedule = schedule_of(LISTING)
    return AdviceSubject(
        kernel=KERNEL,
        schedule=schedule,
        tracing=trace(schedule.listing),
        mosaic=Module.of(text, "mlir"),
        relaid=Module.of(text, "mlir"),
        executions=(1.0,) * len(schedule.bundles),
        step=StepCost(compute=2.0, copies=1.0),
        bytes_per_cycle=500.0,
        vmem=1 << 20,
        vmem_limit=1 << 24,
    )


def test_cut_programs() -> None:
    for stop in range(0, len(PROGRAM), 97):
        assert advise(subject_of(PROGRAM[:stop])) == ()


@pytest.mark.slow
def test_long_chains_of_operations() -> None:
    deep = "\n".join(f"    %a{n + 1} = arith.addi %a{n}, %a{n} : i32" for n in range(10_000))
    body = f"    %a0 = arith.constant 1 : i32\n{deep}\n"
    text = PROGRAM.replace("    %c0_i32 = arith", f"{body}    %c0_i32 = arith", 1)
    text = text.replace("to %0 step", "to %a10000 step")
    started = time.process_time()
    assert advise(subject_of(text)) == ()
    (loop,) = read(text).loops
    assert loop.trips is None
    assert time.process_time() - started < 5.0


@pytest.mark.parametrize(
    "line",
    [
        "%0 = vector.multi_reduction <add>, %0, %0 [1] : vector<8x128xf32> to vector<8xf32>",
        "%0 = arith.andi %0, %0 : vector<8x128xi1>",
        "tpu.enqueue_dma source(%0 : memref<1x128xf32>) target(%0 : memref<1x128xf32>)",
        "scf.for %arg9 = %c0_i32 to %0 step %c1_i32  : i32 {",
    ],
)
def test_a_name_that_is_defined_thousands_of_times(line: str) -> None:
    lines = "\n".join([f"      {line} loc(#loc2)"] * 2_000)
    before, mark, after = PROGRAM.partition("      %c8_i32_0 =")
    started = time.process_time()
    assert advise(subject_of(f"{before}{lines}\n{mark}{after}")) == ()
    assert time.process_time() - started < 5.0
