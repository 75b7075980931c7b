"""Fit of the bridge to the installed jax: its patches, an absent chip, the backend."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import jax
import pytest
from jax._src import xla_bridge
from jax._src.interpreters import mlir
from jax._src.pallas import pallas_call
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AbstractDevice, AbstractMesh

from pallas_debug.bridge import chip, patches, platform
from pallas_debug.compiler import targets
from pallas_debug.errors import IncompatibleJaxError
from pallas_debug.model import SourceLine
from pallas_debug.session import Options, Session


@pytest.fixture
def retraced() -> Any:
    """jax is compared again, before and after."""
    patches.results.cache_clear()
    yield
    patches.results.cache_clear()


@pytest.mark.usefixtures("retraced")
def test_a_jax_without_our_hook_is_met_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(mlir._lowerings, pallas_call.pallas_call_p)
    monkeypatch.delattr(pallas_call, "_trace_kernel_to_jaxpr")
    with pytest.raises(IncompatibleJaxError) as error:
        Session(Options())
    message = str(error.value)
    assert f"jax {jax.__version__} is not one that this pallas-debug can hook into: " in message
    assert "capture: lowering rules (mlir._lowerings[pallas_call_p] is not where it was)" in message
    assert (
        "capture: lines of kernels under grad "
        "(pallas_call._trace_kernel_to_jaxpr is not where it was)" in message
    )
    assert "Upgrade pallas-debug, or install a supported jax version, from 0.10.2 on." in message


@pytest.mark.usefixtures("retraced")
def test_a_function_with_other_parameters_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from jax._src import pjit

    monkeypatch.setattr(pjit, "_get_fastpath_data", lambda other: None)
    problem = patches.results()["capture: runs of jitted programs"]
    assert problem is not None
    assert "has no parameter executable" in problem


@pytest.mark.parametrize("target", targets.BUILTIN, ids=lambda t: t.name)
def test_a_chip_is_there_where_there_is_none(target: Any) -> None:
    with chip.answering(target):
        info = pltpu.get_tpu_info()
        assert target.name.removeprefix("tpu").strip("v")[:1] == str(info.generation)
    with pytest.raises(ValueError, match="Unsupported TPU device kind: cpu"):
        pltpu.get_tpu_info()


def test_a_query_counts_in_its_context_and_for_the_kernels_that_were_traced_there() -> None:
    here, there = (SourceLine(file="kernels.py", line=n) for n in (1, 2))
    with chip.answering(targets.resolve("v6e")):
        with chip.lowering_ourselves(), chip.answering(targets.resolve("v6e")):
            pltpu.get_tpu_info()  # jax may cache it
        for _ in range(2):
            with chip.listening():
                assert chip.was_asked(there) is None
                pltpu.get_tpu_info()
                assert chip.was_asked(here) == "TPU v6 lite"
        assert chip.was_asked(there) is None
    with chip.answering(targets.resolve("v4")):
        assert chip.was_asked(here) == "TPU v4"  # its caller may have cached the answer


def test_another_thread_gets_the_sessions_chip_and_this_one_its_own() -> None:
    found: list[int] = []
    with chip.answering_everywhere(targets.resolve("v6e")), chip.answering(targets.resolve("v4")):
        thread = threading.Thread(target=lambda: found.append(pltpu.get_tpu_info().generation))
        thread.start()
        thread.join()
        found.append(pltpu.get_tpu_info().generation)
    assert found == [6, 4]


def test_an_abstract_mesh_of_the_users_own_answers_for_itself() -> None:
    device = AbstractDevice(device_kind="TPU v4", num_cores=1, platform="tpu")
    mesh = AbstractMesh((), (), abstract_device=device)
    with chip.answering(targets.resolve("v6e")), jax.sharding.use_abstract_mesh(mesh):
        assert pltpu.get_tpu_info().generation == 4


@pytest.mark.slow
@pytest.mark.parametrize("chosen, expected", [("", "cpu"), ("cpu", "cpu"), ("tpu,cpu", "tpu")])
def test_the_backend_is_known_without_being_initialised(
    run_python: Callable[..., Any], chosen: str, expected: str
) -> None:
    code = """
from pallas_debug.bridge import platform
print(platform.default_backend(), platform.xla_bridge.backends_are_initialized())
"""
    done = run_python("-c", code, JAX_PLATFORMS=chosen)
    assert done.stdout == f"{expected} False\n", done.stderr


@pytest.mark.slow
def test_jax_does_not_look_for_a_tpu_that_is_not_there(run_python: Callable[..., Any]) -> None:
    code = """
import jax
from pallas_debug.bridge import platform
platform.leave_out_absent_tpu()
print(jax.devices())
print("libtpu" in open("/proc/self/maps").read())
"""
    done = run_python("-c", code, JAX_PLATFORMS="")
    assert done.stdout.endswith("False\n"), done.stdout
    assert done.stderr == ""


def test_an_initialised_backend_is_asked() -> None:
    assert xla_bridge.backends_are_initialized() or jax.devices()
    assert platform.default_backend() == "cpu"
    assert not platform.has_tpu()
    assert not platform.has_accelerator()
    assert platform.device_kind() == "cpu"
    assert os.environ["JAX_PLATFORMS"] == "cpu"
