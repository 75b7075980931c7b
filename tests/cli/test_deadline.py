"""The deadline of a command: it ends the process, with the user's line at which it was."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from pallas_debug.cli.deadline import deadline

PROGRAM = """
import sys
from pallas_debug.cli.deadline import deadline

def spin():
    n = 0
    while n >= 0:
        n += 1

def wait():
    import queue
    queue.Queue().get()

def use():
    sys.path.append("site-packages")  # of another environment
    import package
    package.spin()

def stop(where, cause):
    assert cause == "time"
    print(where)
    return 3

with deadline(0.5 if sys.argv[2] == "time" else None, stop, busy=0.5):
    globals()[sys.argv[1]]()
"""


SPINS = ["program.py:7, `while n >= 0:`", "program.py:8, `n += 1`"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, limit, places",
    [
        ("spin", "time", SPINS),
        ("spin", "busy", SPINS),
        ("wait", "time", ["program.py:12, `queue.Queue().get()`"]),
        ("use", "time", ["program.py:17, `package.spin()`"]),
    ],
)
def test_the_process_ends_with_the_line_of_the_user(
    fork_python: Any, tmp_path: Path, name: str, limit: str, places: list[str]
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages/package.py").write_text("def spin():\n    while True:\n        pass")
    done = fork_python("program.py", name, limit)
    assert done.returncode == 3, done.stderr
    assert done.stdout.strip() in places


def test_a_block_that_ends_in_time_goes_on() -> None:
    with deadline(3600.0, lambda where, _: sys.exit(where)):
        pass
    with deadline(None, lambda where, _: sys.exit(where)):
        pass
