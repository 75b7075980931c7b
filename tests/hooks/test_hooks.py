"""Hooks of other distributions, registered under the entry-point group."""

from __future__ import annotations

import asyncio
import json
import re
import textwrap
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pallas_debug import hooks
from pallas_debug.cli import show
from pallas_debug.errors import PluginWarning
from pallas_debug.explain import plugins
from pallas_debug.model import Explanation
from pallas_debug.tui.app import BrowseApp
from pallas_debug.tui.model.browser import Browser
from pallas_debug.tui.widgets.cells import plain

PLUGIN = """
import json, pathlib
from pallas_debug.hooks import hookimpl
from pallas_debug.model import Explanation, Target

@hookimpl
def pallas_debug_targets():
    return [Target(name="lab", topology="v6e:2x2", device_kind="TPU v6 lite", summary="ours")]

@hookimpl
def pallas_debug_explanations():
    pathlib.Path("explanations").touch()
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


@pytest.mark.slow
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
    assert not (tmp_path / "explanations").exists()  # nothing failed
    assert next(tmp_path.glob("dumps/vector_add-*/lab/mosaic.mlir")).is_file()


def test_its_targets_are_listed(command: Any, installed: dict[str, str]) -> None:
    listed = command("doctor", "--targets", **installed).stdout
    assert "lab\tv6e:2x2\tTPU v6 lite\tours\n" in listed


BROKEN = """
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

def summing_kernel(x_ref, o_ref):
    o_ref[...] = jnp.cumsum(x_ref[...], axis=0)

@jax.jit
def summing(x):
    return pl.pallas_call(summing_kernel, out_shape=x)(x)

def test_summing():
    summing(jnp.ones((8, 128)))
"""
FACES = """
import pytest
from click.testing import CliRunner
from pallas_debug.cli import dump, explain, verify

call = ["broken:summing", "--arg=f32[8,128]"]
for command, *arguments in (
    [dump.command, *call],
    [verify.command, *call, "--engine=compile"],
    [explain.command, "dumps"],
    [explain.command, "Pallas has no cumsum"],
):
    print("FACE", CliRunner().invoke(command, arguments).output)
print("FACE", flush=True)
pytest.main(["--pallas-dump=tested", "-pno:cacheprovider", "broken.py"])
"""
CAUSE, ADVICE = "no cumsum here", "multiply"


@pytest.mark.slow
def test_its_explanation_of_a_failure_reaches_every_face(
    run_python: Any, installed: dict[str, str], tmp_path: Path
) -> None:
    """It travels with the failure: once dumped, it is shown where the plugin is not installed."""
    (tmp_path / "broken.py").write_text(BROKEN)
    done = run_python("-c", FACES, **installed)
    _, dump, verify, explain, text, tested = done.stdout.split("FACE")
    assert f"  LAB1: {CAUSE}\npallas-debug:   try: {ADVICE}\n" in dump
    assert f"  cause: {CAUSE}\n  try: {ADVICE}\n" in verify
    for message in (explain, text):
        assert f"LAB1\n  cause: {CAUSE}\n  try: {ADVICE}\n" in message
        assert "LAB2" not in message
    assert f"\n  LAB1: {CAUSE}\n  try: {ADVICE}\n" in tested

    shown = CliRunner().invoke(show.command, [str(tmp_path / "dumps"), "error"])
    assert f"\nLAB1\n  cause: {CAUSE}\n  try: {ADVICE}\n" in shown.stdout
    lines = asyncio.run(banner(tmp_path / "dumps"))
    assert [f"  LAB1: {CAUSE}", f"  try: {ADVICE}"] == [
        line for line in lines if "LAB1" in line or "try:" in line
    ]


async def banner(dumps: Path) -> list[str]:
    """The lines above the text of a kernel that failed, as `browse` draws them."""
    app = BrowseApp(Browser(dumps))
    async with app.run_test(size=(160, 48)) as pilot:
        while not app.failure.display:
            await pilot.pause()
        return [plain(app.failure.cells(row)) for row in range(app.failure.count)]


def test_a_broken_plugin_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    good = Explanation(id="LAB1", pattern="cumsum", cause="?", advice="?")
    answers = {
        "raises": ZeroDivisionError("no answer"),
        "text": ["cumsum"],
        "pattern": [replace(good, pattern="(")],
        "nothing": None,
        "good": [good],
        "missing": ImportError("no such module"),
    }
    monkeypatch.setattr(
        "importlib.metadata.entry_points",
        lambda group: [EntryPoint(name, answer) for name, answer in answers.items()],
    )
    plugins.explanations.cache_clear()
    with pytest.warns(PluginWarning) as warned:
        assert plugins.explanations() == (good,)
    plugins.explanations.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plugins.explanations() == (good,)
    plugins.explanations.cache_clear()
    messages = [str(warning.message) for warning in warned]
    assert [line.split(": ")[0] for line in sorted(messages)] == [
        "the plugin missing raised ImportError as it was loaded",
        f"the plugin pattern raised {re.error.__name__} in pallas_debug_explanations",
        "the plugin raises raised ZeroDivisionError in pallas_debug_explanations",
        "the plugin text raised TypeError in pallas_debug_explanations",
    ]


class EntryPoint:
    """Entry point of a plugin whose hook gives or raises an answer; an ImportError at once."""

    def __init__(self, name: str, answer: object) -> None:
        self.name = name
        self.answer = answer

    def load(self) -> object:
        if isinstance(self.answer, ImportError):
            raise self.answer
        return self

    @hooks.hookimpl
    def pallas_debug_explanations(self) -> object:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_every_hook_has_a_docstring_and_our_prefix() -> None:
    names = [name for name in vars(hooks.Specs) if not name.startswith("_")]
    assert len(names) >= 7
    for name in names:
        assert name.startswith("pallas_debug_")
        assert getattr(hooks.Specs, name).__doc__
