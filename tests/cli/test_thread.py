"""Each command ends with one line `next: …`, whose command runs as it is."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

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
    "ls good": ["ls good/double", "diff good/double", "stats good/double", "source --cost good"],
    "source good": ["source --cost good/double", "timeline good/double", "stats good/double"],
    "diff good good": ["diff --stats good/double", "stats good/double"],
    f"verify rows.py:double {ARG}": ["verify -t all"],
    "show good 3": ["diff good/double"],
    "grep vector_load good": ["show good/double"],
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
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("thread")
    (root / "rows.py").write_text(ROWS)
    return root


@pytest.fixture(scope="module")
def run(folder: Path, forks: str) -> Run:
    """Runs a line in a folder with dumps of a kernel that compiles, and of one that does not."""

    def run(line: str) -> subprocess.CompletedProcess[str]:
        words = [forks, *shlex.split(line.removeprefix("python "))]
        if not line.startswith("python "):
            words.insert(1, str(installed()))
        return subprocess.run(
            words, cwd=folder, capture_output=True, text=True, check=False, input="quit\n"
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


BUGS = """
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

def mask_kernel(x_ref, o_ref):
    column = lax.broadcasted_iota(jnp.int32, x_ref.shape, 1)
    x = jnp.where(column < 101, x_ref[...], -jnp.inf)
    e = jnp.exp(x - x.max(axis=1, keepdims=True))
    o_ref[...] = e / e.sum(axis=1, keepdims=True)

def masked(x):
    return pl.pallas_call(mask_kernel, out_shape=x)(x)

def reference(x):
    return jax.nn.softmax(jnp.where(jnp.arange(x.shape[1]) < 100, x, -jnp.inf), axis=1)

def sum_kernel(x_ref, o_ref, acc_ref):
    acc_ref[...] += x_ref[...].astype(acc_ref.dtype)
    @pl.when(pl.program_id(0) == pl.num_programs(0) - 1)
    def _():
        o_ref[...] = acc_ref[...].astype(o_ref.dtype)

def total(x):
    return pl.pallas_call(
        sum_kernel, out_shape=jax.ShapeDtypeStruct((16, 128), x.dtype), grid=(x.shape[0] // 16,),
        in_specs=[pl.BlockSpec((16, 128), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((16, 128), lambda i: (0, 0)),
        scratch_shapes=[pltpu.VMEM((16, 128), jnp.bfloat16)],
    )(x)

def copy_kernel(x_hbm, o_ref, buffers, semaphores):
    def copy(i):
        part = x_hbm.at[pl.ds(i * 8, 8)]
        return pltpu.make_async_copy(part, buffers.at[i % 2], semaphores.at[i % 2])
    copy(0).start()
    for i in range(4):
        if i + 1 < 4:
            copy(i + 1).start()
        o_ref[pl.ds(i * 8, 8)] = buffers[i % 2]
        copy(i).wait()

def copied(x):
    return pl.pallas_call(
        copy_kernel, out_shape=x, in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        scratch_shapes=[pltpu.VMEM((2, 8, 128), x.dtype), pltpu.SemaphoreType.DMA((2,))],
    )(x)
"""

INITIALISED = """
    @pl.when(pl.program_id(0) == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)
    acc_ref[...] += """

REPAIRS = {
    "masked --arg 'f32[8,128]' --reference bugs.py:reference": ("< 101", "< 100"),
    "total --arg 'f32[64,128]'": ("\n    acc_ref[...] += ", INITIALISED),
    "copied --arg 'f32[32,128]'": (
        "        o_ref[pl.ds(i * 8, 8)] = buffers[i % 2]\n        copy(i).wait()",
        "        copy(i).wait()\n        o_ref[pl.ds(i * 8, 8)] = buffers[i % 2]",
    ),
}
"""Arguments of `verify` for a function with a bug, and what to change."""


@pytest.mark.slow
@pytest.mark.parametrize("line", REPAIRS, ids=[line.split()[0] for line in REPAIRS])
def test_from_a_bug_to_its_repair(run: Run, folder: Path, line: str) -> None:
    """The debugger opens at what was found, and `verify` says that the repair is one."""
    code = folder / "bugs.py"
    code.write_text(BUGS)
    found = run(f"verify bugs.py:{line}")
    assert found.returncode == 1, found.stdout
    step = following(found)
    assert step.startswith("step ")
    stepped = run(step)
    assert stepped.returncode == 0, stepped.stderr
    wrong, right = REPAIRS[line]
    if "-x" in step.split():  # a race has two sides, and the debugger stops at the later
        assert any(text.strip() in stepped.stdout for text in wrong.splitlines() if text.strip())
    again = following(stepped)
    assert sorted(shlex.split(again)) == sorted(shlex.split(f"verify bugs.py:{line}"))
    assert BUGS.count(wrong) == 1
    code.write_text(BUGS.replace(wrong, right))
    repaired = run(f"verify bugs.py:{line}")
    assert repaired.returncode == 0, repaired.stdout
    assert following(repaired).startswith(("stats ", "verify "))
