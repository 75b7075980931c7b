"""`pallas-debug doctor --kernels`, and `dump` of a bundled kernel by name only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pallas_debug_kernels import gpu_operations, operations
from pallas_debug_kernels.broken import BROKEN


def test_every_bundled_kernel_has_a_line(command: Any) -> None:
    done = command("doctor", "--kernels")
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    bundled = (*operations(), *gpu_operations(), *BROKEN)
    assert [row[:2] for row in rows] == [[kernel.name, kernel.summary] for kernel in bundled]
    assert [row[2] for row in rows[-len(BROKEN) :]] == [f"fault: {k.fault}" for k in BROKEN]
    assert rows[0][2] == (
        "small: f32, bf16, int32; "
        "edge: one_element, one_ragged_block, ragged_last_block, ragged_last_block_bf16; "
        "bench: f32_4m, bf16_4m"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flash_attention", "paged_attention", "all_gather"])
def test_a_bundled_kernel_is_dumped_by_its_name(command: Any, name: str, tmp_path: Path) -> None:
    # A user's process has one CPU device, and all_gather is compiled for a ring of four.
    done = command("dump", f"pallas_debug_kernels:{name}", XLA_FLAGS="")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "1 kernel for v5e in dumps" in done.stderr
    assert len(list((tmp_path / "dumps").glob(f"{name}-*/v5e"))) == 1


@pytest.mark.slow
def test_a_spec_is_chosen_by_its_name(command: Any) -> None:
    done = command("dump", "pallas_debug_kernels:matmul", "--spec=int8_relu", "--json")
    (dump,) = json.loads(done.stdout)["dumps"]
    assert {operand["dtype"] for operand in dump["kernel"]["operands"]} >= {"int8"}
    refused = command("dump", "--target=v4", "--spec=int8", "pallas_debug_kernels:matmul")
    assert refused.returncode == 1
    assert "E2001" in refused.stderr


NO_SPEC: list[tuple[list[str], str]] = [
    (
        ["pallas_debug_kernels:vector_add", "--spec=f8"],
        "vector_add has no spec 'f8'. Its specs are: f32, bf16, int32, one_element",
    ),
    (
        ["pallas_debug_kernels:vector_add", "--spec=f32", "--arg=f32[8]"],
        "--arg and --spec all specify the arguments: pass only one of them",
    ),
    (
        ["json:loads", "--spec=f32"],
        "--spec is for the bundled kernels, such as pallas_debug_kernels:matmul; "
        "`pallas-debug doctor --kernels` lists them",
    ),
    (
        ["--spec=f32", "script.py"],
        "--spec is for package.module:function, and 'script.py' is a script or module",
    ),
]


def test_what_is_no_spec(commands: Any) -> None:
    results = commands(*(["dump", *arguments] for arguments, _ in NO_SPEC))
    for done, (_, message) in zip(results, NO_SPEC, strict=True):
        assert done.returncode == 2
        assert message in done.stderr
