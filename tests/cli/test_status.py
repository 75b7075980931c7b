"""What a command says of its progress: on standard error, as a line that changes or as lines."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time

import pytest

from pallas_debug.cli import output


def test_lines_where_standard_error_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "QUIET", 0.1)
    monkeypatch.setattr(output, "BETWEEN", 0.1)
    texts = iter(["", "machine: grid point 7 of 9\x1b"])
    with output.status(lambda: next(texts, "values")):
        time.sleep(0.5)
    time.sleep(0.15)
    captured = capsys.readouterr()
    assert captured.out == ""
    first, second, *rest = captured.err.splitlines()
    assert first == "pallas-debug: 0 s: machine: grid point 7 of 9\\x1b"
    assert second == "pallas-debug: 0 s: values"
    assert len(rest) <= 2


def test_no_line_of_a_short_command(capsys: pytest.CaptureFixture[str]) -> None:
    with output.status(lambda: "machine"):
        pass
    assert capsys.readouterr() == ("", "")


BLOCK = """
import time
from pallas_debug.cli import output

with output.status(lambda: "machine: grid point 7 of 9"):
    print("a result")
    time.sleep(0.5)
"""


def test_a_line_that_is_cleared_on_a_terminal() -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, "-c", BLOCK], stdout=subprocess.PIPE, stderr=theirs, env=environment,
        check=True,
    )  # fmt: skip
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert done.stdout == b"a result\n"
    assert "0 s: machine: grid point 7 of 9" in shown
    assert shown.endswith("\x1b[2K")  # erases the line
