"""`grep` over dump directories, ours and raw."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parents[1] / "ir" / "data"
OLD, NEW = DATA / "libtpu-0.0.42", DATA / "libtpu-0.0.50"
RAW = Path(__file__).parents[1] / "store" / "data" / "libtpu-0.0.42" / "add"


def test_as_grep_finds_it(real_command: Any) -> None:
    files = sorted((NEW).rglob("passes/*.mlir"))
    known = subprocess.run(
        ["grep", "-nH", "vector_load", *files], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    done = real_command("grep", "vector_load", NEW)
    assert done.returncode == 0
    assert sorted(line for line in done.stdout.splitlines() if "/passes/" in line) == sorted(known)


def test_nothing_found_is_exit_code_1(command: Any) -> None:
    done = command("grep", "nothing like it", NEW)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    empty = json.loads(command("grep", "--json", "nothing like it", NEW).stdout)
    assert empty == {"schema": "pallas-debug/grep/1", "matches": []}


def test_case_and_literals(command: Any) -> None:
    assert command("grep", "VECTOR_LOAD", NEW).returncode == 1
    assert (
        command("grep", "-i", "VECTOR_LOAD", NEW).stdout
        == command("grep", "vector_load", NEW).stdout
    )
    assert command("grep", "-F", "[%c0, %c0]", NEW).returncode == 0


def test_filters(command: Any) -> None:
    found = json.loads(
        command("grep", "constant", OLD, "-t", "v6e", "-p", "18", "-k", "rows", "--json").stdout
    )["matches"]
    assert {(f["target"], f["stage"]) for f in found} == {("v6e", "18-finalize-llo")}
    assert {"kernel", "path", "line", "column", "text", "cut"} <= found[0].keys()
    stages = json.loads(command("grep", "def scale", NEW, "-p", "source", "--json").stdout)[
        "matches"
    ]
    assert [f["stage"] for f in stages] == ["source"]
    assert command("grep", "def scale", NEW).returncode == 1
    missing = command("grep", "constant", OLD, "-k", "flash")
    assert "no kernel 'flash' in " in missing.stderr
    for words, message in (
        (["-k", "rosw"], "no kernel 'rosw' (did you mean 'rows'?) in "),
        (["-t", "v6"], "no kernel here was compiled for 'v6' (did you mean 'v6e'?); there are: "),
        (["-p", "finalise-llo"], "no stage or pass 'finalise-llo' (did you mean 'finalize-llo'?)"),
    ):
        done = command("grep", "constant", OLD, *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr


def test_raw_dumps_without_what_changed_nothing(command: Any) -> None:
    found = json.loads(command("grep", "func.func", RAW, "--json").stdout)["matches"]
    assert {f["kernel"] for f in found} == {"add"}
    assert len({f["path"] for f in found}) < len(list(RAW.glob("*.txt")))


def test_hostile_files(command: Any, tmp_path: Path) -> None:
    root = tmp_path / "dumps"
    shutil.copytree(NEW, root)
    (folder,) = root.glob("rows-*")
    passes = folder / "v5e" / "passes"
    (passes / "30-binary.mlir").write_bytes(
        b"\xff\x00needle\x1b[2J\nx" + b"y" * 3_000_000 + b"needle"
    )
    (passes / "31-loop").symlink_to(passes)
    (passes / "32-gone.mlir").symlink_to(tmp_path / "nothing")
    (folder / "again").symlink_to(root)
    done = command("grep", "needle", root)
    assert done.returncode == 3
    gone = passes / "32-gone.mlir"
    assert f"{gone} was not read: it is a link, or lies below one, that leads out" in done.stderr
    assert [line.split(":")[1] for line in done.stdout.splitlines()] == ["1", "2"]
    assert len(done.stdout) < 5000


@pytest.mark.parametrize(
    "arguments,code,message",
    [
        (["(", NEW], 2, "'(' is not a valid regular expression: missing ): (. Pass -F"),
        (["x", "nowhere"], 2, "no such directory: nowhere"),
    ],
)
def test_what_cannot_be_searched(
    command: Any, arguments: list[Any], code: int, message: str
) -> None:
    done = command("grep", *arguments)
    assert done.returncode == code
    assert message in done.stderr
