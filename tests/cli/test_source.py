"""`source`: the Python source with the operations that come from each line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parents[1] / "ir" / "data"
OLD, NEW = DATA / "libtpu-0.0.42", DATA / "libtpu-0.0.50"
RAW = Path(__file__).parents[1] / "store" / "data" / "libtpu-0.0.42" / "add"
SOURCE = (DATA / "rows.py").read_text().splitlines()


@pytest.mark.parametrize("root", [OLD, NEW])
def test_the_source_with_counts(real_command: Any, root: Path) -> None:
    done = real_command("source", root / "rows", "-t", "v5e")
    assert done.returncode == 0, done.stderr
    head, file, *rows = done.stdout.splitlines()
    assert head.endswith("finalize-llo: operations by source line")
    assert file == "…/rows.py"
    assert "    return x * factor" in rows[0]
    assert int(rows[0].split()[0]) >= 1
    whole = real_command("source", root / "rows", "-t", "v5e", "--all").stdout.splitlines()[2:]
    assert len(whole) >= len(SOURCE)


def test_as_json_in_any_stage(command: Any) -> None:
    (found,) = json.loads(command("source", NEW, "--pass", "jaxpr", "--json").stdout)["sources"]
    assert (found["stage"], found["target"]) == ("jaxpr", None)
    by_line = {row["line"]: row for row in found["lines"]}
    assert by_line[9]["operations"] == {"mul": 1}
    assert by_line[9]["text"] == "    return x * factor"


@pytest.mark.parametrize(
    "arguments,message",
    [
        ([RAW], "names no Python line: it was dumped without locations"),
    ],
)
def test_what_cannot_be_shown(command: Any, arguments: list[Any], message: str) -> None:
    done = command("source", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
