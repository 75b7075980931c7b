"""The compiler without jax: options and dialects equal to those that jax creates."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from unittest import mock

import jaxlib.mlir.dialects
import numpy as np
import pytest
from jax._src import compiler as jax_compiler
from jax._src.interpreters import mlir
from jaxlib import xla_client

from pallas_debug.bridge import libtpu

Run = Callable[..., CompletedProcess[str]]


@pytest.fixture(scope="module", autouse=True)
def compile_quickly() -> None:
    """Leave jax's settings as they are: they are among the options that are compared."""


def ours(device_ids: list[int], overrides: Mapping[str, str]) -> bytes:
    serialized: bytes = libtpu.compile_options(device_ids, overrides).SerializeAsString()
    return serialized


def theirs(device_ids: list[int], overrides: Mapping[str, str]) -> bytes:
    with mock.patch.object(jax_compiler.lib, "cuda_path", None):  # of the plugin for GPUs
        options = jax_compiler.get_compile_options(
            num_replicas=1,
            num_partitions=len(device_ids),
            device_assignment=np.array([device_ids]),
            env_options_overrides=dict(overrides),
        )
    # As jax itself sets them for a computation on one device, which is not partitioned.
    options.executable_build_options.use_spmd_partitioning = len(device_ids) > 1
    options.executable_build_options.use_shardy_partitioner = len(device_ids) > 1
    serialized: bytes = options.SerializeAsString()
    return serialized


@pytest.mark.parametrize(
    "device_ids, overrides",
    [
        ([0], {}),
        ([3], {"xla_tpu_enable_log_recorder": "true"}),
        ([0, 1, 2, 3], {"xla_mosaic_on_device_checks": "bounds", "xla_a": "1"}),
    ],
)
def test_compile_options_are_those_of_jax(device_ids: list[int], overrides: dict[str, str]) -> None:
    """A jax release that adds an option fails here."""
    assert ours(device_ids, overrides) == theirs(device_ids, overrides)
    assert ours(device_ids, overrides) != xla_client.CompileOptions().SerializeAsString()


def test_dialects_are_those_of_jax() -> None:
    """Of all that jaxlib brings, a context has the same ones as jax's."""
    folder = Path(jaxlib.mlir.dialects.__path__[0])
    names = {path.stem for path in folder.iterdir()} | {"tpu", "ub", "quant", "triton"}

    def known(context: Any) -> set[str]:
        found = set()
        for name in names:
            try:
                context.get_dialect_descriptor(name)
            except ValueError:
                continue
            found.add(name)
        return found

    found = known(libtpu.mlir_context())
    with ThreadPoolExecutor(1) as thread:  # in ours, lowering may have added some to a kept one
        assert found == thread.submit(lambda: known(mlir.make_ir_context())).result()
    assert {"stablehlo", "sdy", "mhlo", "chlo", "func", "arith"} <= found
    assert found < names


# Where libtpu is.


def test_the_installed_library(monkeypatch: pytest.MonkeyPatch) -> None:
    import libtpu as installed

    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    assert libtpu._library() == installed.get_library_path()


def test_a_library_of_ones_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = tmp_path / "libtpu.so"
    library.touch()
    monkeypatch.setenv("TPU_LIBRARY_PATH", str(library))
    assert libtpu._library() == str(library)
    library.unlink()
    message = f"TPU_LIBRARY_PATH names no file: {library}. The installed libtpu is used instead."
    with pytest.warns(UserWarning, match=f"^{re.escape(message)}$"):
        assert libtpu._library().endswith("libtpu/libtpu.so")
