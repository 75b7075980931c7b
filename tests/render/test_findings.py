"""Findings as text: every possible line, and omitted ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pallas_debug.errors import KernelFault, PallasDebugError
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.sighting import Sighting
from pallas_debug.model import Finding, Link, SourceLine, Witness
from pallas_debug.render import MAX_LINES, finding_text, first_clauses

LINE = SourceLine(file="rows.py", line=12, text="o_ref[...] = x_ref[pl.ds(i * 8 + 4, 8), :]")

FULL = Finding(
    kind=Fault.OUT_OF_BOUNDS_READ,
    kernel="gather_rows",
    message="x_ref[12:20, 0:128] reaches 4 rows past x_ref, float32[16, 128] in VMEM",
    witness=Witness(source=LINE, grid_point=(1,), operand="x_ref"),
    cause="the last block starts at row 12",
    advice="bound the start by x_ref.shape[0] - 8, or pad the input",
)


def changed(count: int = 1, **facts: Any) -> Finding:
    return replace(FULL, count=count, witness=replace(FULL.witness, **facts))


def test_the_whole_text() -> None:
    assert finding_text(FULL) == (
        "OutOfBoundsRead in kernel `gather_rows`, grid point (1,)\n"
        "  rows.py:12   o_ref[...] = x_ref[pl.ds(i * 8 + 4, 8), :]\n"
        "  x_ref[12:20, 0:128] reaches 4 rows past x_ref, float32[16, 128] in VMEM\n"
        "  cause: the last block starts at row 12\n"
        "  try: bound the start by x_ref.shape[0] - 8, or pad the input"
    )


def test_only_what_is_known() -> None:
    bare = Finding(kind=Fault.DEADLOCK, kernel="k", message="nothing signals sem")
    assert finding_text(bare) == "Deadlock in kernel `k`\n  nothing signals sem"
    lines = finding_text(replace(bare, advice="signal it")).splitlines()
    assert lines[2:] == ["  try: signal it"]


def test_a_wording_without_a_reason_gets_that_of_the_catalogue() -> None:
    seen = Sighting(kernel="k", engine="static")
    bare = seen.found(Fault.DEADLOCK, "nothing signals sem")
    assert (bare.cause or "").startswith("the semaphore is never signalled, or no copy is left")
    assert (bare.advice or "").startswith("start a copy for every wait")
    known = seen.found(Fault.DEADLOCK, "nothing signals sem", "c", "a")
    assert (known.cause, known.advice, known.engines) == ("c", "a", ("static",))


def test_what_follows_is_shown_by_its_first_line() -> None:
    death = Finding(kind=Fault.COMPILER_ABORT, kernel="k", message="it died\nstack")
    lines = finding_text(replace(FULL, consequences=(death, death))).splitlines()
    assert lines[2:4] == [f"  {FULL.message}", "  consequence: CompilerAbort: it died"]
    assert len(lines) == MAX_LINES


def test_what_follows_at_another_line_has_that_line() -> None:
    there = Witness(source=replace(LINE, line=14))
    race = Finding(kind=Fault.DATA_RACE, kernel="k", message="written here", witness=there)
    for witness, at in ((there, " at rows.py:14"), (FULL.witness, "")):
        after = replace(FULL, consequences=(replace(race, witness=witness),))
        assert f"  consequence: DataRace{at}: written here" in finding_text(after).splitlines()


@pytest.mark.parametrize(
    "changes, header",
    [
        ({"grid_point": ()}, "OutOfBoundsRead in kernel `gather_rows`"),
        ({"grid_point": None}, "OutOfBoundsRead in kernel `gather_rows`"),
        (
            {"loop": (3, 0)},
            "OutOfBoundsRead in kernel `gather_rows`, grid point (1,), loop iteration (3, 0)",
        ),
        (
            {"values": {"device": "2", "core": "0"}},
            "OutOfBoundsRead in kernel `gather_rows`, device 2, grid point (1,)",
        ),
        ({"count": 7}, "OutOfBoundsRead in kernel `gather_rows`, grid point (1,), 7 times"),
        (
            {"loop": (3,), "count": 2},
            "OutOfBoundsRead in kernel `gather_rows`, grid point (1,), loop iteration (3,), 2 times",
        ),
    ],
)
def test_the_header(changes: dict[str, object], header: str) -> None:
    assert finding_text(changed(**changes)).splitlines()[0] == header


def test_two_sides() -> None:
    other = SourceLine(file="copy.py", line=3, text="  copy.start()\n")
    two = changed(other=other)
    lines = finding_text(two).splitlines()
    assert lines[3] == "  other side: copy.py:3   copy.start()"
    assert lines[4].startswith("  cause: ")
    lines = finding_text(replace(two, message="x_ref is read\nwritten by the copy")).splitlines()
    assert lines[1:3] == [
        "  x_ref is read: rows.py:12   o_ref[...] = x_ref[pl.ds(i * 8 + 4, 8), :]",
        "  written by the copy: copy.py:3   copy.start()",
    ]


def test_a_line_without_its_text() -> None:
    lines = finding_text(changed(source=SourceLine(file="rows.py", line=12))).splitlines()
    assert lines[1] == "  rows.py:12"


def test_a_file_below_this_folder_is_named_as_one_would_type_it() -> None:
    here = Path.cwd() / "kernels" / "rows.py"
    lines = finding_text(changed(source=replace(LINE, file=str(here)))).splitlines()
    assert lines[1].startswith("  kernels/rows.py:12   ")


def test_the_details() -> None:
    link = Link(buffer="o_ref", action="sets o_ref", source=LINE, grid_point=(1,), since=(0,))
    race = Finding(kind=Fault.DATA_RACE, kernel="k", message="written here", witness=FULL.witness)
    whole = replace(
        FULL, message="one\ntwo", chain=(link,), consequences=(race, race),
        engines=("machine", "compile"), targets=("v5e",), advice=f"pad; {'or not ' * 20}",
    )  # fmt: skip
    assert finding_text(whole, verbose=True).splitlines()[2:] == [
        "  one",
        "  two",
        "  writer: rows.py:12 at (0,) to (1,) sets o_ref",
        "  consequence: DataRace: written here",
        "  consequence: DataRace: written here",
        f"  cause: {FULL.cause}",
        f"  try: {whole.advice}",
        "  seen by: machine, compile for v5e",
    ]
    brief = finding_text(whole).splitlines()
    assert len(brief) == MAX_LINES
    assert brief[-1] == "  try: pad; …"


@pytest.mark.parametrize(
    "text, first",
    [
        ("a; b. c", "a; b. c"),
        (f"a; b. {'c' * 20}", "a; b; …"),
        (f"{'a' * 20}; b", f"{'a' * 20}; …"),
        (f"{'a' * 20}.b", f"{'a' * 20}.b"),
    ],
)
def test_the_first_clauses(text: str, first: str) -> None:
    assert first_clauses(text, 10) == first


def test_a_fault_carries_its_finding() -> None:
    fault = KernelFault(finding_text(FULL), FULL)
    assert isinstance(fault, PallasDebugError)
    assert fault.finding is FULL
    assert str(fault) == finding_text(FULL)
    assert KernelFault("text alone").finding is None
