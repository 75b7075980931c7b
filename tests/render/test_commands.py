"""Commands that messages tell the reader to type: a shell takes them as they are."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Literal

import pytest

from pallas_debug.cli.where import no_kernels
from pallas_debug.model import Compilation, Dump, Failure, Kernel, SourceLine
from pallas_debug.render import headline, next_command


def dumped(folder: Path, failure: Failure | None) -> Dump:
    status: Literal["ok", "failed"] = "ok" if failure is None else "failed"
    made = Compilation(kernel="add-1", target="v5e", status=status, key="0" * 64, failure=failure)
    kernel = Kernel(name="add", digest="0" * 64, primitive="tpu_custom_call")
    return Dump(kernel=kernel, folder=folder, compilations=(made,))


@pytest.mark.parametrize(
    "failure,words",
    [
        (None, ["ls", "my dümps"]),
        (
            Failure(stage="compile", type="E", message="no"),
            ["show", "my dümps/add-1", "error", "-t", "v5e"],
        ),
    ],
)
def test_the_next_command_quotes_paths(
    failure: Failure | None, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    message = next_command([dumped(tmp_path / "my dümps" / "add-1", failure)], "my dümps")
    assert shlex.split(message) == ["pallas-debug", *words]


def test_a_path_that_starts_with_a_dash_is_no_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    message = next_command([dumped(tmp_path / "-x" / "add-1", None)], "-x")
    assert message == "pallas-debug ls ./-x"


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
