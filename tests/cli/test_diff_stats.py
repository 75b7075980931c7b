"""`diff --stats` on schedules by the real compiler."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

CODE = """
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl

def kernel(x_ref, o_ref):
    x = x_ref[...]
    o_ref[...] = WHAT

def rows(x):
    return pl.pallas_call(
        kernel, out_shape=x, grid=(4,),
        in_specs=[pl.BlockSpec((64, 128), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((64, 128), lambda i: (i, 0)),
    )(x)
"""


@pytest.mark.slow
def test_two_dumps_two_targets_and_what_cannot_be_compared(command: Any, tmp_path: Path) -> None:
    for name, what in (("old", "x * 2"), ("new", "jnp.exp(x) * 2")):
        (tmp_path / "rows.py").write_text(CODE.replace("WHAT", what))
        given = ("--to", name, "--target", "v5e,v6e")
        done = command("dump", "rows:rows", "--arg", "f32[256,128]", *given)
        assert done.returncode == 0, done.stderr

    done = command("diff", "--stats", "old", "new")
    assert done.returncode == 0, done.stderr
    first, second, _ = done.stdout.split("\n\n")
    for part in (first, second):
        assert part.startswith("kernel: ")
        assert " cycles (+" in part.splitlines()[0]
        assert "rows.py:7\t" in part
        assert "o_ref[...] = jnp.exp(x) * 2" in part
    assert ("/v5e" in first) != ("/v5e" in second)
    slower = done.stdout

    done = command("diff", "--stats", "new", "old", "--target", "v5e")
    assert " cycles (-" in done.stdout.splitlines()[0]
    assert slower.count("->") == 2 * done.stdout.count("->")

    done = command("diff", "--stats", "old/kernel", "v6e")
    assert done.returncode == 0, done.stderr
    assert "/v5e -> " in done.stdout
    assert done.stdout.splitlines()[1].endswith("/v6e")

    done = command("diff", "--stats", "old", "old")
    assert done.stdout.count("nothing changed") == 2

    shutil.copytree(tmp_path / "new", tmp_path / "cut")
    (manifest,) = (tmp_path / "cut").glob("kernel-*/v5e/compilation.json")
    manifest.write_text("{")
    done = command("diff", "--stats", "cut", "new")
    assert done.returncode == 3
    assert f"{manifest.relative_to(tmp_path)} is truncated" in done.stderr
    assert done.stdout.count("nothing changed") == 1  # v6e: the other is not compared
    assert "/v5e" not in done.stdout

    (folder,) = (tmp_path / "new").glob("kernel-*")
    shutil.rmtree(folder / "v6e" / "schedule")
    shutil.rmtree(next((tmp_path / "old").glob("kernel-*")) / "v5e")
    done = command("diff", "--stats", "old", "new")
    assert f"{folder.relative_to(tmp_path)}/v6e is not compared: it has no schedule" in done.stderr
    assert "/v5e has no counterpart, and is not compared" in done.stderr

    done = command("diff", "--stats", "old")
    assert done.returncode == 2
    assert "takes two places, such as `diff --stats old/ new/`" in done.stderr
    done = command("diff", "--stats", "old", "new", "third")
    assert "or one and another target; and no stage" in done.stderr
    done = command("diff", "--stats", "old", "new", "--target", "v4")
    assert "no kernel here was compiled for 'v4'" in done.stderr
