"""The machine: devices with their memories, threads, and step-by-step execution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pallas_debug import interrupts
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch, LaunchOperand
from pallas_debug.errors import MachineError
from pallas_debug.machine import execute, limit, places
from pallas_debug.machine.copies import Counter, DmaCopy, SizesDiffer
from pallas_debug.machine.grid import BlockOutOfBounds, GridWalk, PlacedBlock, Window
from pallas_debug.machine.loops import LoopRecord
from pallas_debug.machine.memory import MemoryBuffer, OutOfBounds, Ref
from pallas_debug.machine.observer import IndexMapObserver, MachineObserver
from pallas_debug.machine.threads import ProgramFrame, Thread
from pallas_debug.stepping import unwritten

Array = np.ndarray[Any, Any]

STEPS_PER_CHECK = 32
"""Steps between checks of the process's memory, which take 10 microseconds."""

MIN_FORGOTTEN = 1 << 16
"""Minimum size in bytes of values that are dropped after their last use."""


class Stopped(Exception):
    """The run cannot continue because of a fault, which observers were notified of.

    Attributes:
      reason: what happened.
      thread: thread at fault; None if no thread can run.
    """

    def __init__(self, reason: str, thread: Thread | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.thread = thread


@dataclass
class Device:
    """A device's share of a call.

    Attributes:
      arrays: whole operands, by position in the kernel.
      outputs: whole arrays of the results.
      barrier: barrier semaphores of its cores; empty until one is requested.
      barriers: semaphores of the barrier between a SparseCore's subcores, by core.
      lasting: buffers allocated by `get_global`.
    """

    number: int
    coordinates: dict[str, int]
    arrays: dict[int, MemoryBuffer] = field(default_factory=dict)
    outputs: list[MemoryBuffer] = field(default_factory=list)
    barrier: tuple[MemoryBuffer, ...] = ()
    barriers: dict[int, MemoryBuffer] = field(default_factory=dict)
    lasting: dict[ir.NewRef, MemoryBuffer] = field(default_factory=dict)


class Machine:
    """A kernel on one or more devices, at a step of its run.

    Attributes:
      fill: contents of unwritten memory: "nan", "number", or "mark", a NaN that
        `stepping.unwritten` recognises.
      eager: whether DMAs are performed when they are started, instead of when they are awaited.
      backwards: whether threads, and the DMAs in flight at a wait, run in reverse order.
      buffers: allocated memory; `num_buffers` counts all buffers ever allocated.
      outside: value of a scalar read whose index is outside its table in SMEM: "nearest" for the
        element at the nearest index, "number" for another value, "zero", or "count" for a small
        number that differs from place to place; None stops the run. Kernels read such tables
        speculatively, and discard the value: `jnp.where(i >= 0, table[i], 0)`.
      outside_reads: places of such reads in order of first occurrence, and their numbers.
      calls_back: whether host callbacks are called; a second run of a call should not call them.
      compiles_loops: whether long loops may run compiled, which may round differently;
        `num_chunks` counts the times that some iterations of one did, and `loops` has a record of
        each loop, by identity of the step.
      copies: DMAs in flight, oldest first.
    """

    def __init__(
        self,
        launch: Launch,
        arrays: Sequence[Sequence[Any]],
        *,
        observer: MachineObserver | None = None,
        fill: str = "nan",
        eager: bool = False,
        backwards: bool = False,
        outside: str | None = None,
        calls_back: bool = True,
        compiles_loops: bool = True,
        first: int = 0,
    ) -> None:
        """Set up the memories.

        Args:
          arrays: arrays of the call, for each device.
          first: number of the first of these devices in the mesh.
        """
        self.launch = launch
        self.observer = observer
        self.fill = fill
        self.eager = eager
        self.backwards = backwards
        self.outside = outside
        self.outside_reads: dict[tuple[Any, ...], int] = {}
        self.interrupts = interrupts.count()
        self.calls_back = calls_back
        self.compiles_loops = compiles_loops
        self.num_chunks = 0
        self.loops: dict[int, LoopRecord] = {}
        self.first = first
        self.buffers: list[MemoryBuffer] = []
        self.num_buffers = 0
        self.copies: list[DmaCopy] = []
        self.num_copies = 0
        self.threads: list[Thread] = []
        self.devices: list[Device] = []
        for number, given in enumerate(arrays):
            self._device(number, given)

    # Set-up

    def allocate(
        self, type_: ir.RefType, name: str, kind: str, thread: Thread | None = None,
        content: Array | None = None, device: int = 0, scope: tuple[Any, ...] | None = None,
    ) -> MemoryBuffer:  # fmt: skip
        """Create a buffer.

        Args:
          scope: key that distinguishes it from all other live buffers of its device, and is equal
            on other devices; None during set-up.
        """
        if content is None:
            if type_.semaphore is not None:
                content = np.zeros(type_.shape, np.int64)
            else:
                limit.require_memory(self.launch.name, None, size_of(type_))
                content = unwritten.memory(type_.shape, type_.dtype, self.fill)
        core = 0 if thread is None else thread.core
        device = device if thread is None else thread.device
        if scope is None:
            scope = (sum(b.device == device for b in self.buffers),)
        buffer = MemoryBuffer(self.num_buffers, content, name, kind, type_, device, core, scope)
        self.num_buffers += 1
        self.buffers.append(buffer)
        if self.observer is not None:
            self.observer.allocated(buffer, thread)
        return buffer

    def free(self, buffer: MemoryBuffer, thread: Thread) -> None:
        """Free a scoped buffer once all cores that share it have left its scope."""
        buffer.users -= 1
        if buffer.users > 0:
            return
        if self.observer is not None:
            self.observer.freed(buffer, thread)
        buffer.is_freed = True
        self.buffers.remove(buffer)

    def _device(self, number: int, given: Sequence[Any]) -> None:
        launch = self.launch
        device = Device(number, self._coordinates(number))
        self.devices.append(device)
        values = [np.asarray(value) for value in given]
        sizes = iter(values)
        grid = tuple(next(sizes).item() if n is None else n for n in launch.grid)
        values = values[sum(n is None for n in launch.grid) :]
        wanted = sum(operand.kind not in ("output", "scratch") for operand in launch.operands)
        if wanted != len(values):
            raise MachineError(
                f"kernel `{launch.name}` takes {wanted} array{'s' if wanted != 1 else ''}, but "
                f"{len(values)} {'was' if len(values) == 1 else 'were'} given"
            )
        threads = self._threads(number, grid)
        refs: list[Any] = []
        own: list[dict[int, Ref]] = [{} for _ in threads]  # scratch of each core, by operand
        windows: list[Window] = []
        prefetch: list[Ref] = []
        inputs: list[MemoryBuffer] = []
        contents = iter(values)
        for operand in launch.operands:
            if operand.kind == "scratch":
                self._scratch(operand, threads, own, len(refs))
                refs.append(own[0][len(refs)])
                continue
            if operand.kind == "output":
                array = self._output(operand, inputs, number)
                device.outputs.append(array)
            else:
                array = self._input(operand, next(contents), number)
                inputs.append(array)
            device.arrays[len(refs)] = array
            if operand.block is None:
                whole = Ref(array, output=None if operand.alias is None else operand.name)
                refs.append(array.content[()] if operand.is_value else whole)
                if operand.kind == "prefetch":
                    prefetch.append(Ref(array))
            elif operand.type.space in ir.OF_ARRAYS:
                refs.append(PlacedBlock(Window(operand, array, [])))
            else:
                slots = [
                    self.allocate(operand.type, operand.name, "window", threads[0])
                    for _ in range(min(operand.block.buffers, 2))
                ]
                windows.append(Window(operand, array, slots))
                refs.append(windows[-1])
        threads[0].walk = GridWalk(grid, windows, refs, prefetch)
        for core in threads if launch.meshes else ():
            of_core = [own[core.core].get(i, ref) for i, ref in enumerate(refs)]
            at = core.core - launch.mesh_of(core.core)[1]
            core.walk = GridWalk(core.grid, [], of_core, [], position=at - 1, stop=at + 1, start=at)
            if launch.meshes[core.mesh].kind == "vector":
                type_ = ir.RefType((), np.dtype(np.int64), "semaphore", "regular")
                device.barriers[core.core] = self.allocate(
                    type_, "barrier of subcores", "scratch", core
                )
        self.threads += threads

    def _coordinates(self, number: int) -> dict[str, int]:
        """Indices of a device along the axes of the mesh."""
        mesh = self.launch.mesh
        if not mesh:
            return {}
        indices = np.unravel_index(self.first + number, tuple(mesh.values()))
        return dict(zip(mesh, map(int, indices), strict=True))

    def _threads(self, device: int, grid: tuple[int, ...]) -> list[Thread]:
        """Cores of a device that run the kernel."""
        launch, first = self.launch, len(self.threads)
        threads = []
        for core in range(sum(mesh.size for mesh in launch.meshes) or 1):
            mesh, _ = launch.mesh_of(core)
            own_grid = tuple(launch.meshes[mesh].axes.values()) if launch.meshes else grid
            threads.append(Thread(first + core, device, core, grid=own_grid, mesh=mesh))
        return threads

    def _input(self, operand: LaunchOperand, value: Array, device: int) -> MemoryBuffer:
        limit.require_memory(self.launch.name, None, value.nbytes)
        content = np.array(value, operand.type.dtype, copy=True, order="C")
        is_prefetch = operand.kind == "prefetch"
        return self.allocate(
            operand.type if is_prefetch else _in_hbm(operand), operand.name,
            "prefetch" if is_prefetch else "input", content=content, device=device,
        )  # fmt: skip

    def _output(
        self, operand: LaunchOperand, inputs: Sequence[MemoryBuffer], device: int
    ) -> MemoryBuffer:
        if operand.alias is not None:
            return inputs[operand.alias]
        return self.allocate(_in_hbm(operand), operand.name, "output", device=device)

    def _scratch(
        self, operand: LaunchOperand, threads: Sequence[Thread], own: list[dict[int, Ref]],
        position: int,
    ) -> None:  # fmt: skip
        """Allocate a scratch operand on each core that has it; give all cores references to it."""
        found: dict[int, MemoryBuffer] = {}
        shared: dict[tuple[int, int], MemoryBuffer] = {}
        for thread in threads:
            if operand.core_mesh not in (None, thread.mesh):
                continue
            group = thread.mesh, thread.core
            if operand.type.space == "shared":
                group = thread.mesh, self.sharing(thread)[0]
            if group not in shared:
                shared[group] = self.allocate(operand.type, operand.name, "scratch", thread)
            found[thread.core] = shared[group]
        for thread in threads:
            core = thread.core
            if core not in found and operand.core_mesh is not None:
                core = places.core_at(self, thread, {}, operand.core_mesh)
            own[thread.core][position] = Ref(found[core])

    def sharing(self, thread: Thread) -> range:
        """Numbers of the cores of the thread's SparseCore, or of the thread's own core."""
        _, first = self.launch.mesh_of(thread.core)
        count = self.launch.meshes[thread.mesh].num_sharing if self.launch.meshes else 1
        first += (thread.core - first) // count * count
        return range(first, first + count)

    # Running

    def run(self) -> list[list[Array]]:
        """Run to the end; return each device's results.

        Raises:
          Stopped: an index is out of bounds, or no thread can run.
        """
        with np.errstate(all="ignore"):
            while not self.is_done:
                if not self.go():
                    if self.copies:
                        self.complete(self.copies[0])
                        continue
                    raise Stopped("deadlock")
            while self.copies:
                self.complete(self.copies[0])
        places.require_claimed(self)
        if self.observer is not None:
            self.observer.ends()
        return self.results()

    @property
    def is_done(self) -> bool:
        return all(thread.is_done for thread in self.threads)

    def results(self) -> list[list[Array]]:
        return [[buffer.content for buffer in device.outputs] for device in self.devices]

    def go(self) -> bool:
        """Run each thread until it has to wait; return whether any step was executed.

        Raises:
          Interrupted: Ctrl+C was pressed, and this is not the main thread.
        """
        progress = False
        for thread in reversed(self.threads) if self.backwards else self.threads:
            while not thread.is_done and self.step(thread):
                progress = True
                interrupts.end_if_since(self.interrupts)
        return progress

    def step(self, thread: Thread) -> bool:
        """Execute one step; return False if the thread has to wait."""
        if not thread.frames:
            return self._next_point(thread)
        frame = thread.frames[-1]
        steps = frame.program.steps
        if frame.position == len(steps):
            thread.frames.pop()
            execute.returned(self, thread, frame)
            return True
        position = frame.position
        current = steps[position]
        frame.position += 1
        try:
            is_done = execute.BY_KIND[type(current)](self, thread, frame, current)
        except OutOfBounds as error:
            if self.observer is not None:
                self.observer.leaves(thread, current, error)
            raise Stopped("out of bounds", thread) from error
        except places.NoSuchDevice as error:
            if self.observer is not None:
                self.observer.leaves_mesh(thread, current, error)
            raise Stopped("no such device", thread) from error
        except SizesDiffer as error:
            if self.observer is not None:
                self.observer.sizes_differ(thread, current, error)
            raise Stopped("sizes of a copy differ", thread) from error
        except NotImplementedError as error:
            where = current.site.line
            raise MachineError(f"the kernel machine has no rule for {error}", where) from error
        if is_done is False:
            frame.position -= 1
            return False
        thread.executed += 1
        if not thread.executed % STEPS_PER_CHECK:
            limit.require_memory(self.launch.name, current.site.line)
        if self.fill != "mark":
            self._forget(frame, position)
        return True

    def _forget(self, frame: ProgramFrame, position: int) -> None:
        """Drop large values that no later step reads; the debugger shows all values of a frame."""
        registers = frame.registers
        for number in frame.program.last_uses.get(position, ()):
            if getattr(registers[number], "nbytes", 0) >= MIN_FORGOTTEN:
                registers[number] = None

    def _next_point(self, thread: Thread) -> bool:
        try:
            refs = thread.walk.advance(self, thread)
        except BlockOutOfBounds as error:
            if self.observer is not None:
                self.observer.block_leaves(thread, error.window, error.block)
            raise Stopped("block out of bounds", thread) from error
        if refs is None:
            thread.is_done = True
            return True
        meshes = self.launch.meshes
        self.enter(thread, meshes[thread.mesh].body if meshes else self.launch.body, refs)
        if self.observer is not None:
            self.observer.point_begins(thread)
        return True

    def enter(
        self, thread: Thread, program: ir.KernelProgram, args: Sequence[Any], **fields: Any
    ) -> ProgramFrame:
        registers = list(program.template)
        for reg, value in zip(program.inputs, args, strict=True):
            registers[reg.number] = value
        frame = ProgramFrame(program, registers, **fields)
        thread.frames.append(frame)
        return frame

    def call(
        self, thread: Thread, program: ir.KernelProgram, args: Sequence[Any], *,
        index_map_of: str, point: tuple[int, ...],
    ) -> ProgramFrame:  # fmt: skip
        """Run an index map to its end, observing only its loops; return its frame.

        Raises:
          Stopped: it reads a table out of bounds, or a loop does not end; both are observed.
        """
        observer = self.observer
        self.observer = None if observer is None else IndexMapObserver(observer)
        own = Thread(thread.number, thread.device, thread.core, point=point)
        own.grid, own.index_map_of = thread.grid, index_map_of
        frame = self.enter(own, program, args)
        try:
            while own.frames:
                if len(own.frames) == 1 and frame.position == len(program.steps):
                    break
                if not self.step(own):
                    raise MachineError(f"an index map of kernel `{self.launch.name}` waits")
        except Stopped as stopped:
            inner = own.frames[-1]
            step = inner.program.steps[inner.position - 1]
            if observer is not None and isinstance(stopped.__cause__, OutOfBounds):
                observer.leaves(own, step, stopped.__cause__)
            raise
        finally:
            self.observer = observer
        return frame

    # DMAs and semaphores

    def complete(self, copy: DmaCopy) -> None:
        if self.observer is not None:
            self.observer.copy_ends(copy)
        copy.perform()
        if copy.destination.buffer.type.space == "smem":
            copy.destination.buffer.filled = copy.source, copy.destination
        self.copies.remove(copy)

    def reach(self, counter: Counter, amount: int) -> bool:
        """Perform copies that signal a semaphore until it reaches an amount."""
        if counter.count >= amount:
            return True
        if self.backwards:
            copies = self.copies[::-1]
        else:
            copies = [copy for copy in self.copies if copy.signals(counter)]
        for copy in copies:
            self.complete(copy)
            if counter.count >= amount:
                return True
        return False


def size_of(type_: ir.RefType) -> int:
    """Bytes of a buffer."""
    return math.prod(type_.shape) * type_.dtype.itemsize


def _in_hbm(operand: LaunchOperand) -> ir.RefType:
    assert operand.array is not None
    space: ir.Space = "gmem" if operand.type.space == "gmem" else "hbm"
    return ir.RefType(operand.array, operand.type.dtype, space, operand.type.semaphore)
