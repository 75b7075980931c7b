"""Interpret modes: which kernels need which, where a mode applies, and the effect of vmap."""

from __future__ import annotations

import inspect
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
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from meshes import tensorcore_mesh
from pallas_debug_kernels import BundledOperation, operations

from pallas_debug.bridge import patches, selftest
from pallas_debug.bridge.interpret import interpret
from pallas_debug.bridge.interpret import limits as interpret_limits
from pallas_debug.bridge.interpret import params as interpret_params
from pallas_debug.bridge.interpret.params import Mode
from pallas_debug.bridge.lowering import hook
from pallas_debug.errors import UsageError

X = jnp.arange(8 * 128, dtype=jnp.float32).reshape(8, 128)
OWNERS = [patches.resolve(patch.owner) for patch in patches.needed(patches.MODES)]
HAS_GPU = True
try:
    interpret_params.fields("gpu")
except UsageError:
    HAS_GPU = False


# Kernels, each with what it needs


def call(body: Callable[..., None], *args: Any, out: Any = None, **kwargs: Any) -> Any:
    out = jax.ShapeDtypeStruct(X.shape, X.dtype) if out is None else out
    return pl.pallas_call(body, out_shape=out, **kwargs)(*(args or (X,)))


ANY = pl.BlockSpec(memory_space=pl.ANY)


def remote_dma() -> Any:
    def body(x_ref: Any, o_ref: Any, sent: Any, received: Any) -> None:
        other = 1 - lax.axis_index("d")
        copy = pltpu.make_async_remote_copy(x_ref, o_ref, sent, received, device_id=(other,))
        copy.start()
        copy.wait()

    scratch = [pltpu.SemaphoreType.DMA] * 2
    return sharded(
        lambda x: call(body, x, in_specs=[ANY], out_specs=ANY, scratch_shapes=scratch),
    )


def barrier_semaphore() -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        barrier = pltpu.get_barrier_semaphore()
        pl.semaphore_signal(barrier, 1, device_id=(1 - lax.axis_index("d"),))
        pl.semaphore_wait(barrier, 1)
        o_ref[...] = x_ref[...]

    params = pltpu.CompilerParams(collective_id=0)
    return sharded(lambda x: call(body, x, compiler_params=params))


def sharded(function: Callable[..., Any]) -> Any:
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    mapped = jax.shard_map(function, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False)
    return jax.jit(mapped)(jnp.concatenate([X, X]))


def signal_to_a_core() -> Any:
    def body(x_ref: Any, o_ref: Any, semaphore: Any) -> None:
        pl.semaphore_signal(semaphore, 1, core_index=0)
        pl.semaphore_wait(semaphore, 1)
        o_ref[...] = x_ref[...]

    return call(body, scratch_shapes=[pltpu.SemaphoreType.REGULAR])


def dma_that_adds() -> Any:
    def body(x_ref: Any, o_ref: Any, semaphore: Any) -> None:
        o_ref[...] = x_ref[...]
        pltpu.async_copy(x_ref, o_ref, semaphore, add=True).wait()

    return call(body, scratch_shapes=[pltpu.SemaphoreType.DMA])


def program_id_in_a_branch() -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        @pl.when(x_ref[0, 0] == 0)
        def _() -> None:
            o_ref[...] = x_ref[...] + pl.program_id(0).astype(jnp.float32)

    return call(body, grid=(1,))


def axis_index_of_the_grid() -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + lax.axis_index("g").astype(jnp.float32)

    return call(body, grid=(("g", 1),))


def mesh_of_cores() -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        rows = pl.ds(lax.axis_index("core") * 4, 4)
        pltpu.sync_copy(x_ref.at[rows], o_ref.at[rows])

    return on_cores(body)


def signal_by_axis_of_cores() -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        barrier = pltpu.get_barrier_semaphore()
        pl.semaphore_signal(barrier, device_id={"core": 1 - lax.axis_index("core")})
        pl.semaphore_wait(barrier)

    return on_cores(body, compiler_params=pltpu.CompilerParams(collective_id=0))


def on_cores(body: Callable[..., None], *, mesh: Any = None, **options: Any) -> Any:
    out = jax.ShapeDtypeStruct(X.shape, X.dtype)
    kernel: Any = pl.kernel
    mesh = mesh or tensorcore_mesh(2)
    name = "out_type" if "out_type" in inspect.signature(kernel).parameters else "out_shape"
    return kernel(body, mesh=mesh, **{name: out}, **options)(X)


def delay() -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        pl.delay(10)
        o_ref[...] = x_ref[...]

    return call(body)


def random_bits() -> Any:
    def body(o_ref: Any) -> None:
        pltpu.prng_seed(3)
        o_ref[...] = pltpu.prng_random_bits((8, 128))

    out = jax.ShapeDtypeStruct((8, 128), jnp.int32)
    return pl.pallas_call(body, out_shape=out)()


def sparse_core_sum() -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = plsc.cumsum(x_ref[...])

    return call(body, X[0, :16], out=jax.ShapeDtypeStruct((16,), X.dtype))


def on_a_sparse_core() -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        pltpu.sync_copy(x_ref, o_ref)

    return on_cores(body, mesh=plsc.ScalarSubcoreMesh(axis_name="core", num_cores=1))


def copy_by_an_array() -> Any:
    def body(x_hbm: Any, o_ref: Any) -> None:
        rows = 7 - lax.iota(jnp.int32, 8)
        pltpu.sync_copy(x_hbm.at[rows], o_ref)

    return call(body, in_specs=[ANY])


def stateful_uniform() -> Any:
    def body(o_ref: Any) -> None:
        pltpu.prng_seed(3)
        o_ref[...] = pltpu.stateful_uniform((8, 128), jnp.float32)

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32))()


def packed() -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = pltpu.pack_elementwise([x_ref[...]] * 2, packed_dtype=jnp.bfloat16)

    return call(body, out=jax.ShapeDtypeStruct((8, 128), jnp.uint32))


def masked_load() -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = pltpu.load(x_ref, mask=jnp.ones((8, 128), bool))

    return call(body)


def bitcast_reference() -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref.bitcast(jnp.int32)[...]

    return call(body, out=jax.ShapeDtypeStruct((8, 128), jnp.int32))


def semaphore_read() -> Any:
    def body(x_ref: Any, o_ref: Any, semaphore: Any) -> None:
        pl.semaphore_signal(semaphore, 1)
        o_ref[...] = x_ref[...] + pl.semaphore_read(semaphore).astype(jnp.float32)
        pl.semaphore_wait(semaphore, 1)

    return call(body, scratch_shapes=[pltpu.SemaphoreType.REGULAR])


def plain() -> Any:
    def body(x_ref: Any, o_ref: Any, semaphore: Any) -> None:
        pltpu.async_copy(x_ref, o_ref, semaphore).wait()

    return call(body, grid=(2,), scratch_shapes=[pltpu.SemaphoreType.DMA])


def selected_reference() -> Any:
    def body(x_ref: Any, o_ref: Any, semaphore: Any) -> None:
        source = pl.select_ref(x_ref[0, 1].astype(jnp.int32), o_ref, x_ref)
        pltpu.async_copy(source, o_ref, semaphore).wait()

    return call(body, scratch_shapes=[pltpu.SemaphoreType.DMA])


def transposed_reference() -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref.transpose((1, 0))[...]

    return call(body, out=jax.ShapeDtypeStruct((128, 8), X.dtype))


def dynamic_slice() -> Any:
    def body(x_ref: Any, o_ref: Any, semaphore: Any) -> None:
        rows = pl.ds(0, x_ref[0, 4].astype(jnp.int32))
        pltpu.async_copy(x_ref.at[rows], o_ref.at[rows], semaphore).wait()

    return call(body, scratch_shapes=[pltpu.SemaphoreType.DMA])


def repeated_row() -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[pl.ds(3, 8, 0), :]

    return call(body)


def returned_semaphore() -> Any:
    def body(x_ref: Any, semaphore: Any) -> None: ...

    semaphores = pl.BlockSpec(memory_space=pltpu.SEMAPHORE)
    return call(body, out=pltpu.SemaphoreType.DMA(()), out_specs=semaphores)


KERNELS: dict[str, Callable[[], Any]] = {
    "barrier semaphores": barrier_semaphore,
    "signals to other devices and cores": signal_to_a_core,
    "DMAs that add": dma_that_adds,
    "program_id in loops and branches": program_id_in_a_branch,
    "axis index of a grid or of a mesh of cores": axis_index_of_the_grid,
    "delays": delay,
    "random bits (prng_random_bits)": random_bits,
    "stateful_uniform and keys of the TPU": stateful_uniform,
    "kernels on a SparseCore": on_a_sparse_core,
    "operations of a SparseCore": sparse_core_sum,
    "copies by an array of indices": copy_by_an_array,
    "axis of cores in a device_id": signal_by_axis_of_cores,
    "stochastic_round, pack_elementwise": packed,
    "masked loads": masked_load,
    "references that are bitcast or reshaped": bitcast_reference,
    "references chosen by select_ref": selected_reference,
    "transposed references": transposed_reference,
    "slices of dynamic size": dynamic_slice,
    "slices of stride 0": repeated_row,
    "semaphore_read, waits that do not decrement": semaphore_read,
    "semaphores that are passed between kernels": returned_semaphore,
}
LIMITS = {limit.name: limit for limit in interpret_limits.LIMITS}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("mode", ["hlo", "tpu"])
def test_the_table_of_limits_is_true_of_this_jax(name: str, mode: str) -> None:
    does = getattr(LIMITS[name], mode)

    def run() -> Any:
        with interpret.interpreting(mode):
            return jax.block_until_ready(KERNELS[name]())

    if does == "no":
        with pytest.raises(Exception):  # noqa: B017 - whatever jax makes of it
            run()
    elif does == "zeros":
        assert not np.asarray(run()).any()
    else:
        assert does in ("yes", "with pallas-debug")
        run()


def test_every_limit_that_is_a_refusal_is_put_to_the_test() -> None:
    refusals = {"no", "with pallas-debug"}
    known = {limit.name for limit in interpret_limits.LIMITS if refusals & {limit.hlo, limit.tpu}}
    assert known - {"vmap with dimension semantics"} == set(KERNELS)


NEEDS_TPU = [
    (remote_dma, "remote DMAs"),
    (barrier_semaphore, "barrier semaphores"),
    (signal_to_a_core, "signals to other devices and cores"),
    (dma_that_adds, "DMAs that add"),
    (program_id_in_a_branch, "program_id within loops and branches"),
    (axis_index_of_the_grid, "axis index of a grid or of a mesh of cores"),
    (mesh_of_cores, "axis index of a grid or of a mesh of cores"),
    (delay, "delays"),
    (random_bits, "random number generator"),
]


@pytest.mark.slow
@pytest.mark.parametrize("kernel,lacking", NEEDS_TPU)
def test_auto_runs_in_tpu_interpret_mode_what_hlo_cannot_run(
    kernel: Callable[[], Any], lacking: str
) -> None:
    chosen: list[interpret.ModeChoice] = []
    with interpret.interpreting("auto", chosen=chosen.append):
        jax.block_until_ready(kernel())
    why = f"HLO interpret mode has no {lacking}"
    assert set(chosen) == {interpret.ModeChoice(kernel="body", kind="tpu", why=why)}


@pytest.mark.parametrize("kernel", [plain, masked_load, semaphore_read, bitcast_reference])
def test_auto_runs_all_else_in_hlo_interpret_mode(kernel: Callable[[], Any]) -> None:
    chosen: list[interpret.ModeChoice] = []
    with interpret.interpreting("auto", chosen=chosen.append):
        jax.block_until_ready(kernel())
    assert chosen == []


def test_auto_leaves_a_call_to_the_interpreter_that_the_code_names() -> None:
    visited = []

    def record(token: Any, point: Any, core: Any) -> Any:
        visited.append((point, core))
        return token

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]

    with interpret.interpreting("auto"):
        named = pltpu.InterpretParams(grid_point_recorder=record)
        jax.block_until_ready(call(body, grid=(3,), interpret=named))
    assert len(visited) == 3


# A mode in force


def double(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * 2


@pytest.mark.parametrize("mode", ["hlo", "tpu", "auto"])
def test_a_call_that_was_made_before_is_interpreted(mode: str) -> None:
    made = pl.pallas_call(double, out_shape=jax.ShapeDtypeStruct(X.shape, X.dtype))
    with pytest.raises(ValueError, match="Only interpret mode is supported on CPU"):
        made(X)
    with interpret.interpreting(mode):
        np.testing.assert_array_equal(made(X), 2 * X)


def points(function: Callable[..., Any], *args: Any) -> int:
    """How many grid points TPU interpret mode visits."""
    visited = []

    def record(token: Any, point: Any, core: Any) -> Any:
        visited.append((point, core))
        return token

    params = {"grid_point_recorder": record}
    with interpret.interpreting(Mode("tpu", params)):
        jax.block_until_ready(function(*args))
    return len(visited)


def test_the_innermost_mode_holds() -> None:
    function = jax.jit(lambda x: call(double, x, grid=(1,)))
    with interpret.interpreting("auto"):
        function(X)
        assert points(function, X) == 1
        with interpret.interpreting("off"):
            with pytest.raises(ValueError, match="Only interpret mode"):
                function(X)
            with interpret.interpreting("hlo"):
                function(X)
        function(X)


def test_a_mode_holds_in_every_thread() -> None:
    results: list[Any] = []
    with interpret.interpreting("auto"):
        thread = threading.Thread(target=lambda: results.append(program_id_in_a_branch()))
        thread.start()
        thread.join()
    np.testing.assert_array_equal(results[0], X)


def test_nothing_is_left_behind() -> None:
    state = config.pallas_tpu_interpret_mode_context_manager
    before = [dict(owner) if isinstance(owner, dict) else vars(owner).copy() for owner in OWNERS]
    with interpret.interpreting("tpu"), interpret.interpreting("hlo"):
        assert state.get_global() is interpret_params.Substitute.HLO
    after = [dict(owner) if isinstance(owner, dict) else vars(owner).copy() for owner in OWNERS]
    assert after == before
    assert state.get_global() is None


def test_an_equation_keeps_the_line_of_the_call() -> None:
    with interpret.interpreting("auto"):
        jaxpr = jax.make_jaxpr(lambda x: call(double, x))(X)
    (frame, *_) = source_info_util.user_frames(jaxpr.eqns[0].source_info.traceback)
    assert frame.file_name == __file__


def test_all_this_fits_the_installed_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    find = selftest.results.__wrapped__
    assert find()["interpret modes"] is None
    monkeypatch.setattr(interpret.dispatch, "runtime_tokens", object())
    assert find()["interpret modes"] == "runtime_tokens.clear is not where it was"


def test_our_own_lowering_is_not_interpreted() -> None:
    made = pl.pallas_call(double, out_shape=jax.ShapeDtypeStruct(X.shape, X.dtype))
    with interpret.interpreting("tpu"), hook.unwatched():
        lowered = jax.jit(made).trace(X).lower(lowering_platforms=("tpu",))
    assert "tpu_custom_call" in lowered.as_text()


# vmap


class Watcher:
    """Of nothing: it is the hook that lets vmap be interpreted."""

    def lowered(self, *_: Any) -> None: ...

    def refused(self, *_: Any) -> None: ...

    def ran(self, *_: Any) -> None: ...
    def failed(self, *_: Any) -> None: ...

    def report(self, problem: Exception) -> None:
        raise problem


COLLECTIVES = ("right_permute", "all_gather")
"""They map over devices themselves, not under vmap."""

QUICK = ("matmul",)


@pytest.mark.slow
@pytest.mark.parametrize(
    "op",
    [
        # The others take about 3 s each.
        pytest.param(op, id=op.name, marks=[] if op.name in QUICK else pytest.mark.slow)
        for op in operations()
        if op.name not in COLLECTIVES
    ],
)
def test_every_operation_runs_under_vmap_in_tpu_interpret_mode(op: BundledOperation) -> None:
    spec = op.tagged("small")[0]
    samples = [spec.make_args(seed) for seed in (0, 1)]
    batched = [jnp.stack(arrays) for arrays in zip(*samples, strict=True)]
    mapped = jax.vmap(partial(op.function, **spec.kwargs))
    results = {}
    for mode in ("hlo", "tpu"):
        with interpret.interpreting(mode), hook.watching(Watcher()):
            results[mode] = jax.block_until_ready(mapped(*batched))
    for tpu, hlo in zip(*map(jax.tree.leaves, (results["tpu"], results["hlo"])), strict=True):
        tolerance = 2e-2 if tpu.dtype == jnp.bfloat16 else 1e-5
        np.testing.assert_allclose(
            np.asarray(tpu, np.float32), np.asarray(hlo, np.float32), tolerance, tolerance
        )


@pytest.mark.slow
def test_vmap_of_vmap_and_of_a_kernel_without_semantics() -> None:
    def halves(x: jax.Array, semantics: tuple[str, ...] | None) -> Any:
        block = pl.BlockSpec((4, 128), lambda i, j: (i, 0))
        params = pltpu.CompilerParams(dimension_semantics=semantics)
        return call(
            double, x, grid=(2, 1), in_specs=[block], out_specs=block, compiler_params=params
        )

    batch = jnp.stack([X, X + 1, X + 2])[None]
    with interpret.interpreting("tpu"), hook.watching(Watcher()):
        for semantics in (None, ("parallel", "arbitrary"), ("arbitrary", "arbitrary")):
            function = jax.vmap(jax.vmap(partial(halves, semantics=semantics)))
            np.testing.assert_array_equal(function(batch), 2 * batch)


# GPU


@pytest.mark.skipif(HAS_GPU, reason="this jax has Mosaic GPU")
def test_gpu_is_refused_where_there_is_none() -> None:
    with pytest.raises(
        UsageError, match=r"GPU interpret mode is not available: Mosaic GPU of jax .* cannot"
    ):
        Mode.parse("gpu")


@pytest.mark.skipif(not HAS_GPU, reason="this jax has no Mosaic GPU")
@pytest.mark.parametrize("mode", ["gpu,num_tma_threads_per_device=1", "auto"])
def test_a_kernel_in_gpu_interpret_mode(mode: str) -> None:
    from jax.experimental.pallas import mosaic_gpu as plgpu

    def add_one(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + 1.0

    kernel = plgpu.kernel(add_one, out_type=jax.ShapeDtypeStruct((128,), jnp.float32))
    chosen: list[interpret.ModeChoice] = []
    with interpret.interpreting(mode, chosen=chosen.append):
        np.testing.assert_array_equal(jax.jit(kernel)(jnp.zeros(128)), np.ones(128))
    why = "kernel `add_one` runs in GPU interpret mode: it is for a GPU (Mosaic GPU)"
    assert {choice.sentence for choice in chosen} == ({why} if mode == "auto" else set())


@pytest.mark.skipif(not HAS_GPU, reason="this jax has no Mosaic GPU")
def test_gpu_has_parameters_of_its_own() -> None:
    with pytest.raises(UsageError, match="the interpret mode 'gpu' has no parameter 'dma_exec"):
        Mode.parse("gpu,dma_execution_mode=eager")
    with pytest.raises(UsageError, match="`vector_clock_size` must be `None` for GPU"):
        Mode.parse("gpu,vector_clock_size=3")
    assert Mode.parse("gpu,detect_races").value().detect_races is True


def test_a_nan_of_an_eager_kernel_ends_under_debug_nans() -> None:
    """jax alone would jit and call the kernel again and again, to the limit of recursion."""

    def log(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.log(x_ref[...])

    with jax.debug_nans(True), interpret.interpreting("hlo"):
        for _ in range(2):
            with pytest.raises(FloatingPointError, match="encountered in pallas_call"):
                call(log, -1 - X)
        np.testing.assert_array_equal(call(log, 0 * X + 1), 0 * X)
