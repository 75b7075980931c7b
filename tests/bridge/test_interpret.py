"""Interpret modes: `auto` is the kernel machine, the others are jax's interpreters, untouched."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax._src import config, source_info_util
from jax.experimental import pallas as pl
from jax.experimental.pallas import pallas_call as renamed_import
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as plt
from jax.sharding import AxisType, PartitionSpec

import pallas_debug
from pallas_debug.bridge import patches
from pallas_debug.bridge.interpret import interpret
from pallas_debug.bridge.interpret import params as interpret_params
from pallas_debug.bridge.interpret.params import Mode
from pallas_debug.bridge.lowering import hook
from pallas_debug.errors import UsageError

X = jnp.arange(8 * 128, dtype=jnp.float32).reshape(8, 128)
ANY = pl.BlockSpec(memory_space=pl.ANY)
HAS_GPU = True
try:
    interpret_params.fields("gpu")
except UsageError:
    HAS_GPU = False
has_no_gpu = pytest.mark.skipif(not HAS_GPU, reason="this jax has no Mosaic GPU")


def call(body: Callable[..., None], *args: Any, out: Any = None, **kwargs: Any) -> Any:
    out = jax.ShapeDtypeStruct(X.shape, X.dtype) if out is None else out
    return pl.pallas_call(body, out_shape=out, **kwargs)(*(args or (X,)))


def double(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * 2


def branch(x_ref: Any, o_ref: Any) -> None:
    """HLO interpret mode has no `program_id` in a branch, and TPU mode no random bits."""
    pltpu.prng_seed(3)

    @pl.when(pltpu.prng_random_bits((8, 128))[0, 0] != 0)
    def _() -> None:
        o_ref[...] = x_ref[...] * (2 + pl.program_id(0).astype(jnp.float32))


def beyond(start_ref: Any, x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[pl.ds(start_ref[0], 8), :]


@jax.jit
def rows(start: Any) -> Any:
    """Eight rows of sixteen; out of bounds from a start above 8."""
    return call(beyond, jnp.array([start]), jnp.concatenate([X, X]), name="rows")


# `auto` is the machine.


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels that the machine runs."""
    from pallas_debug.machine import run as machine_run

    names: list[str] = []
    run = machine_run.run

    def note(launch: Any, *args: Any, **kwargs: Any) -> Any:
        names.append(launch.name)
        return run(launch, *args, **kwargs)

    monkeypatch.setattr(machine_run, "run", note)
    return names


def sharded(x: Any) -> Any:
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    spec = PartitionSpec("d")
    one = partial(call, double)
    return jax.shard_map(one, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(x)


@jax.custom_vjp
def differentiable(x: Any) -> Any:
    return call(double, x)


differentiable.defvjp(
    lambda x: (differentiable(x), None), lambda _, g: (call(double, g, name="backward"),)
)
gradient = jax.grad(lambda x: (differentiable(x) ** 2).sum())

PROGRAMS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "eager": (partial(call, double), 2 * X),
    "jit": (jax.jit(partial(call, double)), 2 * X),
    "in the code": (partial(call, double, interpret=True), 2 * X),
    "what no interpreter of jax runs": (partial(call, branch, grid=(1,)), 2 * X),
    "vmap": (lambda x: jax.vmap(partial(call, double))(x[None])[0], 2 * X),
    "jit in jit": (jax.jit(lambda x: jax.jit(partial(call, double))(x) + 1), 2 * X + 1),
    "renamed": (renamed_import(double, out_shape=jax.typeof(X)), 2 * X),
    "grad": (gradient, 8 * X),
    "jit of grad": (jax.jit(gradient), 8 * X),
    "checkpoint": (
        jax.grad(lambda x: (jax.checkpoint(differentiable)(x) ** 2).sum()),
        8 * X,
    ),
    "cond": (lambda x: lax.cond(x[0, 1] > 0, partial(call, double), lambda y: y, x), 2 * X),
    "scan": (lambda x: lax.scan(lambda c, _: (call(double, c), None), x, length=3)[0], 8 * X),
    "shard_map": (lambda x: sharded(jnp.concatenate([x, x]))[:8], 2 * X),
    "Triton": (partial(call, double, compiler_params=plt.CompilerParams()), 2 * X),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_auto_is_the_machine(name: str, ran: list[str]) -> None:
    function, expected = PROGRAMS[name]
    with pallas_debug.interpret() as session:
        np.testing.assert_array_equal(function(X), expected)
    kernel = "branch" if name.startswith("what") else "double"
    backward = ["backward"] if "grad" in name or name == "checkpoint" else []
    assert sorted(kernel.name for kernel in session.kernels) == [*backward, kernel]
    assert session.problems == []
    assert set(ran) == {*backward, kernel}


def test_auto_leaves_a_call_to_the_interpreter_that_the_code_names(ran: list[str]) -> None:
    visited = []

    def record(token: Any, point: Any, core: Any) -> Any:
        visited.append((point, core))
        return token

    with pallas_debug.interpret():
        named = pltpu.InterpretParams(grid_point_recorder=record)
        jax.block_until_ready(call(double, grid=(3,), interpret=named))
    assert len(visited) == 3
    assert not ran


@has_no_gpu
def test_a_kernel_of_mosaic_gpu(ran: list[str]) -> None:
    from jax.experimental.pallas import mosaic_gpu as plgpu

    def add_one(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + 1.0

    kernel = plgpu.kernel(add_one, out_type=jax.ShapeDtypeStruct((128,), jnp.float32))
    with pallas_debug.interpret("gpu,num_tma_threads_per_device=1"):
        np.testing.assert_array_equal(jax.jit(kernel)(jnp.zeros(128)), np.ones(128))
    assert not ran


# jax's interpreters.


def points(function: Callable[..., Any], *args: Any) -> int:
    """Number of grid points that TPU interpret mode visits."""
    visited = []

    def record(token: Any, point: Any, core: Any) -> Any:
        visited.append((point, core))
        return token

    with pallas_debug.interpret("tpu", grid_point_recorder=record):
        jax.block_until_ready(function(*args))
    return len(visited)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["hlo", "tpu", "tpu,detect_races"])
def test_a_call_that_was_made_before_is_interpreted(mode: str, ran: list[str]) -> None:
    made = pl.pallas_call(double, out_shape=jax.ShapeDtypeStruct(X.shape, X.dtype))
    with pytest.raises(ValueError, match="Only interpret mode is supported on CPU"):
        made(X)
    with pallas_debug.interpret(mode):
        np.testing.assert_array_equal(made(X), 2 * X)
        np.testing.assert_array_equal(jax.jit(made)(X), 2 * X)
    assert not ran


def test_jax_reports_the_races_that_it_finds(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def early(x_ref: Any, o_ref: Any, buf: Any, sem: Any) -> None:
        copy = pltpu.make_async_copy(x_ref, buf, sem)
        copy.start()
        o_ref[...] = buf[...]
        copy.wait()

    scratch = [pltpu.VMEM((8, 128), X.dtype), pltpu.SemaphoreType.DMA]
    on_race = {"on_race": "warn"} if hasattr(pltpu.InterpretParams(), "on_race") else {}
    with pallas_debug.interpret("tpu,detect_races,dma_execution_mode=eager", **on_race) as session:
        call(early, in_specs=[ANY], scratch_shapes=scratch).block_until_ready()
    assert "RACE DETECTED" in "".join([*capfd.readouterr(), caplog.text])
    assert session.observer.findings == ()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["tpu", "tpu,detect_races", "tpu,num_cores_or_threads=2"])
def test_state_is_reset_after_an_exception(mode: str) -> None:
    decorated = pallas_debug.interpret(mode)(rows)
    for _ in range(2):
        with pytest.raises(jax.errors.JaxRuntimeError, match="Out-of-bounds read"):
            decorated(12)
        np.testing.assert_array_equal(decorated(8), X)


@pytest.mark.slow
def test_an_exception_of_the_program_resets_too() -> None:
    @pallas_debug.interpret("tpu")
    def failing() -> None:
        rows(8)
        raise KeyError("of the program")

    with pytest.raises(KeyError):
        failing()
    with pallas_debug.interpret("tpu"):
        np.testing.assert_array_equal(rows(8), X)


@pytest.mark.skipif(HAS_GPU, reason="this jax has Mosaic GPU")
def test_gpu_is_refused_where_there_is_none() -> None:
    with pytest.raises(
        UsageError, match=r"GPU interpret mode is not available: Mosaic GPU of jax .* cannot"
    ):
        Mode.parse("gpu")


@has_no_gpu
def test_gpu_has_parameters_of_its_own() -> None:
    with pytest.raises(UsageError, match="the interpret mode 'gpu' has no parameter 'dma_exec"):
        Mode.parse("gpu,dma_execution_mode=eager")
    with pytest.raises(UsageError, match="`vector_clock_size` must be `None` for GPU"):
        Mode.parse("gpu,vector_clock_size=3")
    assert Mode.parse("gpu,detect_races").value().detect_races is True


# A mode in force.


def test_the_innermost_mode_applies() -> None:
    function = jax.jit(lambda x: call(double, x, grid=(1,)))
    with pallas_debug.interpret():
        function(X)
        assert points(function, X) == 1
        with pallas_debug.interpret("off"):
            with pytest.raises(ValueError, match="Only interpret mode"):
                function(X)
            with pallas_debug.interpret("hlo"):
                function(X)
        function(X)


def test_a_mode_applies_in_every_thread(ran: list[str]) -> None:
    results: list[Any] = []
    with pallas_debug.interpret():
        thread = threading.Thread(target=lambda: results.append(call(double)))
        thread.start()
        thread.join()
    np.testing.assert_array_equal(results[0], 2 * X)
    assert ran


def test_nothing_is_left_behind() -> None:
    owners = [patches.resolve(patch.owner) for patch in patches.needed(patches.MODES)]
    state = config.pallas_tpu_interpret_mode_context_manager

    def now() -> list[dict[Any, Any]]:
        return [dict(o) if isinstance(o, dict) else vars(o).copy() for o in owners]

    before = now()
    with interpret.interpreting("tpu"), interpret.interpreting("hlo"):
        assert state.get_global() is interpret_params.ChosenMode.HLO
    assert now() == before
    assert state.get_global() is None


def test_an_equation_keeps_the_line_of_the_call() -> None:
    with interpret.interpreting("auto"):
        jaxpr = jax.make_jaxpr(lambda x: call(double, x))(X)
    (frame, *_) = source_info_util.user_frames(jaxpr.eqns[0].source_info.traceback)
    assert frame.file_name == __file__


def test_our_own_lowering_is_not_interpreted() -> None:
    made = pl.pallas_call(double, out_shape=jax.ShapeDtypeStruct(X.shape, X.dtype))
    with interpret.interpreting("tpu"), hook.unwatched():
        lowered = jax.jit(made).trace(X).lower(lowering_platforms=("tpu",))
    assert "tpu_custom_call" in lowered.as_text()
