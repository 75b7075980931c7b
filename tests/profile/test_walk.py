"""Walks through small schedules: loops, conditions, copies, waits, and what is unknown."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from pallas_debug.errors import UsageError
from pallas_debug.ir.operations import Module
from pallas_debug.profile import cycles
from pallas_debug.profile.core.copies import CopyModel, copy_model
from pallas_debug.profile.core.events import CopyEvent, IterationEvent, WaitEvent
from pallas_debug.profile.core.operands import operand_addresses
from pallas_debug.profile.core.walk import walk
from pallas_debug.profile.cycles import estimate_cycles
from pallas_debug.profile.figures import Figure
from pallas_debug.profile.schedule import schedule_of
from pallas_debug.profile.tracing import trace
from pallas_debug.profile.traffic import traffic_of

MODEL = CopyModel(latency={"hbm_to_vmem": 100}, bandwidth={"hbm_to_vmem": 32})


def bundles(*rows: str) -> str:
    """Number the rows; a leading mark such as `LB` is kept."""
    lines = []
    for number, row in enumerate(rows):
        mark, brace, rest = row.partition("{")
        lines.append(f"{number:#6x} {mark.strip():2}: {brace}{rest}")
    return "\n".join(lines) + "\n"


def counted(trips: int, *body: str) -> str:
    return bundles(
        "{ %s1_s0 = smov 0 }",
        "LB {  %s2_s0 = sphi %s1_s0, %s3_s0  ;;  %s3_s0 = sadd.s32 1, %s2_s0 }"
        " /* Start region 5 */",
        *body,
        f"{{ %p1_p0 = scmp.ge.s32.totalorder %s3_s0, {trips} }}",
        "{ %9 = sbr.rel (!%p1_p0) target = $region5 }",
        "{ %v1_v0 = vadd %v0_v0, %v0_v0 } /* End region 5 */",
        "{}",
    )


def test_a_counted_loop() -> None:
    result = walk(schedule_of(counted(7), target="v4"), MODEL)
    assert result.executions == [1, 7, 7, 7, 7, 1]
    assert (result.cycles, result.trips, result.is_complete) == (30, {0: 7}, True)


def test_delays_count_as_cycles() -> None:
    head = "== CAPACTIY:\nVALU, SALU\n4 2\n== UTILIZATION:\n"
    final = head + "0 1\n1 0\n1 0\n"
    before = head + "0 1\n0 0\n0 0\n1 0\n0 0\n1 0\n"
    text = bundles("{ %s1_s0 = smov 0 }", "{ %v1 = vadd %v0 }", "{ %v2 = vadd %v1 }")
    schedule = schedule_of(text, final, before)
    assert schedule.delays == (2, 1, 0)
    assert walk(schedule, MODEL).cycles == 6
    assert schedule_of(text, final, head + "1 1\n").delays == (0, 0, 0)


def test_a_condition_on_the_iteration_is_followed() -> None:
    text = counted(
        8,
        "{ %p2_p1 = scmp.ne.s32.totalorder %s2_s0, 0 }",
        "{ %10 = sbr.rel (%p2_p1) target = $region7 }",
        "{} /* End region 6 */",
        "{ %v3 = vmul %v1 } /* Start region 8 */",
        "{ %v4 = vmul %v3 } /* End region 8 */",
        "PF { %v5 = vmul %v4 } /* Start/End empty region 7 */",
    )
    result = walk(schedule_of(text, target="v4"), MODEL)
    assert result.executions[5:8] == [1, 1, 8]
    assert not result.unknown_branches


def test_a_condition_on_data_is_entered_or_zero() -> None:
    text = bundles(
        "{ %s1_s0 = sld [smem:[#allocation2 + $0x4]] }",
        "{ %p2_p1 = scmp.eq.s32.totalorder %s1_s0, 0 }",
        "{ %10 = sbr.rel (%p2_p1) target = $region7 }",
        "{}",
        "{ %v3 = vmul %v1 }",
        "PF { %v5 = vmul %v4 } /* Start/End empty region 7 */",
    )
    schedule = schedule_of(text, target="v4")
    entered = walk(schedule, MODEL, unknown="enter")
    assert (entered.executions[4], entered.unknown_branches) == (1, {2})
    skipped = walk(schedule, MODEL, unknown="skip")
    assert (skipped.executions[4], skipped.is_complete) == (0, True)
    estimate = estimate_cycles(schedule_of(text, target="v5e"))
    assert estimate.total.origin == "assumed"
    short = estimate_cycles(schedule)
    assert (short.total.value, short.least.value) == (6, 5)
    assert short.least.note == "no region, loop or copy that depends on data runs"
    assert estimate.assumptions == (
        cycles.NO_DELAYS,
        "regions whose condition depends on data are entered every time (branches at bundles 0x2)",
    )


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("unknown", ["enter", "skip"])
def test_of_two_regions_with_opposite_conditions_one_is_entered(
    unknown: Literal["enter", "skip"], after: bool
) -> None:
    """As for `lax.cond`, whose branches may be behind two comparisons of a number from data."""
    other = "{ %p2_p2 = scmp.gt.s32.totalorder %s2_s2, 0 }"
    text = bundles(
        "{ %s2_s2 = sld [smem:[#allocation2 + $0x4]] }",
        "{}" if after else other,
        "{ %p1_p1 = scmp.le.s32.totalorder %s2_s2, 0 }",
        "{ %9 = sbr.rel (%p1_p1) target = $region7 }",
        "{} /* End region 6 */",
        "{ %v3 = vmul %v1 } /* Start/End region 8 */",
        f"PF {other if after else '{}'} /* Start/End empty region 7 */",
        "{ %10 = sbr.rel (%p2_p2) target = $region9 }",
        "{}",
        "{ %v4 = vmul %v1 } /* Start/End region 10 */",
        "PF { %v5 = vmul %v4 } /* Start/End empty region 9 */",
    )
    found = walk(schedule_of(text, target="v4"), MODEL, unknown=unknown)
    assert found.executions[5] + found.executions[9] == 1
    assert found.executions[5] == (unknown == "enter")


def test_a_loop_over_data_is_a_formula() -> None:
    text = counted(7).replace("%s3_s0, 7", "%s3_s0, %s9_s9")
    estimate = estimate_cycles(schedule_of(text, target="v4"))
    assert (estimate.total.value, estimate.total.formula) == (None, "2 + 4 n")
    assert estimate.total.note == "known only at run time: n, iterations of the loop at bundle 0x1"
    assert estimate.trips[0].value is None
    assert str(estimate.total) == "2 + 4 n"
    assert estimate.least.value == 6


@pytest.mark.parametrize("trips", [1, 7, 1_000_000])
def test_a_loop_over_data_with_an_assumed_count_is_a_number(trips: int) -> None:
    text = counted(trips).replace(f"%s3_s0, {trips}", "%s3_s0, %s9_s9")
    expected = estimate_cycles(schedule_of(counted(trips), target="v4"))
    estimate = estimate_cycles(schedule_of(text, target="v4"), assume={"n": trips})
    assert (estimate.total.value, estimate.trips) == (
        expected.total.value,
        tuple(replace(figure, origin="assumed") for figure in expected.trips),
    )


def test_a_loop_that_nothing_skips_runs() -> None:
    text = counted(7).replace("%s3_s0, 7", "%s3_s0, %s9_s9")
    with pytest.raises(UsageError, match="n cannot be 0: as it is compiled, the loop runs at"):
        estimate_cycles(schedule_of(text, target="v4"), assume={"n": 0})


COPY = bundles(
    "{ %s1_s0 = inlined_call_operand.hbm [shape: f32[8,128], index: 0, kind: input]  ;;  "
    "%s2_s1 = scalar_lea.sflag [#allocation3], 1 }",
    "{ %5 = dma.hbm_to_vmem [thread:$0]  /*hbm=*/%s1_s0, /*size_in_granules=*/64, "
    "/*vmem=*/%s4_s4, /*dst_syncflagno=*/%s2_s1 }",
    "{ %v1 = vadd %v0 }",
    "{ %6 = dma.done.wait [#allocation3 + $0x1], 64 }",
    "{ %v2 = vadd %v1 }",
)


WRITE_BACK = bundles(
    "{ %s1_s0 = inlined_call_operand.hbm [shape: f32[8,128], index: 0, kind: output]  ;;  "
    "%s2_s1 = scalar_lea.sflag [#allocation3], 1 }",
    "{ %s5_s5 = int_to_ptr.vmem [resolvable:$true] %s4_s4  ;;  "
    "%s6_s6 = int_to_ptr.hbm [resolvable:$true] %s1_s0 }",
    "{ %5 = dma.general /*src=*/%s5_s5, /*size_in_granules=*/64, /*dst=*/%s6_s6, "
    "/*dst_syncflagno=*/%s2_s1, /*src_syncflagno=*/%s7_s7, /*stridedescaddr=*/[#allocation9] }",
    "{ %6 = dma.done.wait [#allocation3 + $0x1], 64 }",
)
"""A block that is strided along several dimensions, whose copy does not name its memories."""


@pytest.mark.parametrize("skipped, formula", [(1, "1 + 9 n"), (3, "11 n")])
def test_the_formula_is_of_iterations_after_the_first(skipped: int, formula: str) -> None:
    text = counted(
        7,
        "{ %p2_p1 = scmp.lt.s32.totalorder %s2_s0, 1 }",
        "{ %10 = sbr.rel (%p2_p1) target = $region7 }",
        "{} /* End region 6 */",
        "{ %v3 = vmul %v1 } /* Start region 8 */",
        *["{ %v4 = vmul %v3 }"] * (skipped - 1),
        "PF { %v5 = vmul %v4 } /* Start/End empty region 7 */",
    ).replace("%s3_s0, 7", "%s3_s0, %s9_s9")
    estimate = estimate_cycles(schedule_of(text, target="v4"))
    assert str(estimate.total) == formula


def test_a_copy_takes_its_latency_and_its_bytes() -> None:
    events: list[object] = []
    result = walk(schedule_of(COPY), MODEL, listen=events.append)
    # Started in cycle 1, it arrives 100 + 64 * 32 / 32 cycles later.
    assert (result.cycles, result.waiting) == (167, 162)
    assert result.copied == {"hbm_to_vmem": 2048}
    copy, wait = events
    assert isinstance(copy, CopyEvent)
    assert (copy.start, copy.stop, copy.size) == (1, 165, 2048)
    assert isinstance(wait, WaitEvent)
    assert (wait.start, wait.stop) == (3, 165)


@pytest.mark.parametrize("target, size", [("v4", 64 * 512), ("v5e", 64 * 32), ("new", 64 * 32)])
def test_sizes_of_copies_are_in_units_of_the_chip(target: str, size: int) -> None:
    copied = estimate_cycles(schedule_of(COPY, target=target)).copied
    assert copied["hbm_to_vmem"].value == size


def test_a_size_that_depends_on_data_is_unknown_and_not_zero() -> None:
    schedule = schedule_of(COPY.replace("=*/64,", "=*/%s9_s9,"), target="v5e")
    estimate = estimate_cycles(schedule)
    assert estimate.copied["hbm_to_vmem"].value is None
    assert "copies whose size depends on data take no longer than their latency" in (
        estimate.assumptions
    )
    found = traffic_of(schedule, trace(schedule.listing), estimate, None)
    assert (found.read.value, found.bound) == (None, None)
    assert found.read.note == "the sizes of some copies depend on data"


def test_copies_share_the_bandwidth_of_hbm() -> None:
    rows = COPY.splitlines()
    rows.insert(2, rows[1])
    rows[4] = rows[4].replace("64", "128")
    schedule = schedule_of("\n".join(rows) + "\n")
    assert walk(schedule, MODEL).waiting == 162 + 63


SMEM = replace(
    MODEL,
    latency={"hbm_to_vmem": 100, "hbm_to_smem": 200},
    bandwidth={"hbm_to_vmem": 32, "hbm_to_smem": 2},
)


def test_a_copy_to_smem_is_slow_and_leaves_hbm_to_others() -> None:
    table = COPY.replace("hbm_to_vmem", "hbm_to_smem")
    assert walk(schedule_of(table), SMEM).waiting == 200 + 1024 - 2
    rows = table.splitlines()
    rows[0] = rows[0].replace("  }", " }").replace(" }", "  ;;  %s9_s9 = scalar_lea.sflag 9 }")
    rows.insert(2, COPY.splitlines()[1].replace("%s2_s1", "%s9_s9"))
    rows[4] = rows[4].replace("[#allocation3 + $0x1]", "%s9_s9")
    # The table of 2,048 bytes takes HBM for 64 cycles, not for the 1,024 that SMEM needs.
    assert walk(schedule_of("\n".join(rows) + "\n"), SMEM).waiting == 64 + 164 - 3
    rows[2] = rows[2].replace("hbm_to_vmem", "hbm_to_smem")
    assert walk(schedule_of("\n".join(rows) + "\n"), SMEM).waiting == 1024 + 200 + 1024 - 3


@pytest.mark.parametrize(
    "direction, copying",
    [("hbm_to_vmem", 2048 / 491.2), ("hbm_to_hbm", 4096 / 491.2), ("hbm_to_smem", 2048 / 32)],
)
def test_copies_take_the_bandwidth_of_hbm_twice_within_it_or_that_of_smem(
    direction: str, copying: float
) -> None:
    schedule = schedule_of(COPY.replace("hbm_to_vmem", direction), target="v5e")
    estimate = replace(estimate_cycles(schedule), core_steps=Figure(value=1))
    model, _ = copy_model("v5e")
    latency, transfer = model.time(direction, 2048)
    assert (transfer, estimate.waiting.value) == (copying, round(latency + copying - 2))
    traffic = traffic_of(schedule, trace(schedule.listing), estimate, None)
    assert traffic.copies_per_step.value == copying
    assert traffic.written.value == (2048 if direction == "hbm_to_hbm" else 0)


def test_predicated_copies_and_waits() -> None:
    text = COPY.replace("[thread:$0]  ", "[thread:$0]  (%p1), ").replace(
        "dma.done.wait ", "dma.done.wait (%p1), "
    )
    taken = text.replace("{ %s1_s0", "{ %p1 = scmp.eq.s32.totalorder 1, 1  ;;  %s1_s0")
    assert walk(schedule_of(taken), MODEL).waiting == 162
    skipped = taken.replace("1, 1", "1, 2")
    assert (walk(schedule_of(skipped), MODEL).cycles, skipped != taken) == (5, True)
    assert walk(schedule_of(text), MODEL).unknown_copies == 1
    assert walk(schedule_of(text), MODEL, unknown="skip").cycles == 5


@pytest.mark.parametrize("budget", [100, 400])
def test_long_loops_are_extrapolated(budget: int) -> None:
    schedule = schedule_of(counted(100_000), target="v4")
    result = walk(schedule, MODEL, budget=budget)
    assert result.cycles == 2 + 4 * 100_000
    assert (result.trips, result.extrapolated, result.is_complete) == ({0: 100_000}, {0}, True)


def test_iterations_are_told() -> None:
    events: list[object] = []
    walk(schedule_of(counted(3), target="v4"), MODEL, listen=events.append)
    starts = [(e.iteration, e.start) for e in events if isinstance(e, IterationEvent)]
    assert starts == [(0, 1), (1, 5), (2, 9)]


def test_an_endless_loop_ends_the_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    text = counted(7).replace("(!%p1_p0) ", "")
    result = walk(schedule_of(text, target="v4"), MODEL, budget=1000)
    assert not result.is_complete
    monkeypatch.setattr(cycles, "walk", lambda *args, **kwargs: result)
    estimate = estimate_cycles(schedule_of(text, target="v4"))
    assert estimate.total.value is None
    assert estimate.executions == ()


def test_without_bundles_everything_is_missing() -> None:
    estimate = estimate_cycles(schedule_of(""), estimate="hlo_op_estimate {\n}\n")
    assert (estimate.total.value, estimate.compiler.value) == (None, None)
    assert str(estimate.total) == "-"
    stated = estimate_cycles(schedule_of(""), estimate="a {\n  estimated_cycles: 53554\n}\n")
    assert (stated.compiler.value, stated.compiler.origin) == (53554, "compiler")
    given_up = estimate_cycles(schedule_of(""), estimate="a {\n  estimated_cycles: 0\n}\n")
    assert given_up.compiler.value is None


@pytest.mark.parametrize("pointer", ["int_to_ptr.hbm", "scalar_lea.hbm", "smov"])
def test_a_copy_with_several_strides_counts_for_the_memories_of_its_pointers(pointer: str) -> None:
    schedule = schedule_of(WRITE_BACK.replace("int_to_ptr.hbm", pointer), target="v5e")
    estimate = estimate_cycles(schedule)
    assert {name: size.value for name, size in estimate.copied.items()} == {"vmem_to_hbm": 2048}
    model, _ = copy_model("v5e")
    assert estimate.waiting.value == round(sum(model.time("vmem_to_hbm", 2048)) - 1)
    (start,) = operand_addresses(schedule).starts.values()
    copied = operand_addresses(schedule).copied(start)
    assert copied is not None
    assert copied.number == 0
    traffic = traffic_of(schedule, trace(schedule.listing), estimate, None)
    assert (traffic.read.value, traffic.written.value) == (0, 2048)


def test_traffic_is_unknown_if_the_memories_of_a_copy_are() -> None:
    schedule = schedule_of(WRITE_BACK.replace("int_to_ptr.vmem", "other"), target="v5e")
    traffic = traffic_of(schedule, trace(schedule.listing), estimate_cycles(schedule), None)
    assert (traffic.read.value, traffic.written.value, traffic.bound) == (None, None, None)
    assert traffic.written.note == "the memories of some copies are unknown"


def test_a_chip_without_an_estimate_borrows_copies_and_says_so() -> None:
    assert copy_model("v6e")[1] is False
    estimate = estimate_cycles(schedule_of(COPY, target="v4"))
    assert "as libtpu has no estimate for v4" in estimate.assumptions[-1]


def test_the_time_on_a_v6e_includes_the_measured_cost_of_starting_a_copy() -> None:
    text, start = COPY, 100
    slow = replace(MODEL, start=start)
    ours, theirs = walk(schedule_of(text), slow), walk(schedule_of(text), MODEL)
    assert ours.cycles == theirs.cycles + start
    measured, model = (copy_model("v6e", calibrated=c)[0] for c in (True, False))
    assert measured.time("hbm_to_vmem", 2048)[1] > model.time("hbm_to_vmem", 2048)[1]
    schedule = schedule_of(text, target="v6e")
    cycles = walk(schedule, measured).cycles
    estimate = estimate_cycles(schedule)
    assert estimate.time.value == 1e3 * cycles / 1.75e9 > 1e3 * estimate.total.value / 1.75e9
    assert (estimate.time.unit, estimate.time.origin) == ("ms", "assumed")


def test_a_chip_without_measurements_has_cycles_and_no_time() -> None:
    estimate = estimate_cycles(schedule_of(COPY, target="v5e"))
    assert estimate.total.is_known
    assert estimate.time.value is None
    assert estimate.time.note == "no run times have been measured on v5e"


def test_a_word_is_stored_at_an_offset_from_an_address() -> None:
    """As a kernel fills a table in SMEM, and loops up to an entry of it."""
    stored = (
        "{ %s9_s9 = scalar_lea.smem [#allocation6], 3  ;;  %s8_s8 = smov 7 }",
        "{ %s7_s7 = scalar_lea.smem %s9_s9, 1 [#allocation6] }",
        "{ %10 = sst [smem:[%s7_s7]] %s8_s8 }",
        "{ %s6_s6 = sld [smem:[#allocation6 + $0x4]] }",
    )
    text = counted(7, *stored).replace("%s3_s0, 7", "%s3_s0, %s6_s6")
    assert walk(schedule_of(text, target="v4"), MODEL).trips == {0: 7}


def test_copies_to_other_devices_rest_on_an_assumption() -> None:
    schedule = schedule_of(COPY, target="v5e")
    for device, assumptions in (("", ()), (" device_id(%14)", (cycles.AS_LOCAL,))):
        mosaic = Module.of(f"module {{\n  tpu.enqueue_dma source(%0){device}\n}}\n", "mlir")
        estimate = estimate_cycles(schedule, mosaic=mosaic)
        assert estimate.assumptions == (cycles.NO_DELAYS, *assumptions)
        assert estimate.total.origin == "assumed"


def test_an_instruction_with_missing_or_extra_operands_is_unknown() -> None:
    for damaged in ("sadd.s32 %s1_s0", "sadd.s32 1, 2, 3"):
        text = f"     0   :  {{ %s1_s0 = smov 1 }}\n   0x1   :  {{ %s2_s0 = {damaged} }}\n"
        found = walk(schedule_of(text), MODEL)
        assert found.is_complete


def test_a_kernel_without_products_and_copies_has_no_roofline() -> None:
    schedule = schedule_of(counted(7), target="v5e")
    mosaic = Module.of("module {\n}\n", "mlir")
    traffic = traffic_of(schedule, trace(schedule.listing), estimate_cycles(schedule), mosaic)
    assert traffic.flops.value == 0
    assert (traffic.roofline.value, traffic.attained.value) == (None, None)
    assert "makes no matrix product and copies nothing" in traffic.attained.note


def test_a_size_known_at_run_time_is_that_of_the_grid() -> None:
    text = bundles("{ %1 = dma.hbm_to_vmem %s1, 4 /* \niteration_bounds: (1, 2147483647, 2)\n */ }")
    schedule = schedule_of(text, target="v5p")
    assert schedule.core_bounds((2, 6, 2)) == (1, 6, 2)
    assert schedule.core_bounds((2, 6)) == (2, 6)
