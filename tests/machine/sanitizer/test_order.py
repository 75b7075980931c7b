"""Races, deadlocks and semaphores left over, as the kernel machine finds them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import pytest
from broken_kernels import ALL, BrokenKernel
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from machine_runs import arrays_of, decoded

from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.machine.machine import Machine, Stopped
from pallas_debug.machine.order.findings import OrderSanitizer
from pallas_debug.model import Finding

FAULTS = (
    "DataRace",
    "Deadlock",
    "DmaNotAwaited",
    "NondeterministicResult",
    "SemaphoreLeftOver",
    "WaitSizeMismatch",
)
KERNELS = [
    kernel
    for kernel in ALL
    if kernel.fault in FAULTS and kernel.topic in ("order", "remote", "dma", "semaphores", "grid")
]
ORDERS: dict[str, dict[str, Any]] = {
    "lazy": {},
    "eager": {"eager": True},
    "backwards": {"backwards": True},
}


def sanitized(
    function: Callable[..., Any], args: Sequence[Any], **order: Any
) -> tuple[list[Finding], Stopped | None]:
    return sanitized_in(decoded(function, args), args, **order)


@functools.cache
def broken(kernel: BrokenKernel) -> Launch:
    return decoded(kernel.function, kernel.make_args())


def sanitized_in(
    call: Launch, args: Sequence[Any], **order: Any
) -> tuple[list[Finding], Stopped | None]:
    arrays = arrays_of(call, args)
    sanitizer = OrderSanitizer(call)
    machine = Machine(call, arrays, observer=sanitizer, **order)
    try:
        results = machine.run()
    except Stopped as stopped:
        return sanitizer.findings(), stopped
    return [*sanitizer.findings(), *sanitizer.compared(arrays, results)], None


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_broken_kernel(kernel: BrokenKernel, order: str) -> None:
    findings, stopped = sanitized_in(broken(kernel), kernel.make_args(), **ORDERS[order])
    finding, *others = findings
    assert not others
    assert (stopped is not None) == (finding.kind == "Deadlock")
    assert (finding.kind, finding.witness.line) == (kernel.fault, (kernel.file, kernel.line))
    assert finding.engines == ("machine",)
    wanted = kernel.machine
    if wanted is None:
        return
    assert finding.operand == wanted.operand
    assert finding.grid_point == wanted.grid_point
    assert finding.loop == wanted.loop
    if wanted.other is not None:
        assert finding.witness.other is not None
        assert wanted.other in (finding.witness.other.text or "")
    if order == "lazy":
        assert wanted.values.items() <= finding.witness.values.items()


@pytest.mark.parametrize("semantics", ["arbitrary", "parallel"])
def test_a_copy_that_another_grid_point_of_a_parallel_axis_started(semantics: Any) -> None:
    """The next block is fetched ahead: on two cores, the first wait of the second never ends."""

    def kernel(x_ref, out_ref, buffer_ref, sems):
        i = pl.program_id(0)

        def copy(j: Any) -> Any:
            slot = jax.lax.rem(j, 2)
            return pltpu.make_async_copy(
                x_ref.at[pl.ds(j * 8, 8)], buffer_ref.at[slot], sems.at[slot]
            )

        pl.when(i == 0)(lambda: copy(i).start())
        pl.when(i + 1 < pl.num_programs(0))(lambda: copy(i + 1).start())
        copy(i).wait()
        out_ref[...] = buffer_ref[jax.lax.rem(i, 2)]

    def fetched_ahead(x: jax.Array) -> jax.Array:
        return pl.pallas_call(
            kernel,
            grid=(4,),
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
            out_shape=x,
            scratch_shapes=[pltpu.VMEM((2, 8, 128), x.dtype), pltpu.SemaphoreType.DMA((2,))],
            compiler_params=pltpu.CompilerParams(dimension_semantics=(semantics,)),
        )(x)

    findings, stopped = sanitized(fetched_ahead, [np.ones((32, 128), np.float32)])
    assert stopped is None
    if semantics == "arbitrary":
        assert not findings
        return
    (finding,) = findings
    assert (finding.kind, finding.operand, finding.grid_point) == ("Deadlock", "sems[1]", (1,))
    assert finding.count == 3
    assert "was started at (0,)" in finding.message
    assert (finding.cause or "").startswith("grid dimension 0 is parallel")
    assert finding.source is not None
    assert finding.source.text == "copy(i).wait()"
