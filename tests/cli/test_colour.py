"""Colours: on a terminal that has them, unless NO_COLOR is set; the text says the same without."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from pathlib import Path

import pytest
from conftest import installed

from pallas_debug.cli import output

_CODES = re.compile(r"\x1b\[[\d;]*m")


def on_terminal(forks: str, folder: Path, line: list[str], **environment: str) -> str:
    """What a command writes to a terminal."""
    ours, theirs = pty.openpty()
    child = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    child |= {"TERM": "xterm-256color", "COLUMNS": "200", **environment}
    with subprocess.Popen(
        [forks, str(installed()), *line],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env=child,
    ) as process:
        os.close(theirs)
        parts = []
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            parts.append(part)
        process.wait()
    os.close(ours)
    return b"".join(parts).decode().replace("\r\n", "\n")


LINES = [["explain", "E1001"], ["explain", "flux"], ["doctor", "--targets"], ["ls", "nowhere"]]


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_colours_add_nothing_to_the_text(forks: str, tmp_path: Path, line: list[str]) -> None:
    coloured = on_terminal(forks, tmp_path, line)
    for variable in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        plain = on_terminal(forks, tmp_path, line, **variable)
        assert not re.search(r"\x1b\[[\d;]*[34]\d", plain)
        assert _CODES.sub("", coloured).split() == _CODES.sub("", plain).split()
    if line[0] == "explain":
        assert re.search(r"\x1b\[[\d;]*3\d", coloured)


@pytest.mark.parametrize(
    "text, label",
    [
        ("  try: make it smaller", "try:"),
        ("DataRace in kernel `x`, grid point (0,)", "DataRace"),
        ("x-1 v5e: failed (compile): split.py:6: no", "failed"),
        ("next: pallas-debug ls", "next:"),
        ("rows    -       FOUND", "FOUND"),
        ("a kernel that failed", None),
        ("okay", None),
    ],
)
def test_labels_are_painted(text: str, label: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "colored", lambda stream=None: True)
    painted = output.painted(text)
    assert _CODES.sub("", painted) == text
    found = re.search(r"\x1b\[\d+m(?:\x1b\[1m)?(.*?)\x1b\[0m", painted)
    assert (found[1] if found else None) == label
