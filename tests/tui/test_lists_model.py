"""Content of the terminal UI's lists, without a screen: rows, counts, runs, searches."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from pallas_debug.findings.faults import Fault
from pallas_debug.ir.operations import Module
from pallas_debug.model import Failure, Finding, Gap, PrintRecord, RunRecord, SourceLine, Witness
from pallas_debug.store import Store
from pallas_debug.tui.model import browser as browser_module
from pallas_debug.tui.model import search as everywhere
from pallas_debug.tui.model.browser import Browser, Entry, TextPlace, kernel_name
from pallas_debug.tui.model.kernels import KernelList
from pallas_debug.tui.model.runs import Runs
from pallas_debug.tui.model.search import DumpSearch, query_of, step_of
from pallas_debug.tui.panes import failure
from pallas_debug.tui.panes.steps import operation_change

LISTED = Path(__file__).parent / "data" / "dumps"


def never() -> bool:
    return False


def listed() -> tuple[Browser, dict[str, Entry]]:
    browser = Browser(LISTED)
    return browser, {kernel_name(entry.name): entry for entry in browser.entries}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The checked-in dumps, to be damaged."""
    return Path(shutil.copytree(LISTED, tmp_path / "dumps"))


# Rows.


def test_a_row_says_what_became_of_a_kernel() -> None:
    browser, entries = listed()
    kernels = KernelList(browser)
    double, unaligned, running = (
        kernels.learn(entries[name]) for name in ("double", "unaligned", "running")
    )
    assert (double.mark, double.targets) == ("✓", (("v5e", "✓"),))
    assert (unaligned.mark, unaligned.failing) == ("✗", "compile infer-vector-layout")
    assert (running.mark, running.failing, running.problem) == ("✗", "lowering", False)


@pytest.mark.parametrize(
    "damage, mark, target_marks",
    [
        (lambda folder: (folder / "kernel.json").write_text("{"), "?", "✓"),
        (lambda folder: (folder / "kernel.json").unlink(), "?", "✓"),
        (lambda folder: (folder / "v5e" / "compilation.json").write_bytes(b"\x00\xff"), "?", "?"),
        (lambda folder: shutil.rmtree(folder / "v5e"), "?", ""),
        (lambda folder: shutil.rmtree(folder), "?", ""),
    ],
)
def test_what_cannot_be_read_is_a_question(
    copy: Path, damage: Callable[[Path], object], mark: str, target_marks: str
) -> None:
    browser = Browser(copy)
    entry = next(e for e in browser.entries if e.name.startswith("double"))
    damage(copy / entry.name)
    row = KernelList(browser).learn(entry)
    assert row.mark == mark
    assert "".join(m for _, m in row.targets) == target_marks
    assert row.name == entry.name


def test_all_rows_are_read() -> None:
    browser, _ = listed()
    kernels = KernelList(browser)
    kernels.read_all(never)
    assert kernels.whole
    assert kernels.failures == 2


def test_a_kernel_of_two_directories_is_listed_below_itself(copy: Path) -> None:
    shutil.move(copy / "running-cc4e5499", copy / "running-00000000")  # another digest
    shutil.rmtree(copy / "double-40afca47")
    browser = Browser(LISTED, copy)
    assert [(entry.name, "AB"[entry.dump]) for entry in browser.entries] == [
        ("double-40afca47", "A"),
        ("running-00000000", "B"),
        ("running-cc4e5499", "A"),
        ("unaligned-00bb54cf", "A"),
        ("unaligned-00bb54cf", "B"),
    ]
    assert KernelList(browser).label(browser.entries[1]) == "running"


def test_kernels_that_were_read_do_not_pile_up(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser_module, "CACHED", 2)
    browser = Browser(copy)
    first = browser.stored(browser.entries[0])
    assert browser.stored(browser.entries[0]) is first
    for entry in browser.entries:
        browser.stored(entry)
    assert len(browser._read) == 2
    assert browser.stored(browser.entries[0]) is not first


def test_links_in_a_circle_are_no_kernels(copy: Path) -> None:
    (copy / "loop").symlink_to("loop")
    (copy / "up").symlink_to(copy)
    kernel = copy / "double-40afca47"
    (kernel / "again").symlink_to(kernel)
    browser = Browser(copy)
    names = [entry.name for entry in browser.entries]
    assert "loop" not in names
    assert "up" in names  # a folder, though no kernel's
    kernels = KernelList(browser)
    kernels.read_all(never)
    assert kernels.learn(Entry(0, "up")).mark == "?"
    assert kernels.learn(Entry(0, kernel.name)).targets == (("v5e", "✓"),)


# Steps.


def test_the_log_is_the_last_step() -> None:
    browser, entries = listed()
    steps = browser.steps(entries["unaligned"], "v5e")
    labels = [step.label for step in steps]
    assert labels[:4] == ["source", "jaxpr", "stablehlo", "mosaic"]
    assert labels[-2:] == ["10 infer-vector-layout", "log"]
    log = TextPlace(entry=entries["unaligned"], target="v5e", step=steps[-1])
    assert browser.path(log).name == "compiler.log"
    assert browser.before(log) is None


def test_a_kernel_that_failed_opens_where_it_failed() -> None:
    browser, entries = listed()
    for name, label in (("unaligned", "10 infer-vector-layout"), ("running", "jaxpr")):
        steps = browser.steps(entries[name], None)
        at = browser.failing(entries[name], None, steps)
        assert at is not None
        assert steps[at].label == label
    steps = browser.steps(entries["double"], None)
    assert browser.failing(entries["double"], None, steps) is None


def test_files_of_llo_are_steps(copy: Path) -> None:
    llo = copy / "double-40afca47" / "v5e" / "llo"
    llo.mkdir()
    (llo / "02-schedule.txt").write_text("bundles")
    browser = Browser(copy)
    entry = browser.entries[0]
    step = next(s for s in browser.steps(entry, "v5e") if s.label == "llo:02-schedule")
    place = TextPlace(entry=entry, target="v5e", step=step)
    assert browser.text(place) == "bundles"


@pytest.mark.parametrize(
    "before, after, label",
    [
        (None, {"a": 2}, ""),
        ({"a": 2}, {"a": 2}, "~"),
        ({"a": 2, "b": 1}, {"a": 5}, "+2"),
        ({"a": 2}, {"b": 2}, "±2"),
        ({"a": 1200}, {}, "-1,200"),
        ({"a": 9950}, {"b": 1_234_567}, "+1,225k"),
    ],
)
def test_what_a_pass_did_to_operations(
    before: dict[str, int] | None, after: dict[str, int], label: str
) -> None:
    made = operation_change(None if before is None else Counter(before), Counter(after))
    assert made.label == label
    assert made.operations == sum(after.values())


# Failures.


def test_a_report_has_the_line_with_its_text() -> None:
    browser, entries = listed()
    found = failure.report_of(browser, entries["unaligned"], None)
    assert found is not None
    assert found.headline == "compile failed in infer-vector-layout: JaxRuntimeError"
    assert found.place == "…/listed.py:15   o_ref[...] = x_ref[:, pl.ds(start, 128)]"
    assert "cannot statically prove" in found.message[0]
    assert next(text for _, text in found.lines) == found.place
    lowering = failure.report_of(browser, entries["running"], None)
    assert lowering is not None
    assert lowering.headline == "lowering failed: NotImplementedError"
    assert failure.report_of(browser, entries["double"], None) is None


def test_a_report_of_what_cannot_be_read(copy: Path) -> None:
    (copy / "double-40afca47" / "v5e" / "compilation.json").write_text("[]")
    (copy / "running-cc4e5499" / "kernel.json").unlink()
    shutil.rmtree(copy / "running-cc4e5499" / "v5e")
    browser = Browser(copy)
    double, running, _ = browser.entries
    found = failure.report_of(browser, double, None)
    assert found is not None
    assert found.headline == "v5e cannot be read"
    assert "was not written by pallas-debug" in found.message[0]
    found = failure.report_of(browser, running, None)
    assert found is not None
    assert found.headline == "the kernel cannot be read"
    assert "holds no kernel.json" in found.message[0]


TEXT = [
    "module {",
    '  %0 = vector.load %a : vector<8xf32> loc("k.py":3:1)',
    '  %1 = arith.addf %0, %0 : vector<8xf32> loc("k.py":4:1)',
    '  vector.store %1, %b : vector<8xf32> loc("k.py":4:5)',
    "}",
]


@pytest.mark.parametrize(
    "message, line, found",
    [
        ("no", 4, 2),
        ("'vector.store' op is wrong", 4, 3),
        ('The MLIR operation involved:\n  "vector.store"(%1)', None, 3),
        ("The operation involved:\n  %9 = arith.addf %0 : f32", None, 2),
        ("no", 9, None),
        ("'tpu.matmul' op is wrong", None, None),
    ],
)
def test_the_line_at_which_a_kernel_failed(
    message: str, line: int | None, found: int | None
) -> None:
    source = SourceLine(file="k.py", line=line) if line else None
    failed = Failure(stage="compile", type="E", message=message, source=source)
    assert failure.failing_line(Module(TEXT), failed) == found


# Runs.


def test_findings_and_prints_lead_to_kernels() -> None:
    browser, entries = listed()
    runs = Runs(browser)
    runs.read(never)
    finding, *prints = runs.results
    assert runs.whole
    assert (runs.count, runs.records, len(prints)) == (3, 1, 2)
    assert finding.entry == entries["double"]
    assert (finding.kind, finding.line, finding.place) == ("finding", "listed.py:10", "(4,)")
    assert finding.text.startswith("OutOfBoundsRead: x_ref[32:40")
    assert runs.flags(entries["double"]) == 1  # that was seen twice
    assert finding.listed.startswith("finding double  listed.py:10  OutOfBoundsRead: x_ref[32:40")
    assert finding.listed.endswith("test_double[f32]")
    assert prints[1].listed.startswith("print   double  ")


def test_a_kernel_of_a_run_is_looked_for_among_those_it_used(tmp_path: Path) -> None:
    for name in ("k-00000001", "k-00000002", "alone-00000001"):
        (tmp_path / name).mkdir()
    finding = Finding(kind=Fault.DEADLOCK, kernel="k", message="m", witness=Witness(loop=(2,)))
    store = Store(tmp_path)
    store.put_run(RunRecord(run="r", name="a", kernels=("k-00000002",), findings=(finding,)))
    store.put_run(RunRecord(run="r", name="b", findings=(finding,)))
    store.put_run(RunRecord(run="r", name="c", prints=(PrintRecord(kernel="alone", text="x\ny"),)))
    runs = Runs(Browser(tmp_path))
    runs.read(never)
    by_test = {result.test: result for result in runs.results}
    assert by_test["a"].entry == Entry(0, "k-00000002")
    assert by_test["b"].entry is None  # two kernels have that name
    assert by_test["c"].entry == Entry(0, "alone-00000001")
    assert (by_test["a"].place, by_test["c"].text) == ("loop (2,)", "x y")


def test_a_gap_is_listed_and_is_no_finding(tmp_path: Path) -> None:
    (tmp_path / "k-00000001").mkdir()
    gap = Gap(kernel="k", engine="checks", reason="it runs\nover a mesh", is_limit=True)
    record = RunRecord(run="r", name="a", kernels=("k-00000001",), gaps=(gap,))
    Store(tmp_path).put_run(record)
    runs = Runs(Browser(tmp_path))
    runs.read(never)
    (listed,) = runs.results
    assert (listed.kind, listed.entry) == ("gap", Entry(0, "k-00000001"))
    assert listed.text == "not judged by checks: it runs over a mesh"
    assert (runs.count, runs.flagged) == (1, False)


def test_of_many_prints_the_first_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pallas_debug.tui.model.runs.MAX_LISTED", 3)
    prints = tuple(PrintRecord(kernel="k", text=str(i)) for i in range(5))
    Store(tmp_path).put_run(RunRecord(run="r", name="a", prints=prints))
    (tmp_path / "runs" / "r" / "broken.json").write_text("{")
    runs = Runs(Browser(tmp_path))
    runs.read(lambda: True)
    assert not runs.whole
    runs.read(never)
    assert (runs.count, len(runs.results), runs.whole) == (5, 3, True)


# Searching everywhere.


def test_a_search_over_all_kernels_counts_and_leads_to_steps() -> None:
    browser, entries = listed()
    search = DumpSearch(browser)
    search.begin("vector.load", entries["double"])(never)
    assert not search.running
    assert search.count > len(search.hits) > 3
    assert search.count == sum(group.count * len(group.texts) for group in search.groups)
    assert search.texts == sum(len(group.texts) for group in search.groups)
    assert [n for group in search.groups for n in group.hits] == list(range(len(search.hits)))
    first = search.groups[0]
    assert first.entry == entries["double"]
    assert first.texts[:2] == [("v5e", "mosaic"), ("v5e", "00-deserialization")]
    found = search.hits[0]
    assert found.entry == entries["double"]
    target, step = step_of(browser, found)
    assert (target, step and step.label) == ("v5e", "mosaic")
    line = browser.lines(TextPlace(entry=found.entry, target=target, step=step))[found.line]  # type: ignore[arg-type]
    assert "".join(found.parts) == line
    assert found.parts[1] == "vector.load"
    assert search.status == (f"{search.count} in {search.texts} texts, {search.searched} searched")
    last = search.hits[-1]
    target, step = step_of(browser, last)
    assert step is not None
    assert step.label == last.stage.replace("-", " ", 1)


def test_a_search_begins_at_a_kernel() -> None:
    browser, entries = listed()
    search = DumpSearch(browser)
    search.begin("arg1", entries["unaligned"])(never)
    assert search.hits[0].entry == entries["unaligned"]
    assert {hit.entry for hit in search.hits} >= {entries["double"]}


def test_a_search_is_stopped_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(everywhere, "MAX_LISTED", 2)
    browser, entries = listed()
    search = DumpSearch(browser)
    run = search.begin("%", entries["double"])
    assert search.running
    assert search.stop()
    run(never)  # it was told to stop before it began
    assert (search.count, search.stopped) == (0, True)
    assert search.status.endswith(", stopped")
    search.clear()
    assert not search.active
    assert not search.stop()
    search.begin("%", entries["double"])(never)
    assert search.count >= len(search.hits) == 2
    assert search.status.endswith("; ended after 2")
    old = search.begin("%", entries["double"])
    search.begin("", entries["double"])(never)
    old(never)  # another took its place
    assert search.count == 0


def test_a_text_that_vanishes_is_counted_as_a_problem(copy: Path) -> None:
    browser = Browser(copy)
    search = DumpSearch(browser)
    run = search.begin("vector", browser.entries[0])
    path = copy / browser.entries[0].name / "jaxpr.txt"
    path.unlink()
    path.symlink_to(path)
    run(never)
    assert search.count > 0
    os.mkfifo(copy / browser.entries[0].name / "v5e" / "passes" / "zz")  # is not waited for
    search.begin("vector", browser.entries[0])(never)
    assert "2 cannot be read" in search.status


def test_what_is_no_expression_is_looked_for_as_it_stands() -> None:
    assert query_of("a(b")[0].literal
    assert not query_of("a.b")[0].literal
    assert query_of("abc")[0].folds
    assert not query_of("aBc")[0].folds
