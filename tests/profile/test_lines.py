"""Lines of instructions: calls behind them, inherited ones, and the cost of each line."""

from __future__ import annotations

import pytest

from pallas_debug.ir.operations import Module
from pallas_debug.profile.lines import line_costs, of_file
from pallas_debug.profile.schedule import schedule_of
from pallas_debug.profile.tracing import trace

BUNDLES = """\
     0   :  { %v1_v0 = vld [vmem:[%s0_s0]]  ;;  %v9_v9 = vmov 1.0 /* materialized constant */ }
   0x1   :  { %v2_v1 = vmul.f32 %v1_v0, %v9_v9 /* loc("k.py":30:4 to :9) */ }
   0x2   :  { %3 = vst [vmem:[#allocation7_spill] sm:$0xff] /*vst_source=*/%v2_v1 }
   0x3   :  { %v4_v2 = vld [vmem:[#allocation7_spill] sm:$0xff] }
   0x4   :  { %v5_v3 = vadd.f32 %v4_v2, %v4_v2 /* loc("k.py":11:4 to :9) */ }
   0x5   :  { %v6_v4 = vmul.f32 %v5_v3, %v5_v3 /* loc("k.py":30:4 to :9) */ }
   0x6   :  { %7 = vst [vmem:[%s1_s1]] /*vst_source=*/%v6_v4 /* loc("k.py":13:4 to :9) */ }
   0x7   :  { %s8_s2 = sadd.s32 1, %s0_s0 }
"""

MOSAIC = """\
module {
  func.func @k(%a: memref<8xf32>) {
    %0 = vector.load %a[] : memref<8xf32> loc(#loc1)
    %1 = arith.mulf %0, %0 : f32 loc(#loc5)
    %2 = arith.addf %1, %1 : f32 loc(#loc2)
    %3 = arith.mulf %2, %2 : f32 loc(#loc6)
    vector.store %3, %a[] : memref<8xf32> loc(#loc3)
    return loc(#loc)
  } loc(#loc)
} loc(#loc)
#loc = loc(unknown)
#loc1 = loc("k.py":10:4 to :9)
#loc2 = loc("k.py":11:4 to :9)
#loc3 = loc("k.py":13:4 to :9)
#loc4 = loc("k.py":30:4 to :9)
#loc5 = loc("mul"(callsite(#loc4 at "kernel"("k.py":10:8 to :20))))
#loc6 = loc("mul"(callsite(#loc4 at "kernel"("k.py":12:8 to :20))))
"""


@pytest.fixture
def schedule():
    return schedule_of(BUNDLES)


def chains(tracing) -> list[list[int]]:
    return [[s.line for s in traces[0].chain] for traces in tracing.traces]


def test_calls_are_told_apart_by_their_neighbours(schedule) -> None:
    tracing = trace(schedule.listing, Module.of(MOSAIC, "mlir"))
    found = chains(tracing)
    assert found[1] == [30, 10]
    assert found[5] == [30, 12]
    assert found[4] == [11]


def test_without_the_module_only_the_innermost_line_is_known(schedule) -> None:
    assert chains(trace(schedule.listing))[5] == [30]


def test_instructions_without_a_place_inherit_one_and_say_so(schedule) -> None:
    tracing = trace(schedule.listing, Module.of(MOSAIC, "mlir"))
    found = chains(tracing)
    load, constant = tracing.traces[0]
    assert (found[0], load.origin) == ([30, 10], "derived")
    assert [s.line for s in constant.chain] == [30, 10]
    # The spill and the fill belong to what reads the value.
    assert found[2] == found[3] == [11]
    assert tracing.traces[7][0].chain == ()  # an address that nothing reads


def test_costs_count_for_every_line_of_the_chain(schedule) -> None:
    tracing = trace(schedule.listing, Module.of(MOSAIC, "mlir"))
    costs = of_file(line_costs(schedule, tracing), "k.py")
    assert costs[30].bundles == 3
    assert costs[30].share == costs[30].own_share == 3 / 8
    assert (costs[10].share, costs[10].own_share) == (2 / 8, 0)
    assert (costs[11].spills, costs[11].fills) == (1, 1)
    assert costs[11].units == {
        "VSTORE": 1,
        "VSTORE:SPILL": 1,
        "VLOAD": 1,
        "VLOAD:FILL": 1,
        "VALU": 1,
    }


def test_costs_are_weighted_by_executions(schedule) -> None:
    tracing = trace(schedule.listing, Module.of(MOSAIC, "mlir"))
    costs = of_file(line_costs(schedule, tracing, [0, 10, 0, 0, 0, 5, 5, 0]), "k.py")
    assert (costs[10].share, costs[12].share, costs[13].share) == (0.5, 0.25, 0.25)


COPIES = """\
     0   :  { %2 = dma.hbm_to_vmem /*hbm=*/%s1, /*size_in_granules=*/8 /* loc("k.py":8:4 to :9) */ }
   0x1   :  { %1 = dma.hbm_to_vmem /*hbm=*/%s0, /*size_in_granules=*/8 /* loc("k.py":8:4 to :9) */ }
"""

TWO_COPIES = """\
module {
  func.func @k(%a: memref<8xf32>) {
    tpu.enqueue_dma source(%a : memref<8xf32>) loc(#loc5)
    tpu.enqueue_dma source(%a : memref<8xf32>) loc(#loc6)
    return loc(#loc)
  } loc(#loc)
} loc(#loc)
#loc = loc(unknown)
#loc1 = loc("k.py":8:4 to :9)
#loc2 = loc("k.py":10:4 to :9)
#loc3 = loc(callsite(#loc1 at #loc1))
#loc4 = loc(callsite(#loc1 at #loc2))
#loc5 = loc("dma_start:"("dma_start/dma_start"(#loc3)))
#loc6 = loc("dma_start:"("dma_start/dma_start"(#loc4)))
"""


def test_copies_are_told_apart_by_their_order() -> None:
    """jax lowers a primitive once, and names its first line where it uses it again."""
    tracing = trace(schedule_of(COPIES).listing, Module.of(TWO_COPIES, "mlir"))
    assert chains(tracing) == [[10], [8]]


STORES = """\
     0   :  { %100 = vst [vmem:[#allocation5] sm:$0xff] %v9 /* loc("k.py":8:4 to :9) */ }
   0x1   :  { %v110_v1 = vld [vmem:[#allocation2] sm:$0xff] /* loc("k.py":11:4 to :9) */ }
   0x2   :  { %v120_v1 = vadd.f32 %v110_v1, %v9 /* loc("k.py":12:4 to :9) */ }
   0x3   :  { %132 = vst [vmem:[#allocation5] sm:$0xff] %v120_v1 /* loc("k.py":8:4 to :9) */ }
"""

TWO_STORES = """\
module {
  func.func @k(%a: memref<8xf32>, %b: memref<8xf32>, %c: vector<8xf32>) {
    tpu.vector_store %a, %c : memref<8xf32>, vector<8xf32> loc(#loc10)
    %0 = vector.load %b : memref<8xf32>, vector<8xf32> loc(#loc3)
    %1 = arith.addf %0, %c : vector<8xf32> loc(#loc4)
    tpu.vector_store %a, %1 : memref<8xf32>, vector<8xf32> loc(#loc11)
    return loc(#loc)
  } loc(#loc)
} loc(#loc)
#loc = loc(unknown)
#loc1 = loc("k"("k.py":8:4 to :9))
#loc2 = loc("k.<locals>._"("k.py":13:4 to :9))
#loc3 = loc("k.<locals>._"("k.py":11:4 to :9))
#loc4 = loc("k.<locals>._"("k.py":12:4 to :9))
#loc5 = loc(callsite(#loc1 at #loc1))
#loc6 = loc(callsite(#loc1 at #loc2))
#loc10 = loc("swap:"("swap/swap"(#loc5)))
#loc11 = loc("swap:"("swap/swap"(#loc6)))
"""


def test_stores_of_another_function_are_told_apart_by_what_is_around_them() -> None:
    """The first follows nothing that is known; the second reads a sum of line 12."""
    tracing = trace(schedule_of(STORES).listing, Module.of(TWO_STORES, "mlir"))
    assert chains(tracing) == [[8], [11], [12], [13]]
