"""Every sentence of the findings about order: races, copies, semaphores, deadlocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pallas_debug.findings import rewording
from pallas_debug.findings.collector import merged
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.sighting import Sighting
from pallas_debug.findings.wording import order, semaphores
from pallas_debug.findings.wording.order import Access
from pallas_debug.findings.wording.semaphores import Stuck, Tally
from pallas_debug.model import Finding, SourceLine, Witness

SEEN = Sighting(kernel="ring", engine="machine", witness=Witness(values={"device": "0"}))
TILE = "tile_ref[0:8, 0:128], float32[8, 128] in VMEM,"
COPY = ("x_ref[8:16]", "tile_ref")


def line(number: int) -> SourceLine:
    return SourceLine(file="/src/ring.py", line=number)


def race(here: Access, there: Access, **facts: Any) -> Finding:
    return order.data_race(SEEN, what=TILE, here=here, there=there, **facts)


FETCH = Access(writes=True, grid_point=(1,), loop=(2,), copy=COPY, semaphore="sems[1]")
LOAD = Access(writes=False, grid_point=(1,), loop=(2,))
STORE = Access(writes=True, grid_point=(1,))
BOTH = "; nothing orders the two"


def test_a_load_while_a_copy_is_under_way() -> None:
    found = race(LOAD, FETCH, waited=("sems[0]", "sems[0]"), overlap="tile_ref[0:4, 0:128]")
    assert found.kind is Fault.DATA_RACE
    assert found.message == (
        f"{TILE} is read at grid point (1,), in loop iteration (2,) here and written by the copy "
        "of x_ref[8:16] to tile_ref (semaphore sems[1]) at grid point (1,), in loop iteration (2,) "
        f"on the other side{BOTH}; both access tile_ref[0:4, 0:128]"
    )
    assert found.cause == (
        "the wait before this access is for sems[0], but the copy signals sems[1]"
    )
    assert found.advice == ("wait for sems[1] before this access, or access the slot of sems[0]")
    assert found.witness.values == {
        "device": "0",
        "other grid point": "(1,)",
        "other loop iteration": "(2,)",
        "other copy": "x_ref[8:16] to tile_ref",
        "other semaphore": "sems[1]",
        "overlap": "tile_ref[0:4, 0:128]",
        "waited for": "sems[0], sems[0]",
    }


NO_WAIT = "there is no wait between the start of the copy and this access; the copy signals sems[1]"
EARLY = "copied data is available only after the wait"


@pytest.mark.parametrize(
    "here, facts, cause, advice",
    [
        (LOAD, {}, EARLY, "wait for the copy before this line"),
        (LOAD, {"waited": ()}, NO_WAIT, "wait for sems[1] before this access"),
        (STORE, {"waited": ()}, NO_WAIT, "wait for sems[1] before this access"),
        (LOAD, {"waited": ("sems[1]",)}, EARLY, "wait for the copy before this line"),
        (
            LOAD,
            {"waited": ("a", "b")},
            "the wait before this access is for a and b, but the copy signals sems[1]",
            "wait for sems[1] before this access",
        ),
        (
            LOAD,
            {"waited": ("sems[1]",), "alike": 2},
            "2 copies are in flight on sems[1], but the wait before this access does not cover "
            "the bytes of all of them: any of them may be the one that has finished",
            "wait for all of them first, or give each copy its own semaphore",
        ),
        (
            LOAD,
            {"was_filled": True, "waited": ()},
            "the copy writes to a buffer that has yet to be read",
            "start the copy after the read, or use a second buffer",
        ),
        (
            STORE,
            {},
            "the copy is still in flight when its buffer is written",
            "wait for the copy before this line, or write to another buffer",
        ),
    ],
)
def test_why_a_copy_and_a_core_race(
    here: Access, facts: dict[str, Any], cause: str, advice: str
) -> None:
    found = race(here, FETCH, **facts)
    assert (found.cause, found.advice) == (cause, advice)


def test_a_slot_that_the_neighbour_still_uses() -> None:
    sent = Access(
        writes=True, device=1, copy=COPY, semaphore="receive_sem", loop=(1,), from_device=0
    )
    found = race(Access(writes=False, device=1, loop=(0,)), sent, was_filled=True, waited=())
    assert found.message == (
        f"{TILE} is read in loop iteration (0,) here and written by the copy of x_ref[8:16] to "
        "tile_ref from device 0 (semaphore receive_sem) in loop iteration (1,) on the other side"
        f"{BOTH}"
    )
    assert found.cause == (
        "device 0 sends while the previous data is still in use on device 1, and is not notified "
        "when that use ends"
    )
    assert found.advice == (
        "after the last access, let device 1 signal device 0, which waits for that signal before "
        "it starts the copy"
    )
    assert found.witness.values["other sender"] == "device 0"


def test_a_slot_that_the_neighbour_stores_to() -> None:
    sent = replace(FETCH, device=1, from_device=0)
    found = race(sent, Access(writes=True, device=1), waited=())
    assert found.cause == (
        "device 0 sends to memory that device 1 stores to, and is not notified when that store is "
        "done"
    )
    assert str(found.advice).startswith("send to elements that device 1 does not store to, or ")


def test_two_copies_of_which_another_device_has_started_one() -> None:
    arrives = replace(FETCH, device=1, from_device=0)
    leaves = replace(FETCH, device=1, writes=False)
    apart = (
        "receive into elements that are not copied; or let device 1, once it has waited for its "
        "copy, signal device 0, which waits for that signal before it sends"
    )
    found = race(arrives, leaves)
    assert found.cause == (
        "device 0 sends to memory that device 1 is still copying from, and is not notified when "
        "that copy is done"
    )
    assert found.advice == apart
    either = "device 1 may copy either the previous data or what device 0 sends there"
    wait = "if it should copy the data that arrives, wait for sems[1] before"
    found = race(leaves, arrives)
    assert (found.cause, found.advice) == (either, f"{wait} this copy starts; if not, {apart}")
    assert found.witness.values["other sender"] == "device 0"
    found = race(arrives, leaves, was_empty=True)
    assert (found.cause, found.advice) == (either, f"{wait} the other copy starts; if not, {apart}")
    found = race(arrives, replace(FETCH, device=1, from_device=2))
    assert found.cause == "devices 0 and 2 both write there, and nothing orders the writes"
    assert found.witness.values["sender"] == "device 0"
    found = race(leaves, arrives, waited=("sems[1]",), alike=2)
    assert str(found.cause).startswith("2 copies are in flight on sems[1]")
    assert found.advice == "wait for all of them first, or give each copy its own semaphore"
    found = race(arrives, replace(arrives, semaphore=None))
    assert found.cause == "two copies are in flight at once"


def test_a_copy_between_devices_that_stays_on_its_own() -> None:
    sent = replace(FETCH, device=3, semaphore="received", is_to_self=True)
    found = race(sent, replace(FETCH, device=3, semaphore="near"))
    assert found.cause == ("device 3 sends this copy to itself, where the copy on near also writes")
    assert found.advice == (
        "pass the receiving device as device_id or, if it is this one, wait for near before this "
        "copy starts"
    )


def unawaited(line: int, semaphore: str, **values: str) -> Finding:
    source = SourceLine(file="rows.py", line=line)
    witness = Witness(source=source, values={"semaphore": semaphore, **values})
    return Finding(kind=Fault.DMA_NOT_AWAITED, kernel="rows", message="", witness=witness)


@pytest.mark.parametrize(
    "values, cause",
    [
        ({"waits": "0"}, "nothing waits for sem, so the copy on it"),
        (
            {"starts": "4", "waits": "3"},
            "4 copies are started on sem, but only 3 are waited for, so one",
        ),
        ({}, "a copy on sem is never waited for, so it"),
    ],
)
def test_a_race_with_a_copy_that_is_never_waited_for(values: dict[str, str], cause: str) -> None:
    found = race(replace(FETCH, semaphore="sems[0]"), FETCH)
    found = semaphores.of_unawaited_copy(found, unawaited(2, "sem", **values))
    assert found.cause == f"{cause} may be in flight until the kernel ends or longer"


def test_where_to_wait_for_a_copy_that_is_never_waited_for() -> None:
    here, there = (SourceLine(file="rows.py", line=line) for line in (7, 9))

    def advice(one: order.Access, other: order.Access, line: int, semaphore: str) -> str | None:
        found = race(one, other)
        found = replace(found, witness=replace(found.witness, source=here, other=there))
        return semaphores.of_unawaited_copy(found, unawaited(line, semaphore)).advice

    ours = replace(FETCH, semaphore="sems[0]")
    read = order.Access(writes=False, grid_point=(1,))
    assert advice(ours, FETCH, 9, "sems[1]") == "wait for sems[1] before this copy starts"
    assert advice(ours, FETCH, 7, "sems[0]") == (
        "wait for sems[0] before the copy in line 9 starts"
    )
    assert advice(read, FETCH, 9, "sems[1]") == "wait for sems[1] before this line"
    assert advice(ours, read, 7, "sems[0]") == "wait for sems[0] before line 9"


def test_a_race_that_a_signal_was_to_prevent() -> None:
    found = race(replace(FETCH, writes=False), replace(FETCH, from_device=2))
    source = SourceLine(file="rows.py", line=4)
    left = Finding(
        kind=Fault.SEMAPHORE_LEFT_OVER,
        kernel="rows",
        message="",
        witness=Witness(source=source, operand="room"),
    )
    found = rewording.of_unheard_signal(found, left)
    assert found.cause == (
        "room is signalled, in line 4, but nothing waits for it: device 2 may copy before it is "
        "signalled to"
    )
    assert found.advice == "wait for room before the copy starts"


@pytest.mark.parametrize(
    "here, there, cause",
    [
        (True, False, "the copy on sems[1] may still be reading the data that this one overwrites"),
        (False, True, "this copy reads data that the copy on sems[1] may not have delivered yet"),
    ],
)
def test_two_copies_of_one_device(here: bool, there: bool, cause: str) -> None:
    found = race(replace(FETCH, writes=here, semaphore="sems[0]"), replace(FETCH, writes=there))
    assert found.cause == cause
    assert found.advice == "wait for sems[1] before this copy starts"


def test_two_copies_two_cores_two_devices_and_parallel_grid_points() -> None:
    found = race(FETCH, FETCH)
    assert found.cause == ("the copy on sems[1] also writes there, and may arrive last")
    assert found.advice == (
        "wait for sems[1] before this copy starts, or let each of them write its own elements"
    )
    assert found.witness.values["semaphore"] == "sems[1]"
    found = race(STORE, Access(writes=False, grid_point=(1,), core=1))
    assert found.message == (
        f"{TILE} is written at grid point (1,) on core 0 here and read at grid point (1,) on core "
        f"1 on the other side{BOTH}"
    )
    assert found.cause == "two cores access the same memory, and no semaphore orders the accesses"
    assert found.advice == "let one side signal a semaphore that the other waits for"
    found = race(STORE, Access(writes=False, grid_point=(1,), device=1))
    assert "at grid point (1,) on device 0 here" in found.message
    assert found.cause == "two devices access the same memory"
    assert found.advice == "let one side signal a semaphore that the other waits for"
    found = race(STORE, Access(writes=True, grid_point=(0,), core=1), axes=(0,))
    assert found.cause == (
        "grid dimension 0 is parallel, and the grid points of a parallel axis may run on several "
        "cores at once (v4 and v5p have two)"
    )
    assert found.advice == (
        'give each grid point its own block, or make the axis "arbitrary" in dimension_semantics'
    )


@pytest.mark.parametrize(
    "facts, cause, advice",
    [
        (
            {},
            "device 0 has not waited for a signal from another device",
            "first signal the barrier semaphore (pltpu.get_barrier_semaphore) of each neighbour "
            "and wait for as many signals; this requires collective_id in compiler_params",
        ),
        (
            {"heard_from": (3, 1), "has_barrier": True},
            "device 0 has waited only for signals from device 3",
            "let device 1 also signal device 0, and wait for all signals",
        ),
        (
            {"heard_from": (3,), "has_barrier": True, "unheard": (2, 1)},
            "device 0 has waited only for signals from device 3, although device 1 signals it",
            "wait for all signals before the copy: the signals of the barrier semaphore on device "
            "0 add up to 2, the waits to 1",
        ),
    ],
)
def test_a_remote_copy_before_any_handshake(facts: dict[str, Any], cause: str, advice: str) -> None:
    found = semaphores.remote_copy_too_early(
        SEEN, copy=("x_ref", "out_ref"), what="out_ref[0:8]", sender=0, receiver=1, **facts
    )
    assert found.kind is Fault.DATA_RACE
    assert found.message == (
        "the copy of x_ref from device 0 writes out_ref[0:8] on device 1, which may not have "
        "entered the kernel yet"
    )
    assert found.cause == (
        f"{cause}: until device 1 enters the kernel, its memory may be in use for something else"
    )
    assert found.advice == advice
    assert found.witness.values == {"device": "0", "sender": "device 0", "receiver": "device 1"}


@pytest.mark.parametrize(
    "of_copies, reads, advice",
    [
        (
            True,
            None,
            "wait for one copy before starting the other, or give each its own buffer",
        ),
        (False, None, "let one side signal a semaphore that the other waits for"),
        (False, "sem", "where its value matters, wait for sem instead of reading it"),
    ],
)
def test_a_result_that_depends_on_the_order(
    of_copies: bool, reads: str | None, advice: str
) -> None:
    found = order.nondeterministic_result(
        SEEN, element="out_ref[3, 7]", one="1.5", other="2.5", first="the copy of x_ref",
        second="the copy of y_ref", differ=1024, size=2048, of_copies=of_copies,
        reads=reads,
    )  # fmt: skip
    assert found.kind is Fault.NONDETERMINISTIC_RESULT
    assert found.message == (
        "out_ref[3, 7] is 1.5 if the copy of x_ref comes first, but 2.5 if the copy of y_ref "
        "does; 1,024 of 2,048 elements differ"
    )
    assert found.cause == "nothing orders the copy of x_ref and the copy of y_ref"
    assert found.advice == advice
    assert found.witness.values == {"device": "0", "one order": "1.5", "other order": "2.5"}


OVER = "the kernel may end before the copy does, leaving the semaphore raised for the next kernel"
ONCE = "wait once for each copy started; do not start a copy when nothing is left to fetch"


@pytest.mark.parametrize(
    "starts, waits, cause, advice",
    [
        (None, None, OVER, ONCE),
        (3, 2, f"3 copies are started on sem, but only 2 are waited for; {OVER}", ONCE),
        (
            1,
            0,
            f"1 copy is started on sem, but nothing waits for it; {OVER}",
            "wait for sem before the kernel ends",
        ),
    ],
)
def test_a_copy_that_is_never_awaited(
    starts: int | None, waits: int | None, cause: str, advice: str
) -> None:
    found = semaphores.copy_not_awaited(
        SEEN, semaphore="sem", source="x_ref", destination="tile_ref", left=4096, starts=starts,
        waits=waits,
    )  # fmt: skip
    assert found.kind is Fault.DMA_NOT_AWAITED
    assert found.message == (
        "the copy of x_ref to tile_ref is never waited for on sem: 4,096 bytes are left on it "
        "when the kernel ends"
    )
    assert (found.cause, found.advice) == (cause, advice)
    if starts is not None:
        assert found.witness.values == {
            "device": "0",
            "semaphore": "sem",
            "starts": str(starts),
            "waits": str(waits),
        }


@pytest.mark.parametrize(
    "awaited, descriptor, message, cause",
    [
        (
            2048,
            "tile_ref[0:4]",
            "the wait on sem takes 2,048 bytes, the size of tile_ref[0:4], but the copy of x_ref "
            "to tile_ref transfers 4,096",
            "the wait returns when 2,048 of 4,096 bytes have arrived, and 2,048 remain on sem",
        ),
        (
            8192,
            None,
            "the wait on sem takes 8,192 bytes, but the copy of x_ref to tile_ref transfers 4,096",
            "the wait takes 4,096 bytes more than the copy transfers: it ends only if another "
            "copy transfers them",
        ),
    ],
)
def test_a_wait_of_another_size(
    awaited: int, descriptor: str | None, message: str, cause: str
) -> None:
    found = semaphores.wait_size_mismatch(
        SEEN, semaphore="sem", copied=4096, awaited=awaited, source="x_ref",
        destination="tile_ref", descriptor=descriptor,
    )  # fmt: skip
    assert found.kind is Fault.WAIT_SIZE_MISMATCH
    assert (found.message, found.cause) == (message, cause)
    assert found.advice == (
        "wait with the descriptor that started the copy, or with one of the same slices"
    )
    assert found.witness.values["copied bytes"] == "4096"
    assert found.witness.values["awaited bytes"] == str(awaited)


def test_a_semaphore_left_over_on_one_branch() -> None:
    signal = Tally(line=line(12), amount=2, points=2, devices=(1, 2))
    wait = Tally(line=line(15), amount=1, points=1)
    found = semaphores.semaphore_left_over(
        SEEN, semaphore="sem", count=1, is_awaited=True, totals=(2, 1), device=3,
        signals=[signal], waits=[wait],
    )  # fmt: skip
    assert found.kind is Fault.SEMAPHORE_LEFT_OVER
    assert found.message == (
        "sem on device 3 is 1 at the end of the kernel, but must be 0: signals add up to 2, waits "
        "to 1; signalled in ring.py:12 (2 at 2 grid points, by device 1, 2), waited for in "
        "ring.py:15 (1 at 1 grid point)"
    )
    assert found.cause == (
        "it is signalled at 2 grid points, but the wait in ring.py:15 is on a branch that runs at "
        "only 1"
    )
    assert found.advice == (
        "wait for sem as often as it is signalled: the next kernel inherits its count"
    )


@pytest.mark.parametrize(
    "waits, cause",
    [
        ([Tally(line=line(15), amount=1, points=2)], "it is signalled more than it is waited for"),
        ([], "nothing waits for it"),
    ],
)
def test_a_semaphore_left_over(waits: list[Tally], cause: str) -> None:
    signals = [Tally(line=line(n), amount=2, points=2) for n in (12, 13)]
    found = semaphores.semaphore_left_over(
        SEEN, semaphore="sem", count=2, is_awaited=bool(waits), signals=signals, waits=waits
    )
    listed = "ring.py:12 (2 at 2 grid points) and ring.py:13 (2 at 2 grid points)"
    awaited = ", waited for in ring.py:15 (1 at 2 grid points)" if waits else ""
    assert found.message == (
        f"sem is 2 at the end of the kernel, but must be 0; signalled in {listed}{awaited}"
    )
    assert found.cause == cause


def stopped(**facts: Any) -> Finding:
    given = {"count": 0, "needed": 1, "of_copy": False, "was_raised": False, **facts}
    return semaphores.deadlock(SEEN, semaphore="sem", **given)


def test_a_deadlock_of_two_devices() -> None:
    other = Stuck(semaphore="done", count=0, needed=1, line=line(20), device=1, grid_point=(0, 1))
    core = Stuck(semaphore="done", count=0, needed=2, device=1, core=1)
    found = stopped(stuck=[other, core], sender=(1, line(22)))
    assert found.kind is Fault.DEADLOCK
    assert found.message == (
        "sem is at 0, but the wait needs 1; nothing else can run: device 1 waits for 1 on done, "
        "which is at 0, in ring.py:20 at grid point (0, 1); device 1, core 1, waits for 2 on "
        "done, which is at 0"
    )
    assert found.cause == (
        "it is signalled in ring.py:22 on device 1, which is blocked by an earlier wait"
    )
    assert found.advice == (
        "on at least one side, send what the other side waits for before waiting for it"
    )
    assert stopped(sender=(1, line(22)), of_copy=True).cause == (
        "the copy that it waits for is started in ring.py:22 on device 1, which is blocked by an "
        "earlier wait"
    )


@pytest.mark.parametrize(
    "facts, message, cause, advice",
    [
        (
            {"elsewhere": (2, 1), "device": 1},
            "sem on device 1 is at 0, but the wait needs 1",
            "on device 2 it is at 1: the signals went there",
            "pass the waiting device as device_id of the signal",
        ),
        (
            {"elsewhere": (2, 1024), "of_copy": True, "was_raised": True},
            "sem is at 0 bytes, but the wait needs 1 byte",
            "all copies that arrived have already been waited for; on device 2 it is at 1,024 bytes, which "
            "nothing has waited for yet",
            "wait on each device for as many copies as the others send to it",
        ),
        (
            {"of_copy": True, "was_raised": True, "needed": 4096, "earlier": line(9)},
            "sem is at 0 bytes, but the wait needs 4,096 bytes",
            "all copies on it have already been waited for, in ring.py:9: each start allows one "
            "wait",
            "start a copy for this wait, too, or remove the wait: wait once for each copy started, "
            "with the same slices and the same semaphore",
        ),
        (
            {"of_copy": True, "was_raised": True, "count": 1024, "needed": 4096},
            "sem is at 1,024 bytes, but the wait needs 4,096 bytes",
            "3,072 bytes are missing: its copies transfer less than its waits take",
            "wait with the descriptor that started the copy, or with one of the same slices",
        ),
        (
            {"of_copy": True, "others": 1},
            "sem is at 0 bytes, but the wait needs 1 byte; 1 more thread waits, too",
            "no copy has been started on it before this wait",
            "start the copy before the wait, on the same semaphore",
        ),
        (
            {"of_copy": True, "under_way": ["sems[1]", "v_sem"]},
            "sem is at 0 bytes, but the wait needs 1 byte",
            "no copy has been started on it before this wait; copies on sems[1] and v_sem have "
            "not been waited for yet",
            "start the copy before the wait, on the same semaphore",
        ),
        (
            {"others": 2},
            "sem is at 0, but the wait needs 1; 2 more threads wait, too",
            "it is never signalled",
            "signal it once for every wait, on the device and core that waits",
        ),
        (
            {"totals": (2, 2), "was_raised": True},
            "sem is at 0, but the wait needs 1; all signals add up to 2, all waits to 2",
            "it is signalled too late",
            "signal it once for every wait, on the device and core that waits",
        ),
        (
            {"totals": (1, 2), "was_raised": True},
            "sem is at 0, but the wait needs 1; all signals add up to 1, all waits to 2",
            "it is signalled less often than it is waited for",
            "signal it once for every wait, on the device and core that waits",
        ),
    ],
)
def test_why_a_wait_never_ends(
    facts: dict[str, Any], message: str, cause: str, advice: str
) -> None:
    found = stopped(**facts)
    assert (found.message, found.cause, found.advice) == (message, cause, advice)
    assert found.witness.values["count"] == str(facts.get("count", 0))


def test_the_race_that_led_to_a_deadlock_is_the_first_finding() -> None:
    first, last = race(LOAD, FETCH), stopped()
    assert [f.kind for f in merged([last, first])] == [Fault.DATA_RACE, Fault.DEADLOCK]
    elsewhere = race(LOAD, FETCH, waited=())
    alone = merged([last, Finding(**{**vars(elsewhere), "kernel": "other"})])
    assert [f.kind for f in alone] == [Fault.DEADLOCK, Fault.DATA_RACE]
