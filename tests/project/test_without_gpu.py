"""An installation without the extra `gpu`: what needs it is refused with a remedy, the rest works."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest
from jaxless import environment, run

IMPORTS_ABSL = tuple(map(int, metadata.version("jax").split(".")[:2])) < (0, 12)
LACKS = "nothing can be compiled for a GPU here: jax-cuda12-plugin is not installed" + (
    "; absl-py, which Mosaic GPU imports, is not installed" if IMPORTS_ABSL else ""
)
BUNDLED = "pallas_debug_kernels"
REMEDY = "pip install 'pallas-debug[gpu]'"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("gpuless"), "tpu")


def test_a_dump_for_a_gpu_names_the_remedy(python: Path, tmp_path: Path) -> None:
    done = run(
        python, tmp_path, "-m", "pallas_debug", "dump", "-t", "h100", f"{BUNDLED}:triton_softmax"
    )
    assert done.returncode == 3
    assert LACKS in done.stderr
    assert REMEDY in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not IMPORTS_ABSL, reason="jax 0.12 imports Mosaic GPU without absl")
def test_a_kernel_of_mosaic_gpu_says_what_it_imports(python: Path, tmp_path: Path) -> None:
    done = run(python, tmp_path, "-m", "pallas_debug", "verify", f"{BUNDLED}:hopper_matmul")
    assert done.returncode == 1
    assert "mosaic_gpu imports absl, which jax does not install" in done.stdout
    assert REMEDY in done.stdout


def test_the_machine_judges_and_the_rest_is_a_gap(python: Path, tmp_path: Path) -> None:
    words = ("verify", "-t", "h100", f"{BUNDLED}:triton_softmax")
    done = run(python, tmp_path, "-m", "pallas_debug", *words)
    assert done.returncode == 3
    assert [line.split() for line in done.stdout.splitlines()[:2]] == [
        ["kernel", "static", "h100", "machine"],
        ["triton_softmax", "ok*", "?", "ok"],
    ]
    assert f"not judged: triton_softmax h100: {LACKS}" in done.stdout


def test_doctor_lists_what_can_be_imported(python: Path, tmp_path: Path) -> None:
    done = run(python, tmp_path, "-m", "pallas_debug", "doctor", "--kernels")
    names = [line.partition("\t")[0] for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert "triton_softmax" in names
    assert ("hopper_matmul" in names) is not IMPORTS_ABSL
