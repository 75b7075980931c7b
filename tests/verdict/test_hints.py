"""Hints: shown below a verdict and first of all with a wrong value, recorded, and never counted."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from small_calls import X, called

from pallas_debug.analysis import Analysis
from pallas_debug.cli import output
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.hints import HintKind
from pallas_debug.model import Finding, Hint, Link, SourceLine, Witness
from pallas_debug.store import open_dumps
from pallas_debug.verdict import Outcome, Verdict, engines, verify

AT = SourceLine(file="/a/rows.py", line=12)
CARRIED = Hint(
    kind=HintKind.CARRIED,
    kernel="rows",
    message="acc_ref is read for block (1, 0), and was set for (0, 0)",
    digest="aa" * 32,
    source=AT,
    operand="acc_ref",
)
UNREAD = Hint(kind=HintKind.UNREAD_WRITE, kernel="rows", message="buf is never read", operand="buf")
WRONG = Finding(
    kind=Fault.VALUE_MISMATCH,
    kernel="rows",
    message="[8, 0] is 5 where 3 is expected",
    digest="aa" * 32,
    engines=("values",),
    witness=Witness(source=AT),
    chain=(Link(buffer="acc_ref", action="adds x_ref to acc_ref", source=AT),),
)


def verdict(**fields: Any) -> Verdict:
    row = Outcome(kernel="rows", digest="aa" * 32, engine="machine", status="ok")
    return Verdict(name="f", kernels=("rows",), outcomes=(row,), hints=(UNREAD, CARRIED), **fields)


def test_they_are_listed_below_the_findings_and_count_nothing() -> None:
    shown = verdict()
    assert shown.ok
    assert str(shown).split("\n\n")[1].splitlines() == [
        "hints, which may be intended and fail nothing:",
        "  buf is never read (hint: unread write)",
        "  /a/rows.py:12: acc_ref is read for block (1, 0), and was set for (0, 0) (hint: carried)",
    ]
    first, _ = json.loads(output.json_text(vars(shown)))["hints"]
    assert (first["kind"], first["message"]) == ("unread write", "buf is never read")


def test_one_on_the_way_to_a_wrong_value_is_shown_with_it() -> None:
    _, wrong, rest, _ = str(verdict(findings=(WRONG,))).split("\n\n")
    assert wrong.splitlines()[-1] == (
        "  on the way to it: /a/rows.py:12: acc_ref is read for block (1, 0), and was set for "
        "(0, 0) (hint: carried)"
    )
    assert rest.splitlines()[1:] == ["  buf is never read (hint: unread write)"]


def test_those_of_an_engine_reach_the_verdict_and_its_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    analyze = engines.analyze

    def hinted(captured: Any, *rest: Any, **named: Any) -> Analysis:
        return dataclasses.replace(analyze(captured, *rest, **named), hints=(UNREAD,))

    monkeypatch.setattr(engines, "analyze", hinted)
    found = verify(called(name="rows"), X, targets="v5e", engines="static", to=tmp_path)
    (hint,) = found.hints
    assert found.ok
    assert hint.digest == found.outcomes[-1].digest
    (record,) = open_dumps(tmp_path).runs()
    assert record.hints == found.hints
