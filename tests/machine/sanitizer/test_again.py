"""Further runs of a kernel: they compute as the first one did, by the same programs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from machine_runs import decoded

from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine import run
from pallas_debug.machine.sanitizer import areas

X = np.arange(16 * 128, dtype=np.float32).reshape(16, 128)


def masked_kernel(x_ref: Any, o_ref: Any, unwritten_ref: Any) -> None:
    row = jax.lax.broadcasted_iota(jnp.int32, x_ref.shape, 0)
    o_ref[...] = jnp.where(row < 8, x_ref[...] * 3 + 1, unwritten_ref[...])


def masked(x: jax.Array) -> jax.Array:
    """Reads scratch that nothing has written, and discards it."""
    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    return pl.pallas_call(
        masked_kernel, out_shape=jax.typeof(x), grid=(2,), in_specs=[block], out_specs=block,
        scratch_shapes=[pltpu.VMEM((8, 128), x.dtype)],
    )(x)  # fmt: skip


def test_no_unit_is_compiled_without_tests() -> None:
    launch = decoded(masked, (X,))
    observers = areas.observers(launch, [[X]])
    done = run.run(launch, [[X]], observers=observers)
    assert done.findings == ()
    np.testing.assert_array_equal(done.results[0][0], X * 3 + 1)
    (program,) = launch.programs()
    units = [step.unit for step in program.all_steps() if isinstance(step, ir.Compute)]
    assert all(unit.watched is not None for unit in units)
    assert not any("compiled" in vars(unit) for unit in units)
