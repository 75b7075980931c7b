"""Commands that messages tell the reader to type: a shell takes them as they are."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Literal

import pytest

from pallas_debug.cli.where import no_kernels
from pallas_debug.findings.faults import Fault
from pallas_debug.followup import after_dump, after_findings
from pallas_debug.model import (
    Compilation,
    Dump,
    Explanation,
    Failure,
    Finding,
    Kernel,
    SourceLine,
)
from pallas_debug.render import headline


def dumped(folder: Path, failure: Failure | None) -> Dump:
    status: Literal["ok", "failed"] = "ok" if failure is None else "failed"
    made = Compilation(kernel="add-1", target="v5e", status=status, key="0" * 64, failure=failure)
    kernel = Kernel(name="add", digest="0" * 64, primitive="tpu_custom_call")
    return Dump(kernel=kernel, folder=folder, compilations=(made,))


KNOWN = Explanation(id="scalar-to-vmem", cause="", advice="")


@pytest.mark.parametrize(
    "failure,words",
    [
        (None, ["report", "my dümps"]),
        (
            Failure(stage="compile", type="E", message="no", explanation=KNOWN),
            ["explain", "my dümps/add-1"],
        ),
        (
            Failure(stage="compile", type="E", message="no"),
            ["reproduce", "my dümps/add-1", "-t", "v5e", "-o", "reproduce.py"],
        ),
    ],
)
def test_the_next_command_is_about_the_kernel_that_failed(
    failure: Failure | None, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    dumps = [
        dumped(tmp_path / "my dümps" / "fine-1", None),
        dumped(tmp_path / "my dümps" / "add-1", failure),
    ]
    message = after_dump(dumps, tmp_path / "my dümps", has_terminal=False)
    assert shlex.split(message) == ["pallas-debug", *words]
    at_url = after_dump(dumps, "s3://bucket/my dümps/", has_terminal=False)
    place = "s3://bucket/my dümps" + ("/" if failure is None else "/add-1")
    assert shlex.split(at_url) == ["pallas-debug", words[0], place, *words[2:]]


def test_a_path_that_starts_with_a_dash_is_no_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    dumps = [dumped(tmp_path / "-x" / "add-1", None)]
    message = after_dump(dumps, tmp_path / "-x", has_terminal=True)
    assert message == "pallas-debug browse ./-x"


@pytest.mark.parametrize(
    "engines,words",
    [
        (["machine", "static"], "step -x -k add rows.py:double --arg 'f32[8,128]'"),
        (["compile"], "explain dumps"),
        (["trace"], "explain UnsupportedLayout"),
        (["values"], "step -k add rows.py:double --arg 'f32[8,128]'"),
    ],
)
def test_the_next_command_is_about_what_was_found(engines: list[str], words: str) -> None:
    finding = Finding(
        kind=Fault.UNSUPPORTED_LAYOUT, kernel="add", message="no", engines=tuple(engines)
    )
    program = ["rows.py:double", "--arg", "f32[8,128]"]
    assert after_findings([finding], program, Path("dumps")) == f"pallas-debug {words}"
    assert after_findings([], program) is None


def test_the_command_that_makes_dumps_quotes_its_directory() -> None:
    assert "`pallas-debug dump --to 'no dumps here' SCRIPT.py`" in no_kernels(Path("no dumps here"))


def test_a_failure_is_placed_relative_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file, shown in ((str(tmp_path / "split.py"), "split.py"), ("/src/split.py",) * 2):
        source = SourceLine(file=file, line=6)
        failure = Failure(stage="compile", type="E", message="refused\nmore", source=source)
        assert headline(failure) == f"{shown}:6: refused"
