"""Exceptions of stopped programs: recognised by their reference, never by their wording."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pallas_debug.errors import KernelFault
from pallas_debug.findings import stops
from pallas_debug.findings.faults import Fault
from pallas_debug.model import Finding

RACE = Finding(kind=Fault.DATA_RACE, kernel="rows", message="two cores write rows 0 to 7")
DEADLOCK = Finding(kind=Fault.DEADLOCK, kernel="rows", message="sem is 0, and the wait needs 1")


def test_the_finding_of_an_exception() -> None:
    assert stops.finding_of(stops.stop(RACE, "DataRace in kernel `rows`")) is RACE


def test_the_finding_of_an_exception_of_which_jax_kept_the_text() -> None:
    fault = stops.stop(RACE, "DataRace in kernel `rows`")
    assert stops.finding_of(RuntimeError(f"INTERNAL: CpuCallback error: {fault}\n\n")) is RACE


def test_two_findings_of_the_same_wording() -> None:
    other = Finding(kind=Fault.DEADLOCK, kernel="rows", message=RACE.message)
    stops.stop(RACE, "stopped")
    fault = stops.stop(other, "stopped")
    assert stops.finding_of(RuntimeError(str(fault))) is other


@pytest.mark.parametrize(
    "error",
    [
        None,
        ValueError("DataRace in kernel `rows`"),
        ValueError("[finding 0123456789ab]"),
        ValueError("[finding ]"),
        KernelFault("DataRace in kernel `rows`"),
    ],
    ids=["none", "same words", "unknown reference", "no reference", "without a finding"],
)
def test_other_exceptions_have_no_finding(error: BaseException | None) -> None:
    stops.stop(RACE, "DataRace in kernel `rows`")
    assert stops.finding_of(error) is None


def test_only_the_last_findings_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stops, "MAX_STOPS", 2)
    faults = [str(stops.stop(RACE, "stopped")) for _ in range(3)]
    found = [stops.finding_of(RuntimeError(fault)) for fault in faults]
    assert found == [None, RACE, RACE]


def test_what_led_to_a_stop_comes_first() -> None:
    error = stops.stop(DEADLOCK, "stopped")
    elsewhere, later = replace(RACE, kernel="columns"), replace(RACE, kind=Fault.OUTPUT_NOT_WRITTEN)
    found = [elsewhere, RACE, DEADLOCK, later]
    assert stops.led_to(error, found) == [RACE, DEADLOCK]
    assert stops.led_to(ValueError("another"), found) == []
    assert [stops.is_stop(finding, error) for finding in found] == [False, False, True, False]


def test_a_stop_that_is_a_consequence() -> None:
    cause = replace(RACE, consequences=(DEADLOCK,))
    assert stops.led_to(stops.stop(DEADLOCK, "stopped"), [cause]) == [cause]
