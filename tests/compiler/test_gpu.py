"""GPU back ends, with real compilations: targets, stages, lines, and what is missing."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as plt
from jax.experimental.pallas.ops.gpu import hopper_matmul_mgpu as hopper

import pallas_debug
from pallas_debug._api import doctor
from pallas_debug.bridge.versions import installed
from pallas_debug.chips import GPUS
from pallas_debug.compiler import gpu, targets
from pallas_debug.errors import CannotRunError, DumpFormatError
from pallas_debug.ir.operations import Module
from pallas_debug.model import Compilation
from pallas_debug.profile.gpu import GpuStats, occupancy
from pallas_debug.store import files, open_dumps
from pallas_debug.store.files import DumpFile
from pallas_debug.store.texts import find_text

pytestmark = pytest.mark.filterwarnings("ignore:The Pallas Triton backend:DeprecationWarning")

IS_OLD = installed()["jax"].startswith("0.10")
A = jax.ShapeDtypeStruct((512, 512), jnp.float16)
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


def matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    tuned = hopper.TuningConfig(tile_m=64, tile_n=64, tile_k=64, max_concurrent_steps=2)
    return hopper.matmul(a, b, None, config=tuned)


def too_large(a: jax.Array, b: jax.Array) -> jax.Array:
    tuned = hopper.TuningConfig(tile_m=128, tile_n=128, tile_k=64, max_concurrent_steps=8)
    return hopper.matmul(a, b, None, config=tuned)


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


@pytest.fixture(scope="module")
def multiplied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("multiplied")
    (kernel,) = pallas_debug.dump(matmul, A, A, targets="h100", to=folder)
    assert kernel.compilation("h100").ok, kernel.compilation("h100").failure
    return folder


def test_mosaic_gpu_is_seen_down_to_machine_instructions(multiplied: Path) -> None:
    assert "mosaic_gpu." in _text(multiplied, "mosaic") or IS_OLD
    assert "gpu.module" in _text(multiplied, "gpu-kernel-outlining")
    assert "wgmma.mma_async" in _text(multiplied, "ptx")
    assert "HGMMA" in _text(multiplied, "sass")
    if not IS_OLD:  # jax 0.12 infers layouts in Python, and says what a kernel takes
        assert "layout" in _text(multiplied, "infer-layouts")
        assert "ConstraintSystem" in _text(multiplied, "constraints")
        assert "smem_scratch_bytes" in _text(multiplied, "resources")


@pytest.mark.parametrize("stage", ["ptx", "sass"])
def test_almost_every_instruction_leads_to_a_line(
    dumped: Path, multiplied: Path, stage: str
) -> None:
    for folder in (dumped, multiplied):
        module = Module.of(_text(folder, stage))
        named = [n for n, name in enumerate(module.names) if name is not None]
        assert len(named) > 100
        assert sum(bool(module.source(n)) for n in named) >= 0.95 * len(named)


def test_the_copies_of_jax_s_own_pipeline_have_the_line_of_the_loop_around_them(
    multiplied: Path,
) -> None:
    module = Module.of(_text(multiplied, "sass"))
    at = [n for n, name in enumerate(module.names) if name and name.startswith("UTMALDG")]
    assert {source.file for n in at for source in module.source(n)} == {hopper.__file__}


def _stats(folder: Path) -> GpuStats:
    from pallas_debug.store.profiles import read_gpu_stats

    (kernel,) = open_dumps(folder).kernels()
    return read_gpu_stats(kernel, kernel.target("h100"))


def test_stats_of_triton(dumped: Path) -> None:
    stats = _stats(dumped)
    assert (stats.threads, stats.spill_stores, stats.tensor_memory) == (128, 0, None)
    assert (stats.inner_loop, stats.problems, stats.notices) == (None, (), ())
    assert stats.shared == 16
    assert stats.classes["special function"] >= 8
    assert stats.instructions == sum(stats.classes.values())
    line = max(stats.lines, key=lambda line: line.classes.get("special function", 0))
    assert line.source.text is None
    assert "jnp.exp" in Path(__file__).read_text().split("\n")[line.source.line - 1]


def test_stats_of_mosaic_gpu(multiplied: Path) -> None:
    stats = _stats(multiplied)
    assert stats.threads == 384
    assert stats.shared is not None
    assert 2 * (128 * 64 + 64 * 64) * 2 < stats.shared < GPUS["h100"].shared_limit
    assert stats.inner_loop is not None
    assert stats.inner_loop.tensor == stats.classes["tensor core"] == 4  # 64 / 16 steps of K
    assert stats.occupancy is not None
    assert stats.occupancy.blocks >= 1


@pytest.mark.parametrize(
    "gpu_name, registers, threads, shared, blocks, limited",
    [  # as in NVIDIA's occupancy calculator
        ("a100", 32, 256, 0, 8, "registers and threads"),
        ("a10", 255, 128, 0, 2, "registers"),
        ("h100", 168, 384, 229_377, 1, "registers and shared memory"),
        ("l4", 16, 32, 0, 24, "blocks"),
        ("h100", 40, 128, 100 << 10, 2, "shared memory"),
    ],
)
def test_occupancy(
    gpu_name: str, registers: int, threads: int, shared: int, blocks: int, limited: str
) -> None:
    found = occupancy(GPUS[gpu_name], registers=registers, threads=threads, shared=shared)
    assert (found.blocks, found.limited_by) == (blocks, limited)


def test_a_child_that_aborts_in_llvm_is_a_failure_of_the_kernel(tmp_path: Path) -> None:
    (kernel,) = pallas_debug.dump(matmul, A, A, targets="a100", to=tmp_path)
    failure = kernel.compilation("a100").failure
    assert failure is not None
    assert failure.stage == ("compile" if IS_OLD else "crash")
    assert IS_OLD or failure.last_pass == "mosaic-gpu-module-to-assembly"
    assert IS_OLD or "LLVM ERROR: Cannot select" in failure.message


def test_verify_judges_what_it_can(tmp_path: Path) -> None:
    verdict = pallas_debug.verify(softmax, X, targets="h100", to=tmp_path)
    judged = {outcome.column: outcome.status for outcome in verdict.outcomes if outcome.kernel}
    assert judged == {"static": "ok", "h100": "ok", "machine": "ok"}
    (gap,) = [gap for outcome in verdict.outcomes for gap in outcome.all_gaps]
    assert gap.reason.startswith("index maps, coverage and tiles: these are analysed for TPUs")


def test_a_block_that_no_gpu_has_room_for_is_found_before_it_is_compiled() -> None:
    verdict = pallas_debug.verify(too_large, A, A, targets="h100", engines="static")
    (finding,) = verdict.findings
    assert (finding.kind, finding.targets) == ("GpuBlockOverflow", ("h100",))
    assert "of shared memory, the limit is 227 KiB on h100" in finding.message


def test_a_ptxas_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_release", lambda path: "12.6.20")
    assert gpu.lacking("sm_90a") == []
    assert gpu.lacking("sm_100a") == [
        "ptxas 12.6.20 is too old (12.8 or later is needed for sm_100a)"
    ]
    monkeypatch.setattr(gpu, "_release", lambda path: "Exec format error")
    (lack,) = gpu.lacking()
    assert lack.endswith("cannot be run: Exec format error")


def test_settings_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/nowhere --xla_gpu_enable_fast_min_max=true")
    monkeypatch.setenv("MOSAIC_GPU_DUMP_TO", "/nowhere")
    how = {"stages": "llo", "switches": "assertions"}
    (kernel,) = pallas_debug.dump(softmax, X, targets="l4", to=tmp_path, **how)
    compilation = kernel.compilation("l4")
    assert compilation.ok
    assert compilation.flags == ("--xla_gpu_enable_fast_min_max=true",)
    assert compilation.notes == (
        "MOSAIC_GPU_DUMP_TO, --xla_dump_to had no effect: the dump directory has these files",
        "assertions, llo had no effect: for TPUs alone",
    )
    assert not Path("/nowhere").exists()


def test_doctor_names_the_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    (check,) = doctor._gpus()
    assert (check.state, check.detail.count(", ")) == ("ok", 2)
    monkeypatch.setattr(gpu, "tool", lambda name: None)
    (check,) = doctor._gpus()
    assert (check.state, check.remedy) == ("warning", "pip install 'pallas-debug[gpu]'")
    assert "there is no ptxas" in check.detail
    monkeypatch.setattr(gpu, "plugin", lambda: None)
    assert not list(doctor._gpus())


def test_damaged_and_endless_texts_are_refused(dumped: Path, tmp_path: Path) -> None:
    text = tmp_path / "00-pass.mlir.gz"
    text.write_bytes(gzip.compress(b"module {}")[:-4])
    with pytest.raises(DumpFormatError, match="cannot be read"):
        DumpFile(path=text, root=tmp_path).text()
    text.write_bytes(gzip.compress(b"\0" * (files.MAX_WHOLE + 1)))
    with pytest.raises(DumpFormatError, match="more than the 33,554,432 that are read"):
        DumpFile(path=text, root=tmp_path).text()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax", "matmul"])
def test_a_script_reproduces_the_kernel(
    name: str, dumped: Path, multiplied: Path, tmp_path: Path, run_python: Any
) -> None:
    folder = {"softmax": dumped, "matmul": multiplied}[name]
    script = tmp_path / "script.py"
    done = run_python("-m", "pallas_debug", "reproduce", folder, "-t", "h100", "-o", script)
    assert done.returncode == 0, done.stderr
    done = run_python(script)
    assert done.stdout.endswith("compiling for sm_90a\nit compiles\n"), done.stderr
