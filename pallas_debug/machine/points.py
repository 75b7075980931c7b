"""Grid points that run compiled: of which kernels, and how they become part of a run.

A large grid is compiled (`bridge.programs.grids`), if its body only computes, loads and stores, no
other operand shares an array with an output, and no observer has to see each step.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pallas_debug import interrupts
from pallas_debug.bridge.programs.grids import CompiledGrid, GridState
from pallas_debug.bridge.programs.loops import BufferView, NotCompiled
from pallas_debug.machine import limit, loops
from pallas_debug.machine.grid import Window
from pallas_debug.machine.memory import MemoryBuffer, Ref
from pallas_debug.machine.threads import Thread
from pallas_debug.stepping import unwritten

if TYPE_CHECKING:
    from pallas_debug.machine.machine import Machine

Array = np.ndarray[Any, Any]

MIN_POINTS = 512
"""Minimum number of grid points that are compiled, which takes as long as interpreting these."""

FIRST_CHUNK = 16
"""Grid points of a grid's first chunk; between chunks, limits and ctrl+c are checked."""

MAX_SECONDS = 0.1
"""Seconds of a chunk after which the next one is not longer."""

MAX_FAULTY = 2
"""Grid points that may be interpreted because they cannot run compiled; then all are."""


def advance(machine: Machine, thread: Thread) -> None:
    """Run as many grid points as possible compiled; the next one is then to be interpreted."""
    walk = thread.walk
    if walk.is_interpreted:
        return
    is_short = walk.count - walk.position <= MIN_POINTS
    is_refused = machine.launch.grids.get(walk.grid, True) is None
    if is_short or is_refused or not _may_compile(machine):
        walk.is_interpreted = True
        return
    try:
        _run(machine, thread)
    except NotCompiled:
        machine.launch.grids[walk.grid] = None
    walk.num_faulty += 1
    walk.is_interpreted = walk.num_faulty >= MAX_FAULTY


def _may_compile(machine: Machine) -> bool:
    observer = machine.observer
    is_observed = observer is not None and (observer.follows_loops or observer.evaluates)
    is_compiled = machine.compiles_loops and machine.fill != "mark"
    return is_compiled and not is_observed and not machine.launch.meshes


def _run(machine: Machine, thread: Thread) -> None:
    """Run grid points up to the first that has to be interpreted.

    Raises:
      NotCompiled: none can run compiled.
    """
    walk = thread.walk
    buffers: dict[int, MemoryBuffer] = {}
    refs = [Ref(ref.current) if isinstance(ref, Window) else ref for ref in walk.refs]
    args, prefetch = loops.views(refs, buffers), loops.views(walk.prefetch, buffers)
    _require_blocks(walk.windows, args, buffers)
    program = machine.launch.grids.get(walk.grid)
    if program is None:
        slots = {number: slot for slot, number in enumerate(buffers)}
        windows = [(slots[window.current.number], window.operand) for window in walk.windows]
        program = CompiledGrid(machine.launch, walk.grid, args, windows, prefetch)
        machine.launch.grids[walk.grid] = program
    for window in walk.windows:
        if window.operand.kind == "output" and window.block is not None:
            window.write_back()
    contents = [buffer.content for buffer in buffers.values()]
    arrays = [
        _padded(window, known.padding, machine.fill)
        for window, known in zip(walk.windows, program.windows, strict=True)
    ]
    empty = [window.unwritten(machine.fill) for window in walk.windows]
    limit.require_memory(machine.launch.name, None, sum(a.nbytes for a in (*contents, *arrays)))
    blocks = [window.block for window in walk.windows]
    state = program.begin(walk.position + 1, blocks, contents, arrays)
    size = FIRST_CHUNK
    try:
        while (first := int(state.position)) < walk.count:
            stop = min(first + size, walk.count)
            begin = time.perf_counter()
            after, is_rejected = program.run(state, stop, contents, arrays, empty)
            stop = int(after.position)
            if stop == first:
                break
            if is_rejected:
                after, _ = program.run(state, stop, contents, arrays, empty)
            if time.perf_counter() - begin < MAX_SECONDS:
                size *= 2
            state = after
            machine.num_chunks += 1
            _count(machine, thread, stop)
            if is_rejected:
                break
    finally:
        if walk.position >= 0:
            _take_over(machine, thread, list(buffers.values()), program, state)


def _require_blocks(
    windows: Sequence[Window], args: Sequence[Any], buffers: Mapping[int, MemoryBuffer]
) -> None:
    """Check that the pipeline only copies blocks, and no memory has two names.

    Raises:
      NotCompiled: this is not so.
    """
    arrays = [window.array for window in windows]
    numbers = {array.number for array in arrays}
    if not all(isinstance(arg, BufferView) for arg in args):
        raise NotCompiled("a block that is accessed in place")
    if len(numbers) < len(arrays) or not numbers.isdisjoint(buffers):
        raise NotCompiled("an output that shares the array of an input")
    if any(window.spec.revisits for window in windows):
        raise NotCompiled("an output block that is read back")
    if any(not array.content.size for array in arrays):
        raise NotCompiled("an empty array")


def _padded(window: Window, padding: Sequence[tuple[int, int]], fill: str) -> Array:
    """Return the array of a window, with the unwritten memory around it that blocks may cover."""
    content = window.array.content
    if not any(map(any, padding)):
        return content
    shape = tuple(n + sum(pad) for n, pad in zip(content.shape, padding, strict=True))
    padded = unwritten.memory(shape, content.dtype, fill)
    padded[_inside(content, padding)] = content
    return padded


def _inside(content: Array, padding: Sequence[tuple[int, int]]) -> tuple[slice, ...]:
    sizes = zip(content.shape, padding, strict=True)
    return tuple(slice(low, low + n) for n, (low, _) in sizes)


def _count(machine: Machine, thread: Thread, stop: int) -> None:
    """Note that the grid points before a position have run."""
    walk, steps = thread.walk, machine.launch.body.steps
    thread.executed += (stop - 1 - max(walk.position, -1)) * len(steps)
    walk.position = stop - 1
    thread.point = walk.point(walk.position)
    interrupts.end_if_since(machine.interrupts)
    if machine.observer is not None:
        machine.observer.runs_points(thread, steps[-1])


def _take_over(
    machine: Machine, thread: Thread, buffers: Sequence[MemoryBuffer], program: CompiledGrid,
    state: GridState,
) -> None:  # fmt: skip
    """Continue from the state of a compiled grid."""
    walk = thread.walk
    for slot, content in zip(program.kept, state.kept, strict=True):
        np.copyto(buffers[slot].content, content)
    outputs = list(state.outputs)
    for window, known in zip(walk.windows, program.windows, strict=True):
        window.block = window.next_block = None
        window.block = walk.block(machine, thread, window, walk.position)
        if known.is_output:
            found = np.asarray(outputs.pop(0))[_inside(window.array.content, known.padding)]
            np.copyto(window.array.content, found)
        elif not known.is_kept:
            window.fetch(window.block, window.slot, machine.fill)
