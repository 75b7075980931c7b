"""Recorded calls of kernels: which are kept, with which arrays, and replayed on their own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from pallas_debug.bridge.lowering import calls, replay
from pallas_debug.bridge.lowering.calls import CallRecorder
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
    (operands,) = recorder.calls(captured.kernel.digest)
    for array in operands:  # as before the kernel, which writes to the first
        assert array.dtype == x.dtype
        np.testing.assert_array_equal(array.astype("float32"), x.astype("float32"))
    with Session(Options(interpret="tpu")):
        ((out,),) = replay.replay(captured, [operands])()
    np.testing.assert_array_equal(out.astype("float32"), (x + x).astype("float32"))


@pytest.mark.slow
def test_calls_that_differ_only_in_floats_are_kept_once() -> None:
    ones = jnp.ones((8, 128))

    def several(x: jax.Array) -> Any:
        return [add(x * n, x) for n in range(3)]

    captured, recorder = recorded(several, ones)
    assert len(recorder.calls(captured.kernel.digest)) == 1
    captured, recorder = recorded(several, ones.astype("int32"))
    digest = captured.kernel.digest
    assert [int(call[0][0, 0]) for call in recorder.calls(digest)] == [0, 1, 2]
    assert recorder.left_out(digest) is None


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = CallRecorder()
    for n in range(calls.MAX_CALLS + 2):
        recorder.record("many", [np.full(4, n)])
    assert len(recorder.calls("many")) == calls.MAX_CALLS
    assert recorder.left_out("many") == (
        "2 of 10 calls that differ in integers: the first 8 are kept"
    )
    monkeypatch.setattr(calls, "MAX_BYTES", 1 << 20)
    recorder.record("large", [np.zeros(1 << 20)])
    assert recorder.left_out("large") == (
        "1 of 1 calls that differ in integers: the arrays of all calls exceed 1 MiB"
    )


def test_a_kernel_that_was_not_called_has_no_calls() -> None:
    x = jnp.ones((8, 128))
    captured, recorder = recorded(
        jax.jit(lambda x: jax.lax.cond(x[0, 0] > 5, lambda: add(x, x), lambda: x)), x
    )
    assert recorder.calls(captured.kernel.digest) == ()
    assert recorder.left_out(captured.kernel.digest) is None


def test_a_kernel_on_several_devices_is_not_recorded() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("d",))
    spec = jax.sharding.PartitionSpec("d")
    sharded = jax.shard_map(add, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    x = jnp.ones((16, 128))
    captured, recorder = recorded(jax.jit(sharded), x, x)
    assert recorder.calls(captured.kernel.digest) == ()
    assert recorder.left_out(captured.kernel.digest) == (
        "it runs on several devices at once, and its calls cannot be replayed on their own"
    )
