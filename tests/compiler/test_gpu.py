"""GPU back ends, with real compilations: targets, stages, lines, and what is missing."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as plt

import pallas_debug
from pallas_debug.compiler import gpu, targets
from pallas_debug.errors import CannotRunError
from pallas_debug.model import Compilation
from pallas_debug.store import open_dumps
from pallas_debug.store.texts import find_text

pytestmark = pytest.mark.filterwarnings("ignore:The Pallas Triton backend:DeprecationWarning")

X = jax.ShapeDtypeStruct((128, 1000), jnp.float32)


def softmax(x: jax.Array) -> jax.Array:
    def kernel(x_ref, y_ref):
        columns = jnp.arange(1024)
        row = plt.load(x_ref.at[columns], mask=columns < x_ref.shape[0], other=-jnp.inf)
        e = jnp.exp(row - jnp.max(row))
        plt.store(y_ref.at[columns], e / jnp.sum(e), mask=columns < x_ref.shape[0])

    return pl.pallas_call(
        kernel,
        out_shape=x,
        grid=(x.shape[0],),
        in_specs=[pl.BlockSpec((None, x.shape[1]), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((None, x.shape[1]), lambda i: (i, 0)),
        compiler_params=plt.CompilerParams(num_warps=4),
    )(x)


def for_tpu(x: jax.Array) -> jax.Array:
    def kernel(x_ref, y_ref):
        y_ref[...] = x_ref[...] + 1

    params = pltpu.CompilerParams(dimension_semantics=())
    return pl.pallas_call(kernel, out_shape=x, compiler_params=params)(x)


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dumps")
    (kernel,) = pallas_debug.dump(softmax, X, targets="h100", to=folder)
    assert kernel.compilation("h100").ok, kernel.compilation("h100").failure
    return folder


def _text(dumped: Path, stage: str) -> str:
    (kernel,) = open_dumps(dumped).kernels()
    return find_text(kernel, "h100", stage).text


@pytest.mark.parametrize(
    "name, capability, kind",
    [
        ("h100", "sm_90a", "NVIDIA H100 80GB HBM3"),
        ("sm_90", "sm_90a", "NVIDIA H100 80GB HBM3"),
        ("sm_80", "sm_80", "NVIDIA A100-SXM4-80GB"),
        ("b200", "sm_100a", "NVIDIA B200"),
    ],
)
def test_target(name: str, capability: str, kind: str) -> None:
    target = targets.resolve(name)
    assert (target.name, target.topology, target.device_kind) == (name, capability, kind)


def test_triton_is_seen_down_to_machine_instructions(dumped: Path) -> None:
    assert "tt.func" in _text(dumped, "ttir")
    assert "ttg.num-warps" in _text(dumped, "convert-triton-to-tritongpu")
    assert "llvm.func" in _text(dumped, "convert-triton-gpu-to-llvm")
    assert "define ptx_kernel void @kernel" in _text(dumped, "llvm")
    assert ".target sm_90a" in _text(dumped, "ptx")
    assert re.search(r"Used \d+ registers", _text(dumped, "ptxas"))
    assert "MUFU.EX2" in _text(dumped, "sass")


def test_machine_instructions_have_the_lines_that_xla_strips(dumped: Path) -> None:
    lines = Path(__file__).read_text().split("\n")
    last = 0
    found: dict[str, int] = {}
    for text in _text(dumped, "sass").split("\n"):
        if place := re.search(r'//## File "(.+)", line (\d+)', text):
            assert place[1] == __file__
            last = int(place[2])
        for name in ("LDG", "STG", "MUFU.EX2", "MUFU.RCP"):
            if f" {name}" in text:
                found[name] = last
    assert {name: lines[at - 1].partition("(")[0].strip() for name, at in found.items()} == {
        "LDG": "row = plt.load",
        "STG": "plt.store",
        "MUFU.EX2": "e = jnp.exp",
        "MUFU.RCP": "plt.store",
    }


def test_only_passes_that_changed_something_have_a_text(dumped: Path) -> None:
    ((compilation, folder),) = _compilations(dumped)
    kept = {p.file for p in compilation.passes if p.changed}
    assert {f"passes/{path.name}" for path in (folder / "passes").iterdir()} == kept
    assert len(kept) < len(compilation.passes) / 2


def _compilations(dumped: Path) -> list[tuple[Compilation, Path]]:
    kernels = open_dumps(dumped).kernels()
    return [(c.compilation, c.folder) for k in kernels for c in k.compilations if c.compilation]


def test_result_is_cached(dumped: Path) -> None:
    (kernel,) = pallas_debug.dump(softmax, X, targets="h100", to=dumped)
    assert kernel.compilation("h100").cached


@pytest.mark.parametrize(
    "function, target, message",
    [
        (for_tpu, "h100", "kernel is a kernel for a TPU, and h100 is a GPU: name a TPU as the"),
        (softmax, "v5e", "kernel is a kernel for a GPU (Triton), and v5e is a TPU: name a GPU as"),
    ],
)
def test_kernel_of_the_other_platform(
    function: object, target: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(CannotRunError, match=re.escape(message)):
        pallas_debug.dump(function, X, targets=target, to=tmp_path)


def test_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu, "plugin", lambda: ("jax-cuda12-plugin", "0.1"))
    monkeypatch.setattr(gpu, "tool", lambda name: None)
    with pytest.raises(CannotRunError) as error:
        pallas_debug.dump(softmax, X, targets="h100", to=tmp_path)
    assert str(error.value) == (
        "nothing can be compiled for a GPU here: jax-cuda12-plugin 0.1 is not of jax's version, "
        f"{jax.__version__}; there is no ptxas (nvidia-cuda-nvcc-cu12). Install what is needed "
        "with: pip install 'pallas-debug[gpu]'"
    )
