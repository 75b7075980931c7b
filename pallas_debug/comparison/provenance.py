"""Origin of a wrong element of a kernel's output, found by running the kernel on the machine."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from pallas_debug.bridge.hosted.client import evaluating
from pallas_debug.bridge.programs.launch import Launch, arrays, launch
from pallas_debug.bridge.walk import evaluate
from pallas_debug.bridge.walk.evaluate import CalledKernel
from pallas_debug.bridge.walk.origins import KernelOrigin
from pallas_debug.comparison import writes
from pallas_debug.comparison.judged import Judged
from pallas_debug.comparison.writes import (
    LoadedMemory,
    OutOfTime,
    StoredElement,
    Write,
    WriteObserver,
)
from pallas_debug.errors import MachineError
from pallas_debug.findings.wording.stored import Contribution, Contributions, StoreHistory
from pallas_debug.machine.machine import Machine, Stopped
from pallas_debug.machine.observer import MachineObserver

SECONDS = 30.0
"""Time limit in seconds for a run on the machine that looks for the writes to an element."""

Point = tuple[int, ...]


class NotWatched(Exception):
    """The run cannot be watched; the message is the reason, as the end of a sentence."""


def history(judged: Judged, origin: KernelOrigin, elements: Sequence[Point]) -> StoreHistory:
    """Find the writes that produced an element of a kernel's output.

    Args:
      elements: the element, and other elements to compare with it.

    Raises:
      NotWatched: the machine cannot run the kernel, or not in time.
    """
    assert origin.captured is not None
    position = _position(origin)
    deadline = time.monotonic() + SECONDS
    observer = WriteObserver(position, elements, deadline)
    try:
        _run(judged, origin.path, observer, deadline)
    except OutOfTime as error:
        raise NotWatched(f"a run on the kernel machine takes more than {SECONDS:g} s") from error
    except MachineError as error:
        raise NotWatched(str(error)) from error
    except Stopped as error:
        raise NotWatched(f"the kernel machine stops at a fault: {error.reason}") from error
    stored = observer.stored()
    first, *others = (stored[element] for element in observer.elements)
    name = origin.captured.kernel.of_kind("output")[origin.output].name
    return _facts(name, first, others)


def _position(origin: KernelOrigin) -> int:
    assert origin.captured is not None
    operands = [o for o in origin.captured.kernel.operands if o.kind != "dynamic_grid"]
    outputs = [i for i, operand in enumerate(operands) if operand.kind == "output"]
    return outputs[origin.output]


class _Deadline(MachineObserver):
    def __init__(self, deadline: float) -> None:
        self._deadline = deadline

    def point_begins(self, thread: Any) -> None:
        if time.monotonic() > self._deadline:
            raise OutOfTime


def _run(judged: Judged, path: Point, observer: WriteObserver, deadline: float) -> None:
    """Run a function up to the end of the kernel that is called at this path."""
    program = evaluate.trace(judged.function, judged.args, judged.kwargs, judged.target)
    calls = program.calls()
    results: Any = None
    while True:
        try:
            called = calls.send(results)
        except StopIteration as error:
            raise NotWatched("the function did not call its kernel again") from error
        is_last = called.path == path
        machine = machine_of(called, observer if is_last else _Deadline(deadline))
        with evaluating(enable_x64=machine.launch.enable_x64):
            (results,) = machine.run()
        if is_last:
            calls.close()
            return


def machine_of(called: CalledKernel, observer: MachineObserver | None) -> Machine:
    """The machine for a call.

    Raises:
      MachineError: it cannot run the kernel.
    """
    decoded = decoded_launch(called)
    return Machine(decoded, [arrays(called.operands)], observer=observer, stray="nearest")


def decoded_launch(called: CalledKernel) -> Launch:
    """A kernel's call, decoded.

    Raises:
      MachineError: the machine cannot run it, or not on one device.
    """
    name = called.captured.kernel.name
    if called.captured.kernel.mesh:
        raise MachineError(f"kernel `{name}` runs on several devices")
    try:
        return launch(called.captured)
    except (NotImplementedError, AssertionError) as error:
        message = str(error) or type(error).__name__
        raise MachineError(
            f"the kernel machine does not cover kernel `{name}`: {message}"
        ) from error


def _facts(output: str, first: StoredElement, others: Sequence[StoredElement]) -> StoreHistory:
    if not first.writes:
        return StoreHistory(output=output, status="not again" if first.before else "never")
    store = first.writes[-1]
    is_copy = _is_copy(store)
    behind = [
        _contributions(load, store, first)
        for load in sorted(store.sources, key=lambda load: load.buffer.number)
        if load.writes or is_copy
    ]
    lines = [other.writes[-1].step.site.line if other.writes else None for other in others]
    return StoreHistory(
        output=output,
        writes=_joined(_contribution(write, first.block) for write in first.writes),
        iterations=store.iterations,
        sources=tuple(sorted(behind, key=lambda source: source.carried is None)),
        others=len(others),
        alike=lines.count(store.step.site.line),
    )


def _contribution(write: Write, block: Any) -> Contribution:
    return Contribution(
        line=write.step.site.line,
        first=write.first,
        last=write.last,
        points=write.points,
        count=write.count,
        updates=write.updates,
        of_other_block=block is not None and write.blocks[0] != block,
        since=write.since,
        is_copy=_is_copy(write),
        origin=write.origin,
    )


def _contributions(load: LoadedMemory, store: Write, first: StoredElement) -> Contributions:
    behind = writes.behind(load, store, first.place)
    made = [_contribution(write, first.block) for write in behind]
    is_kept = any(
        one.of_other_block and not writes.is_overwritten(write, behind[i + 1 :])
        for i, (write, one) in enumerate(zip(behind, made, strict=True))
    )
    is_new = any(not one.of_other_block for one in made)
    is_mixed = is_kept and is_new and not any(one.updates for one in made)
    return Contributions(buffer=load.buffer.name, writes=_joined(made), is_mixed=is_mixed)


def _joined(each: Iterable[Contribution]) -> tuple[Contribution, ...]:
    """Merge contributions of the same line to several places."""
    found: list[Contribution] = []
    for one in each:
        last = found[-1] if found else None
        is_again = (
            last is not None and one.updates and (last.first, last.last) == (one.first, one.last)
        )  # as in an unrolled Python loop, where the line occurs several times
        if last is None or not _is_alike(last, one) or (one.updates and not is_again):
            found.append(one)
            continue
        if is_again:
            found[-1] = replace(last, count=last.count + one.count)
            continue
        points = last.points + one.points - (last.last == one.first)
        count = last.count + one.count
        found[-1] = replace(last, last=one.last, points=points, count=count, origin=one.origin)
    return tuple(found)


def _is_alike(a: Contribution, b: Contribution) -> bool:
    return (a.line, a.updates, a.of_other_block, a.is_copy) == (
        *(b.line, b.updates, b.of_other_block, b.is_copy),
    )


def _is_copy(write: Write) -> bool:
    return hasattr(write.step, "source")
