"""`diff` on dumps of the real compiler: passes, targets, kernels, dumps; what cannot be compared."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parents[1] / "ir" / "data"
OLD, NEW = DATA / "libtpu-0.0.42", DATA / "libtpu-0.0.50"
RAW = Path(__file__).parents[1] / "store" / "data" / "libtpu-0.0.42" / "add"


def test_a_pass_against_the_one_before(real_command: Any) -> None:
    done = real_command("diff", OLD / "rows", "lower-to-llo", "-t", "v5e")
    assert (done.returncode, done.stderr) == (0, f"next: pallas-debug ls {OLD}\n")
    sides, old, new = done.stdout.splitlines()[:3]
    assert sides == "- 14-logical-to-physical-device-id   + 15-lower-to-llo"
    assert old.endswith("v5e/14-logical-to-physical-device-id")
    assert new.endswith("v5e/15-lower-to-llo")
    assert "\x1b" not in done.stdout


@pytest.mark.slow
def test_the_last_pass_that_changed_something_unless_told(command: Any) -> None:
    shown = command("diff", NEW).stdout
    assert shown.splitlines()[2].endswith("21-finalize-llo")


def test_two_stages_and_what_is_ignored(command: Any) -> None:
    done = command("diff", NEW, "mosaic", "0")
    assert done.returncode == 0
    same = command("diff", NEW, "0", "0", "--ignore", "all")
    assert same.stdout == ""
    assert "no difference between" in same.stderr
    assert "but for ssa, loc, attrs" in same.stderr


def test_the_same_pass_of_another_target(command: Any) -> None:
    words = ("diff", OLD, "v6e", "18", "-t", "v5e")
    (found,) = json.loads(command(*words, "--json", "-i", "ssa,loc").stdout)["diffs"]
    assert (found["old"]["target"], found["new"]["target"]) == ("v5e", "v6e")
    assert found["old"]["stage"] == found["new"]["stage"] == "18-finalize-llo"
    assert found["changed"] == bool(found["lines"])
    (before,) = json.loads(command("diff", OLD, "15", "-t", "v5e", "--json").stdout)["diffs"]
    assert {line[0] for line in before["lines"]} == {"-", "+", "@", " "}


def test_the_same_pass_of_another_dump_whose_passes_have_other_numbers(command: Any) -> None:
    done = command("diff", OLD / "rows", NEW, "finalize-llo", "-t", "v5e", "--summary")
    assert done.returncode == 0, done.stderr
    assert "/v5e/18-finalize-llo -> " in done.stdout
    assert "/v5e/21-finalize-llo: " in done.stdout


def test_two_dumps_have_a_line_per_kernel_and_the_diff_of_the_only_one_that_differs(
    command: Any, tmp_path: Path
) -> None:
    for name in ("old", "new"):
        shutil.copytree(OLD, tmp_path / name)
    (same,) = (tmp_path / "old").glob("rows-*")
    done = command("diff", tmp_path / "old", tmp_path / "new")
    last = "18-finalize-llo: no difference"
    assert done.stdout.splitlines() == [f"{same.name}/{t}/{last}" for t in ("v5e", "v6e")]
    text = tmp_path / "new" / same.name / "v6e" / "passes" / "18-finalize-llo.mlir"
    text.write_text(text.read_text().replace("llo.vadd", "llo.vsub", 1) + "// more\n")
    done = command("diff", tmp_path / "old", tmp_path / "new")
    assert done.returncode == 0
    same_line, other, sides, *rest = done.stdout.splitlines()
    assert same_line == f"{same.name}/v5e/{last}"
    assert other == f"{same.name}/v6e/18-finalize-llo: -1 +2 lines"
    assert sides == f"- {tmp_path / 'old' / text.relative_to(tmp_path / 'new')}   + {text}"
    assert [line[1:] for line in rest if line.startswith("+") and "//" in line] == ["// more"]
    shutil.rmtree(tmp_path / "new" / same.name / "v5e")
    done = command("diff", tmp_path / "old", tmp_path / "new")
    assert done.stdout.startswith("- ")
    assert f"{same}/v5e has no counterpart" in done.stderr


def test_raw_dumps(command: Any) -> None:
    done = command("diff", RAW, "infer-vector-layout")
    assert done.returncode == 0
    assert "+++ add/raw/10-infer-vector-layout" in done.stdout
    assert command("diff", RAW / "add", "10").stdout == done.stdout


@pytest.mark.parametrize(
    "arguments,code,message",
    [
        ([OLD], 2, "select a target; there are: v5e, v6e"),
        ([NEW, "1", "2", "3"], 2, "diff takes two stages at most, not 3: 1 2 3"),
        ([NEW, "jaxpr"], 2, "jaxpr is not a pass with another before it: also name the stage"),
        ([NEW, "wat"], 2, "no pass 'wat' for v5e"),
        ([NEW, "--ignore", "names"], 2, "--ignore 'names' is not one of ssa, loc, attrs, all"),
        ([NEW, "v9"], 2, "no pass 'v9' for v5e"),
        ([RAW, "0"], 2, "00-deserialization is not a pass with another before it: also"),
        ([OLD / "nothing"], 2, "no kernel 'nothing' in"),
        (["nowhere/flash"], 2, "no such directory: nowhere/flash"),
    ],
)
def test_what_cannot_be_compared(
    command: Any, arguments: list[Any], code: int, message: str
) -> None:
    done = command("diff", *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
