"""`diff` on dumps of the real compiler: passes, targets, kernels, dumps; what cannot be compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parents[1] / "ir" / "data"
OLD, NEW = DATA / "libtpu-0.0.42", DATA / "libtpu-0.0.50"
RAW = Path(__file__).parents[1] / "store" / "data" / "libtpu-0.0.42" / "add"


def test_a_pass_against_the_one_before(real_command: Any) -> None:
    done = real_command("diff", OLD / "rows", "lower-to-llo", "-t", "v5e")
    assert (done.returncode, done.stderr) == (0, "")
    head = done.stdout.splitlines()[:2]
    assert head[0].endswith("v5e/14-logical-to-physical-device-id")
    assert head[1].endswith("v5e/15-lower-to-llo")
    assert "\x1b" not in done.stdout


@pytest.mark.slow
def test_the_last_pass_that_changed_something_unless_told(command: Any) -> None:
    shown = command("diff", NEW).stdout
    assert shown.splitlines()[1].endswith("21-finalize-llo")


def test_two_stages_and_what_is_ignored(command: Any) -> None:
    done = command("diff", NEW, "mosaic", "0")
    assert done.returncode == 0
    same = command("diff", NEW, "0", "0", "--ignore", "all")
    assert same.stdout == ""
    assert "no difference between" in same.stderr
    assert "but for ssa, loc, attrs" in same.stderr


def test_the_same_pass_of_another_target(command: Any) -> None:
    found = json.loads(
        command(
            "diff", OLD, "18", "-t", "v5e", "--against", "v6e", "--json", "-i", "ssa,loc"
        ).stdout
    )
    assert (found["old"]["target"], found["new"]["target"]) == ("v5e", "v6e")
    assert found["old"]["stage"] == found["new"]["stage"] == "18-finalize-llo"
    assert found["changed"] == bool(found["hunks"])
    before = json.loads(command("diff", OLD, "15", "-t", "v5e", "--json").stdout)
    assert {c["tag"] for hunk in before["hunks"] for c in hunk} >= {"equal", "replace"}


def test_the_same_pass_of_another_dump_whose_passes_have_other_numbers(command: Any) -> None:
    done = command("diff", OLD / "rows", "finalize-llo", "-t", "v5e", "--against", NEW, "--summary")
    assert done.returncode == 0, done.stderr
    assert "/v5e/18-finalize-llo -> " in done.stdout
    assert "/v5e/21-finalize-llo: " in done.stdout


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
        ([NEW, "jaxpr"], 2, "jaxpr is not a pass: also name the stage to compare it with"),
        ([NEW, "wat"], 2, "no pass 'wat' for v5e"),
        ([NEW, "--ignore", "names"], 2, "--ignore 'names' is not one of ssa, loc, attrs, all"),
        (
            [NEW, "--against", "v9"],
            2,
            "neither a target of rows-d167bf82 nor a path here; its targets: v5e",
        ),
        (
            [OLD, f"{NEW}/"],
            2,
            f"{NEW}/ is a directory, not a stage or pass. To compare two dumps: pallas-debug diff "
            f"{OLD} --against {NEW}/",
        ),
        ([RAW, "0"], 2, "00-deserialization is the first pass: there is nothing before it"),
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


def test_neither_jax_nor_textual_is_imported(run_python: Any) -> None:
    code = (
        "import sys, click\nfrom pallas_debug.cli import cli\n"
        f"for words in (['diff', {str(NEW)!r}], ['grep', 'llo', {str(NEW)!r}], ['source', {str(NEW)!r}]):\n"
        "    cli.main(words, standalone_mode=False)\n"
        "print({'jax', 'textual', 'numpy'} & set(sys.modules), file=sys.stderr)\n"
    )
    assert run_python("-c", code).stderr.strip() == "set()"
