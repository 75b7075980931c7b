"""Types of users' code that uses pallas-debug, as mypy sees them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

USE = """
from collections.abc import Callable
from typing import assert_type

import pallas_debug
from pallas_debug._api.check import Report
from pallas_debug._api.compile import Compiled
from pallas_debug.model import Dump
from pallas_debug.session import Session
from pallas_debug.verdict import Verdict


def plain(x: int, *, scale: float = 1.0) -> str:
    return str(x * scale)


@pallas_debug.interpret
def interpreted(x: int, *, scale: float = 1.0) -> str:
    return plain(x, scale=scale)


@pallas_debug.interpret("tpu", detect_races=True)
def in_a_mode(x: int, *, scale: float = 1.0) -> str:
    return plain(x, scale=scale)


@pallas_debug.interpret(chip="v6e", pretend=True)
def pretending(x: int, *, scale: float = 1.0) -> str:
    return plain(x, scale=scale)


@pallas_debug.debug
def debugged(x: int, *, scale: float = 1.0) -> str:
    return plain(x, scale=scale)


@pallas_debug.debug(targets="v5e,v6e", to="dumps")
def with_options(x: int, *, scale: float = 1.0) -> str:
    return plain(x, scale=scale)


for function in (interpreted, in_a_mode, pretending, debugged, with_options):
    assert_type(function(1, scale=2.0), str)
assert_type(pallas_debug.interpret(plain)(1), str)
assert_type(pallas_debug.interpret(plain, chip="v6e")(1), str)
assert_type(pallas_debug.check(plain)(1, scale=2.0), tuple[Report, str])
assert_type(pallas_debug.check(plain, "nan")(1)[1], str)
assert_type(pallas_debug.compile(plain, log_recorder=True)(1), str)
assert_type(pallas_debug.dump(plain, 1), tuple[Dump, ...])
assert_type(pallas_debug.verify(plain, 1), Verdict)


class Layer:
    @pallas_debug.interpret
    def call(self, x: int) -> str:
        return plain(x)

    @pallas_debug.debug(quiet=True)
    def again(self, x: int) -> str:
        return plain(x)


assert_type(Layer().call(1), str)
assert_type(Layer().again(1), str)

with pallas_debug.interpret("hlo") as session:
    assert_type(session, Session)
with pallas_debug.debug(targets="") as session:
    assert_type(session, Session)
"""

WRONG = {
    'interpreted("1")': "arg-type",
    "in_a_mode(1, scael=2.0)": "call-arg",
    "debugged()": "call-arg",
    "with_options(1).real": "attr-defined",
    "Layer().call('1')": "arg-type",
    "pallas_debug.debug('v5e')": "call-overload",
    "pallas_debug.check(plain)('1')": "arg-type",
    "pallas_debug.compile(plain)('1')": "arg-type",
}
"""Mistakes, and the codes of the errors that mypy reports for them."""


@pytest.mark.slow
def test_types_survive(tmp_path: Path) -> None:
    file = tmp_path / "use.py"
    file.write_text(USE + "\n".join(WRONG) + "\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent"]
    options = [f"--config-file={ROOT / 'pyproject.toml'}", f"--cache-dir={os.devnull}"]
    done = subprocess.run(
        [*command, *options, str(file)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    first = USE.count("\n") + 1
    found = [line for line in done.stdout.splitlines() if ": error: " in line]
    expected = {first + n: code for n, code in enumerate(WRONG.values())}
    message = {int(line.split(":")[1]): line.rpartition("[")[2].rstrip("]") for line in found}
    assert message == expected, done.stdout + done.stderr
