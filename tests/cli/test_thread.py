"""Each command ends with one line `next: …`, whose command runs as it is."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable

import pytest
from conftest import installed

from pallas_debug.cli.group import COMMANDS

ROWS = """
import jax
from jax.experimental import pallas as pl

def double_kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2

def split_kernel(x_ref, o_ref):
    o_ref[...] = jax.numpy.concatenate([x_ref[:, ::2], x_ref[:, 1::2]], axis=1)

def double(x, *, rows=8):
    spec = pl.BlockSpec((rows, 128), lambda i: (i, 0))
    grid = (x.shape[0] // rows,)
    return pl.pallas_call(
        double_kernel, out_shape=x, grid=grid, in_specs=[spec], out_specs=spec
    )(x)

def split(x):
    return pl.pallas_call(split_kernel, out_shape=x)(x)
"""

ARG = "--arg 'f32[16,128]'"

Run = Callable[..., subprocess.CompletedProcess[str]]

THREADS: dict[str, list[str]] = {
    f"dump rows.py:double --to good {ARG}": ["report good", "stats good/double"],
    f"dump rows.py:split {ARG}": ["explain dumps/split", "show dumps/split", "explain"],
    "ls": ["explain dumps/split"],
    "show split": ["explain dumps/split"],
    "show split mosaic": ["explain dumps/split"],
    "report": ["explain dumps/split"],
    "ls good": ["ls good/double", "diff good/double"],
    "show good 3": ["diff good/double"],
    "grep vector_load good": ["show good/double"],
    "grep -c vector_load good": ["show good/double"],
    "explain vmen-overflow": ["explain scoped-vmem-overflow"],
    "explain good": ["report good"],
    "stats good": ["source --cost good/double"],
    "reproduce split": ["reproduce split -o reproduce.py", "python reproduce.py"],
    f"sweep rows.py:double --to swept {ARG} --over rows=8,16": ["diff --stats swept/double"],
    f"step rows.py:double {ARG}": [f"verify rows.py:double {ARG}"],
    "doctor --targets": ["dump -t all pallas_debug_kernels:matmul"],
    "doctor --kernels": ["verify pallas_debug_kernels:matmul"],
}
"""What is typed, and the beginnings of the lines that follow from one another."""

ELSEWHERE = {"browse", "help", "timeline", "diff", "source", "verify"}
"""Commands that fill the terminal or end otherwise, and those with tests of their own."""


def following(done: subprocess.CompletedProcess[str]) -> str:
    """The command that the last line names; there is no other such line."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("next: ")]
    assert lines == done.stderr.splitlines()[-1:], done.stderr
    return lines[0].removeprefix("next: ").removeprefix("pallas-debug ")


def test_every_command_is_in_a_thread() -> None:
    assert {line.split()[0] for line in THREADS} >= set(COMMANDS) - ELSEWHERE


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, forks: str) -> Run:
    """Runs a line in a folder with dumps of a kernel that compiles, and of one that does not."""
    root = tmp_path_factory.mktemp("thread")
    (root / "rows.py").write_text(ROWS)

    def run(line: str) -> subprocess.CompletedProcess[str]:
        words = [forks, *shlex.split(line.removeprefix("python "))]
        if not line.startswith("python "):
            words.insert(1, str(installed()))
        return subprocess.run(
            words, cwd=root, capture_output=True, text=True, check=False, input="quit\n"
        )

    codes = [run(line).returncode for line in THREADS if line.startswith("dump ")]
    assert codes == [0, 1]
    return run


@pytest.mark.slow
@pytest.mark.parametrize("line", THREADS)
def test_a_thread(run: Run, line: str) -> None:
    done = run(line)
    for expected in THREADS[line]:
        follow = following(done)
        name, *words = shlex.split(expected)
        assert shlex.split(follow)[0] == name
        for given, wanted in zip(shlex.split(follow)[1:], words, strict=False):
            assert given.startswith(wanted), follow
        done = run(follow)
        is_reproduced = name == "python"  # it fails as the kernel does
        assert done.returncode == (1 if is_reproduced else 0), done.stderr


@pytest.mark.slow
def test_json_has_no_next_line(run: Run) -> None:
    for line in ("ls", "show split", "explain split", "grep x good", "doctor --targets"):
        assert "next:" not in run(f"{line} --json").stderr
