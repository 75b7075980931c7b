"""Tasks of a run, each with a vector clock: threads, parallel grid points and DMAs, in two orders.

The *near* order is that of a single core, which runs its grid points one after another: it applies
to VMEM, SMEM and semaphores, which each core has for itself. The *far* order is that of HBM, which
several cores share: of grid points that differ along a parallel axis, none happens before another.
Without such axes, both orders are the same. DMAs are separate tasks in both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.machine.clocks import SHIFT, Task, Tasks
from pallas_debug.machine.copies import DmaCopy
from pallas_debug.machine.grid import Window
from pallas_debug.machine.memory import MemoryBuffer
from pallas_debug.machine.order.ledger import EventPlace
from pallas_debug.machine.threads import Thread

ParallelPoint = tuple[int, ...]
"""Coordinates of a grid point along the parallel axes."""


@dataclass(eq=False, slots=True)
class BlockVisit:
    """Visits of an output block by the grid points that share their place on the parallel axes.

    Attributes:
      point: first grid point of the visits.
      store: first store.
      is_read: whether the block is read.
      reads_first: whether it is read before they have written to it.
      changes: whether their stores change what the block holds.
      is_covered: whether one of them writes all of it.
    """

    window: Window
    block: tuple[int, ...]
    point: tuple[int, ...]
    store: EventPlace | None = None
    is_read: bool = False
    reads_first: bool = False
    changes: bool = False
    is_covered: bool = False

    @property
    def is_equal(self) -> bool:
        """True if they write what others have written, without having read any of it."""
        return self.is_covered and not (self.changes or self.reads_first)

    def read(self) -> None:
        self.is_read = True
        self.reads_first = self.reads_first or self.store is None


@dataclass(eq=False, slots=True)
class OrderedThread:
    """A thread, and its tasks in each order.

    Attributes:
      root: task from which those of parallel grid points fork; `near` if there are none.
      far: task of the current grid point, at `parallel_point`.
      of_points: tasks of parallel grid points.
      awaited: names of the semaphores that it has waited for.
      sent: DMAs to each device in each order: the epoch until they have left, and the clock before
        they arrive.
      moves: tasks of the pipeline, with the grid position at which they end.
      windows: currently visited output blocks in VMEM, by buffer number.
    """

    thread: Thread
    near: Task
    root: Task
    far: Task
    parallel_point: ParallelPoint = ()
    of_points: dict[ParallelPoint, Task] = field(default_factory=dict)
    awaited: set[str] = field(default_factory=set)
    sent: dict[tuple[bool, int], list[tuple[int, dict[int, int]]]] = field(default_factory=dict)
    moves: list[tuple[Task, int]] = field(default_factory=list)
    windows: dict[int, BlockVisit] = field(default_factory=dict)


class CopyTasks(NamedTuple):
    """Tasks of a DMA: until it has read its source, and until it has written its destination."""

    reads: Task
    writes: Task


class OrderTasks:
    """All tasks of a run.

    Attributes:
      axes: parallel axes with more than one grid point.
      is_solo: whether there is a single thread.
    """

    def __init__(self, launch: Launch, devices: int | None) -> None:
        self.axes = tuple(
            axis
            for axis, (size, is_parallel) in enumerate(
                zip(launch.grid, launch.parallel, strict=True)
            )
            if is_parallel and size != 1
        )
        self.near = Tasks()
        self.far = Tasks() if self.axes else self.near
        self.is_solo = (devices or math.prod(launch.mesh.values())) <= 1
        self.threads: dict[int, OrderedThread] = {}
        self._entries: dict[int, Task] = {}

    def thread(self, thread: Thread) -> OrderedThread:
        found = self.threads.get(thread.number)
        if found is None:
            self.is_solo = self.is_solo and not self.threads
            near = self.near.new() if thread.core else self.entry(thread.device)
            root = self.far.new() if self.axes else near
            found = self.threads[thread.number] = OrderedThread(thread, near, root, root)
        return found

    def entry(self, device: int) -> Task:
        """Return the first task of a device; tasks that follow its first time follow the entry."""
        if device not in self._entries:
            self._entries[device] = self.near.new()
        return self._entries[device]

    def entered(self, device: int) -> int:
        """Return the epoch at which a device enters the kernel."""
        return self.entry(device).number << SHIFT | 1

    def parallel_point(self, point: tuple[int, ...]) -> ParallelPoint:
        return tuple(point[axis] for axis in self.axes)

    def of_point(self, own: OrderedThread, point: tuple[int, ...]) -> Task:
        """Return the task of a grid point in the far order."""
        if not self.axes:
            return own.near
        place = self.parallel_point(point)
        if place not in own.of_points:
            own.of_points[place] = self.far.fork(own.root)
        return own.of_points[place]

    def enter(self, own: OrderedThread) -> None:
        """Begin a grid point."""
        point = own.thread.point
        own.far, own.parallel_point = self.of_point(own, point), self.parallel_point(point)
        if own.moves:
            position = own.thread.walk.position
            for task, end in own.moves:
                if end <= position:
                    own.far.join(task.release())
                    self.far.finish(task)
            own.moves = [(task, end) for task, end in own.moves if end > position]

    def move(self, own: OrderedThread, point: tuple[int, ...], end: int) -> Task:
        """Create a pipeline task beside a grid point, which ends when position `end` begins."""
        task = self.far.fork(self.of_point(own, point))
        own.moves.append((task, end))
        return task

    def of(self, own: OrderedThread, buffer: MemoryBuffer) -> Task:
        """Return the task of a core in the order that applies to a buffer."""
        return own.far if self.axes and is_far(buffer) else own.near

    def copy(self, own: OrderedThread, copy: DmaCopy) -> tuple[CopyTasks, CopyTasks]:
        """Start a DMA in both orders."""
        near = self._start(self.near, own.near, own, copy)
        return near, near if not self.axes else self._start(self.far, own.far, own, copy)

    def _start(self, tasks: Tasks, parent: Task, own: OrderedThread, copy: DmaCopy) -> CopyTasks:
        """Start a DMA in one of the orders.

        DMAs from one device to another arrive in order if the sender waits until the first has left
        before it starts the second: jax's own collectives rely on that.
        """
        reads = tasks.fork(parent)
        if copy.sent is None:
            return CopyTasks(reads, reads)
        writes = tasks.fork(reads)
        channel = own.sent.setdefault((tasks is self.far, copy.destination.buffer.device), [])
        for sent, stamp in [item for item in channel if parent.follows(item[0])]:
            writes.join(stamp)
            channel.remove((sent, stamp))
        channel.append((reads.epoch, dict(writes.clock)))
        return CopyTasks(reads, writes)

    def started(self, near: CopyTasks, far: CopyTasks) -> None:
        """Finish the tasks of a DMA that has released its semaphores."""
        for tasks, copy in ((self.near, near), (self.far, far))[: 2 if self.axes else 1]:
            for task in dict.fromkeys(copy):
                tasks.finish(task)


def is_far(buffer: MemoryBuffer) -> bool:
    """Return whether several cores share a buffer, as for operands in HBM."""
    return buffer.type.space in ir.OF_ARRAYS and buffer.kind in ("input", "output", "array")
