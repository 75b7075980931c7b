"""Recordings: what they hold, opened without jax, sizes refused, damage reported."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug import stepper
from pallas_debug.cli import cli as commands
from pallas_debug.errors import UsageError
from pallas_debug.machine.debugger.live import LiveRun
from pallas_debug.stepping import recording
from pallas_debug.stepping.conditions import ConditionFailed
from pallas_debug.stepping.plain import interact
from pallas_debug.stepping.prompt import CommandPrompt
from pallas_debug.stepping.session import StepSession

SOURCE = Path(__file__).read_text().splitlines()
LINE = 1 + next(i for i, text in enumerate(SOURCE) if text.endswith("# first half"))


def kernel(x_ref: Any, o_ref: Any, buffer: Any, done: Any) -> None:
    copy = pltpu.make_async_copy(x_ref.at[pl.ds(pl.program_id(0) * 8, 8)], buffer, done)
    copy.start()
    copy.wait()
    total = buffer[...] * 2
    o_ref[0:4, :] = total[0:4].astype(jnp.bfloat16)  # first half
    o_ref[4:8, :] = total[4:8].astype(jnp.bfloat16)


def run(x: jax.Array) -> jax.Array:
    return pl.pallas_call(
        kernel,
        grid=(2,),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((16, 128), jnp.bfloat16),
        scratch_shapes=[pltpu.VMEM((8, 128), x.dtype), pltpu.SemaphoreType.DMA],
    )(x)


X = jnp.arange(16 * 128, dtype=jnp.float32).reshape(16, 128) % 50


def live() -> LiveRun:
    track = stepper.capture(lambda: run(X)).session.track
    assert isinstance(track, LiveRun)
    return track


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("recording") / "run"
    stepper.record_session(StepSession(live()), to)
    return to


@pytest.mark.slow
def test_a_recording_steps_as_the_run_does(folder: Path) -> None:
    opened, original = recording.read(folder), live()
    for track in (opened, original):
        StepSession(track).run()
    places = [[], []]
    for track, seen in zip((opened, original), places, strict=True):
        session = StepSession(track)
        while session.step(back=True) is None:
            values = {v.name: np.array(track.value(v.name), np.float32) for v in track.values()}
            seen.append((session.place, values, list(track.copies())))
    assert len(places[0]) == len(places[1]) > 10
    for (place, values, copies), (other, others, more) in zip(*places, strict=True):
        assert place == other
        assert copies == more
        assert values.keys() == others.keys()
        for name, value in values.items():
            np.testing.assert_array_equal(value, others[name], name)


def test_values_have_the_dtype_of_the_kernel(folder: Path) -> None:
    """In a recording too, which stores bfloat16 as float32."""
    for track in (recording.read(folder), live()):
        session = StepSession(track)
        session.add_breakpoint(LINE, "i == 1")
        session.run()
        for command, kind in (
            ("print o_ref", "bf16[8,128]"),
            ("print o_ref[0:4]", "bf16[4,128]"),
            ("print whole(o_ref)[0:4]", "bf16[4,128]"),
            ("heat whole(o_ref)", "bf16[16,128]"),
            ("print o_ref + 1", "f32[8,128]"),
            ("print total", "f32[8,128]"),
        ):
            *_, last = CommandPrompt(session).execute(command)
            assert last.startswith(f"{kind}: "), (command, last)


def test_stops_expressions_and_who_wrote_what(folder: Path) -> None:
    session = StepSession(recording.read(folder))
    number = session.add_breakpoint(LINE, "i == 1 and max(total) > 90").number
    assert session.run() == f"breakpoint 1, test_recording.py:{LINE} if i == 1 and max(total) > 90"
    assert session.place.point == (1,)
    session.delete(number)
    session.watch("o_ref[0, 1]")
    assert session.run() == f"after line {LINE}: o_ref[0, 1] nan → 2.0" or session.run() is not None
    assert session.run(back=True) is not None
    (writer,) = session.who("whole(o_ref)[9, 5]")
    assert (writer.place.line.line, writer.place.point) == (LINE, (1,))
    (other,) = session.who("whole(o_ref)[6, 0]")
    assert (other.place.line.line, other.place.point) == (LINE + 1, (0,))
    with pytest.raises(ConditionFailed, match=r"only has the writers of outputs: whole\(o_ref\)"):
        session.who("o_ref[0, 0]")
    session.run()


def test_it_is_opened_without_jax(folder: Path) -> None:
    code = (
        "import sys\n"
        "sys.modules['jax'] = sys.modules['ml_dtypes'] = None\n"
        "from pallas_debug.cli import main\n"
        "sys.argv = ['pallas-debug', 'step', sys.argv[1]]\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        input=f"u {LINE}\np total[0, :3]\np o_ref\nq\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )
    assert done.returncode == 0, done.stderr
    assert f"test_recording.py:{LINE} in kernel" in done.stdout
    assert "[0. 2. 4.]" in done.stdout
    assert "1,024 NaN" in done.stdout


def test_chosen_lines_and_points_and_what_is_refused(tmp_path: Path) -> None:
    session = StepSession(live())
    made = stepper.record_session(session, tmp_path / "some", lines=[LINE], points=[(1,)])
    assert [stop.place.point for stop in made.stops] == [(1,), (1,)]  # and the end
    with pytest.raises(UsageError, match="exists: name a new folder"):
        stepper.record_session(session, tmp_path / "some")
    with pytest.raises(UsageError, match="nothing was executed on these lines"):
        stepper.record_session(session, tmp_path / "none", lines=[1])
    refused = r"the recording would take [\d.]+ KiB, but the limit is 16 KiB: select lines or grid"
    with pytest.raises(UsageError, match=refused):
        stepper.record_session(session, tmp_path / "large", max_bytes=1 << 14)
    assert [path.name for path in tmp_path.iterdir()] == ["some"]


def test_damage_and_other_versions_are_reported(folder: Path, tmp_path: Path) -> None:
    document = json.loads((folder / recording.FILE).read_text())

    def message(text: str) -> str:
        (tmp_path / recording.FILE).write_text(text)
        with pytest.raises(recording.RecordingError) as caught:
            recording.read(tmp_path)
        return str(caught.value)

    whole = json.dumps(document)
    assert "is truncated or not JSON" in message(whole[: len(whole) // 2])
    assert "is not a recording of a kernel" in message("{}")
    newer = message(json.dumps({**document, "schema": 2}))
    assert "was written by a newer version (schema 2; this one reads 1)" in newer
    for schema in ("1", None, 0):
        no_version = message(json.dumps({**document, "schema": schema}))
        assert f"is damaged: {schema!r} is not a schema of recordings" in no_version
    assert "is damaged: Expected `array`" in message(json.dumps({**document, "stops": 3}))
    assert "contains no place" in message(json.dumps({**document, "stops": []}))


NO_NUMBERS = r"is truncated or damaged \(it does not hold an array of numbers\): copy it again, or"


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda file: None, r"\.npy is missing: copy all of .*, or rec"),
        (lambda file: file.write_bytes(b"\x93NUMPY\x01"), r"is truncated or damaged \(EOF"),
        (lambda file: os.mkfifo(file), "is not a regular file"),
        (lambda file: np.save(file, np.array([{}], object), allow_pickle=True), NO_NUMBERS),
        (lambda file: file.write_text("no array"), NO_NUMBERS),
        (lambda file: file.symlink_to(file), "cannot be read: Too many levels"),
    ],
)
def test_damaged_arrays_are_reported(
    damage: Callable[[Path], Any], message: str, folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "run")
    session = StepSession(recording.read(tmp_path / "run"))
    for file in (tmp_path / "run" / recording.ARRAYS).iterdir():
        file.unlink()
        damage(file)
    with pytest.raises(recording.RecordingError, match=message):
        session.evaluate("buffer")


def test_a_folder_that_is_no_recording_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        commands.main(["step", str(tmp_path)], standalone_mode=False)
    assert str(refused.value) == (
        f"{tmp_path} is a directory without recording.json: if it is a recording, copy all of it; "
        "otherwise name a Python file, `-m` and a module, or package.module:function"
    )


def test_a_recording_does_not_control_the_terminal(folder: Path, tmp_path: Path) -> None:
    document = json.loads((folder / recording.FILE).read_text())
    document["stops"][0]["place"]["kernel"] = "evil\x1b]0;title\x07\u202e"
    (tmp_path / recording.FILE).write_text(json.dumps(document))
    out = io.StringIO()
    interact(StepSession(recording.read(tmp_path)), io.StringIO("quit\n"), out)
    assert r"evil\x1b]0;title\x07\u202e" in out.getvalue()
    assert out.getvalue().replace("\n", "").isprintable()
