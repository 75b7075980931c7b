"""The suite's own plugin: eighths of slow tests, and CPU time of tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import run
import tiers

SLOW = """
import pytest
@pytest.mark.slow
@pytest.mark.parametrize("n", range(10))
def test_slow(n): pass
def test_unmarked(): pass
def test_skipped(): pytest.skip("no such chip")
"""

PLUGINS = ("-p", "tiers", "-p", "no:hypothesispytest")
"""Hypothesis takes a second to import, in each of 25 runs."""


def ran(pytester: pytest.Pytester, *arguments: str) -> set[str]:
    done = pytester.runpytest_inprocess(*PLUGINS, "-v", *arguments)
    return {line.split()[0].split("::")[1] for line in done.outlines if " PASSED" in line}


@pytest.mark.slow
def test_the_eighths_are_all_of_the_slow_tests_and_each_has_the_unmarked_ones(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it=SLOW)
    everything = ran(pytester)
    assert len(everything) == 11
    parts = [ran(pytester, "--turn", str(n)) for n in range(tiers.EIGHTHS)]
    assert all("test_unmarked" in part for part in parts)
    slow = [part - {"test_unmarked"} for part in parts]
    assert sorted(map(len, slow)) == [1, 1, 1, 1, 1, 1, 2, 2]
    assert set.union(*slow) == everything - {"test_unmarked"}
    assert ran(pytester, "--turn", "0", "-k", "unmarked") == {"test_unmarked"}


@pytest.mark.slow
def test_a_sparse_run_takes_an_eighth(pytester: pytest.Pytester) -> None:
    """But all of whole folders and files, and of what is skipped elsewhere."""
    test = "import pytest\n@pytest.mark.parametrize('n', range(16))\ndef test_NAME(n): pass\n"
    only = "@pytest.mark.skipif(False, reason='')\n@pytest.mark.parametrize('n', range(8))\n"
    for name in ("cli", "kernels", "bridge"):
        folder = pytester.path / "tests" / name
        folder.mkdir(parents=True)
        text = test.replace("NAME", name) + only + f"def test_only_{name}(n): pass\n"
        (folder / f"test_{name}.py").write_text(text)

    def counts(*arguments: str) -> dict[str, int]:
        found = ran(pytester, "--turn", "5", *arguments)
        assert sum("only" in name for name in found) == 24
        return {
            room: sum(name.startswith(f"test_{room}") for name in found)
            for room in ("cli", "kernels", "bridge")
        }

    assert counts("--whole", "cli") == {"cli": 16, "kernels": 16, "bridge": 16}
    assert counts("--sparse") == {"cli": 2, "kernels": 2, "bridge": 2}
    whole = ("--whole", "cli,bridge/test_bridge.py")
    assert counts("--sparse", *whole) == {"cli": 16, "kernels": 2, "bridge": 16}


@pytest.mark.slow
def test_a_sparse_run_takes_an_eighth_of_the_slow_tests_of_whole_files(
    pytester: pytest.Pytester,
) -> None:
    folder = pytester.path / "tests"
    folder.mkdir()
    for name in ("whole", "other"):
        text = SLOW.replace("(10)", "(32)").replace("test_", f"test_{name}_")
        (folder / f"test_{name}.py").write_text(text)
    found = ran(pytester, "--turn", "0", "--sparse", "--whole", "test_whole.py")
    slow = [name for name in found if "unmarked" not in name]
    assert sum("whole" in name for name in slow) == 32 / tiers.EIGHTHS
    assert sum("other" in name for name in slow) == 32 / tiers.PARTS


def test_what_the_second_python_takes_whole_is_there() -> None:
    tests = Path(run.__file__).parent
    assert [name for name in run.WHOLE if not (tests / name).exists()] == []


@pytest.mark.slow
def test_in_as_many_sparse_runs_as_there_are_parts_each_test_has_its_turn(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it=SLOW.replace("(10)", "(32)"))
    parts = [ran(pytester, "--sparse", "--turn", str(n)) for n in range(tiers.PARTS)]
    assert {len(part - {"test_unmarked"}) for part in parts} == {1}
    assert sum("test_unmarked" in part for part in parts) == tiers.PARTS / tiers.EIGHTHS
    assert len(set.union(*parts)) == 33


def test_only_the_first_of_each_key_is_not_slow() -> None:
    cases = [pytest.param(name, n, id=f"{name}{n}") for name in "ab" for n in range(2)]
    marked = tiers.mark_all_but_first(cases, lambda name, n: name if name == "a" else None)
    assert [(case.id, bool(case.marks)) for case in marked] == [
        ("a0", False),
        ("a1", True),
        ("b0", True),
        ("b1", True),
    ]


def test_cpu_time_of_a_child_counts_while_it_lives_and_afterwards() -> None:
    if not Path("/proc/self/stat").exists():
        pytest.skip("there is no /proc here")
    code = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True); input()"
    before = tiers.cpu_seconds()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        alive = tiers.cpu_seconds() - before
        child.communicate("\n")
    ended = tiers.cpu_seconds() - before
    assert 0.4 < alive <= ended + 0.05


def test_costs_and_reasons_of_skips_are_repeated(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(tiers.SUMMARY_FILE, str(tmp_path / "summary"))
    monkeypatch.setattr(tiers, "MAX_UNMARKED", 0.2)
    burn = "import time\ndef test_burn():\n    end = time.process_time() + 0.4\n    while time.process_time() < end: pass\n"
    pytester.makepyfile(test_it=SLOW, test_burn=burn)
    done = pytester.runpytest_inprocess(*PLUGINS)
    done.stdout.fnmatch_lines(
        ["*CPU seconds*", "*in all", "over 0.2 s and not marked slow, or over 20 s:", "*test_burn*"]
    )
    summary = json.loads((tmp_path / "summary").read_text())
    assert (summary["ran"], summary["left_out"]) == (13, {})
    assert summary["skipped"] == ["no such chip (1 tests)"]
    assert summary["folders"].keys() == {"test_it.py", "test_burn.py"}
    assert summary["costly"].keys() == {"test_burn.py::test_burn"}


@pytest.mark.slow
def test_what_was_left_out_is_counted_by_workers_too(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(tiers.SUMMARY_FILE, str(tmp_path / "summary"))
    pytester.makepyfile(test_it=SLOW)
    done = pytester.runpytest_inprocess(*PLUGINS, "--turn", "3", "-n", "1")
    done.stdout.fnmatch_lines(["left out: 9 tests of those of which an eighth runs"])
    summary = json.loads((tmp_path / "summary").read_text())
    assert (summary["ran"], summary["left_out"]) == (3, {"an eighth": 9})
