"""Values by name at the current step: operands, scratch, semaphores, variables, grid axes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from pallas_debug.machine.debugger import names
from pallas_debug.machine.debugger.driver import Driver
from pallas_debug.machine.grid import Window
from pallas_debug.machine.memory import MemoryBuffer, Ref
from pallas_debug.machine.threads import ProgramFrame, Thread
from pallas_debug.stepping.track import NamedValue

Array = np.ndarray[Any, Any]

AXES = "ijklmnop"
"""Names of the grid's axes, unless shadowed by a variable of the same name."""

_CALL = re.compile(r"(program_id|num_programs|whole)\((.+)\)")


class NameScope:
    """Names that are in scope at the current step of a run.

    Attributes:
      shown: thread whose values are shown; None for the one that executes the next step.
    """

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.shown: Thread | None = None
        self._names: dict[int, tuple[names.RegisterName, ...]] = {}
        self._argument_names: dict[int, dict[int, str]] = {}

    @property
    def thread(self) -> Thread:
        if self.shown is not None:
            return self.shown
        driver = self.driver
        return driver.machine.threads[0] if driver.ended else driver.thread

    # Operands and memory

    def operands(self) -> dict[str, Window | Ref]:
        walk = self.thread.walk
        launch = self.driver.machine.launch
        return {
            operand.name: item for operand, item in zip(launch.operands, walk.refs, strict=True)
        }

    def _scoped(self) -> dict[str, MemoryBuffer]:
        return {
            buffer.name: buffer
            for frame in self.thread.frames
            for buffer in frame.buffers
            if not buffer.is_freed
        }

    def buffers(self, name: str) -> list[MemoryBuffer]:
        """Buffers that a name refers to: for a block, the buffer in use."""
        item = self.operands().get(name)
        if isinstance(item, Window):
            return [item.current]
        if item is not None:
            return [item.buffer]
        scoped = self._scoped().get(name)
        return [] if scoped is None else [scoped]

    def memory(self, name: str) -> MemoryBuffer | None:
        """The buffer that a name, or `whole(name)`, refers to; None for a variable."""
        called = _CALL.fullmatch(name)
        if called is None:
            return next(iter(self.buffers(name)), None)
        item = self.operands().get(called[2]) if called[1] == "whole" else None
        if item is None:
            return None
        return item.array if isinstance(item, Window) else item.buffer

    def values(self) -> Sequence[NamedValue]:
        found: dict[str, NamedValue] = {}
        launch = self.driver.machine.launch
        for operand, item in zip(launch.operands, self.thread.walk.refs, strict=True):
            buffer = item.current if isinstance(item, Window) else item.buffer
            found[operand.name] = NamedValue(
                name=operand.name,
                kind="semaphore" if buffer.type.semaphore is not None else operand.kind,
                dtype=buffer.content.dtype.name,
                shape=buffer.content.shape,
                block=item.block if isinstance(item, Window) else None,
                whole=operand.array if isinstance(item, Window) else None,
            )
        for name, buffer in self._scoped().items():
            kind = "semaphore" if buffer.type.semaphore is not None else "scoped"
            found[name] = _named(name, kind, buffer.content)
        for name, value in self._variables().items():
            if name not in found:
                found[name] = _named(name, "variable", value)
        return list(found.values())

    def value(self, name: str) -> Any:
        """Evaluate a name, or `program_id(0)`, `num_programs(0)`, `whole(name)`.

        Returns:
          The value; None if the name has none.
        """
        called = _CALL.fullmatch(name)
        if called is not None:
            return self._called(called[1], called[2])
        variable = self._variables().get(name)
        if variable is not None:
            return np.asarray(variable)
        buffers = self.buffers(name)
        if buffers:
            return buffers[0].content
        thread = self.thread
        if name == "iteration":
            return np.asarray(thread.iterations[-1]) if thread.iterations else None
        axis = AXES.find(name) if len(name) == 1 else -1
        return self._axis(thread.point, axis)

    def _axis(self, numbers: tuple[int, ...], axis: int) -> Any:
        """Index by an axis as the kernel counts them: without axes added by `vmap`."""
        own = self.driver.machine.launch.axes
        return np.asarray(numbers[own[axis]]) if 0 <= axis < len(own) and numbers else None

    def _called(self, function: str, argument: str) -> Any:
        if function == "whole":
            return self.whole(argument)
        numbers = self.thread.point if function == "program_id" else self.thread.grid
        return self._axis(numbers, int(argument) if argument.isdigit() else -1)

    def whole(self, name: str) -> Array | None:
        item = self.operands().get(name)
        if item is None:
            return None
        return item.array.content if isinstance(item, Window) else item.buffer.content

    # Variables

    def _variables(self) -> dict[str, Any]:
        """Values of the user's variables in the functions on the call stack."""
        found: dict[str, Any] = {}
        thread = self.thread
        calls = self._calls()
        for frame in thread.frames:
            for number, name in self._arguments(frame).items():
                value = frame.registers[number]
                if name.isidentifier() and value is not None and not isinstance(value, Ref):
                    found[name] = value
            for item in self._of(frame):
                if item.position >= frame.position or item.calls != calls[: len(item.calls)]:
                    continue
                value = frame.registers[item.register]
                if value is not None and not isinstance(value, Ref):
                    found[item.name] = value
        return found

    def _calls(self) -> tuple[tuple[str, int], ...]:
        """Places of the calls that lead to the current step."""
        for frame in reversed(self.thread.frames):
            steps = frame.program.steps
            step = steps[frame.position] if frame.position < len(steps) else None
            if step is not None:
                return tuple(line.place for line in step.site.calls)
        return ()

    def _arguments(self, frame: ProgramFrame) -> dict[int, str]:
        known = self._argument_names.get(id(frame.program))
        if known is None:
            known = names.argument_names(frame.program)
            self._argument_names[id(frame.program)] = known
        return known

    def _of(self, frame: ProgramFrame) -> tuple[names.RegisterName, ...]:
        known = self._names.get(id(frame.program))
        if known is None:
            depth = 0 if frame.caller is None else len(frame.caller.site.calls) + 1
            known = tuple(names.register_names(frame.program, depth))
            self._names[id(frame.program)] = known
        return known


def _named(name: str, kind: str, value: Any) -> NamedValue:
    return NamedValue(name=name, kind=kind, dtype=np.dtype(value.dtype).name, shape=value.shape)
