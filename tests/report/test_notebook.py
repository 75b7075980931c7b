"""`repr` and `_repr_html_` of results: one line, and parts of the report."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from pages import DOUBLE, DUMPS, Elements

from pallas_debug._api.check import Report
from pallas_debug._api.compare import ComparisonReport
from pallas_debug.comparison.compare import ComparedOutput
from pallas_debug.findings.faults import Fault
from pallas_debug.model import Dump, Finding, Gap, PrintRecord, SourceLine, Witness
from pallas_debug.store import open_dumps
from pallas_debug.verdict.result import Outcome, Verdict

EVIL = "<img src=x onerror=alert(1)>"
FINDING = Finding(
    kind=Fault("OutOfBoundsRead"),
    kernel="double",
    message=f"x_ref[32:40] reaches 8 rows past x_ref {EVIL}",
    advice="pad x",
    witness=Witness(
        source=SourceLine(file="/a/listed.py", line=10, text="  o_ref[...] = x_ref[...]"),
        values={"i": "4"},
    ),
)


def dump_of(name: str) -> Dump:
    stored = open_dumps(DUMPS).find(name)
    assert stored.kernel is not None
    made = tuple(c.compilation for c in stored.compilations if c.compilation is not None)
    return Dump(kernel=stored.kernel, folder=stored.folder, compilations=made)


def check_is_static(html: str) -> None:
    """No script, no link, nothing that a dump could have put there as markup."""
    assert html.startswith('<div class="pallas-debug pd-notebook"><style>')
    found = Elements.of(html)
    assert not {"script", "img", "a", "link", "iframe"} & {name for name, _ in found.elements}
    assert len(found.texts["style"]) == 1
    assert not re.search(r"url\(|@import", found.texts["style"][0])
    attributes = {attribute for _, given in found.elements for attribute in given}
    assert not [name for name in attributes if name.startswith("on")]


def test_a_dump() -> None:
    dump = dump_of("double")
    assert repr(dump) == f"<Dump {DOUBLE}: v5e ok>"
    html = dump._repr_html_()
    check_is_static(html)
    for expected in ("<h3>double</h3>", "listed.py:9", "grid 4", "12-apply-vector-layout", "x_ref"):
        assert expected in html


def test_a_dump_that_failed() -> None:
    dump = dump_of("running")
    assert repr(dump) == "<Dump running-cc4e5499: v5e failed>"
    html = dump._repr_html_()
    check_is_static(html)
    assert "jax cannot lower this operation in a TPU kernel" in html


def test_a_dump_whose_folder_is_gone(tmp_path: Path) -> None:
    dump = replace(dump_of("double"), folder=tmp_path / "gone")
    html = dump._repr_html_()
    check_is_static(html)
    assert "gone is no longer there." in html
    assert "12-apply-vector-layout" in html


def test_a_report_of_checks() -> None:
    assert repr(Report()) == "<Report no check failed>"
    assert "✓" in Report()._repr_html_()
    report = Report(
        findings=(FINDING,),
        prints=(PrintRecord(kernel="double", text=f"row {EVIL}", grid_point=(1,)),),
        gaps=(Gap(kernel="b", engine="checks", reason="it has no jaxpr"),),
    )
    assert (
        repr(report)
        == "<Report 1 finding; not everything was checked (kernel `b` was not checked)>"
    )
    html = report._repr_html_()
    check_is_static(html)
    for expected in (
        "OutOfBoundsRead",
        "listed.py:10",
        "&lt;img src=x",
        "pad x",
        "i = 4",
        "no jaxpr",
    ):
        assert expected in html


def test_a_comparison() -> None:
    output = ComparedOutput(
        name="output", dtype="float32", shape=(8,), elements=8, differing=2, unjudged=1, allowed=""
    )
    report = ComparisonReport(
        name=f"scale {EVIL}",
        reference="twice",
        outputs=(output,),
        findings=(FINDING,),
        gaps=(Gap(kernel="scale", engine="reference", reason="the reference is NaN there"),),
        notes=("values were made up for x",),
    )
    html = report._repr_html_()
    check_is_static(html)
    for expected in (
        "twice differ in 2 of 8 elements of 1 output; 1 not judged",
        "listed.py:10",
        "Not judged, and notes",
        "<li>the reference is NaN there</li>",
        "<li>values were made up for x</li>",
    ):
        assert expected in html
    assert "✓" in ComparisonReport(name="f", reference="g", outputs=())._repr_html_()


def test_a_verdict() -> None:
    verdict = Verdict(
        name=f"attention {EVIL}",
        kernels=("double",),
        outcomes=(
            Outcome(kernel="double", engine="compile", status="ok", target="v5e"),
            Outcome(kernel="double", engine="static", status="found"),
            Outcome(kernel="double", engine="machine", status="unjudged", reason="it was stopped"),
        ),
        findings=(FINDING,),
    )
    assert repr(verdict) == f"<Verdict {str(verdict).splitlines()[-1]}>"
    assert "\n" not in repr(verdict)
    html = verdict._repr_html_()
    check_is_static(html)
    assert "<pre>kernel  static  v5e  machine\ndouble  FOUND   ok   ?</pre>" in html
    assert "it was stopped" in html
    assert "OutOfBoundsRead" in html
