"""Races, deadlocks and semaphores left over, as the kernel machine finds them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest
from broken_kernels import ALL, BrokenKernel
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
