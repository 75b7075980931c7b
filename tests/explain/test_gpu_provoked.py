"""Recognition of the messages of Pallas's GPU back ends: kernels that they reject, without a GPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from refused_calls import refused

from pallas_debug import explain
from pallas_debug.session import Options, Session

pytestmark = pytest.mark.filterwarnings("ignore:The Pallas Triton backend:DeprecationWarning")

SPEC = importlib.util.spec_from_file_location(
    "explain_gpu_kernels", Path(__file__).with_name("gpu_kernels.py")
)
kernels: Any = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = kernels
SPEC.loader.exec_module(kernels)

HERE = ".".join(jax.__version__.split(".")[:2])
CASES = [case for case in kernels.REFUSED if case.only in ("", HERE)]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    dumps = tmp_path_factory.mktemp("provoked") / "dumps"
    options = Options(dumps=dumps, targets=("h100", "a100", "b200"), interpret="off", jobs=1)
    with Session(options) as session:
        yield session


def test_at_least_45_entries_are_provoked() -> None:
    assert len({case.entry for case in CASES}) >= 45


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.entry)
def test_a_kernel_that_is_refused(session: Session, case: Any) -> None:
    failure, kernel = refused(session, case.call, case.args, case.target)
    if failure is None:  # ptxas has only warned
        (folder,) = (d.folder for d in session.dumps if d.kernel == kernel)
        text = (folder / case.target / "ptxas.txt").read_text()
        found = explain.explain(text, in_context=True)
    else:
        text = failure.message
        found = explain.of_failure(failure, kernel)
    assert found is not None, text
    assert found.id == case.entry, text


def printed(code: str, **environment: str) -> str:
    """Output of a Python process, which may fail."""
    child = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return child.stdout


def assert_explained(text: str, message: str, entry: str) -> None:
    (line,) = {line for line in text.splitlines() if message in line and " raise " not in line}
    found = explain.explain(line, in_context=True)
    assert found is not None
    assert found.id == entry


LOWERS = """
import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt
def double(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2
call = pl.pallas_call(double, out_shape=jax.typeof(x := jax.numpy.ones(8)), compiler_params=plt.CompilerParams())
jax.jit(call).trace(x).lower(lowering_platforms=("cuda",))
"""


def test_a_kernel_is_lowered_for_no_gpu() -> None:
    text = printed(LOWERS)
    if HERE == "0.10":  # it lowers for any GPU
        assert not text
    else:
        assert_explained(text, "RuntimeError: No supported GPU", "no-gpu-device")


ASKS = """
from jax.experimental import topologies
topologies.get_topology_desc(platform="cuda", topology="1x1x1", target_config="")
"""


def test_a_plugin_without_the_libraries_of_cuda() -> None:
    text = printed(ASKS, JAX_PLATFORMS="cuda", JAX_SKIP_CUDA_CONSTRAINTS_CHECK="")
    assert_explained(text, "RuntimeError: Unable to load", "cuda-libraries")
    assert_explained(text, "NotImplementedError: topology", "no-cuda-plugin")


def test_a_plugin_of_another_jax() -> None:
    from jaxlib.plugin_support import check_plugin_version

    with pytest.warns(RuntimeWarning) as warned:
        check_plugin_version("jax_cuda12_plugin", "0.10.2", "0.10.0")
    found = explain.explain(str(warned[0].message), in_context=True)
    assert found is not None
    assert found.id == "cuda-plugin-skew"
