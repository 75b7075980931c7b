"""Thousands of damaged and hostile dumps, each of which must end in a result or a message.

`mutants.py` makes them, `read_mutants.py` reads and judges them. To replay one that failed:
`python tests/torture/read_mutants.py commands SEED NUMBER 1 $(mktemp -d)`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("read_mutants.py")
SEED = 13


def read_mutants(mode: str, count: int, work: Path, first: int = 0) -> dict[str, float]:
    """Read mutants in a process of their own; fails with what is wrong with them."""
    words = [sys.executable, SCRIPT, mode, SEED, first, count, work]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PALLAS_", "COV_"))}
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60 + 20 * count,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    *problems, counts = map(json.loads, done.stdout.splitlines())
    shown = "\n".join(f"{p['mode']} {p['seed']} {p['number']}: {p['problem']}" for p in problems)
    assert not problems, f"{len(problems)} violations:\n{shown[:20_000]}"
    assert counts["mutants"] == count
    return dict(counts)


@pytest.mark.slow
def test_the_commands(is_full: bool, tmp_path: Path) -> None:
    read_mutants("commands", 3_000 if is_full else 24, tmp_path)


@pytest.mark.slow
def test_the_app(is_full: bool, tmp_path: Path) -> None:
    read_mutants("app", 200 if is_full else 3, tmp_path)
