"""Grids of a kernel compiled as one jax program: for each grid point, blocks in, body, blocks out.

The body, and the index maps, may do what a compiled loop's body may. The program works on copies of
the memory and runs a chunk of grid points. It stops at a point at which a block or an access is out
of bounds, or a hint false; the machine then interprets that point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pallas_debug.bridge.programs import loops
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch, LaunchOperand, OperandBlock
from pallas_debug.bridge.programs.loops import BufferView, NotCompiled

NO_BLOCK = -(1 << 31)
"""Index of no block, which differs from all others."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class GridWindow:
    """An operand that the kernel accesses block by block.

    Attributes:
      slot: position of its window among the buffers of the grid.
      is_kept: whether its window keeps what an earlier grid point stored to it.
    """

    operand: LaunchOperand
    slot: int
    is_kept: bool

    @property
    def is_output(self) -> bool:
        return self.operand.kind == "output"

    @property
    def spec(self) -> OperandBlock:
        assert self.operand.block is not None
        return self.operand.block

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of blocks along each dimension."""
        assert self.operand.array is not None
        sizes = zip(self.operand.array, self.spec.unit, self.spec.padding, strict=True)
        return tuple(-(-(n + sum(padding)) // unit) for n, unit, padding in sizes)

    @property
    def padding(self) -> list[tuple[int, int]]:
        """Elements before and after the array that its blocks may cover."""
        assert self.operand.array is not None
        spec, found = self.spec, []
        for n, count, size, unit, (low, _) in zip(
            self.operand.array, self.counts, spec.sizes, spec.unit, spec.padding, strict=True
        ):
            last = (count - 1) * unit - low  # start of the last block
            found.append((low, max(last + size - n, 0)))
        return found


class GridState(NamedTuple):
    """State of a grid after some of its points.

    Attributes:
      position: of the next grid point.
      blocks: for each window, the block at the last point.
      kept: contents of the buffers that the kernel stores to, and of the windows that it keeps.
      outputs: whole arrays of the outputs, with their padding.
    """

    position: Any
    blocks: list[Any]
    kept: list[Any]
    outputs: list[Any]


class CompiledGrid:
    """A kernel's grid compiled for buffers of certain shapes.

    Args:
      grid: sizes of its axes.
      args: a view for each operand of the body.
      windows: slots and operands of those that are accessed block by block.
      prefetch: arguments of the index maps after the grid point.

    Attributes:
      kept: slots of the buffers in `GridState.kept`.

    Raises:
      NotCompiled: the body, or an index map, does what no compiled loop's body does.
    """

    def __init__(
        self, launch: Launch, grid: tuple[int, ...], args: Sequence[BufferView],
        windows: Sequence[tuple[int, LaunchOperand]], prefetch: Sequence[BufferView],
    ) -> None:  # fmt: skip
        stored = {args[position].slot for position in loops.stored_inputs(launch.body)}
        self.windows = [
            GridWindow(operand, slot, is_kept=slot in stored or operand.kind == "output")
            for slot, operand in windows
        ]
        programs = [launch.body, *(window.spec.index_map for window in self.windows)]
        if not all(loops.is_plain(program) for program in programs):
            raise NotCompiled("a step that only the machine executes")
        if any(isinstance(step, ir.AxisIndex) for p in programs for step in p.all_steps()):
            raise NotCompiled("a number of a core or device")
        if stored & {view.slot for view in prefetch}:
            raise NotCompiled("a store to a table that index maps read")
        self._launch = launch
        self._grid = grid
        self._args = args
        self._prefetch = prefetch
        self.kept = sorted(stored | {window.slot for window in self.windows if window.is_kept})
        self._run = jax.jit(self._traced)

    def begin(
        self, position: int, blocks: Sequence[tuple[int, ...] | None], contents: Sequence[Array],
        arrays: Sequence[Array],
    ) -> GridState:  # fmt: skip
        """Return the state before a position, after everything was written back.

        Args:
          blocks: block in each window, if any.
          contents: contents of the buffers.
          arrays: array of each window, with its padding.
        """
        found = [
            np.asarray(NO_BLOCK if block is None else block, np.int32)
            + np.zeros(len(window.counts), np.int32)
            for block, window in zip(blocks, self.windows, strict=True)
        ]
        return GridState(
            np.int32(position),
            found,
            [contents[slot] for slot in self.kept],
            [a for a, window in zip(arrays, self.windows, strict=True) if window.is_output],
        )

    def run(
        self, state: GridState, stop: int, contents: Sequence[Array], arrays: Sequence[Array],
        unwritten: Sequence[Array],
    ) -> tuple[GridState, bool]:  # fmt: skip
        """Run grid points; return the state, and whether its last point is rejected.

        Of a state that is, only the position is valid: that of the rejected point.

        Args:
          stop: position after the last.
          unwritten: contents of each window before anything is written to it.
        """
        fixed = [None if i in self.kept else c for i, c in enumerate(contents)]
        inputs = [
            None if window.is_output else array
            for array, window in zip(arrays, self.windows, strict=True)
        ]
        found, is_rejected = self._run(state, np.int32(stop), fixed, inputs, list(unwritten))
        return found, bool(is_rejected)

    def _traced(
        self, state: GridState, stop: Any, fixed: list[Any], inputs: list[Any],
        unwritten: list[Any],
    ) -> Any:  # fmt: skip
        def condition(loop: tuple[GridState, Any]) -> Any:
            state, is_rejected = loop
            return (state.position < stop) & ~is_rejected

        def iterate(loop: tuple[GridState, Any]) -> Any:
            return self._point(loop[0], fixed, inputs, unwritten)

        begin = jax.tree.map(jnp.asarray, (state, False))
        return jax.lax.while_loop(condition, iterate, begin)

    def _point(
        self, state: GridState, fixed: list[Any], inputs: list[Any], unwritten: list[Any]
    ) -> tuple[GridState, Any]:  # fmt: skip
        point = jnp.unravel_index(state.position, self._grid)
        contents = list(fixed)
        for slot, content in zip(self.kept, state.kept, strict=True):
            contents[slot] = content
        trace = loops.LoopRun(loops.LoopMemory(contents, None, jnp.bool_(False)), {})
        blocks, places = [], []
        for window, before in zip(self.windows, state.blocks, strict=True):
            block = trace.run(window.spec.index_map, [*point, *self._prefetch])
            for index, count in zip(block, window.counts, strict=True):
                trace.reject_if((index < 0) | (index >= count))
            blocks.append(jnp.stack([jnp.asarray(index, jnp.int32) for index in block]))
            is_new = jnp.any(blocks[-1] != before)
            places.append((list(blocks[-1] * np.array(window.spec.unit, np.int32)), is_new))
        for window, array, content, (starts, is_new) in zip(
            self.windows, inputs, unwritten, places, strict=True
        ):
            if not window.is_output:
                found = jax.lax.dynamic_slice(array, starts, window.spec.sizes)
                content = found.reshape(content.shape)
            if window.is_kept:
                content = jnp.where(is_new, content, contents[window.slot])
            contents[window.slot] = content
        for step in self._launch.body.all_steps():
            if isinstance(step, ir.GridId):
                axis = self._launch.axes[step.axis]
                size = np.int32(self._grid[axis])
                trace.numbers[id(step)] = size if step.is_size else point[axis]
        trace.run(self._launch.body, self._args)
        contents, is_rejected = trace.memory.contents, trace.memory.is_rejected
        outputs = list(state.outputs)
        for window, (starts, _) in zip(self.windows, places, strict=True):
            if window.is_output:
                # Earlier than the pipeline, which writes back after the last visit in a row: no
                # other operand shares the array, so the kernel sees no difference.
                content = contents[window.slot].reshape(window.spec.sizes)
                outputs.append(jax.lax.dynamic_update_slice(outputs.pop(0), content, starts))
        position = jnp.where(is_rejected, state.position, state.position + 1)
        kept = [contents[slot] for slot in self.kept]
        return GridState(position, blocks, kept, outputs), is_rejected
