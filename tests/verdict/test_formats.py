"""Verdicts as a table, as workflow annotations, and as SARIF."""

from __future__ import annotations

from pathlib import Path

import pytest

from pallas_debug.errors import VerificationFailed
from pallas_debug.findings.faults import Fault
from pallas_debug.model import Finding, SourceLine, Witness
from pallas_debug.verdict import Outcome, Verdict
from pallas_debug.verdict.formats.sarif import sarif
from pallas_debug.verdict.formats.text import verdict_text
from pallas_debug.verdict.result import Suppressed


@pytest.fixture
def verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verdict:
    monkeypatch.chdir(tmp_path)
    here = str(tmp_path / "src" / "rows.py")
    bad = Finding(
        kind=Fault.OUT_OF_BOUNDS_READ,
        kernel="rows",
        message="x_ref[12:20] reaches 4, 100%",
        witness=Witness(
            source=SourceLine(file=here, line=12, text="o_ref[...] = x_ref[pl.ds(i, 8)]"),
            other=SourceLine(file="/elsewhere/other.py", line=3),
        ),
        cause="no bound",
        advice="bound it",
        engines=("machine", "compile"),
        targets=("v5e", "v6e"),
    )
    known = Finding(kind=Fault.PADDING_READ, kernel="rows", message="padding", engines=("static",))
    return Verdict(
        name="attend",
        kernels=("rows", "columns"),
        findings=(bad,),
        suppressed=(Suppressed(finding=known, reason="cut off later"),),
        outcomes=(
            Outcome(kernel="", engine="trace", status="ok"),
            Outcome(kernel="rows", engine="values", status="unsupported", reason="unknown whose"),
            *(
                Outcome(kernel="columns", engine=engine, status="unsupported", reason="too many")
                for engine in ("static", "machine", "values")
            ),
            Outcome(kernel="columns", engine="compile", target="v5e", status="ok"),
            Outcome(
                kernel="columns", engine="compile", target="v6e", status="skipped", reason="no v6e"
            ),
            Outcome(kernel="rows", engine="static", status="ok").without("values of n"),
            Outcome(kernel="rows", engine="compile", target="v5e", status="found"),
            Outcome(kernel="rows", engine="compile", target="v6e", status="ok"),
            Outcome(kernel="rows", engine="machine", status="unsupported", reason="no PRNG"),
        ),
        notes=("zeros were taken",),
    )


def test_the_whole_text(verdict: Verdict) -> None:
    assert str(verdict) == "\n".join(
        [
            "kernel   static  v5e    v6e  machine  values",
            "rows     ok*     FOUND  ok   ?        ?",
            "columns  ?       ok     n/a  ?        ?",
            "",
            "OutOfBoundsRead in kernel `rows`",
            "  src/rows.py:12   o_ref[...] = x_ref[pl.ds(i, 8)]",
            "  x_ref[12:20] reaches 4, 100%",
            "  other side: /elsewhere/other.py:3",
            "  cause: no bound",
            "  try: bound it",
            "",
            "not counted: PaddingRead in kernel `rows`: cut off later",
            "",
            "not judged: rows values: unknown whose",
            "not judged: columns static, columns machine, columns values: too many",
            "not asked: columns v6e: no v6e",
            "not judged: rows static: values of n",
            "not judged: rows machine: no PRNG",
            "note: zeros were taken",
            "",
            "attend: 1 finding in 2 kernels; values not judged (no reference)",
        ]
    )


def test_the_details(verdict: Verdict) -> None:
    brief, whole = (verdict_text(verdict, verbose=verbose) for verbose in (False, True))
    (detail,) = set(whole.splitlines()) - set(brief.splitlines())
    assert detail == "  seen by: machine, compile for v5e, v6e"


def test_a_long_name_has_a_line_of_its_own() -> None:
    names = ("rows", "r" * 41)
    outcomes = tuple(Outcome(kernel=name, engine="static", status="ok") for name in names)
    text = str(Verdict(name="f", kernels=names, outcomes=outcomes))
    assert text.splitlines()[:4] == ["kernel  static", "rows    ok", "r" * 41, "        ok"]


def test_nothing_found_says_what_that_is_worth(verdict: Verdict) -> None:
    clean = Verdict(name="f", kernels=("rows",))
    assert str(clean) == "f: nothing found in 1 kernel; values not judged (no reference)"
    assert clean.ok
    gaps = Verdict(name="f", kernels=("rows",), outcomes=verdict.outcomes)
    words = (
        "f: nothing found in 1 kernel; beyond the limits of an engine: 5 of 9 judgements "
        "(values, static, machine); see `not judged`; values not judged (no reference)"
    )
    assert str(gaps).endswith(words)
    assert gaps.ok


def test_what_was_found_is_raised(verdict: Verdict) -> None:
    with pytest.raises(VerificationFailed) as raised:
        verdict.throw()
    assert str(raised.value) == str(verdict)
    assert raised.value.findings == verdict.findings
    Verdict(name="f").throw()


HOSTILE = "rows\n::error title=x::y%0A\x1b[2J"


@pytest.fixture
def hostile() -> Verdict:
    """A kernel whose name holds a workflow command, found fault with and not judged."""
    cell = Outcome(
        kernel=HOSTILE,
        digest="ab" * 32,
        engine="compile",
        target="v5e",
        status="unjudged",
        reason="line\n::warning::z",
    )
    finding = Finding(kind=Fault.DEADLOCK, kernel=HOSTILE, message="m\n::warning::z")
    return Verdict(
        name="f", kernels=(HOSTILE,), outcomes=(cell,), findings=(finding,), problems=("p\n::q::r",)
    )


def test_a_name_is_one_word_in_the_table(hostile: Verdict) -> None:
    table, *_ = str(hostile).split("\n\n")
    assert len(table.splitlines()) == 2
    assert "rows\\n::error title=x::y%0A\\x1b[2J" in table


def test_sarif(verdict: Verdict) -> None:
    document = sarif(verdict)
    assert document["version"] == "2.1.0"
    (run,) = document["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == [
        "OutOfBoundsRead",
        "PaddingRead",
    ]
    assert run["tool"]["driver"]["rules"][1]["shortDescription"] == {
        "text": Fault.PADDING_READ.summary
    }
    first, second = run["results"]
    assert first["properties"] == {
        "kernel": "rows",
        "engines": ["machine", "compile"],
        "targets": ["v5e", "v6e"],
        "madeUp": [],
    }
    assert (first["ruleId"], first["ruleIndex"], first["level"]) == ("OutOfBoundsRead", 0, "error")
    (where,) = first["locations"]
    assert where["physicalLocation"]["artifactLocation"]["uri"] == "src/rows.py"
    assert where["physicalLocation"]["region"]["startLine"] == 12
    assert first["relatedLocations"][0]["physicalLocation"]["region"]["startLine"] == 3
    assert "suppressions" not in first
    assert second["suppressions"] == [{"kind": "external", "justification": "cut off later"}]
    (invocation,) = run["invocations"]
    message = {n["message"]["text"]: n["level"] for n in invocation["toolExecutionNotifications"]}
    assert message["rows, machine: unsupported: no PRNG"] == "note"
    assert message["rows, static: judged in part: values of n"] == "note"
    assert invocation["executionSuccessful"]


def test_sarif_says_what_was_not_judged(hostile: Verdict) -> None:
    (invocation,) = sarif(hostile)["runs"][0]["invocations"]
    assert not invocation["executionSuccessful"]
    message = {n["message"]["text"]: n["level"] for n in invocation["toolExecutionNotifications"]}
    assert message == {
        "rows\\n::error title=x::y%0A\\x1b[2J, v5e: unjudged: line\n::warning::z": "error",
        "not done: p\n::q::r": "error",
    }
