"""`timeline`: a strip, a trace file and JSON, of a kernel that libtpu compiled."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from trace_format import validated

import pallas_debug

F32 = jnp.float32
X = jax.ShapeDtypeStruct((2000, 512), F32)
W = jax.ShapeDtypeStruct((512, 512), F32)


def project(x: jax.Array, w: jax.Array) -> jax.Array:
    """A matrix product with one weight block, whose last input block is cut off."""

    def kernel(x_ref: Any, w_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.dot(x_ref[...], w_ref[...], preferred_element_type=F32)

    return pl.pallas_call(
        kernel,
        grid=(8,),
        in_specs=[pl.BlockSpec((256, 512), lambda i: (i, 0)), pl.BlockSpec((512, 512))],
        out_specs=pl.BlockSpec((256, 512), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((2000, 512), F32),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(x, w)


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("timeline") / "dumps"
    pallas_debug.dump(project, X, W, targets="v5e,v5p", to=root)
    return root


@pytest.mark.slow
def test_the_cores_of_a_device_share_the_grid(command: Any, dumps: Path) -> None:
    done = command("timeline", dumps, "-t", "v5p")
    assert done.returncode == 0, done.stderr
    assert "on v5p: grid 8, 4 steps, " in done.stdout
    assert "note: 2 cores share the grid along dimension 0" in done.stdout
    assert "x_ref 4 of" in done.stdout


@pytest.mark.slow
def test_the_trace(command: Any, dumps: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    done = command("timeline", dumps, "-t", "v5e", "-o", trace)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    (folder,) = dumps.glob("kernel-*")
    assert done.stderr == (
        f"pallas-debug: wrote {trace}: open it at https://ui.perfetto.dev, or in chrome://tracing\n"
        f"next: pallas-debug stats {folder} -t v5e\n"
    )
    events = validated(trace.read_text())
    steps = [e for e in events if e.get("cat") == "compute"]
    # A step that waits has several parts.
    assert list(dict.fromkeys(e["name"] for e in steps)) == [f"step {n}" for n in range(8)]
    fetched = [e for e in events if e.get("cat") == "dma" and e["name"].startswith("fetch")]
    assert {e["args"]["bytes origin"] for e in fetched} == {"compiler"}
    assert [e["args"]["bytes"] for e in fetched if e["args"]["operand"] == "x_ref"] == [
        *[524_288] * 7, 425_984,
    ]  # fmt: skip
    assert command("timeline", dumps, "-t", "v5e", "-o", "-").stdout == trace.read_text()


@pytest.mark.slow
def test_as_json(command: Any, dumps: Path) -> None:
    done = command("timeline", dumps, "-t", "v5e", "--json")
    (found,) = json.loads(done.stdout)["timelines"]
    assert [(p["start"], p["stop"]) for p in found["parts"]] == [(0, 8)]
    assert found["lanes"][1]["copies"]["value"] == 1
    assert found["compute"]["unit"] == "cycles"


@pytest.mark.slow
def test_a_dump_without_bundles(command: Any, dumps: Path, tmp_path: Path) -> None:
    pallas_debug.dump(project, X, W, to=tmp_path / "plain", stages="mosaic")
    done = command("timeline", tmp_path / "plain")
    assert done.returncode == 3
    assert re.fullmatch(
        r"pallas-debug: kernel-[0-9a-f]{8} has no schedule for v5e: it was dumped without\n",
        done.stderr,
    )


def test_a_file_that_cannot_be_written(command: Any, dumps: Path, tmp_path: Path) -> None:
    done = command("timeline", dumps, "-t", "v5e", "-o", tmp_path / "none" / "trace.json")
    assert done.returncode == 3
    assert "cannot be written: " in done.stderr
    assert done.stderr.endswith("No such file or directory. Name another file.\n")
