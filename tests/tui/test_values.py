"""Recorded values beside the lines that computed them: on a real kernel, and on its recording."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pilot import drive, press

from pallas_debug.stepping import recording
from pallas_debug.stepping.computed import ComputedValues
from pallas_debug.tui.app import BrowseApp
from pallas_debug.tui.model.browser import Browser, SingleFile
from pallas_debug.tui.widgets.cells import plain
from tests.tui.test_browse import status, until_idle

SUMS = """
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def sums_kernel(x_ref, o_ref, acc_ref):
    @pl.when(pl.program_id(1) == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    part = jnp.sum(x_ref[...], axis=0, keepdims=True)
    acc_ref[...] += part
    o_ref[...] = acc_ref[...]


pl.pallas_call(
    sums_kernel,
    grid=(2, 3),
    in_specs=[pl.BlockSpec((8, 128), lambda i, j: (i * 3 + j, 0))],
    out_specs=pl.BlockSpec((1, 128), lambda i, j: (0, i)),
    out_shape=jax.ShapeDtypeStruct((1, 256), jnp.float32),
    scratch_shapes=[pltpu.VMEM((1, 128), jnp.float32)],
    name="sums",
)(jnp.ones((48, 128)))
"""
"""Adds 8 for each of the three blocks of a row."""

RESET, PART, ADD, STORE = 11, 13, 14, 15


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a dump and three recordings of it, made in one process."""
    folder = tmp_path_factory.mktemp("values")
    (folder / "sums.py").write_text(SUMS)
    program = (
        "from pallas_debug.cli import cli\n"
        "for arguments in {}:\n"
        "    assert not cli.main(arguments.split(), standalone_mode=False)\n"
    ).format(
        [
            "dump --to dumps --target v5e sums.py",
            "step sums.py --record all",
            "step sums.py --record point --point 0,2",
            f"step sums.py --record line --line {ADD}",
        ]
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, cwd=folder)
    return folder


def computed(folder: Path) -> ComputedValues:
    return ComputedValues(recording.read(folder))


def texts(values: ComputedValues, point: tuple[int, ...]) -> dict[int, str]:
    return {line: values.text(found) for (_, line), found in values.at(point).items()}


@pytest.mark.slow
def test_each_line_has_what_it_changed(made: Path) -> None:
    values = computed(made / "all")
    assert values.points == ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2))
    zero, eight, sixteen, all_three = (
        f"f32[1,128] min {n}, max {n}, mean {n}" for n in (0, 8, 16, 24)
    )
    first = texts(values, (0, 0))
    assert first[RESET] == f"acc_ref {zero}, 128 zero"
    assert first[PART] == f"part {eight}"
    assert first[ADD] == f"acc_ref {eight}"
    assert first[STORE] == f"o_ref {eight}"
    # The block changes after (0, 2): what was written back is known, the next block is not it.
    last = texts(values, (0, 2))
    assert last[ADD] == f"acc_ref {all_three}"
    assert last[STORE] == f"o_ref {all_three}"
    assert texts(values, (1, 1))[STORE] == f"o_ref {sixteen}"
    assert RESET not in last
    assert values.at((7, 7)) == {}


@pytest.mark.slow
def test_a_recording_of_one_grid_point_knows_what_its_lines_computed(made: Path) -> None:
    whole, one = computed(made / "all"), computed(made / "point")
    assert one.points == ((0, 2),)
    assert texts(one, (0, 2)) == texts(whole, (0, 2))


@pytest.mark.slow
def test_a_recording_of_one_line_shows_what_it_mentions_before_it_ran(made: Path) -> None:
    values = computed(made / "line")
    (found,) = texts(values, (0, 1)).values()
    assert found == (
        "before it ran: acc_ref f32[1,128] min 8, max 8, mean 8; "
        "part f32[1,128] min 8, max 8, mean 8"
    )


@drive
async def test_values_stand_beside_the_lines_and_follow_the_grid_point(made: Path) -> None:
    app = BrowseApp(Browser(made / "dumps"), recorded=computed(made / "all"))
    async with app.run_test(size=(160, 40)) as pilot:
        app.go_to_step(next(s for s in app.steps.all_steps if s.label == "source"))
        await until_idle(app, pilot)
        assert "part f32[1,128] min 8" in app.text.beside[PART - 1]
        assert "◂ part f32[1,128] min 8" in plain(app.text.cells(PART - 1))
        assert "values at (0, 0)" in status(app)
        await press(pilot, "p", "p")
        assert "values at (0, 2)" in status(app)
        assert "min 24" in app.text.beside[ADD - 1]
        await press(pilot, "}")
        await until_idle(app, pilot)
        assert app.steps.current is not None
        assert app.steps.current.label == "jaxpr"
        (line,) = [n for n, text in app.text.beside.items() if text.startswith("part ")]
        assert f"sums.py:{PART}:" in app.text.line(line)
        await press(pilot, "P", "P", "P")
        assert "(0, 0) is the first one" in status(app)
        await press(pilot, "V")
        assert not app.text.beside
        assert "values at" not in status(app)


@pytest.mark.slow
@drive
async def test_without_a_recording_of_the_kernel_a_message_says_so(made: Path) -> None:
    app = BrowseApp(Browser(made / "dumps"))
    async with app.run_test(size=(160, 40)) as pilot:
        await press(pilot, "p")
        assert "`pallas-debug step WHAT --record FOLDER` makes one" in status(app)
        assert "`browse --values FOLDER` shows it" in status(app)
    other = BrowseApp(SingleFile(made / "sums.py"), recorded=computed(made / "all"))
    async with other.run_test(size=(160, 40)) as pilot:
        await press(pilot, "V")
        assert "the recording is of sums, not of this kernel" in status(other)
        assert not other.text.beside


@drive
async def test_an_array_that_is_gone_is_said_at_its_line(made: Path, tmp_path: Path) -> None:
    import shutil

    copy = Path(shutil.copytree(made / "all", tmp_path / "copy"))
    shutil.rmtree(copy / "arrays")
    app = BrowseApp(Browser(made / "dumps"), recorded=computed(copy))
    async with app.run_test(size=(160, 40)) as pilot:
        app.go_to_step(next(s for s in app.steps.all_steps if s.label == "source"))
        await until_idle(app, pilot)
        assert "is missing: copy all of " in app.text.beside[PART - 1]


def test_browse_refuses_what_is_no_recording(made: Path) -> None:
    from pallas_debug.tui.run import browse

    with pytest.raises(recording.RecordingError, match="cannot be read"):
        browse([made / "dumps"], values=made, resume=False)


@pytest.mark.slow
@drive
async def test_the_cursor_stays_on_its_python_line_from_stage_to_stage(made: Path) -> None:
    app = BrowseApp(Browser(made / "dumps"))
    async with app.run_test(size=(160, 40)) as pilot:
        steps = {step.label: step for step in app.steps.all_steps}

        async def go(label: str) -> str:
            app.go_to_step(steps[label])
            await until_idle(app, pilot)
            return app.text.line(app.text.cursor)

        await go("source")
        app.text.go_to(ADD - 1)
        await until_idle(app, pilot)
        assert f"sums.py:{ADD}:" in await go("jaxpr")
        await go("stablehlo")  # has no Python lines: the place is kept
        assert await go("mosaic")
        assert {s.line for s in app.text.origin} == {ADD}
        last = next(label for label in reversed(steps) if steps[label].pass_)
        await go(last)
        assert {s.line for s in app.text.origin} == {ADD}
        assert await go("source") == "    acc_ref[...] += part"
