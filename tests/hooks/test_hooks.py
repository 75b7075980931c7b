"""Other distributions register under the entry-point group, and are told."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from pallas_debug import hooks

PLUGIN = """
import json, pathlib
from pallas_debug.hooks import hookimpl
from pallas_debug.model import Explanation, Target

@hookimpl
def pallas_debug_targets():
    return [Target(name="lab", topology="v6e:2x2", device_kind="TPU v6 lite", summary="ours")]

@hookimpl
def pallas_debug_explanations():
    return [
        Explanation(id="LAB1", pattern="cumsum", cause="no cumsum here", advice="multiply"),
        Explanation(id="LAB2", pattern="never", cause="?", advice="?"),
    ]

@hookimpl
def pallas_debug_compilation_finished(kernel, compilation):
    with pathlib.Path("heard.jsonl").open("a") as file:
        file.write(json.dumps([kernel.name, compilation.target, compilation.status]) + "\\n")
"""


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """A distribution with a plugin, on the path of child processes."""
    site = tmp_path / "site"
    info = site / "lab_plugin-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "lab_plugin.py").write_text(textwrap.dedent(PLUGIN))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lab-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pallas_debug]\nlab = lab_plugin\n")
    return {"PYTHONPATH": str(site)}


def test_a_plugin_of_another_distribution_is_loaded_and_told(
    command: Any, installed: dict[str, str], tmp_path: Path
) -> None:
    shape = "--arg=f32[1024]"
    done = command(
        "dump", "-t", "lab", shape, shape, "pallas_debug_kernels:vector_add", **installed
    )
    assert done.returncode == 0, done.stderr
    heard = [json.loads(line) for line in (tmp_path / "heard.jsonl").read_text().splitlines()]
    assert heard == [["vector_add", "lab", "ok"]]
    assert next(tmp_path.glob("dumps/vector_add-*/lab/mosaic.mlir")).is_file()


def test_its_targets_are_listed(command: Any, installed: dict[str, str]) -> None:
    listed = command("targets", **installed).stdout
    assert "lab\tv6e:2x2\tTPU v6 lite\tours\n" in listed


def test_its_explanations_stand_below_the_error(
    command: Any, installed: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text(
        "import jax.numpy as jnp\n"
        "from jax.experimental import pallas as pl\n"
        "def k(x_ref, o_ref): o_ref[...] = jnp.cumsum(x_ref[...], axis=0)\n"
        "x = jnp.ones((8, 128))\n"
        "pl.pallas_call(k, out_shape=x)(x)\n"
    )
    command("dump", "broken.py", **installed)
    shown = command("show", "dumps", "error", **installed).stdout
    assert "LAB1: no cumsum here\n  try: multiply\n" in shown
    assert "LAB2" not in shown
    assert "LAB1" not in command("show", "dumps", "error").stdout


def test_every_hook_has_a_docstring_and_our_prefix() -> None:
    names = [name for name in vars(hooks.Specs) if not name.startswith("_")]
    assert len(names) >= 9
    for name in names:
        assert name.startswith("pallas_debug_")
        assert getattr(hooks.Specs, name).__doc__
