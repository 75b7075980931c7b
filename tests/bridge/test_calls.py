"""Recorded calls of kernels: which is kept, with which arrays, and run again on its own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.bridge.lowering import calls
from pallas_debug.bridge.lowering.calls import CallRecorder
from pallas_debug.bridge.programs.launch import launch, typed
from pallas_debug.machine import run
from pallas_debug.machine.sanitizer import areas
from pallas_debug.session import Options, Session


def add(x: jax.Array, y: jax.Array) -> jax.Array:
    def add(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + y_ref[...]

    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(add, out_shape=shape, input_output_aliases={0: 0})(x, y)


def recorded(function: Any, *args: Any) -> tuple[Any, CallRecorder]:
    recorder = CallRecorder()
    with Session(Options(interpret="auto"), runs=True) as session, calls.recording(recorder):
        jax.block_until_ready(function(*args))
    (captured,) = session.captures
    return captured, recorder


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int4", "bfloat16", "float8_e4m3fn", "bool", "float32"])
def test_a_call_is_made_again_with_its_arrays(dtype: str) -> None:
    x = (jnp.arange(8 * 128).reshape(8, 128) % 3).astype(dtype)
    captured, recorder = recorded(jax.jit(add, donate_argnums=0), jnp.copy(x), x)
    (operands,) = recorder.call(captured.kernel.digest)
    for array in operands:  # as before the kernel, which writes to the first
        assert array.dtype == x.dtype
        np.testing.assert_array_equal(array.astype("float32"), x.astype("float32"))
    ((out,),) = run.run(launch(captured), [operands]).results
    np.testing.assert_array_equal(out.astype("float32"), (x + x).astype("float32"))


def test_a_key_of_the_tpu_is_kept() -> None:
    def draw(key: jax.Array) -> jax.Array:
        def kernel(key_ref: Any, o_ref: Any) -> None:
            o_ref[...] = jax.random.bits(key_ref[...], (8, 128))

        return pl.pallas_call(
            kernel,
            grid=(2,),
            in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM)],
            out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
            out_shape=jax.ShapeDtypeStruct((16, 128), jnp.uint32),
        )(key)

    captured, recorder = recorded(jax.jit(draw), pltpu.to_pallas_key(jax.random.key(3)))
    (operands,) = recorder.call(captured.kernel.digest)
    assert [array.dtype for array in operands] == [np.uint32]
    decoded = launch(captured)
    arrays = [typed(decoded, operands)]
    done = run.run(decoded, arrays, observers=areas.observers(decoded, arrays))
    ((out,),) = done.results
    np.testing.assert_array_equal(out[:8], out[8:])
    assert done.findings == ()
    (hint,) = done.hints
    assert hint.kind == "same random bits"
    assert hint.source is not None
    assert hint.source.text == "o_ref[...] = jax.random.bits(key_ref[...], (8, 128))"


def test_a_kernel_that_was_not_called_has_no_calls() -> None:
    x = jnp.ones((8, 128))
    captured, recorder = recorded(
        jax.jit(lambda x: jax.lax.cond(x[0, 0] > 5, lambda: add(x, x), lambda: x)), x
    )
    assert recorder.call(captured.kernel.digest) is None
    assert recorder.left_out(captured.kernel.digest) is None


MESH = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"))
ROWS = jax.sharding.PartitionSpec(("a", "b"))


def test_the_calls_of_all_devices_are_one() -> None:
    sharded = jax.shard_map(add, mesh=MESH, in_specs=ROWS, out_specs=ROWS, check_vma=False)
    x = jnp.arange(32 * 128).reshape(32, 128)
    captured, recorder = recorded(jax.jit(sharded), x, x)
    call = recorder.call(captured.kernel.digest)
    for device, (ours, theirs) in enumerate(call):
        np.testing.assert_array_equal(ours, x[8 * device : 8 * device + 8])
        np.testing.assert_array_equal(theirs, ours)
    assert recorder.left_out(captured.kernel.digest) is None
    results = run.run(launch(captured), call).results
    np.testing.assert_array_equal(np.concatenate([out for (out,) in results]), x + x)


def test_a_call_is_kept_once_all_devices_have_made_it() -> None:
    recorder = CallRecorder(2)
    for device, number in [(0, 1), (0, 2), (1, 3), (1, 4), (0, 5)]:
        recorder.called("shifted", device, 2, (np.array(number),))
    call = recorder.call("shifted")
    assert call is not None
    assert [int(array) for (array,) in call] == [2, 4]
    assert recorder.count("shifted") == 2
    assert recorder.left_out("shifted") == "of the devices of its mesh, only 0 called it"


def test_a_kernel_whose_arrays_jax_partitions_is_not_recorded() -> None:
    x = jax.device_put(jnp.ones((16, 128)), jax.sharding.NamedSharding(MESH, ROWS))
    captured, recorder = recorded(jax.jit(add), x, x)
    assert recorder.call(captured.kernel.digest) is None
    assert recorder.left_out(captured.kernel.digest) == (
        "jax partitions its arrays among several devices, which it refuses on a TPU: call it "
        "under `shard_map`, manual in all axes of the mesh"
    )


def test_kernels_that_hand_on_semaphores_are_not_recorded() -> None:
    def copy(x_ref: Any, o_ref: Any, sem: Any) -> Any:
        return pltpu.make_async_copy(x_ref, o_ref, sem)

    def start(x_ref: Any, o_ref: Any, sem: Any) -> None:
        copy(x_ref, o_ref, sem).start()

    def done(x_ref: Any, o_ref: Any, sem: Any, _: Any) -> None:
        copy(x_ref, o_ref, sem).wait()

    memory = pl.BlockSpec(memory_space=pl.ANY)
    semaphore = pl.BlockSpec(memory_space=pltpu.SEMAPHORE)

    def both(x: jax.Array) -> jax.Array:
        like = jax.typeof(x)
        y, sem = pl.pallas_call(
            start, out_shape=(like, pltpu.SemaphoreType.DMA(())), in_specs=[memory],
            out_specs=(memory, semaphore),
        )(x)  # fmt: skip
        return pl.pallas_call(
            done, out_shape=like, in_specs=[memory, memory, semaphore], out_specs=memory,
            input_output_aliases={1: 0},
        )(x, y, sem)  # fmt: skip

    recorder = CallRecorder()
    with Session(Options(interpret="auto"), runs=True) as session, calls.recording(recorder):
        jax.block_until_ready(jax.jit(both)(jnp.ones((8, 128))))
    names = {captured.kernel.digest: captured.kernel.name for captured in session.captures}
    assert sorted(names.values()) == ["done", "start"]
    for digest in names:
        assert recorder.call(digest) is None
        assert recorder.left_out(digest) == "it passes semaphores to or from another kernel"
