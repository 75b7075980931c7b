"""`pallas-debug dump --switch`, and kernels that print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

PRINTING = """
import jax
from jax.experimental import pallas as pl
def print_kernel(x_ref, o_ref):
    pl.debug_print("row {}", pl.program_id(0))
    o_ref[...] = x_ref[...]
def wrong_kernel(x_ref, o_ref):
    pl.debug_print("row {:d}", pl.program_id(0))
    o_ref[...] = x_ref[...]
def printing(x):
    return pl.pallas_call(print_kernel, out_shape=x, grid=(1,))(x)
def wrong(x):
    return pl.pallas_call(wrong_kernel, out_shape=x, grid=(1,))(x)
if __name__ == "__main__":
    printing(jax.numpy.ones((8, 128)))
"""

UNSEEN = "it prints, but a TPU shows no output: it was compiled without the switch log_recorder"


@pytest.fixture
def printing(tmp_path: Path) -> Path:
    path = tmp_path / "printing.py"
    path.write_text(PRINTING)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    "what",
    [["printing.py"], ["--arg=f32[8,128]", "printing:printing"]],
    ids=["a script", "a function"],
)
def test_switches_are_in_the_dump_and_shown(
    command: Any, printing: Path, what: list[str], tmp_path: Path
) -> None:
    without = command("dump", *what)
    assert without.returncode == 0, without.stderr
    (folder,) = (tmp_path / "dumps").glob("print_kernel-*")
    assert f"pallas-debug: {folder.name}: {UNSEEN}\n" in without.stderr
    runs = [json.loads(run.read_text()) for run in (tmp_path / "dumps" / "runs").glob("*/*.json")]
    printed = [record["text"] for run in runs for record in run["prints"]]
    if what == ["printing.py"]:  # which runs its kernel
        assert printed == ["row 0"]
        assert without.stdout == "printing.py:5 grid point (0,): row 0\n"
    else:
        assert printed == []
    shown = command("show", "dumps").stdout.splitlines()
    assert shown[-1] == f"                  {UNSEEN}"
    assert not any("switches:" in line for line in shown)

    done = command("dump", "--switch", "log_recorder", "--switch=assertions,poison_vmem", *what)
    assert done.returncode == 0, done.stderr
    assert UNSEEN not in done.stderr
    assert "cached" not in done.stderr
    shown = command("show", "dumps").stdout.splitlines()
    assert shown[-2] == "                  switches: log_recorder, poison_vmem, assertions"
    size, words = shown[-1].strip().split(" ", 1)
    assert words == "bytes of generated code"
    assert int(size.replace(",", "")) > 1_000_000


@pytest.mark.slow
def test_a_print_that_a_tpu_cannot_do_is_named(command: Any, printing: Path) -> None:
    done = command("dump", "printing:wrong", "--arg=f32[8,128]", "--target=v5e,v6e")
    assert done.returncode == 1
    words = "printing.py:8: The format string should not contain any format specs or conversions"
    assert done.stderr.count(words) == 2
    shown = command("show", "dumps", "error", "-t", "v6e").stdout
    assert "ValueError in wrong_kernel-" in shown
    assert 'printing.py:8   pl.debug_print("row {:d}", pl.program_id(0))' in shown
    assert "try: print each array in a separate pl.debug_print" in shown
