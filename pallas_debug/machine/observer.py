"""Machine events for observers: the sanitizer, the recorder, the debugger."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pallas_debug import defaults
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.loops import LoopChunk
from pallas_debug.machine.copies import Counter
from pallas_debug.machine.memory import MemoryBuffer, MemoryRegion, OutOfBounds
from pallas_debug.machine.threads import Blocked, Thread

if TYPE_CHECKING:
    from pallas_debug.machine.copies import DmaCopy, SizesDiffer
    from pallas_debug.machine.grid import Window
    from pallas_debug.machine.loops import ChunkAccess
    from pallas_debug.machine.places import NoSuchDevice


def max_iterations(loop: ir.WhileLoop) -> int:
    """Maximum number of iterations before observers stop a loop."""
    return defaults.MAX_SIMULATED_STEPS if loop.is_counted else defaults.MAX_ITERATIONS


class MachineObserver:
    """Base class that ignores all events.

    `evaluates` says whether to call `evaluate` for units of plain operations, and `follows_loops`
    whether each step of a loop is to be observed; if not, `runs_chunk` is called for many
    iterations at once. `is_in_part` is set if the budget ended the run: `findings` then returns
    only what the rest of the run cannot undo, and does not run the kernel again.
    """

    evaluates = False
    follows_loops = True
    is_in_part = False

    def allocated(self, buffer: MemoryBuffer, thread: Thread | None) -> None:
        """Handle an allocation; operands have no thread."""

    def freed(self, buffer: MemoryBuffer, thread: Thread) -> None:
        """Handle the end of a scope."""

    def point_begins(self, thread: Thread) -> None:
        """Handle the start of a grid point's body, once its blocks are in place."""

    def iterates(self, thread: Thread, step: ir.MachineStep, iteration: int) -> None:
        """Handle the start of a loop iteration; the last frame is the body's."""

    def accepts_chunk(self, thread: Thread, accesses: Sequence[ChunkAccess]) -> bool:
        """Return whether nothing is lost if iterations that ran compiled are not followed.

        Called only if an observer of the group evaluates. `loads` and `stores` follow, for each of
        the accesses.
        """
        return True

    def runs_chunk(self, thread: Thread, step: ir.Loop, chunk: LoopChunk) -> None:
        """Handle the end of iterations that ran compiled, of which no other event tells."""

    def skips(self, thread: Thread, step: ir.WhileLoop) -> None:
        """Handle a loop whose condition was false from the start, so that its body does not run."""

    def index_map_iterates(self, thread: Thread, step: ir.MachineStep, iteration: int) -> None:
        """Handle an iteration of a loop in an index map, the only event observed in index maps."""

    def branches(self, thread: Thread, step: ir.Branch, chosen: int) -> None:
        """Handle a branch."""

    def loads(self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any) -> None:
        """Handle a read, after it."""

    def undefined(self, thread: Thread, step: ir.MachineStep, value: Any, where: Any) -> None:
        """Handle a load on a GPU that leaves elements undefined: those of `value` at `where`."""

    def stores(
        self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any
    ) -> None:
        """Handle a write, before it; `value` has the region's shape, or broadcasts to it."""

    def evaluate(self, thread: Thread, step: ir.Compute, values: Sequence[Any]) -> Sequence[Any]:
        """Evaluate a unit of plain operations."""
        return step.evaluate(*values)

    def fetches(self, thread: Thread, window: Window, block: tuple[int, ...]) -> None:
        """Handle a copy of an operand's block to its window by the pipeline, after it.

        `thread.point` is the grid point that begins; the block may be for the next one.
        """

    def writes_back(self, thread: Thread, window: Window, block: tuple[int, ...]) -> None:
        """Handle a write-back of a window to its block by the pipeline, before it."""

    def copy_starts(self, thread: Thread, copy: DmaCopy) -> None:
        """Handle the start of a DMA, after it."""

    def copy_ends(self, copy: DmaCopy) -> None:
        """Handle the end of a DMA, before it is performed and signals."""

    def signals(self, thread: Thread, step: ir.MachineStep, counter: Counter, amount: int) -> None:
        """Handle a signal of a semaphore by a thread, after it."""

    def waited(self, thread: Thread, step: ir.MachineStep, counter: Counter, amount: int) -> None:
        """Handle the end of a wait, after it has lowered its semaphore by `amount`."""

    def reads_semaphore(
        self, thread: Thread, step: ir.MachineStep, counter: Counter, value: int
    ) -> None:
        """Handle a non-blocking read of a semaphore."""

    def blocks(self, thread: Thread, blocked: Blocked) -> None:
        """Handle a thread that has to wait."""

    def seeds(self, thread: Thread, step: ir.Seed, numbers: Sequence[int]) -> None:
        """Handle the seeding of the core's random number generator with these numbers."""

    def draws(self, thread: Thread, step: ir.RandomBits) -> None:
        """Handle a draw of random bits."""

    def multiple_of(self, thread: Thread, step: ir.MultipleOf, value: Any) -> None:
        """Handle a hint that a number is a multiple of others."""

    def checks(self, thread: Thread, step: ir.CheckStep, values: Sequence[Any]) -> None:
        """Handle a check of a condition by the kernel."""

    def prints(self, thread: Thread, step: ir.PrintStep, values: Sequence[Any]) -> None:
        """Handle a print."""

    def leaves(self, thread: Thread, step: ir.MachineStep, error: OutOfBounds) -> None:
        """Handle an index out of bounds. The machine stops after this."""

    def leaves_mesh(self, thread: Thread, step: ir.MachineStep, error: NoSuchDevice) -> None:
        """Handle a copy or signal to a nonexistent device. The machine stops after this."""

    def sizes_differ(self, thread: Thread, step: ir.MachineStep, error: SizesDiffer) -> None:
        """Handle a copy between slices of different sizes. The machine stops after this."""

    def reads_outside(self, thread: Thread, step: ir.MachineStep, error: OutOfBounds) -> None:
        """Handle a scalar read outside its table; the run continues with some value."""

    def block_leaves(self, thread: Thread, window: Window, block: tuple[int, ...]) -> None:
        """Handle an index map that returns a nonexistent block. The machine stops after this."""

    def ends(self) -> None:
        """Handle the end of all threads."""


class IndexMapObserver(MachineObserver):
    """Observes the loops of an index map, on behalf of a kernel's observer."""

    def __init__(self, observer: MachineObserver) -> None:
        self._observer = observer

    def iterates(self, thread: Thread, step: ir.MachineStep, iteration: int) -> None:
        self._observer.index_map_iterates(thread, step, iteration)


_EVENTS = tuple(
    name
    for name, value in vars(MachineObserver).items()
    if callable(value) and not name.startswith("_") and name not in ("evaluate", "accepts_chunk")
)


class ObserverGroup(MachineObserver):
    """Forwards each event to the observers that handle it, in order.

    Args:
      observers: at most one of them evaluates units of plain operations.
    """

    def __init__(self, observers: Iterable[MachineObserver]) -> None:
        self.observers: Sequence[MachineObserver] = tuple(observers)
        evaluating = [observer for observer in self.observers if observer.evaluates]
        assert len(evaluating) <= 1, "two observers evaluate"
        for observer in evaluating:
            self.evaluates = True
            self.evaluate = observer.evaluate  # type: ignore[method-assign]
        for name in _EVENTS:
            handlers = [
                getattr(observer, name)
                for observer in self.observers
                if getattr(type(observer), name) is not getattr(MachineObserver, name)
            ]
            if handlers:
                setattr(self, name, handlers[0] if len(handlers) == 1 else _all(handlers))

    @property
    def follows_loops(self) -> bool:  # type: ignore[override]
        return any(observer.follows_loops for observer in self.observers)

    def accepts_chunk(self, thread: Thread, accesses: Sequence[ChunkAccess]) -> bool:
        return all(observer.accepts_chunk(thread, accesses) for observer in self.observers)


def _all(handlers: Sequence[Callable[..., None]]) -> Callable[..., None]:
    def handle(*args: Any, **kwargs: Any) -> None:
        for handler in handlers:
            handler(*args, **kwargs)

    return handle
