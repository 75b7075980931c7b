"""Lazy imports of the package: what names resolve to, and what an import costs."""

import os
import subprocess
import sys
from pathlib import Path

import pallas_debug_kernels
import pytest

ROOT = Path(pallas_debug_kernels.__file__).parent


def run(code: str) -> str:
    """What `code` writes in a fresh interpreter."""
    paths = [str(ROOT.parent), os.environ.get("PYTHONPATH", "")]
    child = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    return child.stdout.strip()


def test_import_loads_neither_jax_nor_numpy() -> None:
    heavy = run(
        "import sys, pallas_debug_kernels\n"
        "dir(pallas_debug_kernels)\n"
        "print(sorted({'jax', 'jaxlib', 'numpy'} & set(sys.modules)))"
    )
    assert heavy == "[]"


@pytest.mark.slow
def test_every_public_name_loads_without_pallas_debug() -> None:
    loaded = run(
        "import sys\n"
        "from pallas_debug_kernels import *\n"
        "print('pallas_debug' in sys.modules, vector_add.__name__, matmul.__name__,"
        " flash_attention.__name__, operation('matmul').name)"
    )
    assert loaded == "False vector_add matmul flash_attention matmul"


def test_every_operation_is_a_public_name() -> None:
    for op in pallas_debug_kernels.operations():
        assert op.name in pallas_debug_kernels.__all__
        assert getattr(pallas_debug_kernels, op.name) is op.function
