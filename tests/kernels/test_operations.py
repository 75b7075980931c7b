"""Every bundled kernel equals its reference in both interpret modes, and lowers for TPU."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels import Operation, Spec, operations

MODES = {"hlo": True, "tpu": pltpu.InterpretParams()}
TOLERANCES = {"float32": 1e-4, "bfloat16": 1e-2, "int32": 0.0}


def cases(*tags: str) -> list[object]:
    return [
        pytest.param(op, spec, id=f"{op.name}-{spec.name}")
        for op in operations()
        for spec in op.tagged(*tags)
    ]


@cache
def reference_output(op: Operation, spec: Spec) -> jax.Array:
    output: jax.Array = jax.jit(partial(op.reference, **spec.kwargs))(*spec.make_args(seed=0))
    return output


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("op, spec", cases("small", "edge"))
def test_equals_the_reference(op: Operation, spec: Spec, mode: str) -> None:
    args = spec.make_args(seed=0)
    try:
        with pltpu.force_tpu_interpret_mode(MODES[mode]):
            actual = op.function(*args, **spec.kwargs)
    finally:
        pltpu.reset_tpu_interpret_mode_state()
    expected = reference_output(op, spec)

    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    tolerance = TOLERANCES[expected.dtype.name]
    np.testing.assert_allclose(
        np.asarray(actual, np.float64),
        np.asarray(expected, np.float64),
        rtol=tolerance,
        atol=tolerance,
    )


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("op, spec", cases("small", "edge", "bench"))
def test_lowers_for_tpu_without_a_chip_under_a_stable_name(
    op: Operation, spec: Spec, x64: bool
) -> None:
    with jax.enable_x64(x64):
        traced = jax.jit(partial(op.function, **spec.kwargs)).trace(*spec.args)
        text = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert f'kernel_name = "{op.name}"' in text


@pytest.mark.parametrize("op", operations(), ids=lambda op: op.name)
def test_runs_under_vmap(op: Operation) -> None:
    spec = op.tagged("small")[0]
    args = spec.make_args(seed=0)
    batched = [jnp.stack([x, x]) for x in args]
    with pltpu.force_tpu_interpret_mode(True):
        actual = jax.vmap(partial(op.function, **spec.kwargs))(*batched)
    expected = op.reference(*args, **spec.kwargs)
    np.testing.assert_allclose(actual, jnp.stack([expected, expected]), rtol=1e-4, atol=1e-4)
