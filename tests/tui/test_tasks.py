"""Questions of a kernel author, each answered on the screen after a few keys.

The installed command runs in tmux, or the app in Textual's own driver, on dumps that the real
compiler makes of two versions of a kernel.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pilot import drive, press, screen_rows, until
from tmux import Tmux

from pallas_debug.ir.operations import Module
from pallas_debug.tui.app import BrowseApp
from pallas_debug.tui.model.browser import Browser, TextPlace
from pallas_debug.tui.model.spot import find_spot
from pallas_debug.tui.panes.dialogs import Chooser
from pallas_debug.tui.widgets.cells import plain

COMMAND = Path(sys.executable).with_name("pallas-debug")
LISTED = Path(__file__).parent / "data" / "dumps"

VERSION = """
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl


def attend_kernel(q_ref, k_ref, v_ref, o_ref):
    scores = jnp.dot(q_ref[...], k_ref[...].T, precision="highest")
    {extra}
    weights = jnp.exp(scores - jnp.max(scores, axis=1, keepdims=True))
    o_ref[...] = jnp.dot(weights, v_ref[...]) / jnp.sum(weights, axis=1, keepdims=True)


def attend(q, k, v):
    return pl.pallas_call(attend_kernel, out_shape=q, name="attend")(q, k, v)
"""
EXP = "    weights = jnp.exp("
EXP2 = r"vpow2\.f32|vexp2\.f32|vpop\.eup"
"""Instruction, as libtpu names it up to 0.0.42 and since, and the one that takes its result."""


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Dumps of two versions of a kernel: the old one for v5e and v6e, the new one for v5e."""
    root = tmp_path_factory.mktemp("tasks")
    arguments = ["--arg", "f32[128,128]"] * 3
    for name, extra, targets in (
        ("old", "scores = scores * 0.125", "v5e,v6e"),
        ("new", "scores = jnp.tanh(scores * 0.125)", "v5e"),
    ):
        (root / "attention.py").write_text(VERSION.replace("{extra}", extra))
        words = [COMMAND, "dump", "attention:attend", *arguments, "--to", name, "-t", targets]
        subprocess.run(words, cwd=root, check=True, capture_output=True)
    return root / "old", root / "new"


@pytest.fixture
def tmux() -> Iterator[Tmux]:
    if shutil.which("tmux") is None or shutil.which("bash") is None:
        pytest.skip("there is no tmux, or no bash")
    with Tmux(program="PS1='ready: ' bash --norc --noprofile -i", columns=140, rows=44) as session:
        session.wait_for("ready:")
        yield session


def start(tmux: Tmux, *words: object, environment: str = "") -> None:
    command = shlex.join(map(str, [COMMAND, "browse", *words]))
    tmux.send(f"{environment} {command}", "Enter")
    tmux.wait_for("q quit")


def has_operations(app: BrowseApp) -> bool:
    """Return whether the diff pane lists operations."""
    return any(plain(app.diff.cells(n)).rstrip().endswith("█") for n in range(app.diff.count))


def screen(app: BrowseApp) -> str:
    return "\n".join(screen_rows(app))


def test_why_it_fails_in_one_key(tmux: Tmux) -> None:
    start(tmux, LISTED)
    tmux.send("G")
    tmux.wait_for("compile failed in infer-vector-layout", "listed.py:15", "try: if it is aligned")


def test_findings_with_their_causes_in_two_keys(tmux: Tmux) -> None:
    start(tmux, LISTED)
    tmux.send("!")
    tmux.wait_for(
        "o_ref[...] = x_ref[...] + x_ref[...]",
        "OutOfBoundsRead",
        "x_ref[32:40, 0:128] reaches 8 rows past x_ref",
        "cause: the grid has 5 points for 4 blocks of x_ref",
        "try: divide the rows by the rows of a block",
    )


def test_a_pass_in_the_editor_in_one_key(tmux: Tmux, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\necho "edits $@"\nread -r line\n')
    editor.chmod(0o755)
    start(tmux, LISTED, "--pass", "lower-to-llo", environment=f"EDITOR={editor}")
    tmux.send("E")
    tmux.wait_for("edits", "passes/15-lower-to-llo.mlir")


@pytest.mark.slow
@drive
async def test_which_pass_grew_and_which_line_in_one_key(versions: tuple[Path, Path]) -> None:
    app = BrowseApp(Browser(versions[0]))
    async with app.run_test(size=(140, 44)) as pilot:
        await until(pilot, lambda: app.steps.changes)
        await press(pilot, "plus")
        await until(pilot, lambda: has_operations(app))
        (marked,) = (row for row in screen_rows(app) if "▲" in row)
        before, place = app.compared or (None, None)
        assert before is not None
        assert place is not None
        assert place.step.label in marked
        old, new = (Module(app.browser.lines(text)) for text in (before, place))
        grown: Counter[int] = Counter()
        for module, sign in ((old, -1), (new, 1)):
            for line in range(len(module.lines)):
                if module.names[line] and module.source(line):
                    grown[module.source(line)[0].line] += sign
        (most, count), *_ = grown.most_common(1)
        assert f"most added by attention.py:{most}: +{count}" in screen(app)
        _, line = app.diff.place
        assert line is not None
        assert new.source(line)[0].line == most
        assert any(new.lines[line].partition(" loc(")[0][:40] in row for row in screen_rows(app))


@pytest.mark.slow
@drive
async def test_two_targets_and_which_operations_differ_in_two_keys(
    versions: tuple[Path, Path],
) -> None:
    app = BrowseApp(Browser(versions[0]))
    async with app.run_test(size=(140, 44)) as pilot:
        await press(pilot, "D", "enter")
        await until(pilot, lambda: has_operations(app))
        shown = screen(app)
        assert "- v5e   + v6e" in shown
        place, base = app.place, app.base
        assert place is not None
        assert base is not None
        old, new = (Module(app.browser.lines(text)).counts for text in (place, base))
        most = max(old | new, key=lambda name: abs(new[name] - old[name]))
        assert re.search(rf"  {re.escape(most)} +[-+]\d+ .*█", shown)


@pytest.mark.slow
@drive
async def test_two_versions_and_what_changed_in_two_keys(versions: tuple[Path, Path]) -> None:
    old, new = versions
    app = BrowseApp(Browser(old, new))
    async with app.run_test(size=(160, 44)) as pilot:
        await press(pilot, "D", "enter")
        await until(pilot, lambda: has_operations(app))
        (tanh,) = (row for row in screen_rows(app) if "math.tanh" in row and "█" in row)
        assert "+1" in tanh
        assert any("- old   + new" in row for row in screen_rows(app))


@pytest.mark.slow
def test_the_statistics_begin_with_the_bottleneck(versions: tuple[Path, Path]) -> None:
    browser = Browser(versions[0])
    (entry,) = browser.entries
    step = next(step for step in browser.steps(entry, "v5e") if step.label == "stats")
    first, second, *_ = browser.lines(TextPlace(entry=entry, target="v5e", step=step))
    assert re.match(r"attend on v5e: [\d,]+ cycles, bound by ", first)
    assert re.match(r"  (waiting for|issuing|loops and).* \d+ % █", second)


@pytest.mark.slow
@drive
async def test_where_an_exp_ends_up_in_bundles_in_three_keys(versions: tuple[Path, Path]) -> None:
    browser = Browser(versions[0])
    lines = browser.source_lines(browser.entries[0])
    number = next(n for n, line in enumerate(lines, 1) if line.startswith(EXP))
    spot = find_spot(browser, step="source", line=number)
    app = BrowseApp(browser, spot=spot)
    async with app.run_test(size=(140, 44)) as pilot:
        await press(pilot, "u")
        await until(pilot, lambda: isinstance(app.screen, Chooser))
        await press(pilot, "up")
        assert re.search(EXP2, screen(app))
        await press(pilot, "enter")
        await until(pilot, lambda: app.text.linked)
        assert app.steps.current is not None
        assert app.steps.current.label == "bundles"
        assert number in [source.line for source in app.text.origin]
        assert re.search(EXP2, app.text.line(app.text.cursor))
        row = next(row for row in screen_rows(app) if app.text.line(app.text.cursor)[:40] in row)
        assert re.search(EXP2, row)


@pytest.mark.slow
@drive
async def test_who_uses_a_matmul_of_a_precision_in_one_key_and_the_text(
    versions: tuple[Path, Path],
) -> None:
    app = BrowseApp(Browser(versions[0]))
    async with app.run_test(size=(140, 44)) as pilot:
        await press(pilot, "ctrl+g", *"tpu", "full_stop", *"matmul", "full_stop", "asterisk")
        await press(pilot, *"fp32")
        await until(pilot, lambda: app.search.groups and not app.search.running)
        await pilot.pause(0.3)
        shown = screen(app)
        assert app.search.count > len(app.search.groups)
        assert shown.count(app.search.hits[0].entry.name) == 1
        assert "contract_precision<fp32>" in shown
