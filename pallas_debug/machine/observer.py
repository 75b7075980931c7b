"""Events of the machine, for its observers: the sanitizer, the recording, the debugger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pallas_debug import defaults
from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine.memory import MemoryBuffer, MemoryRegion, OutOfBounds
from pallas_debug.machine.threads import Blocked, Thread

if TYPE_CHECKING:
    from pallas_debug.machine.copies import DmaCopy, SizesDiffer
    from pallas_debug.machine.grid import Window
    from pallas_debug.machine.places import NoSuchDevice


def max_iterations(loop: ir.WhileLoop) -> int:
    """Iterations after which observers stop a loop."""
    return defaults.MAX_SIMULATED_STEPS if loop.is_counted else defaults.MAX_ITERATIONS


class MachineObserver:
    """Base class: watches nothing.

    `evaluates` tells that `evaluate` is to be called for units of plain operations.
    """

    evaluates = False

    def allocated(self, buffer: MemoryBuffer, thread: Thread | None) -> None:
        """Memory begins to exist; operands have no thread."""

    def freed(self, buffer: MemoryBuffer, thread: Thread) -> None:
        """A scope ends."""

    def point_begins(self, thread: Thread) -> None:
        """The blocks of a grid point are there, and its body begins."""

    def iterates(self, thread: Thread, step: ir.MachineStep, iteration: int) -> None:
        """An iteration of a loop begins; the last frame is that of the body."""

    def skips(self, thread: Thread, step: ir.WhileLoop) -> None:
        """The condition of a loop was false from the start, so that its body does not run."""

    def index_map_iterates(self, thread: Thread, step: ir.MachineStep, iteration: int) -> None:
        """An iteration of a loop in an index map begins; of index maps, only this is observed."""

    def branches(self, thread: Thread, step: ir.Branch, chosen: int) -> None:
        """A branch is taken."""

    def loads(self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any) -> None:
        """Elements have been read."""

    def stores(
        self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any
    ) -> None:
        """Elements are about to be written; `value` has the region's shape, or broadcasts to it."""

    def evaluate(self, thread: Thread, step: ir.Compute, values: Sequence[Any]) -> Sequence[Any]:
        """Evaluate a unit of plain operations."""
        return step.evaluate(*values)

    def fetches(self, thread: Thread, window: Window, block: tuple[int, ...]) -> None:
        """The pipeline has copied a block of an operand to its window.

        `thread.point` is the grid point at whose beginning it does so; the block may be the next.
        """

    def writes_back(self, thread: Thread, window: Window, block: tuple[int, ...]) -> None:
        """The pipeline is about to copy a window to its block."""

    def copy_starts(self, thread: Thread, copy: DmaCopy) -> None:
        """A DMA has been started."""

    def copy_ends(self, copy: DmaCopy) -> None:
        """A DMA is about to be performed, and will then signal."""

    def signals(
        self,
        thread: Thread,
        step: ir.MachineStep,
        semaphore: MemoryBuffer,
        entry: tuple[Any, ...],
        amount: int,
    ) -> None:
        """A thread has raised a semaphore."""

    def waited(
        self,
        thread: Thread,
        step: ir.MachineStep,
        semaphore: MemoryBuffer,
        entry: tuple[Any, ...],
        amount: int,
    ) -> None:
        """A wait is over, and has lowered its semaphore by `amount`."""

    def reads_semaphore(
        self,
        thread: Thread,
        step: ir.MachineStep,
        semaphore: MemoryBuffer,
        entry: tuple[Any, ...],
        value: int,
    ) -> None:
        """A thread has read a semaphore without waiting."""

    def blocks(self, thread: Thread, blocked: Blocked) -> None:
        """A thread has to wait."""

    def seeds(self, thread: Thread, step: ir.Seed, numbers: Sequence[int]) -> None:
        """The core's random number generator has been seeded with these words."""

    def draws(self, thread: Thread, step: ir.RandomBits) -> None:
        """Random bits have been drawn."""

    def hints(self, thread: Thread, step: ir.Hint, value: Any) -> None:
        """The kernel claims that a number is a multiple of others."""

    def checks(self, thread: Thread, step: ir.CheckStep, values: Sequence[Any]) -> None:
        """The kernel checks a condition."""

    def prints(self, thread: Thread, step: ir.PrintStep, values: Sequence[Any]) -> None:
        """The kernel prints."""

    def leaves(self, thread: Thread, step: ir.MachineStep, error: OutOfBounds) -> None:
        """An index leaves a reference. The machine stops after this."""

    def leaves_mesh(self, thread: Thread, step: ir.MachineStep, error: NoSuchDevice) -> None:
        """A copy or signal goes to a device that is not there. The machine stops after this."""

    def sizes_differ(self, thread: Thread, step: ir.MachineStep, error: SizesDiffer) -> None:
        """The slices of a copy have different sizes. The machine stops after this."""

    def strays(self, thread: Thread, step: ir.MachineStep, error: OutOfBounds) -> None:
        """A scalar read leaves its table; the run goes on with some value."""

    def block_leaves(self, thread: Thread, window: Window, block: tuple[int, ...]) -> None:
        """An index map names a block that the array does not have. The machine stops after this."""

    def ends(self) -> None:
        """All threads have ended."""


class IndexMapObserver(MachineObserver):
    """Observes an index map while it runs: only its loops, on behalf of a kernel's observer."""

    def __init__(self, observer: MachineObserver) -> None:
        self._observer = observer

    def iterates(self, thread: Thread, step: ir.MachineStep, iteration: int) -> None:
        self._observer.index_map_iterates(thread, step, iteration)
