"""Modules to compile, and a pool whose children are shared by the tests of a file."""

from __future__ import annotations

import importlib.metadata
import os
import runpy
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from jax._src.interpreters import mlir
from jax.experimental import pallas as pl

from pallas_debug.compiler.pool import Pool, PoolSettings

KERNELS = Path(__file__).parents[1] / "store" / "data" / "make.py"

Module = Callable[[str], bytes]


@pytest.fixture(scope="session")
def kernels_file() -> Path:
    """Where the kernels `add`, `misaligned` and `aborting` are written."""
    return KERNELS


@pytest.fixture(scope="session")
def module() -> Module:
    """Lowers one of those kernels for a TPU, in this process: StableHLO bytecode."""
    kernels = runpy.run_path(str(KERNELS))["KERNELS"]

    def lower(name: str) -> bytes:
        kernel, specs, arguments, out = kernels[name]

        def call(*xs: Any) -> Any:
            return pl.pallas_call(kernel, out_shape=out, in_specs=list(specs), name=name)(*xs)

        lowered = jax.jit(call).trace(*arguments).lower(lowering_platforms=("tpu",))
        bytecode: bytes = mlir.module_to_bytecode(lowered.compiler_ir("stablehlo"))
        return bytecode

    return lower


@pytest.fixture(scope="session")
def libtpu_version() -> tuple[int, ...]:
    return tuple(map(int, importlib.metadata.version("libtpu").split(".")))


@pytest.fixture(scope="session")
def refusal(libtpu_version: tuple[int, ...]) -> str | None:
    """What the compiler says of the kernel `aborting`; None if it dies."""
    if libtpu_version >= (0, 0, 52):
        return "infer-vector-layout: non-noop i1 reshape is unsupported"
    return "infer-vector-layout: unsupported shape cast" if libtpu_version < (0, 0, 50) else None


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files, of this test alone."""
    folder = tmp_path / "temporary files"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture(scope="module")
def shared() -> Iterator[Pool]:
    """For tests that leave the children as they found them."""
    with Pool(PoolSettings(jobs=1)) as pool:
        yield pool


@pytest.fixture(scope="session")
def wait_until() -> Callable[[Callable[[], bool]], None]:
    def wait(condition: Callable[[], bool], seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "it did not come to pass"
            time.sleep(0.01)

    return wait


@pytest.fixture(scope="session")
def is_running() -> Callable[[int], bool]:
    """Predicate of process ids: True if the process runs and is not a zombie."""

    def running(pid: int) -> bool:
        try:
            os.kill(pid, 0)
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except (ProcessLookupError, FileNotFoundError):
            return False

    return running
