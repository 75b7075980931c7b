"""Threads of the machine: a stack of frames, one per program that is being run.

No state of a thread is on Python's stack, so it can be copied between any two steps.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine.copies import Counter
from pallas_debug.machine.memory import MemoryBuffer, Ref


@dataclass(slots=True)
class ProgramFrame:
    """A program that is being run.

    Attributes:
      position: number of the next step.
      registers: values of the registers.
      caller: step that runs it; None for a kernel's body.
      stage: part of the calling step: "branch", "condition", "body" or "scope".
      iteration: iteration of a loop, from 0.
      carry: carried values for the loop's next iteration.
      stacked: outputs of a scan so far, as a list for each.
      buffers: buffers of a scope.
    """

    program: ir.KernelProgram
    registers: list[Any]
    position: int = 0
    caller: ir.MachineStep | None = None
    stage: str = ""
    iteration: int = 0
    carry: list[Any] = field(default_factory=list)
    stacked: list[list[Any]] = field(default_factory=list)
    buffers: list[MemoryBuffer] = field(default_factory=list)

    def copied(self) -> ProgramFrame:
        other = copy.copy(self)
        other.registers = self.registers.copy()
        other.carry = self.carry.copy()
        other.stacked = [part.copy() for part in self.stacked]
        other.buffers = self.buffers.copy()
        return other


@dataclass(frozen=True, slots=True)
class Blocked:
    """A thread's pending wait: an amount in an entry of a semaphore array."""

    step: ir.MachineStep
    counter: Counter
    amount: int


@dataclass(eq=False, slots=True)
class Thread:
    """A core of a device, running a kernel.

    Attributes:
      point: current grid point.
      executed: number of steps so far.
      generator: random number generator; None until it is seeded.
      index_map_of: operand whose index map is running; empty while the kernel's body runs.
      polled: identity of the last step if it read a semaphore, and the value read.
      mesh: number of the core mesh to which it belongs.
      has_signalled: whether it has signalled the subcore barrier at which it waits.
    """

    number: int
    device: int
    core: int
    frames: list[ProgramFrame] = field(default_factory=list)
    point: tuple[int, ...] = ()
    grid: tuple[int, ...] = ()
    blocked: Blocked | None = None
    is_done: bool = False
    executed: int = 0
    generator: Any = None
    index_map_of: str = ""
    walk: Any = None
    polled: tuple[int, int] | None = None
    mesh: int = 0
    has_signalled: bool = False

    @property
    def iterations(self) -> tuple[int, ...]:
        """Iterations of the enclosing loops, outermost first."""
        return tuple(f.iteration for f in self.frames if f.stage in ("body", "condition"))

    def ref(self, place: ir.RefPlace) -> Ref:
        """Return the reference that a place of the current step names."""
        found: Ref = self.frames[-1].registers[place.ref.number]
        return found
