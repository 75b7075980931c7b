"""State of a kernel run in jax's TPU interpret mode: positions, waiting threads, reporters.

The handlers of `tpu_handlers.py` update the state of a run, and `tpu_hangs.py` ends waits. Used
from jax's host callbacks, in whichever thread XLA runs them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import jax
import numpy as np
from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter
from jax._src.pallas.mosaic.interpret import utils

from pallas_debug import interrupts
from pallas_debug.bridge.active import ActiveStack
from pallas_debug.bridge.interpret.tpu_findings import Buffer, Place, Point, Range, Touch
from pallas_debug.errors import KernelFault
from pallas_debug.findings import stops as stopped
from pallas_debug.findings.collector import Collector
from pallas_debug.findings.wording import unsupported
from pallas_debug.model import Finding, SourceLine
from pallas_debug.render import finding_text

MARK = "_pallas_debug"
"""Attribute of jax's shared memory and DMA objects that contains our state, so that both are freed
together."""

SENT_BEFORE = "_pallas_debug_sent_before"
"""Attribute of a DMA object with the DMAs that arrive before it."""


class CopyObserver(Protocol):
    """Observer of copies in runs without race detection; does not fail anything."""

    def copied(self, kernel: str, mode: Literal["tpu", "machine"]) -> None:
        """Handle a kernel with copies whose accesses are not all compared."""

    def suspected(self, finding: Finding) -> None:
        """Handle a race between a copy in flight and another access."""


class Reporter:
    """One open `reporting`: its callback, the findings reported so far, and its time limits."""

    def __init__(
        self,
        report: Callable[[Finding], None],
        hang_after: float | None,
        copies: CopyObserver | None = None,
        stop_after: float | None = None,
    ) -> None:
        self.hang_after = hang_after
        self.stop_after = stop_after
        self.copies = copies
        self._report = report
        self._collector = Collector()

    def report(self, finding: Finding) -> None:
        """Report each fault once, however often and on however many devices it occurs."""
        for new in self._collector.add(finding):
            self._report(new)


reporters: ActiveStack[Reporter] = ActiveStack()
"""Open reporters, set by `tpu_interpret.reporting`."""

stops = 0
"""Number of programs stopped so far."""


def report(finding: Finding) -> None:
    for reporter in reporters:
        reporter.report(finding)


class _Refusals(threading.local):
    are_reported = True


_refusals = _Refusals()


@contextlib.contextmanager
def without_refusals() -> Iterator[None]:
    """Do not report that the interpreter rejects a kernel if another interpreter can be tried."""
    before, _refusals.are_reported = _refusals.are_reported, False
    try:
        yield
    finally:
        _refusals.are_reported = before


def report_refusal(finding: Finding) -> None:
    """Report a kernel that the interpreter rejects during tracing."""
    if _refusals.are_reported:
        report(finding)


def stop(finding: Finding) -> KernelFault:
    """Report a finding, and return the exception to raise to end the program."""
    global stops
    stops += 1
    report(finding)
    return stopped.stop(finding, finding_text(finding))


@dataclass(eq=False)
class TracedAllocation:
    """A buffer or semaphore array of a traced kernel; named once the kernel takes it.

    Attributes:
      counts_bytes: whether a DMA adds its bytes to the semaphore, rather than 1.
    """

    shape: tuple[int, ...]
    dtype: str
    space: str
    name: str = "a buffer without a name"
    kind: str = "scratch"
    is_named: bool = False
    counts_bytes: bool = True

    @property
    def buffer(self) -> Buffer:
        return Buffer(
            name=self.name, shape=self.shape, dtype=self.dtype, space=self.space, kind=self.kind
        )


@dataclass(frozen=True, kw_only=True)
class IndexMap:
    """Block specification of an operand.

    Attributes:
      array: the whole array, before padding to blocks.
      from_tables: dimensions of the block that depend on scalar prefetch.
    """

    source: SourceLine | None
    array: Buffer
    block_shape: tuple[int | None, ...]
    from_tables: frozenset[int]


@dataclass(frozen=True, kw_only=True, eq=False)
class TracedKernel:
    """Facts about a kernel known at tracing."""

    name: str
    source: SourceLine | None
    maps: Mapping[str, IndexMap]
    outputs: tuple[str, ...]
    tokens: tuple[str, ...] = ()
    grid: tuple[int | None, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class CallbackSite:
    """One callback of a traced kernel.

    Attributes:
      parameters: names of the positional arguments.
      allocation: the allocation made by the callback, if any.
    """

    kernel: TracedKernel
    parameters: tuple[str, ...]
    source: SourceLine | None
    allocation: TracedAllocation | None = None

    def place(self, arguments: Mapping[str, Any], grid_point: Any, loop: Any) -> Place:
        device = int(arguments.get("device_id") or 0)
        core = arguments.get("local_core_id", arguments.get("src_local_core_id"))
        return Place(
            kernel=self.kernel.name,
            source=self.source,
            grid_point=point(grid_point),
            loop=point(loop) or (),
            thread=(device, 0 if core is None else int(core)),
        )


@dataclass(eq=False)
class Copy:
    """A DMA in flight, from the view of one of its semaphores.

    Attributes:
      is_polled: whether a wait on the semaphore has not decremented it.
    """

    place: Place
    bytes_left: int
    dma: Any = None
    counts_bytes: bool = True
    is_polled: bool = False

    def take(self, amount: int) -> int:
        """Subtract a wait's amount from the remainder, and return how much was subtracted."""
        if not self.counts_bytes:
            self.bytes_left = 0
            return 1
        taken = min(amount, self.bytes_left)
        self.bytes_left -= taken
        return taken


@dataclass(eq=False)
class Waiter:
    """A thread in `Semaphore.wait`."""

    place: Place
    semaphore: Any
    core: int
    value: int

    @property
    def is_stuck(self) -> bool:
        count = self.semaphore.count_by_core[self.core]
        return bool(count < self.value) and not self.semaphore.tasks[self.core]


@dataclass(eq=False)
class KernelRun:
    """One run of a kernel on all its devices and cores.

    Semaphores are keyed by id and global core, buffers and `flights` by device, core and id; so are
    `layouts`, arrays for which only the addresses of the elements matter. `channels` are DMAs to
    other devices that have not arrived, by sender and receiver. `calls` counts callbacks, and
    `changes` those that are not loads. `not_started` is the fault of a run that some devices never
    began.
    """

    memory: Any
    kernel: TracedKernel
    devices: set[int] = field(default_factory=set)
    buffers: dict[Point, TracedAllocation] = field(default_factory=dict)
    semaphores: dict[Point, tuple[TracedAllocation, Point]] = field(default_factory=dict)
    copies: dict[Point, deque[Copy]] = field(default_factory=dict)
    num_copies: dict[Point, int] = field(default_factory=dict)
    signals: dict[Point, Place] = field(default_factory=dict)
    waits: dict[Point, Place] = field(default_factory=dict)
    waiters: list[Waiter] = field(default_factory=list)
    touches: dict[Any, dict[object, tuple[Touch, Any]]] = field(default_factory=dict)
    races: set[object] = field(default_factory=set)
    flights: dict[Point, list[Any]] = field(default_factory=dict)
    channels: dict[Point, list[Any]] = field(default_factory=dict)
    layouts: dict[Point, np.ndarray[Any, Any]] = field(default_factory=dict)
    suspected: set[object] = field(default_factory=set)
    has_copied: bool = False
    visits: dict[object, tuple[Point, Point]] = field(default_factory=dict)
    last_block: dict[object, object] = field(default_factory=dict)
    last_progress: float = field(default_factory=time.monotonic)
    begin: tuple[float, float] = field(
        default_factory=lambda: (time.monotonic(), time.process_time())
    )
    interrupts: int = field(default_factory=interrupts.count)
    calls: int = 0
    changes: int = 0
    not_started: KernelFault | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def progress(self, *, changes: bool = False) -> None:
        self.last_progress = time.monotonic()
        self.changes += changes

    def core(self, device: int, core: int) -> int:
        return int(self.memory.get_global_core_id(device, core))

    def buffer(self, device: int, core: int, identity: int) -> Buffer | None:
        allocation = self.buffers.get((device, core, identity))
        return None if allocation is None else allocation.buffer

    def semaphore(self, identity: int, core: int) -> str:
        known = self.semaphores.get((identity, core))
        if known is None:
            return "the barrier semaphore"
        allocation, index = known
        return f"{allocation.name}[{', '.join(map(str, index))}]" if index else allocation.name

    def counts_bytes(self, identity: int, core: int) -> bool:
        known = self.semaphores.get((identity, core))
        return known is None or known[0].counts_bytes

    def sent_before(self, dma: Any) -> tuple[Any, ...]:
        """DMAs to the same device that had left when this one was started: they arrive first.

        jax executes those on one semaphore in the reverse order, and its own collectives rely on
        this one.
        """
        key = dma.src_device_id, dma.dst_device_id
        if key[0] == key[1]:
            return ()
        with self.lock:
            left = [
                known for known in self.channels.get(key, ()) if known.state.name != "COMPLETED"
            ]
            self.channels[key] = [*left, dma]
        return tuple(one for one in left if one.state.name == "READ")

    def start(self, semaphore: int, core: int, copy: Copy) -> None:
        with self.lock:
            self.copies.setdefault((semaphore, core), deque()).append(copy)
            self.num_copies[semaphore, core] = self.num_copies.get((semaphore, core), 0) + 1

    def awaited(self, semaphore: int, core: int, size: int) -> None:
        """Attribute a wait to the oldest copies, although jax may run them in another order."""
        with self.lock:
            copies = self.copies.get((semaphore, core), deque())
            while copies and size > 0:
                size -= copies[0].take(size)
                if not copies[0].bytes_left:
                    copies.popleft()

    def polled(self, semaphore: int, core: int) -> None:
        """Record that copies on a semaphore were awaited without decrementing it."""
        with self.lock:
            for copy in self.copies.get((semaphore, core), ()):
                copy.is_polled = True


class _Here(threading.local):
    """Current activity of this thread within a callback."""

    place: Place | None = None
    waiter: Waiter | None = None
    copy: Copy | None = None
    leaving: Copy | None = None


here = _Here()


def current_run() -> KernelRun | None:
    return getattr(interpreter._shared_memory, MARK, None)


def current_place() -> Place | None:
    return here.place


@contextlib.contextmanager
def running(place: Place) -> Iterator[None]:
    """Attribute jax's actions in this thread to `place`."""
    before, here.place = here.place, place
    try:
        yield
    finally:
        here.place = before


def point(values: Any) -> Point | None:
    return None if values is None else tuple(int(v) for v in np.asarray(values).ravel())


def range_of(transforms: Any) -> Range | None:
    """Slice selected by jax's indexers; None if they do not select a slice."""
    try:
        range_: Range = utils.to_range(jax.tree.map(int, transforms))
    except (TypeError, ValueError, AttributeError, AssertionError, NotImplementedError):
        return None
    return range_


# Time.


def check_slow(run: KernelRun, place: Place) -> None:
    """End a run that takes too long, both of time and of the process's CPU time.

    Raises:
      KernelFault: it has taken longer than the reporters allow.
    """
    run.calls += 1
    limit = time_limit()
    if limit is None:
        return
    seconds = spent_since(run.begin)
    if min(seconds) >= limit:
        seen, grid = place.sighting(), run.kernel.grid
        raise stop(
            unsupported.too_slow(seen, "tpu", grid=grid, seconds=seconds[0], calls=run.calls)
        )


def time_limit() -> float | None:
    """Seconds of both time and CPU time after which to stop a kernel; None for no limit."""
    return min((r.stop_after for r in reporters if r.stop_after is not None), default=None)


def clocks() -> tuple[float, float]:
    """Time, and CPU time of the process."""
    return time.monotonic(), time.process_time()


def spent_since(begin: tuple[float, float]) -> tuple[float, float]:
    """Seconds of time and of CPU time since `begin`, as returned by `clocks`."""
    now = clocks()
    return now[0] - begin[0], now[1] - begin[1]
