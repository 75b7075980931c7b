"""Findings about memory, from the tracker's records and the history of elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pallas_debug.bridge.instrument.sites import part_of
from pallas_debug.bridge.programs import program as ir
from pallas_debug.findings.sighting import Sighting
from pallas_debug.findings.wording import contents, order, writers
from pallas_debug.findings.wording.facts import (
    SHARES,
    Reset,
    WrittenElement,
    block_text,
    left_unwritten,
)
from pallas_debug.machine.grid import Window
from pallas_debug.machine.memory import MemoryBuffer
from pallas_debug.machine.sanitizer import origins
from pallas_debug.machine.sanitizer.report import RecordedEvent, access_of, shape_text, sighting_of
from pallas_debug.machine.sanitizer.shadows import reach, resets, shadow, stale
from pallas_debug.machine.sanitizer.shadows.aliased import OverwrittenCopy, shared_by
from pallas_debug.machine.sanitizer.shadows.dropped import DroppedSum
from pallas_debug.machine.sanitizer.shadows.outputs import (
    BlockReturn,
    OverwrittenRead,
    ReplacedWrite,
)
from pallas_debug.machine.sanitizer.shadows.replay import ElementHistory, buffer_key
from pallas_debug.machine.sanitizer.shadows.shadow import SuspectRead, plain_number
from pallas_debug.machine.sanitizer.shadows.tracked import (
    TrackedThread,
    missing_steps,
    steps_of_block,
)
from pallas_debug.machine.sanitizer.shadows.tracking import MemoryTracker
from pallas_debug.model import Finding

Ordered = tuple[int, Finding]
"""Number of the write that a finding follows, and the finding."""

LAST = 1 << 60
"""Number for facts that are known only at the end of a run."""


class MemoryWording:
    """Creates the findings of one run.

    Attributes:
      slips: conditions that cause a finding, by identity of the finding.
    """

    def __init__(
        self, run: MemoryTracker, history: ElementHistory, arrays: Sequence[Sequence[Any]]
    ) -> None:
        """Set up; `arrays` are those of the call, for each device."""
        self._run = run
        self._history = history
        self._arrays = arrays
        self.slips: dict[int, frozenset[int]] = {}
        self._stores = reach.stores_of(run.launch)
        self._order = reach.order_of(run.launch.body)

    # Reads

    def uninitialized(self, suspect: SuspectRead, *, other_core: bool = False) -> Finding:
        """Report a read of unwritten memory or padding that matters."""
        name = suspect.buffer.name
        copy = self._run.padded.get(suspect.buffer.number) if suspect.kind == "padding" else None
        seen = self._seen(
            suspect,
            suspect.buffer,
            index=resets.part_text(name, suspect.mask),
            other=None if copy is None else copy.step.site.line,
        )
        # If some elements do not matter, the number that do is unknown.
        affected = int(suspect.mask.sum()) if suspect.without is None else suspect.total
        element = WrittenElement(index=suspect.element, affected=affected, total=suspect.total)
        named = element if suspect.is_element_known and not other_core else None
        if suspect.kind == "padding":
            array = None if copy is None else copy.source.buffer
            copied = None if array is None else f"{array.name}, {shape_text(array)}"
            hidden = None
            if suspect.without is not None and named is not None:
                hidden = WrittenElement(index=suspect.without)
            return contents.padding_read(
                seen,
                element=named,
                hidden=hidden,
                copied=copied,
                side="start" if self._run.launch.is_before(name, suspect.element) else "end",
            )
        if isinstance(suspect.step, ir.CopyStart) and suspect.step.of_pipeline:
            assert suspect.copy is not None
            output = suspect.copy.destination.buffer
            return writers.window_not_written(
                seen.at(operand=output.name, index=None, shape=shape_text(output)),
                elements=(affected, suspect.total),
            )
        before: contents.Before = "none"
        at = self._order.get(id(suspect.step), 0)
        sites = [s for s in self._stores if s.operand == name and self._order[id(s.step)] < at]
        if sites:
            ran = resets.have_run([s.step for s in sites], self._history.buffers, suspect)
            before = "branches" if all(s.conditions for s in sites) and not ran else "some"
        not_reset = self._not_reset(suspect) if other_core else None
        if (shared := shared_by(self._run.launch).get(name)) is not None:
            seen = seen.at(values={**seen.witness.values, SHARES: shared})
            not_reset = left_unwritten(name, shared)
        return contents.uninitialized_read(
            seen,
            reaches_output=True,
            other_core=stale.other_core(suspect, self._run.launch) if other_core else None,
            not_reset=not_reset,
            before=before,
            stays=suspect.operand != "scoped" and self._run.threads[suspect.thread].keeps(name),
            is_array=suspect.buffer.kind == "output",
            element=named,
            writes=() if other_core else self._writes(suspect, as_resets=False),
            resets=self._writes(suspect, as_resets=True) if other_core else (),
            sum_axes=stale.axes_of_sum(
                suspect, self._run.threads[suspect.thread], self._history, self._run.launch
            ),
            ever=resets.ever_written(self._history.buffers[buffer_key(suspect.buffer)], suspect),
        )

    def _not_reset(self, suspect: SuspectRead) -> tuple[str, str] | None:
        """Return cause and advice, if a sum of another block would be read on one core, too."""
        thread, name = self._run.threads[suspect.thread], suspect.buffer.name
        if not stale.is_stale(suspect, thread, self._history, self._run.launch):
            return None
        return writers.not_reset(
            name,
            access_of(suspect, writes=False),
            self._block(thread, suspect.moment, thread.outputs_of(name)),
            self._writes(suspect, as_resets=True),
            accumulates=True,
            sum_axes=stale.axes_of_sum(suspect, thread, self._history, self._run.launch),
        )

    def stale(self, suspect: SuspectRead) -> Finding:
        """Report a read of values left by another output block."""
        writer = suspect.writer
        assert writer is not None
        thread = self._run.threads[suspect.thread]
        name = suspect.buffer.name
        outputs = thread.outputs_of(name)
        block = self._block(thread, suspect.moment, outputs)
        left_by = self._block(thread, writer.moment, outputs)
        seen = self._seen(
            suspect,
            suspect.buffer,
            index=resets.part_text(name, suspect.mask),
            other=writer.step.site.line,
        )
        events = self._history.buffers[buffer_key(suspect.buffer)].events[suspect.element]
        updates = [e for e in events if e.writes and e.updates]
        return writers.stale_read(
            seen,
            reader=access_of(suspect, writes=False),
            writer=access_of(writer, writer.copy),
            element=WrittenElement(
                index=suspect.element,
                value=plain_number(suspect.value),
                affected=int(suspect.mask.sum()),
                total=suspect.total,
            ),
            block=block,
            left_by=None if left_by is None else left_by.place,
            resets=self._writes(suspect, as_resets=True),
            accumulates=any(e.moment == suspect.moment for e in updates),
            choice=reach.choice_in(self._run.launch, writer.step),
            sum_axes=stale.axes_of_sum(suspect, thread, self._history, self._run.launch),
        )

    def dropped(self, found: DroppedSum) -> Finding:
        """Report a sum that a reset drops, or with additions after the last store to an output."""
        thread = self._run.threads[found.thread]
        line, reset = found.before.step.site.line, found.step.site.line
        seen = self._seen(found.stored or found, found.buffer, other=line)
        moment = found.moment if found.stored is None else found.before.moment
        return writers.dropped_sum(
            seen,
            block=self._block(thread, moment, thread.outputs_of(found.buffer.name)),
            slip=found.slip,
            is_again=found.is_again,
            lost=access_of(found.before, found.before.copy),
            reset=access_of(found),
            element=found.change.written,
            stored=None if found.stored is None else access_of(found.stored),
            reset_in="?" if reset is None else reset.line,
        )

    def _writes(self, suspect: SuspectRead, *, as_resets: bool) -> tuple[Reset, ...]:
        """Find the lines that write the elements of a read; if `as_resets`, only non-updates."""
        return resets.writes(
            self._history.buffers[buffer_key(suspect.buffer)],
            suspect,
            with_loops=self._run.threads[suspect.thread].has_pipelines,
            as_resets=as_resets,
        )

    # Arrays

    def arrays(self, conflicts: Sequence[ReplacedWrite]) -> list[Ordered]:
        """Return the findings about whole arrays."""
        ledger = self._run.arrays
        found = [self._overwritten(read) for read in ledger.overwritten.values()]
        copied = ledger.copies.overwritten()
        found += [(copy.writer.number + 1, self._copied(copy)) for copy in copied]
        found += [(lost.before.number + 1, self._lost(lost)) for lost in ledger.lost.values()]
        found += [(one.before.number + 1, self._conflict(one)) for one in conflicts]
        found += [(LAST - 1, self._returned(back)) for back in ledger.returns.values()]
        if self._run.has_ended:
            found += [(LAST, finding) for finding in self._unwritten()]
        return found

    def _overwritten(self, read: OverwrittenRead) -> Ordered:
        window = read.block.window
        name = window.operand.name
        record = self._run.writes.get(int(read.block.numbers[read.element]))
        writer = order.Access(writes=True)
        if record is not None:
            writer = access_of(record, record.copy)
        seen = self._seen(
            read,
            read.region.buffer,
            index=resets.part_text(name, read.block.mask),
            other=None if record is None else record.step.site.line,
        )
        finding = writers.overwritten_read(
            seen,
            output=self._run.arrays.output_of(window.array),
            reader=access_of(read, writes=False),
            writer=writer,
            element=WrittenElement(
                index=read.element,
                value=None if read.block.is_under_way else plain_number(read.value),
                before=None if read.block.is_under_way else self._original(read),
                affected=read.affected,
                total=read.total,
            ),
            is_under_way=read.block.is_under_way,
        )
        return (0 if record is None else record.number + 1), finding

    def _copied(self, found: OverwrittenCopy) -> Finding:
        copy, buffer = found.copy, found.copy.source.buffer
        seen = self._seen(
            copy,
            buffer,
            index=resets.part_text(buffer.name, found.mask),
            other=found.writer.step.site.line,
        )
        return writers.overwritten_read(
            seen,
            output=found.output,
            reader=access_of(copy, copy, writes=False),
            writer=access_of(found.writer, found.writer.copy),
            element=WrittenElement(
                index=found.element,
                value=plain_number(found.value),
                before=plain_number(found.before),
                affected=int(found.mask.sum()),
                total=found.total,
            ),
        )

    def _original(self, read: OverwrittenRead) -> Any:
        """Original values of the call, where they have been overwritten."""
        window = read.block.window
        launch = self._run.launch
        given = [o.name for o in launch.operands if o.kind in ("prefetch", "input")]
        arrays = self._arrays[window.array.device][sum(n is None for n in launch.grid) :]
        outer, inner = window.bounds(read.block.block)
        kept = iter(zip(read.element, inner, strict=True))
        index = []
        for part, is_squeezed in zip(outer, window.spec.squeezed, strict=True):
            if is_squeezed:
                index.append(part.start)
            else:
                at, start = next(kept)
                index.append(part.start + at - start.start)
        array = np.asarray(arrays[given.index(window.operand.name)])
        return plain_number(array[tuple(index)].item())

    def _lost(self, lost: ReplacedWrite) -> Finding:
        thread = self._run.threads[lost.thread]
        window = lost.window
        assert window is not None
        moment = thread.moments.index(thread.points.index(lost.point))
        block = self._block(thread, moment, [thread.outputs.index(window)])
        assert block is not None
        seen = self._seen(
            lost,
            lost.buffer,
            index=resets.part_text(lost.operand, lost.mask),
            other=lost.before.step.site.line,
        )
        return writers.lost_write(
            seen,
            block=block,
            lost=access_of(lost.before, lost.before.copy),
            replaced_by=access_of(lost, lost.copy),
            element=lost.change.written,
        )

    def _conflict(self, conflict: ReplacedWrite) -> Finding:
        seen = self._seen(
            conflict,
            conflict.buffer,
            operand=conflict.operand,
            index=resets.part_text(conflict.operand, conflict.mask),
            other=conflict.before.step.site.line,
        )
        blocks = None
        if conflict.blocks is not None and conflict.window is not None:
            name = conflict.window.operand.name
            here, there = conflict.blocks
            blocks = (
                writers.OutputBlock(output=name, index=here),
                writers.OutputBlock(output=name, index=there),
            )
        return writers.conflicting_writes(
            seen,
            here=access_of(conflict, conflict.copy),
            there=access_of(conflict.before, conflict.before.copy),
            element=conflict.change.written,
            blocks=blocks,
        )

    def _returned(self, back: BlockReturn) -> Finding:
        name = back.window.operand.name
        seen = self._seen(
            None,
            source=self._run.launch.block_line(back.window.operand),
            grid_point=back.again,
            operand=name,
            index=block_text(name, back.block),
            shape=shape_text(back.window.array),
        )
        return order.output_revisited(
            seen,
            what=f"block {back.block} of {name}",
            first=back.first,
            last=back.last,
            again=back.again,
            from_table=origins.has_tables(back.window.spec.index_map),
        )

    # Outputs that were not written

    def _unwritten(self) -> list[Finding]:
        found: dict[str, Finding] = {}  # of the first device with unwritten elements
        thread = next(iter(self._run.threads.values()), None)
        windows = {} if thread is None else {w.operand.name: w for w in thread.outputs}
        for kept in self._run.shadows.values():
            buffer = kept.buffer
            name = self._run.arrays.result_in(buffer)
            if name is None or not buffer.content.size:
                continue
            if name in self._run.arrays.returns or name in found:
                continue
            # For an array that was passed in, these are elements of blocks that were revisited but
            # not written.
            mask = kept.all_with(shadow.NEVER)
            if mask is not None:
                found[name] = self._gap(name, buffer, mask, thread, windows.get(name))
        return list(found.values())

    def _gap(
        self, name: str, buffer: MemoryBuffer, mask: shadow.Mask, thread: TrackedThread | None,
        window: Window | None,
    ) -> Finding:  # fmt: skip
        part = part_of(name, mask)
        assert part is not None
        element = shadow.first_in(mask)
        sites = [site for site in self._stores if site.operand == name]
        visits = [] if thread is None or window is None else thread.visits(window, element)
        source = sites[-1].step.site.line if sites else None
        why: contents.Gone = "stores"
        if not any(one.points for one in self._run.threads.values()):
            why = "no points"
        elif window is not None and not visits:
            why = "left out"
            source = self._run.launch.block_line(window.operand) or source
            if short := missing_steps(self._run.launch.grid, thread, window, mask):
                why = "rounded down" if max(short) < 1 else "too few steps"
                source = self._run.launch.grid_line() or source
        elif not sites:
            why = "no store"
            source = None if window is None else self._run.launch.block_line(window.operand)
        elif any(isinstance(site.step, ir.CopyStart) for site in sites):
            why = "copies"  # possibly under a pipeline's conditions
        elif all(site.conditions and _is_in_place(site.step) for site in sites):
            why = "condition"
        elif under := [site for site in sites if site.conditions]:
            why, source = "some conditions", under[-1].step.site.line
        seen = self._seen(
            None,
            source=source,
            grid_point=visits[0] if visits else None,
            operand=name,
            index=part.text,
            shape=shape_text(buffer),
            values={"elements": f"{part.elements} of {part.of}"},
        )
        found = contents.output_not_written(
            seen,
            what=part.text + (f" on device {buffer.device}" if len(self._arrays) > 1 else ""),
            why=why,
            elements=(part.elements, part.of),
            is_several=part.regions > 1,
            visits=visits,
            is_one_block=not thread or not window or thread.is_in_one_block(window, mask),
            is_aliased=buffer.kind != "output",
        )
        if why == "condition":
            self.slips[id(found)] = frozenset[int]().union(*(site.conditions for site in sites))
        return found

    # Shared helpers

    def _seen(
        self, event: RecordedEvent | None, buffer: MemoryBuffer | None = None, **facts: Any
    ) -> Sighting:
        return sighting_of(self._run.launch, event, buffer, **facts)

    def _block(
        self, thread: TrackedThread, moment: int, outputs: Sequence[int]
    ) -> writers.OutputBlock | None:
        """Return the block, computed at a moment, of the first of these outputs."""
        if not outputs:
            return None
        number = outputs[0]
        if number >= len(thread.outputs):
            part = thread.blocks_at_moments(number)[moment]
            return writers.OutputBlock(
                output=thread.output_name(number),
                index=(),
                part=str(part) if part is not None else f"no part of {thread.output_name(number)}",
            )
        blocks = thread.blocks[number]
        return writers.OutputBlock(
            output=thread.output_name(number),
            index=blocks[thread.moments[moment]],
            steps=steps_of_block(self._run.launch, thread.points, blocks),
        )


def _is_in_place(step: ir.MachineStep) -> bool:
    """Return whether a store writes the same elements whenever it runs."""
    return isinstance(step, ir.StoreStep) and step.place.is_constant
