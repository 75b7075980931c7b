"""Findings that several engines or consequences complete: their cause, their advice, their places."""

from __future__ import annotations

from dataclasses import replace

from made_up_findings import finding, line

from pallas_debug.findings.collector import merged

STATIC = ("static",)


RACE = finding("DataRace", "tile", 5, other=line(3), values={"sender": "device 0"})


def test_a_place_past_the_end_that_two_copies_write_to() -> None:
    """The machine ends at the first of them; the place of the second is known beforehand."""
    facts = {"position": "5", "bound": "5"}
    first = finding("OutOfBoundsWrite", "k_ref", 7, index="k_ref[5]", values=facts)
    run = replace(first, witness=replace(first.witness, values={"index from": "at[1]"}))
    second = finding("OutOfBoundsWrite", "v_ref", 8, index="v_ref[5]", values=facts)
    known = [replace(one, engines=STATIC) for one in (first, second)]
    (found,) = merged([run, *known])
    assert found.message == "OutOfBoundsWrite; likewise v_ref[5] in line 8"
    assert found.values == {**facts, "index from": "at[1]"}
    beside = replace(second, witness=replace(second.witness, values={**facts, "bound": "4"}))
    assert len(merged([run, known[0], replace(beside, engines=STATIC)])) == 2


def test_a_fetch_of_what_a_table_holds_past_its_end() -> None:
    facts = {"position": "4", "bound": "4"}
    read = finding("OutOfBoundsRead", "table", 3, grid_point=(3,), values=facts)
    left = replace(finding("DmaNotAwaited", "sem", 9), engines=STATIC)
    (found,) = merged([left, read])
    assert found.consequences == (left,)
    assert found.advice == "do not start the copy in line 9 when nothing is left to fetch"
    further = replace(read, witness=replace(read.witness, values={**facts, "position": "6"}))
    assert len(merged([left, further])) == 2
    assert len(merged([replace(left, engines=("machine",)), read])) == 2


def test_an_index_map_that_returns_other_blocks_than_those_computed() -> None:
    back = finding("OutputRevisited", "o_ref", 2, grid_point=(4,))
    left = finding("OutputNotWritten", "o_ref", 2, values={"why": "left out"})
    (found,) = merged([left, back])
    assert found.consequences == (left,)
    assert found.cause == (
        "the index map returns the same block for grid points that compute different ones, and "
        "leaves others out"
    )
    assert found.advice == "let the index map return the block that each grid point computes"
    other = finding("OutputNotWritten", "p_ref", 2, values={"why": "left out"})
    assert len(merged([other, back])) == 2


def test_more_signals_than_waits_before_copies_of_another_device() -> None:
    facts = {"waits": "2", "signalled by": "device 3"}
    left = finding("SemaphoreLeftOver", "room", 9, values=facts)
    (found,) = merged([left, RACE])
    assert found.consequences == (left,)
    assert found.cause == (
        "room is signalled more often than it is waited for: device 0 may copy before the signal "
        "meant for it"
    )
    assert found.advice == (
        "wait for room before each copy, and send as many signals before the first copy as there "
        "are buffers to fill"
    )


def test_a_line_for_one_core_that_both_run() -> None:
    facts = {"cores": "0, 1", "both sides": "copies that write"}
    both = finding("DataRace", "o_ref", 9, other=line(9), values=facts)
    early = finding("DataRace", "part", 7, other=line(3), values={"cores": "1, 0"})
    (found,) = merged([early, both])
    assert found.consequences == (early,)
    assert found.cause == "both cores run line 9 and write the same elements"
    assert found.advice == (
        "run this part only on the core that it is meant for, under a pl.when, or let each core "
        "write its own elements"
    )
    others = replace(early, witness=replace(early.witness, values={"cores": "2, 3"}))
    assert len(merged([others, both])) == 2
    apart = replace(both, witness=replace(both.witness, other=line(8)))
    assert len(merged([early, apart])) == 2
