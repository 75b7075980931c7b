"""One slip in a kernel that shows as several faults."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from made_up_findings import finding, line

from pallas_debug.findings import rewording
from pallas_debug.findings.collector import merged
from pallas_debug.findings.faults import Fault
from pallas_debug.model import Finding
from pallas_debug.session.observer import RunObserver

RACE = finding(
    "DataRace", "tile", 5, other=line(3),
    values={"waited for": "sems[1]", "other semaphore": "sems[0]", "sender": "device 0"},
)  # fmt: skip
ASTRAY = finding("DataRace", "o_ref", 7, other=line(7), values={"both sides": "copies that write"})
EXTRA = finding(
    "DmaNotAwaited", "buf", 3, grid_point=(1,), values={"semaphore": "sems[1]", "waits": "2"}
)
BOTH = finding(
    "DataRace", "slots", 3, other=line(4),
    values={"both sides": "copies that write", "semaphore": "right", "other semaphore": "left"},
)  # fmt: skip


def slots(number: int, semaphore: str, other: str) -> Finding:
    """A race of two copies that a line starts, which signal these semaphores."""
    return finding(
        "DataRace", "slots", number, other=line(number),
        values={
            "both sides": "copies that write", "semaphore": semaphore, "other semaphore": other,
        },
    )  # fmt: skip


def beside(
    kind: str, operand: str, number: int, semaphore: str, *, side: str = "", **witness: Any
) -> Finding:
    """A fault of a copy in grid point (1,), on its own semaphore, at one side."""
    values = {"both sides": "copies", f"{side}semaphore": semaphore}
    return finding(kind, operand, number, grid_point=(1,), values=values, **witness)


ARRIVAL = finding(
    "DataRace", "slots", 9, other=line(9),
    values={"both sides": "copies", "other sender": "device 2", "other semaphore": "received"},
)  # fmt: skip
TABLE = finding("UninitializedRead", "table", 3, shape="int32[4, 2] in SMEM")
UNWRITTEN = finding("UninitializedRead", "n_ref", 5)
OUTSIDE = finding("OutOfBoundsRead", "x_ref", 7)
OUTSIDE_OF_BOTH = finding("OutOfBoundsRead", "x_ref", 7, grid_point=(), index="x_ref[4]")


@pytest.mark.parametrize(
    "cause, effect, other",
    [
        (
            UNWRITTEN,
            finding("NarrowingLoss", "", 9, values={"operand 0": "nan"}),
            finding("NarrowingLoss", "", 9, values={"operand 0": "3e+09"}),
        ),
        (
            UNWRITTEN,
            finding("OutOfBoundsWrite", "o_ref", 9, values={"index from": "n_ref[0]"}),
            finding("OutOfBoundsWrite", "o_ref", 9, values={"index from": "t_ref[0]"}),
        ),
        (
            UNWRITTEN,
            finding("OutOfBoundsRead", "o_ref", 9, values={"index from": "m_ref, n_ref"}),
            finding("OutOfBoundsRead", "o_ref", 9, values={"index from": "m_ref, t_ref"}),
        ),
        (UNWRITTEN, finding("IntegerOverflow", "", 5), finding("IntegerOverflow", "", 6)),
        (
            replace(TABLE, witness=replace(TABLE.witness, grid_point=(1,))),
            finding("IntegerOverflow", "", 6, grid_point=(2,)),
            finding("IntegerOverflow", "", 6, grid_point=(0,)),
        ),
        (
            replace(TABLE, witness=replace(TABLE.witness, grid_point=(1,))),
            finding("NarrowingLoss", "", 6, grid_point=(2,)),
            finding("NarrowingLoss", "", 6, grid_point=(0,)),
        ),
        (OUTSIDE, finding("DmaNotAwaited", "tile", 7), finding("DmaNotAwaited", "tile", 8)),
        (
            RACE,
            finding("DmaNotAwaited", "tile", 3, values={"semaphore": "sems[0]"}),
            finding("DmaNotAwaited", "tile", 3, values={"semaphore": "sems[2]"}),
        ),
        (
            EXTRA,
            finding(
                "DataRace",
                "buf",
                5,
                values={"both sides": "copies that write", "other semaphore": "sems[0]"},
            ),
            finding(
                "DataRace",
                "row",
                5,
                values={"both sides": "copies that write", "other semaphore": "sems[0]"},
            ),
        ),
        (
            EXTRA,
            finding(
                "DataRace",
                "row",
                3,
                values={"both sides": "copies that write", "other semaphore": "sems[0]"},
            ),
            finding(
                "DataRace",
                "row",
                3,
                values={"both sides": "copies that write", "other semaphore": "store"},
            ),
        ),
        (
            EXTRA,
            finding("DataRace", "buf", 5, values={"semaphore": "sems[1]", "under way": "2"}),
            finding("DataRace", "buf", 5, values={"semaphore": "store", "under way": "2"}),
        ),
        (
            EXTRA,
            finding("DmaNotAwaited", "buf", 2, grid_point=(2,), values={"semaphore": "sems[0]"}),
            finding("DmaNotAwaited", "row", 2, grid_point=(2,), values={"semaphore": "sems[0]"}),
        ),
        (RACE, finding("Deadlock", "sems[1]", 9), finding("Deadlock", "sems[0]", 9)),
        (
            finding("WaitSizeMismatch", "sem", 7),
            finding("Deadlock", "sem", 7),
            finding("Deadlock", "ready", 7),
        ),
        (
            RACE,
            finding("SemaphoreLeftOver", "room", 9, values={"waits": "0"}),
            finding("SemaphoreLeftOver", "room", 9, values={"waits": "2"}),
        ),
        (
            finding("DmaNotAwaited", "o_ref", 7),
            finding("OutputNotWritten", "o_ref", 7),
            finding("OutputNotWritten", "o_ref", 8),
        ),
        (
            finding("OutputNotWritten", "o_ref", 7),
            replace(finding("NanProduced", "", 7), engines=("checks",)),
            finding("NanProduced", "", 7),
        ),
        (
            OUTSIDE_OF_BOTH,
            finding("OutOfBoundsWrite", "x_ref", 9, index="x_ref[4]"),
            finding("OutOfBoundsWrite", "x_ref", 9, index="x_ref[5]"),
        ),
        (
            finding("BlockOutOfBounds", "o_ref", 2),
            finding("OutputNotWritten", "o_ref", 7),
            finding("OutputNotWritten", "p_ref", 7),
        ),
        (
            finding("BlockOutOfBounds", "o_ref", 2),
            finding("OutputRevisited", "o_ref", 2),
            finding("OutputRevisited", "p_ref", 2),
        ),
        (
            finding("OutOfBoundsWrite", "o_ref", 2),
            finding("OutputNotWritten", "o_ref", 2),
            finding("OutputNotWritten", "p_ref", 2),
        ),
        (
            finding("OutputNotWritten", "o_ref", 2, values={"why": "left out"}),
            finding("DataRace", "o_ref", 2, values={"parallel dimensions": "0"}),
            finding("DataRace", "o_ref", 3, values={"parallel dimensions": "0"}),
        ),
        (
            finding("OutputNotWritten", "o_ref", 2, values={"why": "no store"}),
            finding("UninitializedRead", "o_ref", 3),
            finding("UninitializedRead", "p_ref", 3),
        ),
        (
            finding("UninitializedRead", "o_ref", 5, shape="float32[16, 128] in HBM"),
            finding("OutputNotWritten", "o_ref", 7),
            finding("OutputNotWritten", "p_ref", 7),
        ),
        (
            ASTRAY,
            finding("DataRace", "o_ref", 4, other=line(7)),
            finding("DataRace", "o_ref", 4, other=line(8)),
        ),
        (
            ASTRAY,
            finding("OutputNotWritten", "o_ref", 7),
            finding("OutputNotWritten", "p_ref", 7),
        ),
        (
            finding("UninitializedRead", "o_ref", 7),
            ASTRAY,
            finding("DataRace", "o_ref", 7, other=line(7)),
        ),
        (
            BOTH,
            replace(BOTH, witness=replace(BOTH.witness, source=line(6), other=line(7))),
            finding("DataRace", "slots", 6, other=line(7), values={"both sides": "copies"}),
        ),
        (
            slots(3, "sems[0, 0]", "sems[0, 1]"),
            slots(6, "sems[1, 0]", "sems[1, 1]"),
            slots(6, "sems[1, 0]", "store"),
        ),
        (
            BOTH,
            finding("UninitializedRead", "slots", 9),
            finding("UninitializedRead", "row", 9),
        ),
        (
            ARRIVAL,
            replace(ARRIVAL, witness=replace(ARRIVAL.witness, source=line(7))),
            replace(ARRIVAL, witness=replace(ARRIVAL.witness, source=line(7), other=line(8))),
        ),
        (
            finding("OutputRevisited", "o_ref", 7),
            finding("DataRace", "o_ref", 7, values={"parallel dimensions": "1"}),
            finding("DataRace", "o_ref", 7),
        ),
        (
            finding("OutputRevisited", "o_ref", 7, values={"likewise": "p_ref"}),
            finding("UninitializedRead", "x_ref", 5, values={"shares memory with": "p_ref"}),
            finding("UninitializedRead", "x_ref", 5, values={"shares memory with": "q_ref"}),
        ),
        (
            finding("OutputNotWritten", "o_ref", 7),
            finding("UninitializedRead", "x_ref", 5, values={"shares memory with": "o_ref"}),
            finding("UninitializedRead", "x_ref", 5),
        ),
        (
            RACE,
            finding("LowPrecisionProduct", "o_ref", 7),
            replace(finding("LowPrecisionProduct", "o_ref", 7), kernel="columns"),
        ),
        (
            beside("DataRace", "k_buf", 5, "k_sem[1]", side="other ", other=line(3)),
            beside("DataRace", "v_buf", 5, "v_sem[1]", side="other ", other=line(4)),
            beside("DataRace", "v_buf", 6, "v_sem[1]", side="other ", other=line(4)),
        ),
        (
            beside("DataRace", "k_buf", 3, "k_sem[1]", other=line(3)),
            beside("DataRace", "v_buf", 4, "v_sem[1]", other=line(4)),
            beside("DataRace", "v_buf", 4, "v_sem[0]", other=line(4)),
        ),
        (
            TABLE,
            replace(finding("OutOfBoundsRead", "x_ref", 1), engines=("checks",)),
            finding("OutOfBoundsRead", "x_ref", 1),
        ),
        (
            finding("DmaNotAwaited", "sems", 7, values={"semaphore": "sems[0]"}),
            finding("OutputNotWritten", "o_ref", 7),
            finding("OutputNotWritten", "o_ref", 8),
        ),
        (
            finding("SemaphoreLeftOver", "right", 7, other=line(3), values={"count": "1"}),
            finding("SemaphoreLeftOver", "left", 9, other=line(3), values={"count": "1"}),
            finding("SemaphoreLeftOver", "left", 9, other=line(4), values={"count": "1"}),
        ),
        (
            finding("Deadlock", "room", 9),
            finding("SemaphoreLeftOver", "room", 4),
            finding("SemaphoreLeftOver", "sem", 4),
        ),
    ],
)
def test_what_follows_from_the_same_slip(cause: Finding, effect: Finding, other: Finding) -> None:
    (found,) = merged([effect, cause])
    expected = replace(cause, consequences=(effect,))
    if (effect.kind, cause.kind) == (Fault.SEMAPHORE_LEFT_OVER, Fault.DATA_RACE):
        expected = rewording.of_unheard_signal(expected, effect)
    assert found == expected
    apart = sorted(f.message for f in merged([other, cause]))
    assert apart == sorted([str(cause.kind), str(other.kind)])


def test_an_endless_loop_comes_after_the_memory_that_may_have_led_to_it() -> None:
    loop = replace(finding("EndlessLoop", "i", 9), engines=("checks",))
    assert [f.kind for f in merged([loop, UNWRITTEN])] == ["UninitializedRead", "EndlessLoop"]
    assert [f.kind for f in merged([loop, OUTSIDE])] == ["OutOfBoundsRead", "EndlessLoop"]


@pytest.mark.parametrize("waits, count", [("0", 1), ("1", 2)])
def test_copies_that_nothing_waits_for_are_one_slip(waits: str, count: int) -> None:
    left = finding("DmaNotAwaited", "row", 7, values={"semaphore": "sem", "waits": waits})
    race = finding("DataRace", "row", 7, other=line(7), values={"semaphore": "sem"})
    race = replace(race, consequences=(left,))
    other = finding("DataRace", "table", 9, other=line(7), values={"other semaphore": "sem"})
    found = merged([other, race])
    assert len(found) == count
    if count == 1:
        assert found == (replace(race, consequences=(left, other)),)


def of_dimensions(kind: str, operand: str, at: int, dimensions: str) -> Finding:
    return finding(kind, operand, at, grid_point=(1,), values={"parallel dimensions": dimensions})


def test_one_parallel_dimension_is_one_slip() -> None:
    state = of_dimensions("UninitializedRead", "state", 7, "0")
    rest = (
        of_dimensions("DataRace", "p_ref", 5, "0"),
        of_dimensions("Deadlock", "sem", 9, "0"),
        of_dimensions("UninitializedRead", "count", 6, "0, 1"),
        state,
    )
    race = of_dimensions("DataRace", "o_ref", 5, "0")
    (found,) = merged([*reversed(rest), race])
    assert found.advice == (
        'make grid dimension 0 "arbitrary" in dimension_semantics: state carries values along it'
    )
    assert found == replace(race, consequences=found.consequences, advice=found.advice)
    assert {f.operand for f in found.consequences} == {f.operand for f in rest}
    other = of_dimensions("UninitializedRead", "state", 7, "1")
    assert merged([other, race]) == (race, other)
    assert merged([finding("UninitializedRead", "state", 7), race])[0] == race


def test_a_run_reports_what_follows_from_a_fault_with_it() -> None:
    effect = finding("DmaNotAwaited", "tile", 3, values={"semaphore": "sems[0]"})
    reported: list[Finding] = []
    observer = RunObserver(found=reported.append)
    observer.found(RACE, effect)
    assert reported == list(observer.findings) == [replace(RACE, consequences=(effect,))]


def test_what_follows_from_a_fault_that_a_run_shows_twice() -> None:
    effect = finding("DmaNotAwaited", "tile", 3, values={"semaphore": "sems[0]"})
    observer = RunObserver(found=lambda _: None)
    observer.found(RACE, RACE, effect)
    (found,) = observer.findings
    assert found.consequences == (effect,)


def test_a_copy_that_has_gone_elsewhere_is_left_over_there() -> None:
    stuck = finding("Deadlock", "received", 7)
    left = finding("DmaNotAwaited", "tile", 5, values={"semaphore": "received"})
    assert merged([left, stuck]) == (replace(stuck, consequences=(left,)),)
    beside = finding("Deadlock", "sems[1]", 7, values={"not awaited": "sems[0], received"})
    assert merged([left, beside]) == (replace(beside, consequences=(left,)),)
    other = finding("DmaNotAwaited", "tile", 5, values={"semaphore": "sent"})
    assert set(map(str, (f.kind for f in merged([other, stuck])))) == {"Deadlock", "DmaNotAwaited"}


def test_cores_that_race_although_one_is_signalled() -> None:
    race = finding("DataRace", "part", 9, other=line(5), values={"cores": "0, 1"})
    left = finding("SemaphoreLeftOver", "ready", 6, values={"waits": "0"})
    (found,) = merged([left, race])
    assert found.consequences == (left,)
    assert found.cause == (
        "ready is signalled, in line 6, but nothing waits for it: this access may come before the "
        "event that it signals"
    )
    assert found.advice == "wait for ready before this access"


def test_a_copy_to_a_slot_that_another_wait_is_for() -> None:
    facts = {"semaphore": "load[0, 0]"}
    race = finding("DataRace", "tiles", 4, other=line(6), values=facts)
    stuck = finding("Deadlock", "load[0, 1]", 2, values={"not awaited": "store[0], load[0, 0]"})
    assert merged([stuck, race])[0].consequences == (stuck,)
    facts = {"semaphore": "load[0]"}
    race = finding("DataRace", "tiles", 4, other=line(6), values=facts)
    stuck = finding("Deadlock", "load[1]", 2, values={"not awaited": "load[0], store[0]"})
    (found,) = merged([stuck, race])
    assert found.consequences == (stuck,)
    assert found.cause == (
        "the copy signals load[0], but line 2 waits for load[1]: they use different slots"
    )
    assert found.advice == (
        "start the copy with the buffer and semaphore of the slot that line 2 waits for"
    )
    left = finding("DmaNotAwaited", "store", 8, values={"semaphore": "store[0]"})
    assert merged([left, found])[0].consequences == (stuck, left)
    for other in ("load[1]", "send[0]"):
        stuck = finding("Deadlock", other, 2, values={"not awaited": "store[0]"})
        assert len(merged([stuck, race])) == 2


def test_grid_points_that_share_places_and_leave_others() -> None:
    facts = {"both sides": "copies that write", "parallel dimensions": "0"}
    race = finding("DataRace", "o_ref", 7, other=line(7), values=facts)
    left = finding("OutputNotWritten", "o_ref", 7)
    (found,) = merged([left, race])
    assert found.cause == "the grid points write to the same elements and leave others unwritten"
    assert found.advice == "give each grid point its own elements"


def test_a_copy_from_and_to_what_one_index_makes() -> None:
    place: dict[str, Any] = {"index": "o_ref[-1]", "grid_point": (1,)}
    written = finding("OutOfBoundsWrite", "o_ref", 5, **place)
    read = finding("OutOfBoundsRead", "o_ref", 5, **place)
    assert merged([read, written]) == (replace(written, consequences=(read,)),)
    other = finding("OutOfBoundsRead", "o_ref", 5, **{**place, "index": "o_ref[-2]"})
    assert len(merged([other, written])) == 2


def block(operand: str, at: int, **values: str) -> Finding:
    facts = {"dimension": "0", "block": "2", **values}
    return finding("BlockOutOfBounds", operand, at, grid_point=(0, 2), values=facts)


def test_operands_that_share_a_block_specification() -> None:
    q, k = block("q_ref", 5), replace(block("k_ref", 5), count=4, targets=("v5e",))
    (found,) = merged([q, k])
    assert (found.operand, found.count, found.engines) == ("q_ref", 4, ("machine",))
    assert found.message == "BlockOutOfBounds; likewise k_ref"
    assert found.values["likewise"] == "k_ref"
    assert merged([found, k]) == (found,)
    exchanged = block("v_ref", 5, dimension="1")  # of the operands of a product, say
    assert merged([q, exchanged])[0].message == "BlockOutOfBounds; likewise v_ref"
    for other in (block("v_ref", 6), block("v_ref", 5, block="3")):
        assert merged([q, other]) == (q, other)
    o, p = (finding("OutputRevisited", name, 5) for name in ("o_ref", "p_ref"))
    assert merged([o, p])[0].message == "OutputRevisited; likewise p_ref"


def test_operands_whose_blocks_follow_a_grid_that_is_too_long() -> None:
    axis = {"grid dimension": "1", "dimension": "1"}
    q, k = block("q_ref", 5, **axis), block("k_ref", 6, **{**axis, "dimension": "0"})
    (found,) = merged([q, k])
    assert found.message == "BlockOutOfBounds; likewise k_ref in line 6"
    other = block("v_ref", 6, **{**axis, "grid dimension": "0"})
    assert merged([q, other]) == (q, other)


def test_an_operand_that_another_engine_names_alone() -> None:
    q = finding("OutputNotWritten", "q_ref", 5, values={"likewise": "k_ref"})
    k = replace(finding("OutputNotWritten", "k_ref", 5), engines=("static",))
    assert merged([q, k]) == (q,)
    elsewhere = replace(finding("OutputNotWritten", "k_ref", 6), engines=("static",))
    assert merged([q, elsewhere]) == (q,)  # an output that is not written has no line of its own
    other = replace(finding("OutputNotWritten", "v_ref", 5), engines=("static",))
    assert merged([q, other]) == (q, other)
    q, k = (replace(one, kind=Fault.UNINITIALIZED_READ) for one in (q, elsewhere))
    assert merged([q, k]) == (q, k)


def entry(operand: str, at: int, index: str, position: str = "4") -> Finding:
    facts = {"position": position, "bound": "4", "dimension": "0"}
    return finding("OutOfBoundsRead", operand, at, index=index, grid_point=(2,), values=facts)


def test_places_that_one_index_reads() -> None:
    start, size = entry("starts", 5, "starts[4]"), entry("sizes", 6, "sizes[4]")
    (found,) = merged([start, size])
    assert found.message == "OutOfBoundsRead; likewise sizes[4] in line 6"
    other = entry("sizes", 6, "sizes[-1]", "-1")
    assert merged([start, other]) == (start, other)
    stored = replace(entry("o_ref", 7, "o_ref[4]"), kind=Fault.OUT_OF_BOUNDS_WRITE)
    assert merged([start, stored])[0].message == "OutOfBoundsRead; likewise o_ref[4] in line 7"
    back = replace(entry("starts", 7, "starts[4]"), kind=Fault.OUT_OF_BOUNDS_WRITE)
    assert merged([start, back]) == (replace(start, consequences=(back,)),)


def test_copies_that_one_line_starts() -> None:
    def race(operand: str, at: int, start: int = 3, **values: str) -> Finding:
        facts = {"other semaphore": f"sem_of_{operand}", **values}
        return finding("DataRace", operand, at, other=line(start), grid_point=(1,), values=facts)

    k, v = race("k_buf", 5), race("v_buf", 6)
    (found,) = merged([k, v])
    assert found.message == "DataRace; likewise v_buf in line 6"
    unlike = race("v_buf", 6, start=4), race("v_buf", 6, sender="device 1"), race("k_buf", 6)
    for other in unlike:
        assert merged([k, other]) == (k, other)
    plain = [replace(one, witness=replace(one.witness, values={})) for one in (k, v)]
    assert merged(plain) == tuple(plain)  # of accesses, not of copies
