"""Loops that run compiled: which ones, and how a chunk of iterations becomes part of a run.

A loop is interpreted first. One that turns out to be long is compiled (`bridge.programs.loops`), if
no observer has to see each of its steps. A chunk in which an access is out of bounds, or a hint
false, is interpreted, too.

The sanitizer sees all accesses of a step in a chunk as one, of the box that they fill together. It
rejects a chunk about which there is more to know: accesses that fill no box, reads of memory that
was not written before the chunk, arithmetic whose tests fire.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pallas_debug import interrupts
from pallas_debug.bridge.programs import loops
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.loops import BufferView, CompiledLoop, NotCompiled
from pallas_debug.machine.memory import Indexed, MemoryBuffer, MemoryRegion, Ref
from pallas_debug.machine.observer import max_iterations
from pallas_debug.machine.threads import ProgramFrame, Thread

if TYPE_CHECKING:
    from pallas_debug.machine.machine import Machine

MIN_ITERATIONS = 64
"""Iterations that are interpreted before a loop is compiled, which takes about 0.1 s."""

MIN_LENGTH = 16
"""Mean number of iterations of the loops that are compiled: a call of a program takes 0.1 ms."""

MAX_VARIANTS = 4
"""Maximum number of programs per loop: each is for references with certain shapes and positions."""

MAX_FAULTY = 2
"""Chunks of a loop that may be interpreted after they ran compiled; then all of it is."""


@dataclass(eq=False)
class LoopRecord:
    """Counts of a loop in a run; equal runs therefore compile the same iterations.

    Attributes:
      iterations, entries: how often its body and the loop were interpreted.
      is_interpreted: whether it is not to be compiled.
      num_faulty: number of chunks that had to be interpreted.
    """

    step: ir.Loop
    iterations: int = 0
    entries: int = 0
    is_interpreted: bool = False
    num_faulty: int = 0

    @property
    def is_long(self) -> bool:
        """True once it has run long enough to be compiled."""
        return self.iterations >= MIN_ITERATIONS and self.iterations >= MIN_LENGTH * self.entries


def advance(
    machine: Machine,
    thread: Thread,
    frame: ProgramFrame,
    step: ir.Loop,
    carry: list[Any],
    iteration: int,
) -> tuple[list[Any], int, bool] | None:
    """Run as much of a loop as possible compiled, from an iteration on.

    Returns:
      The carry, the next iteration, and whether the loop has ended; None if nothing was run.
    """
    record = machine.loops.get(id(step))
    if record is None:
        is_interpreted = not loops.is_compilable(step)
        record = LoopRecord(step, is_interpreted=is_interpreted)
        machine.loops[id(step)] = record
    if record.is_interpreted:
        return None
    observer = machine.observer
    if not machine.compiles_loops or thread.index_map_of or machine.fill == "mark":
        return None
    if observer is not None and observer.follows_loops:
        return None
    record.iterations += 1
    record.entries += iteration == 0
    if not record.is_long:
        return None
    try:
        return _run(machine, thread, frame, record, carry, iteration)
    except NotCompiled:
        record.is_interpreted = True
        return None


def _run(
    machine: Machine,
    thread: Thread,
    frame: ProgramFrame,
    record: LoopRecord,
    carry: list[Any],
    iteration: int,
) -> tuple[list[Any], int, bool] | None:
    step = record.step
    registers = frame.registers
    constants = [registers[reg.number] for reg in step.constants]
    others = []
    if isinstance(step, ir.WhileLoop):
        others = [registers[reg.number] for reg in step.condition_constants]
    buffers: dict[int, MemoryBuffer] = {}
    own_views = views(constants, buffers)
    is_tested = machine.observer is not None and machine.observer.evaluates
    key = (
        is_tested,
        *((v.slot, v.shape, v.parts) if isinstance(v, BufferView) else None for v in own_views),
    )
    programs = machine.launch.loops.setdefault(id(step), {})
    program = programs.get(key)
    if program is None:
        if len(programs) == MAX_VARIANTS:
            return None
        program = programs[key] = CompiledLoop(step, own_views, is_tested=is_tested)
    numbers = [_identity(machine, thread, inner) for inner in loops.identities(step)]
    limit = max_iterations(step) if isinstance(step, ir.WhileLoop) else None
    first = iteration
    while True:
        if limit is not None and iteration + loops.CHUNK > limit:
            break
        contents = [buffer.content for buffer in buffers.values()]
        chunk = program.run(constants, others, carry, numbers, contents, iteration)
        is_rejected = chunk.is_rejected
        events: list[ChunkAccess] | None = []
        if is_tested and not is_rejected:
            assert machine.observer is not None
            events = _accesses(program, chunk, list(buffers.values()))
            is_rejected = events is None or not machine.observer.accepts_chunk(thread, events)
        if is_rejected:
            record.num_faulty += 1
            record.is_interpreted = record.num_faulty >= MAX_FAULTY
            break
        for access in events or ():
            access.notify(machine, thread, chunk)
        machine.num_chunks += 1
        stored = {a.slot for a in program.accesses if isinstance(a.step, ir.StoreStep)}
        for slot, buffer in enumerate(buffers.values()):
            if slot in stored:
                np.copyto(buffer.content, chunk.contents[slot])
        carry = chunk.carry
        iteration += chunk.iterations
        thread.executed += chunk.iterations * len(step.body.steps)
        interrupts.end_if_since(machine.interrupts)
        if machine.observer is not None:
            machine.observer.runs_chunk(thread, step, chunk)
        if chunk.is_done:
            return carry, iteration, True
    return None if iteration == first else (carry, iteration, False)


@dataclass(frozen=True)
class ChunkAccess:
    """All accesses of a step in a chunk.

    Attributes:
      slot: position of the buffer among those of the loop.
      region: the box that they fill together.
    """

    step: ir.LoadStep | ir.StoreStep
    slot: int
    region: MemoryRegion

    @property
    def writes(self) -> bool:
        return isinstance(self.step, ir.StoreStep)

    def notify(self, machine: Machine, thread: Thread, chunk: loops.LoopChunk) -> None:
        """Notify the observer, before the machine's memory has changed."""
        assert machine.observer is not None
        assert self.region.index is not None
        if self.writes:
            value = chunk.contents[self.slot][self.region.index]
            machine.observer.stores(thread, self.step, self.region, value)
        else:
            machine.observer.loads(thread, self.step, self.region, self.region.read())


def _accesses(
    program: CompiledLoop, chunk: loops.LoopChunk, buffers: Sequence[MemoryBuffer]
) -> list[ChunkAccess] | None:
    """Return the accesses of a chunk, by step; None if some fill no box, or are masked."""
    found = []
    for i, access in enumerate(program.accesses):
        if access.step.mask is not None:
            return None
        starts = chunk.places[:, i, : len(access.sizes)]
        if not len(starts):
            continue
        box = _box(starts, access.sizes)
        if box is None:
            return None
        buffer = buffers[access.slot]
        shape = tuple(part.stop - part.start for part in box)
        region = MemoryRegion(buffer, box, (Indexed(box),), shape)
        found.append(ChunkAccess(access.step, access.slot, region))
    return found


def _box(starts: np.ndarray[Any, Any], sizes: Sequence[int]) -> tuple[slice, ...] | None:
    """Return the box that boxes of equal sizes fill together; None if they leave gaps."""
    places = np.unique(starts, axis=0)
    box, count = [], 1
    for axis, size in enumerate(sizes):
        positions = np.unique(places[:, axis])
        if len(positions) > 1 and np.diff(positions).max() > size:
            return None
        count *= len(positions)
        box.append(slice(int(positions[0]), int(positions[-1]) + size, 1))
    return tuple(box) if count == len(places) else None


def views(values: Sequence[Any], buffers: dict[int, MemoryBuffer]) -> list[Any]:
    """Replace references by views of buffers, which are added to `buffers` by number.

    Raises:
      NotCompiled: a compiled program cannot access a reference.
    """
    return [_view(value, buffers) if isinstance(value, Ref) else value for value in values]


def _view(ref: Ref, buffers: dict[int, MemoryBuffer]) -> BufferView:
    buffer = ref.buffer
    if buffer.type.space in ("gmem", "semaphore") or buffer.content.dtype == ir.KEY:
        raise NotCompiled("memory that only steps of the machine access")
    parts: list[Any] = []
    for part in ref.view:
        if not isinstance(part, Indexed) or not all(
            isinstance(e, int) or (isinstance(e, slice) and e.step == 1) for e in part.entries
        ):
            raise NotCompiled("a view that is not a box")
        parts.append(
            tuple((e.start, e.stop - e.start) if isinstance(e, slice) else e for e in part.entries)
        )
    buffers.setdefault(buffer.number, buffer)
    slot = list(buffers).index(buffer.number)
    return BufferView(slot, buffer.content.shape, tuple(parts))


def _identity(machine: Machine, thread: Thread, step: ir.GridId | ir.AxisIndex) -> Any:
    from pallas_debug.machine import execute

    return execute.identity(machine, thread, step)
