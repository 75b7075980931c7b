"""Units of bounded size, values dropped after their last use, and the limit on memory."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from called import called
from jax.experimental.pallas import tpu as pltpu
from machine_runs import decoded

from pallas_debug.bridge.programs import decode
from pallas_debug.bridge.programs import program as ir
from pallas_debug.errors import MachineError
from pallas_debug.machine import limit, run
from pallas_debug.machine.machine import Machine
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.threads import Thread

TILE = np.arange(8 * 128, dtype=np.float32).reshape(8, 128)


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(limit.VARIABLE, "0.01")
    limit.limit.cache_clear()
    yield
    limit.limit.cache_clear()


@called()
def unrolled(x_ref: jax.Ref, o_ref: jax.Ref) -> None:
    value = x_ref[...]
    for i in range(400):
        value = jnp.where(value > i, value - 1, value + 1)
    o_ref[...] = value


@pytest.mark.slow
def test_straight_line_code_is_compiled_in_units_of_bounded_size() -> None:
    launch = decoded(unrolled, [TILE])
    units = [s.unit for s in launch.body.steps if isinstance(s, ir.Compute)]
    assert len(units) > 5
    assert all(len(unit.eqns) <= decode.MAX_EQUATIONS for unit in units)
    value = TILE
    for i in range(400):
        value = np.where(value > i, value - 1, value + 1)
    np.testing.assert_array_equal(run.run(launch, [[TILE]]).results[0][0], value)


@pytest.mark.slow
def test_large_values_are_dropped_after_their_last_use() -> None:
    @called(jax.ShapeDtypeStruct((16, 128), jnp.float32))
    def function(x_ref: jax.Ref, o_ref: jax.Ref) -> None:
        for i in range(16):
            o_ref[i, :] = jnp.sum(x_ref[...] * i, axis=0)

    class Held(MachineObserver):
        most = 0

        def stores(self, thread: Thread, *_: object) -> None:
            held = [r for r in thread.frames[-1].registers if getattr(r, "nbytes", 0) > 1 << 16]
            self.most = max(self.most, len(held))

    rows = np.ones((1024, 128), np.float32)
    held = Held()
    Machine(decoded(function, [rows]), [[rows]], observer=held).run()
    assert held.most <= 1


@pytest.mark.slow
def test_a_limit_on_memory_refuses_the_kernel_by_name_and_line(limited: None) -> None:
    launch = decoded(unrolled, [TILE])
    with pytest.raises(MachineError, match=r"kernel `unrolled` was stopped: the process needs"):
        run.run(launch, [[TILE]])


def test_the_line_is_named_if_a_step_exceeds_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    @called(scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32)])
    def function(x_ref: jax.Ref, o_ref: jax.Ref, s_ref: jax.Ref) -> None:
        for i in range(40):
            s_ref[...] = x_ref[...] + i
            o_ref[...] = s_ref[...]

    launch = decoded(function, [TILE])
    machine = Machine(launch, [[TILE]])
    monkeypatch.setattr(limit, "limit", lambda: 1)
    with pytest.raises(MachineError, match=r"test_limits.py:\d+   (s_ref|o_ref)\[\.\.\.\]"):
        machine.run()


@pytest.mark.slow
def test_an_operand_that_exceeds_the_limit_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = decoded(unrolled, [TILE])
    now = limit._resident()
    monkeypatch.setattr(limit, "limit", lambda: now + (64 << 20))
    huge = np.broadcast_to(TILE[0, 0], (1 << 26,)).view()
    with pytest.raises(MachineError, match=r"kernel `unrolled` was stopped: the process needs"):
        Machine(launch, [[huge]])
