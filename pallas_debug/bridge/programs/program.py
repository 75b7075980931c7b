"""Instruction set of the kernel machine: a kernel as data, without jax's types.

A `Program` is straight-line: registers, and steps that read and write them. Control flow is a step
that contains programs. Registers hold arrays (numpy's or jax's) and `Ref`s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np

from pallas_debug.model import SourceLine

Dtype = np.dtype[Any]
Space = Literal["hbm", "gmem", "vmem", "smem", "semaphore", "shared"]
"""Memory space: "gmem" is the global memory of a GPU, "shared" that of a SparseCore."""

OF_ARRAYS: frozenset[Space] = frozenset({"hbm", "gmem"})
"""Memory spaces of whole arrays, which all cores share."""

KEY: Dtype = np.dtype([("words", np.uint32, (1, 2))])
"""A key of the TPU's random number generator."""


@dataclass(frozen=True, slots=True)
class Reg:
    """Number of a register."""

    number: int


Number = Reg | int
"""A scalar: a register, or a constant."""


@dataclass(frozen=True, slots=True)
class StepSite:
    """Place of a step in the user's code.

    Attributes:
      primitive: jax's name of the operation.
      line: innermost line outside jax; None if jax kept none.
      calls: lines of the calls that lead to it within the kernel, outermost first.
    """

    primitive: str
    line: SourceLine | None
    calls: tuple[SourceLine, ...] = ()


@dataclass(frozen=True, slots=True)
class RefType:
    """Type of a buffer: an operand, a scratch buffer or a semaphore array.

    Attributes:
      semaphore: "regular", "dma" or "barrier"; None for a buffer of values.
    """

    shape: tuple[int, ...]
    dtype: Dtype
    space: Space
    semaphore: str | None = None


# Views


@dataclass(frozen=True, slots=True)
class Slice:
    """`size` elements from `start` on, every `stride`th."""

    start: Number
    size: Number
    stride: int = 1


@dataclass(frozen=True, slots=True)
class RowChoice:
    """Positions in an array, or in referenced memory, except those with a given value."""

    positions: Reg
    ignored: int


@dataclass(frozen=True, slots=True)
class Index:
    """An indexer: for each dimension a slice, or a position, which drops the dimension.

    A position may be an array, or a reference to an array, which is read when it is used.
    """

    entries: tuple[Slice | RowChoice | Number, ...]


@dataclass(frozen=True, slots=True)
class Recast:
    """A reshaped, bitcast or transposed view, in jax's terms; opaque to the machine."""

    transform: Any


View = tuple[Index | Recast, ...]


@dataclass(frozen=True, slots=True)
class RefPlace:
    """A view of a reference: what a step accesses.

    Attributes:
      located: the machine's cache of the elements that a constant view selects.
    """

    ref: Reg
    view: View = ()
    located: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def is_constant(self) -> bool:
        """True if the view refers to no register."""
        known: bool | None = self.located.get("is_constant")
        if known is None:
            known = all(
                isinstance(entry, int)
                or (isinstance(entry, Slice) and type(entry.start) is type(entry.size) is int)
                for part in self.view
                for entry in (part.entries if isinstance(part, Index) else (None,))
            )
            self.located["is_constant"] = known
        return known


# Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineStep:
    site: StepSite


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute(MachineStep):
    """A unit of plain operations.

    Attributes:
      evaluate: takes values of `inputs`, returns those of `outputs`.
      unit: its equations, opaque to the machine; `bridge.programs` evaluates them one by one.
    """

    inputs: tuple[Reg, ...]
    outputs: tuple[Reg, ...]
    evaluate: Callable[..., Sequence[Any]]
    unit: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadStep(MachineStep):
    """Read a view; the result is `other` (zeros by default) where `mask` is false."""

    place: RefPlace
    output: Reg
    mask: Reg | None = None
    other: Reg | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStep(MachineStep):
    """Write to a view, where `mask` is true.

    Attributes:
      output: register for the previous value; None if nothing uses it.
      adds: whether the value is added to the current contents.
    """

    place: RefPlace
    value: Reg
    output: Reg | None = None
    mask: Reg | None = None
    adds: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AtomicStep(MachineStep):
    """Update the elements of a view, where `mask` is true, each in one indivisible step.

    Attributes:
      values: operands of the update; each has the shape of the view, or is a scalar.
      update: takes previous elements and `values`; returns the new elements.
      output: register for the previous elements; None if nothing uses it.
    """

    place: RefPlace
    values: tuple[Reg, ...]
    update: Callable[..., Any]
    output: Reg | None = None
    mask: Reg | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch(MachineStep):
    """Run one of several programs, chosen by `index`, clamped to their number."""

    index: Reg
    branches: tuple[KernelProgram, ...]
    inputs: tuple[Reg, ...]
    outputs: tuple[Reg, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhileLoop(MachineStep):
    """Run `body` as long as `condition` is true. Both take their constants, then the carry.

    Attributes:
      constants: those of the body.
      of_pipeline: whether it is the loop of jax's `emit_pipeline`.
      is_counted: whether it counts up by one to a bound that it does not change.
    """

    condition: KernelProgram
    body: KernelProgram
    condition_constants: tuple[Reg, ...]
    constants: tuple[Reg, ...]
    carry: tuple[Reg, ...]
    outputs: tuple[Reg, ...]
    of_pipeline: bool = False
    is_counted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanLoop(MachineStep):
    """Run `body` `length` times on constants, carry and a slice of each of `stacked`.

    It returns the carry and a slice of each stacked output. `of_pipeline` is as in `WhileLoop`.
    """

    body: KernelProgram
    length: int
    reverse: bool
    constants: tuple[Reg, ...]
    carry: tuple[Reg, ...]
    stacked: tuple[Reg, ...]
    outputs: tuple[Reg, ...]
    of_pipeline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoped(MachineStep):
    """Run `body` with fresh buffers, which end with it."""

    body: KernelProgram
    buffers: tuple[RefType, ...]
    names: tuple[str, ...]
    inputs: tuple[Reg, ...]
    outputs: tuple[Reg, ...]
    collective: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceId:
    """A device: its number in the mesh, or its coordinates along axes.

    Attributes:
      number: logical number; None if `coordinates` are given.
      coordinates: by axis name, or by position for all axes of the mesh. A tuple of names stands
        for the combined position along these axes, of which the last changes fastest.
    """

    number: Reg | None = None
    coordinates: Mapping[str | tuple[str, ...], Reg] | tuple[Reg, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyStart(MachineStep):
    """Start a DMA.

    Attributes:
      received: semaphore that counts the bytes at the destination.
      sent: semaphore that counts the bytes at the source, for a copy to another device.
      adds: whether the copy adds to the destination.
      of_pipeline: whether jax's `emit_pipeline` makes it.
    """

    source: RefPlace
    destination: RefPlace
    received: RefPlace
    sent: RefPlace | None = None
    device: DeviceId | None = None
    adds: bool = False
    of_pipeline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyWait(MachineStep):
    """Wait until a semaphore has counted the bytes of a view."""

    source: RefPlace
    destination: RefPlace
    received: RefPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class SemaphoreSignal(MachineStep):
    place: RefPlace
    amount: Reg
    device: DeviceId | None = None
    core: Reg | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SemaphoreWait(MachineStep):
    """Wait until a semaphore has reached `amount`; then subtract it if `decrements`."""

    place: RefPlace
    amount: Reg
    decrements: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRef(MachineStep):
    """Allocate a buffer.

    Attributes:
      lasts: whether it is the same buffer throughout the run.
    """

    type: RefType
    name: str
    output: Reg
    lasts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectRef(MachineStep):
    """Select one of several references by position."""

    index: Reg
    places: tuple[RefPlace, ...]
    output: Reg


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSemaphore(MachineStep):
    place: RefPlace
    output: Reg


@dataclass(frozen=True, slots=True, kw_only=True)
class BarrierSemaphore(MachineStep):
    """The barrier semaphore of the kernel's collective id."""

    output: Reg


@dataclass(frozen=True, slots=True, kw_only=True)
class GridId(MachineStep):
    """Position of the grid point along an axis, or the size of that axis."""

    axis: int
    is_size: bool
    output: Reg


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisIndex(MachineStep):
    """Position of this device or core along a named axis, or combined along several."""

    names: tuple[str, ...]
    output: Reg


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintStep(MachineStep):
    """A message.

    Attributes:
      text: formats values of `inputs`.
    """

    text: Callable[[Sequence[Any]], str]
    inputs: tuple[Reg, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Callback(MachineStep):
    """Call a function of the host with values."""

    function: Callable[..., Any]
    inputs: tuple[Reg, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckStep(MachineStep):
    """A check of the kernel's own.

    Attributes:
      message: takes values of `inputs`; returns a description of the failure, or None.
    """

    message: Callable[[Sequence[Any]], str | None]
    inputs: tuple[Reg, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MultipleOf(MachineStep):
    """A claim that a number is a multiple of others; jax's pipeline makes such claims too."""

    value: Reg
    divisors: tuple[int, ...]
    of_pipeline: bool
    output: Reg


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed(MachineStep):
    """Seed the core's random number generator."""

    inputs: tuple[Reg, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomBits(MachineStep):
    shape: tuple[int, ...]
    output: Reg


@dataclass(frozen=True, slots=True, kw_only=True)
class SubcoreBarrier(MachineStep):
    """Wait until all subcores of the SparseCore have reached it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchAdd(MachineStep):
    """Add to an element of another subcore's memory, and return its previous value."""

    place: RefPlace
    value: Reg
    subcore: Reg
    output: Reg


@dataclass(frozen=True, slots=True)
class KernelProgram:
    """Steps over registers.

    Attributes:
      template: initial registers, including constants.
      inputs: registers of the arguments.
      outputs: registers of the results.
      names: names of registers in the user's code, if they have one.
      last_uses: by number of a step, the registers that neither a later step nor the results read.
    """

    template: tuple[Any, ...]
    inputs: tuple[Reg, ...]
    outputs: tuple[Reg, ...]
    steps: tuple[MachineStep, ...]
    names: Mapping[int, str] = field(default_factory=dict)
    last_uses: dict[int, tuple[int, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _makers: dict[int, MachineStep] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        for step in self.steps:
            for reg in results(step):
                self._makers.setdefault(reg.number, step)
        wanted = {reg.number for reg in self.outputs}
        for position in reversed(range(len(self.steps))):
            step = self.steps[position]
            mine = set(registers(step))
            # A loop reads its constants again in each iteration.
            if not inner_programs(step) and mine - wanted:
                self.last_uses[position] = tuple(mine - wanted)
            wanted |= mine

    def maker(self, number: int) -> MachineStep | None:
        """The step that sets a register; None for an argument or a constant."""
        return self._makers.get(number)

    def all(self) -> Iterator[KernelProgram]:
        """This program and the programs that its steps run, at any depth."""
        yield self
        for step in self.steps:
            for inner, _ in inner_programs(step):
                yield from inner.all()

    def all_steps(self) -> Iterator[MachineStep]:
        """The steps of all these programs."""
        return (step for program in self.all() for step in program.steps)


Loop = WhileLoop | ScanLoop


def results(step: MachineStep) -> tuple[Reg, ...]:
    """Registers that a step sets when it is done."""
    single = getattr(step, "output", None)
    return (single,) if single is not None else tuple(getattr(step, "outputs", ()))


def registers(value: Any) -> Iterator[int]:
    """Registers that a step refers to, without those of the programs that it contains."""
    if isinstance(value, Reg):
        yield value.number
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from registers(part)
    elif isinstance(value, Mapping):
        yield from registers(tuple(value.values()))
    elif isinstance(value, (MachineStep, RefPlace, Index, Slice, RowChoice, DeviceId)):
        for part in fields(value):
            if part.name not in ("site", "located"):
                yield from registers(getattr(value, part.name))


def inner_programs(step: MachineStep) -> list[tuple[KernelProgram, tuple[Reg, ...]]]:
    """Programs that a step runs, with the registers that become their first inputs."""
    match step:
        case Branch():
            return [(branch, step.inputs) for branch in step.branches]
        case WhileLoop():
            return [
                (step.condition, (*step.condition_constants, *step.carry)),
                (step.body, (*step.constants, *step.carry)),
            ]
        case ScanLoop():
            return [(step.body, (*step.constants, *step.carry, *step.stacked))]
        case Scoped():
            return [(step.body, step.inputs)]
    return []
