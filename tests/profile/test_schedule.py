"""Loops, regions, branches and units of small schedules."""

from __future__ import annotations

import pytest

from pallas_debug.profile import units
from pallas_debug.profile.schedule import schedule_of
from pallas_debug.profile.stats import _counts

LOOP = """\
     0   :  { %s1_s0 = smov 0 } /* Start region 1 */
   0x1 LB: > { %s2_s0 = sphi %s1_s0, %s3_s0  ;;  %v1_v0 = vld [vmem:[%s2_s0]] } /* Start region 5 */
   0x2   : > { %s3_s0 = sadd.s32 1, %s2_s0  ;;  %4 = vst [vmem:[#allocation3_spill]] %v1_v0 }
   0x3   : > { %p1_p0 = scmp.ge.s32.totalorder %s3_s0, 8 }
   0x4   :  { %5 = sbr.rel (!%p1_p0) target = $region5 }
   0x5   :  {}
   0x6   :  {}
   0x7   :  {}
   0x8   :  {} /* End region 5 */
   0x9   :  { %v6_v1 = vld [vmem:[#allocation3_spill]] } /* End region 1 */
"""

UTILIZATION = """\
== CAPACTIY:
MXU, VLOAD, VLOAD:FILL, VSTORE, VSTORE:SPILL, NEW, SALU
  4 3 3 1 1 2 2
== UTILIZATION:
0 0 0 0 0 0 1
0 1 0 0 0 0 0
0 0 0 1 1 0 1
0 0 0 0 0 2 1
0 0 0 0 0 0 1
0 0 0 0 0 0 0
0 0 0 0 0 0 0
0 0 0 0 0 0 0
0 0 0 0 0 0 0
0 1 1 0 0 0 0
"""


def test_a_loop_reaches_from_its_body_to_the_delay_slots() -> None:
    schedule = schedule_of(LOOP, UTILIZATION)
    (loop,) = schedule.loops
    assert (loop.start, loop.stop, loop.depth, loop.parent) == (1, 9, 0, None)
    assert schedule.delay_slots == 4
    assert schedule.loop_at(3) == loop
    assert schedule.loop_at(9) is None
    assert schedule.problems == ()


def test_empty_bundles_as_libtpu_counts_them() -> None:
    """A bundle that only names the kernel's operands runs nothing."""
    _, rest = LOOP.split("\n", 1)
    operand = "%s9_s9 = inlined_call_operand.hbm [shape: f32[8,128], index: 0, kind: input]"
    for text, empty in (
        (LOOP, 4),
        (f"     0   :  {{ {operand} }} /* Start region 1 */\n{rest}", 5),
    ):
        assert _counts(schedule_of(text, UTILIZATION)).empty_bundles.value == empty


def test_delay_slots_of_a_known_chip() -> None:
    assert schedule_of(LOOP, target="v4:2x2x1").loops[0].stop == 6
    assert schedule_of(LOOP, target="tpu7x").delay_slots == 6


def test_units_as_the_compiler_states_them() -> None:
    table = units.read_utilization(UTILIZATION)
    assert table is not None
    assert table.capacity[table.names.index("MXU")] == 4
    assert table.column("NEW") == (0, 0, 0, 2, 0, 0, 0, 0, 0, 0)
    shares = units.shares(table)
    assert shares["VLOAD"] == 2 / 30
    assert shares["NEW"] == 2 / 20
    assert units.shares(table, [0, 8, 0, 0, 0, 0, 0, 0, 0, 1])["VLOAD"] == 9 / 27


@pytest.mark.parametrize("head", ["MXU, VALU", "MATMUL, VALU", "MATPUSH, VALU"])
def test_units_that_work_on_while_nothing_is_issued(head: str) -> None:
    """libtpu 0.0.52 counts busy matrix units in two columns, under other names than before."""
    final = units.read_utilization(f"{head}\n4 4\n1 1\n1 2\n")
    before = units.read_utilization(f"{head}\n4 4\n1 1\n1 0\n1 0\n1 2\n0 0\n")
    assert final is not None
    assert units.align(final, before) == (2, 0)
    assert (final.column("MXU") is None) == (head == "MATPUSH, VALU")


def test_rows_that_do_not_match_are_reported() -> None:
    schedule = schedule_of(LOOP, UTILIZATION[: UTILIZATION.index("0 0 0 1 1")])
    assert schedule.problems == ("the utilization has 2 rows for 10 bundles",)
    assert schedule_of(LOOP, "gone\n").problems == ("the utilization has no table",)
    assert schedule_of("").problems == ("the listing contains no bundle",)
    cut = schedule_of(LOOP[: LOOP.index("target")])
    assert cut.problems == ("the listing of bundles is cut off after bundle 0x3",)


def test_a_row_of_another_length_ends_the_table() -> None:
    table = units.read_utilization("A, B\n1 2\n0 1\n0 1 2\n0 0\n")
    assert table is not None
    assert table.rows == ((0, 1),)


def test_units_of_opcodes() -> None:
    assert units.units_of("vmatmul.bf16.gmra.mxu0") == ("MXU",)
    assert units.units_of("vadd.xlane.f32.xlu1") == ("XLU",)
    assert units.units_of("vexp2.f32") == ("VALU", "EUP")
    assert units.units_of("vpop.eup") == ("VPOP",)
    assert units.units_of("vld", "%v1 = vld [vmem:[#allocation9_spill] sm:$0xff]") == (
        "VLOAD",
        "VLOAD:FILL",
    )
    assert units.units_of("dma.hbm_to_vmem") == ("SALU",)
    assert units.units_of("sphi") == ()
    assert units.is_vector("vmatpush1.bf16.msra.mxu0")
    assert not units.is_vector("dma.done.wait")
    assert not units.is_vector("sadd.s32")


def test_a_loop_ends_before_the_next_one_begins() -> None:
    """The bundle after the branch stands for all of its delay slots."""
    text = """\
     0   :  { %s1 = smov 0 }
   0x1 LB: > { %s2 = sadd.s32 1, %s1 } /* Start region 5 */
   0x2   : > { %4 = sbr.rel (!%p3) target = $region5 }
   0x3   :  {} /* End region 5 */
   0x4 LB: > { %s5 = sadd.s32 1, %s1 } /* Start region 6 */
   0x5   : > { %6 = sbr.rel (!%p3) target = $region6 }
   0x6   :  {} /* End region 6 */
   0x7   :  { %s7 = smov 0 }
"""
    loops = schedule_of(text, target="tpu7x").loops
    assert [(loop.start, loop.stop, loop.depth) for loop in loops] == [(1, 4, 0), (4, 8, 0)]
