"""The verdict's table: complete whatever the engines report, with a consistent last line."""

from __future__ import annotations

import dataclasses
from typing import Any

from pallas_debug.cli.exits import Exit
from pallas_debug.cli.verify import exit_code
from pallas_debug.findings.faults import Fault
from pallas_debug.model import Finding
from pallas_debug.verdict import Outcome, Request, Verdict, Verifier, table
from pallas_debug.verdict.engines import Seen
from pallas_debug.verdict.result import ENGINES, Engine, Status
from pallas_debug.verdict.run import NOT_CONCLUDED

KERNELS = (("rows", "aa" * 32), ("rows", "bb" * 32), ("columns", "cc" * 32), ("lost", ""))


def filled(answers: list[Outcome], **fields: Any) -> tuple[Outcome, ...]:
    given = {
        "kernels": dict.fromkeys(KERNELS[:1]),
        "engines": tuple(e for e in ENGINES if e != "values"),
        "targets": ("v5e",),
    }
    return table.fill(answers=answers, **{**given, **fields})


def cell(status: Status, engine: Engine = "static", **fields: object) -> Outcome:
    given = {"kernel": "rows", "digest": "aa" * 32, "engine": engine, "status": status}
    return Outcome(**{**given, **fields})  # type: ignore[arg-type]


def verdict(outcomes: tuple[Outcome, ...], **fields: object) -> Verdict:
    kernels = table.labels((o.kernel, o.digest) for o in outcomes if o.kernel)
    given = {"name": "f", "kernels": tuple(kernels.values()), "outcomes": outcomes}
    given["reference"] = "g"
    return Verdict(**{**given, **fields})  # type: ignore[arg-type]


def test_what_was_not_made_comes_before_that_nothing_was_found() -> None:
    full = cell("unjudged", "compile", target="v6e", reason="the disk is full. Free some space.")
    rest = [cell("ok"), cell("ok", "machine")]
    what: Any = {"targets": ("v5e", "v6e")}
    message = verdict(filled([full, cell("ok", "compile", target="v5e"), *rest], **what))
    assert str(message).splitlines()[-1] == (
        "f: 1 of 4 judgements not made (v6e: the disk is full. Free some space); "
        "nothing found by the rest"
    )
    also = dataclasses.replace(full, engine="machine", target=None, reason="it hangs")
    message = verdict(filled([full, also, *rest[:1]], **what))
    assert str(message).splitlines()[-1] == (
        "f: 3 of 4 judgements not made (v5e: the engine ended without an answer (please report "
        "it); and 2 other reasons); nothing found by the rest"
    )
    message = verdict(filled([also], engines=("machine",)))
    assert str(message).splitlines()[-1] == (
        "f: 1 of 1 judgement not made (machine: it hangs); nothing is known about its kernels"
    )
    long = verdict(filled([cell("unjudged", "machine", reason="a" * 999)], engines=("machine",)))
    assert f"({'machine: ' + 'a' * 159}…)" in str(long).splitlines()[-1]


def test_the_limit_of_an_engine_counts_where_the_engine_was_named() -> None:
    answers = [cell("unsupported", "machine", reason="too many points")]
    both: Any = {"engines": ("static", "machine")}
    unless = verdict(filled([cell("ok"), *answers], **both))
    assert unless.ok
    assert exit_code(unless) == Exit.OK
    assert str(unless).splitlines()[-1] == (
        "f: nothing found in 1 kernel; beyond the limits of an engine: 1 of 2 judgements "
        "(machine); see `not judged`"
    )
    named = verdict(filled([cell("ok"), *answers], by_name=True, **both))
    assert not named.ok
    assert exit_code(named) == Exit.CANNOT_RUN


def test_a_kernel_that_no_engine_judges_is_not_verified() -> None:
    answers = [cell(status, "machine") for status in ("unsupported",)]
    gpu = [cell("skipped"), cell("skipped", "compile", target="v5e")]
    assert not verdict(filled([*gpu, *answers])).ok
    assert verdict(filled([*gpu, cell("ok", "machine")])).ok


def test_work_that_is_no_cell_counts_as_well() -> None:
    message = verdict((cell("ok"),), problems=("cannot dump to kept: the disk is full", "another"))
    assert not message.ok
    assert exit_code(message) == Exit.CANNOT_RUN
    assert "not done: cannot dump to kept: the disk is full" in str(message)
    assert str(message).splitlines()[-1] == (
        "f: not everything was done (cannot dump to kept: the disk is full; and 1 other problem); "
        "nothing found in 1 kernel"
    )


def test_kernels_of_one_name_have_rows_of_their_own() -> None:
    what: Any = {"kernels": dict.fromkeys(KERNELS[:2]), "engines": ("static",)}
    answers = [cell("ok"), cell("found", digest="bb" * 32)]
    for order in (answers, answers[::-1]):
        text = str(verdict(filled(order, **what)))
        assert "rows-aaaaaaaa  ok" in text
        assert "rows-bbbbbbbb  FOUND" in text
        assert text.endswith("in 2 kernels")


def test_of_two_answers_the_worse_counts_with_the_gaps_of_both() -> None:
    answers = [cell("ok").without("a"), cell("found").without("b")]
    for order in (answers, answers[::-1]):
        (one,) = filled(order, engines=("static",))
        assert one.status == "found"
        assert {gap.reason for gap in one.gaps} == {"a", "b"}


def test_without_a_reference_the_last_line_says_that_values_were_not_judged() -> None:
    for status, before in (("ok", "nothing found in 1 kernel"), ("unjudged", "by the rest")):
        message = verdict((cell("ok", "machine"), cell(status, reason="a")), reference=None)
        last = str(message).splitlines()[-1]
        assert last.endswith(f"{before}; values not judged (no reference)")
    assert str(verdict((cell("ok"),))).endswith("f: nothing found in 1 kernel")


def begun(**given: Any) -> Verifier:
    """A verification that has not answered yet."""
    one = Verifier("f")
    one._begin(Request(**given))
    return one


def test_a_stopped_verdict_says_what_was_judged_and_what_was_not() -> None:
    why = "stopped by SIGTERM, at a.py:1"
    end = Outcome(kernel="", engine="trace", status="unjudged", reason=why)
    assert Verifier("f").stopped(why).unjudged == (end,)
    one = begun(engines="static,compile", targets="v5e,v6e")
    one.add(Seen(outcomes=(cell("ok"),)), Seen(problems=("no room on the disk",)))
    stopped = one.stopped(why)
    assert [(o.engine, o.target, o.status) for o in stopped.outcomes] == [
        ("static", None, "ok"),
        ("compile", "v5e", "unjudged"),
        ("compile", "v6e", "unjudged"),
    ]
    assert {o.reason for o in stopped.unjudged} == {why}
    assert (stopped.kernels, stopped.problems) == (("rows",), ("no room on the disk",))
    assert stopped.notes == ()
    for target in ("v5e", "v6e"):
        one.add(Seen(outcomes=(cell("ok", "compile", target=target),)))
    assert one.stopped(why).outcomes[0] == end  # although every cell is answered


def test_a_stopped_verdict_does_not_deny_its_reference() -> None:
    one = begun(engines="values", reference=abs)
    one.add(Seen(outcomes=(cell("ok"),)))
    stopped = one.stopped("stopped by ctrl+c", reference="m:plain")
    assert str(stopped).endswith("(values: stopped by ctrl+c); nothing found by the rest")
    assert one.stopped("stopped by ctrl+c").reference is None


def test_findings_of_a_stopped_verdict_are_said_not_to_be_the_last_word() -> None:
    one = begun(engines="static")
    finding = Finding(kind=Fault.DEADLOCK, kernel="rows", message="m")
    one.add(Seen(outcomes=(cell("found"),), findings=(finding,)))
    stopped = one.stopped("stopped by ctrl+c")
    assert (stopped.findings, stopped.notes) == ((finding,), (NOT_CONCLUDED,))
