"""`pallas_debug.compile` on machines without a TPU: error messages, and calls with stand-ins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

import pallas_debug
from pallas_debug.bridge import platform, versions
from pallas_debug.compiler import switches
from pallas_debug.errors import CannotRunError, UsageError

X = jax.ShapeDtypeStruct((8, 128), jnp.float32)


def double_kernel(x_ref: Any, o_ref: Any) -> None:
    pl.debug_check(x_ref[0, 0] >= 0, "negative")
    o_ref[...] = x_ref[...] * 2


def double(x: Any) -> Any:
    return pl.pallas_call(double_kernel, out_shape=X, name="double")(x)


def test_every_switch_has_an_argument() -> None:
    for name in switches.SWITCHES:
        assert pallas_debug.compile(double, **{name: True}).switches == (name,)  # type: ignore[arg-type]
    every = dict.fromkeys(switches.SWITCHES, True)
    assert pallas_debug.compile(double, **every).switches == tuple(switches.SWITCHES)  # type: ignore[arg-type]
    assert pallas_debug.compile(double).switches == ()


def test_without_a_tpu_a_call_says_what_to_do() -> None:
    made = pallas_debug.compile(double, log_recorder=True, assertions=True)
    with pytest.raises(CannotRunError) as caught:
        made(jnp.ones((8, 128)))
    assert str(caught.value) == (
        "there is no TPU here to call double on. To compile its kernels and keep every stage: "
        "pallas_debug.dump(double, ..., switches='log_recorder,assertions'). To run them: "
        "pallas_debug.interpret(double)(...)."
    )


def test_without_a_tpu_it_is_lowered_for_one() -> None:
    text = pallas_debug.compile(double).lower(X).as_text()
    assert "tpu_custom_call" in text
    with_assertions = pallas_debug.compile(double, assertions=True).lower(X).as_text()
    assert len(with_assertions) > len(text)
    assert len(pallas_debug.compile(double).lower(X).as_text()) == len(text)


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, lambda f: jax.grad(lambda x: f(x).sum())])
def test_it_does_not_stand_within_transformations(transform: Callable[..., Any]) -> None:
    with pytest.raises(UsageError) as caught:
        transform(pallas_debug.compile(double))(jnp.ones((8, 128)))
    assert str(caught.value) == (
        "double is compiled by pallas_debug.compile and cannot be traced by jit, vmap or grad. "
        "Put it outside of them, as in compile(jax.vmap(f))."
    )


class StandIn:
    """The CPU takes the TPU's place: calls go through, but for what only a TPU's compiler knows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(platform, "has_tpu", lambda: True)
        self.traced: list[Any] = []

    def function(self, x: Any, scale: Any = 2, *, name: str = "a") -> Any:
        self.traced.append((x.shape, scale, name))
        call = pl.pallas_call(
            lambda x_ref, o_ref: o_ref.__setitem__(..., x_ref[...] * scale),
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            interpret=True,
        )
        return {"out": call(x), "name": jnp.zeros(())}


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    return StandIn(monkeypatch)


@pytest.mark.slow
def test_it_compiles_once_for_each_kind_of_arguments(stand_in: StandIn) -> None:
    made = pallas_debug.compile(stand_in.function)
    x = jnp.ones((8, 128))
    for _ in range(2):
        np.testing.assert_array_equal(made(x)["out"], np.full((8, 128), 2.0))
        np.testing.assert_array_equal(made(x, 3)["out"], np.full((8, 128), 3.0))
        np.testing.assert_array_equal(made(x, name="b")["out"], np.full((8, 128), 2.0))
        made(np.ones((8, 128), np.float32))
        made(jnp.ones((16, 128)))
        made(jnp.ones((8, 128), jnp.int32))
    shapes = [shape for shape, _, _ in stand_in.traced]
    assert len(shapes) == len(set(stand_in.traced)) + 1  # int32 and float32 of one shape
    assert shapes.count((16, 128)) == 1


def test_arguments_that_are_equal_and_not_the_same(stand_in: StandIn) -> None:
    made = pallas_debug.compile(stand_in.function)
    x = jnp.ones((8, 128), jnp.int32)
    assert made(x, 1)["out"].dtype == made(x, True)["out"].dtype
    assert len(stand_in.traced) == 2


def test_an_argument_that_cannot_be_compared(stand_in: StandIn) -> None:
    with pytest.raises(UsageError) as caught:
        pallas_debug.compile(stand_in.function)(jnp.ones((8, 128)), name={1})  # type: ignore[arg-type]
    assert str(caught.value).startswith("an argument can be neither traced nor compared: ")
    assert str(caught.value).endswith(
        "Pass arrays, numbers, strings or functions, or close over it."
    )


def test_a_compiler_that_refuses_a_switch(stand_in: StandIn) -> None:
    """That of the CPU knows none of the TPU's options."""
    made = pallas_debug.compile(stand_in.function, poison_vmem=True)
    with pytest.raises(CannotRunError) as caught:
        made(jnp.ones((8, 128)))
    assert str(caught.value) == (
        f"the switch 'poison_vmem' is not supported: libtpu {versions.installed()['libtpu']} does "
        "not know xla_jf_poison_vmem_allocations. Remove the switch, or use another libtpu."
    )


def test_other_errors_are_the_functions_own(stand_in: StandIn) -> None:
    def failing(x: Any) -> Any:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        pallas_debug.compile(failing)(jnp.ones(8))


FOR_A_STAND_IN = """
import jax, jax.numpy as jnp, pallas_debug
from jax.experimental import pallas as pl, topologies
from jax.experimental.pallas import tpu as pltpu

def print_kernel(x_ref, o_ref):
    pl.debug_print("row {}", pl.program_id(0))
    o_ref[...] = x_ref[...]

def f(x):
    assert "6" in str(pltpu.get_tpu_info().chip_version)
    return pl.pallas_call(print_kernel, out_shape=jax.ShapeDtypeStruct((8, 128), x.dtype), grid=(1,))(x)

# A stand-in for a TPU: it compiles, and cannot run.
topology = topologies.get_topology_desc(platform="tpu", topology_name="v6e:2x2")
x = jax.ShapeDtypeStruct(
    (8, 128), jnp.float32, sharding=jax.sharding.SingleDeviceSharding(topology.devices[0])
)
sizes = [
    pallas_debug.compile(f, **kwargs).lower(x).compile().memory_analysis().generated_code_size_in_bytes
    for kwargs in ({}, {"log_recorder": True})
]
print(sizes[1] - sizes[0] > 1_000_000)
"""


@pytest.mark.slow
def test_the_executable_for_a_stand_in_has_the_recorder(run_python: Any) -> None:
    done = run_python(
        "-c", FOR_A_STAND_IN, JAX_PLATFORMS="cpu", TPU_SKIP_MDS_QUERY="1",
        ALLOW_MULTIPLE_LIBTPU_LOAD="1", TPU_LOG_DIR="disabled",
    )  # fmt: skip
    assert done.stdout == "True\n", done.stderr
