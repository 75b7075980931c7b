"""Findings about memory, from the tracker's records."""

from __future__ import annotations

from typing import Any

from pallas_debug.bridge.programs import program as ir
from pallas_debug.findings.facts import block_text, element_text, when_zero
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.memory import (
    WhyUnwritten,
    first_of,
    some,
    step_text,
    writes_text,
)
from pallas_debug.findings.regions import part_of
from pallas_debug.findings.sighting import revisited
from pallas_debug.machine.memory import MemoryBuffer
from pallas_debug.machine.shadow import shadow
from pallas_debug.machine.shadow.shadow import SuspectRead
from pallas_debug.machine.shadow.tracking import BlockReturn, MemoryTracker, OverwrittenRead
from pallas_debug.machine.sightings import shape_text, sighting_of
from pallas_debug.model import Finding

Ordered = tuple[int, Finding]
"""Number of the write that a finding follows, and the finding."""

LAST = 1 << 60
"""Number for facts that are known only at the end of a run."""


class MemoryReport:
    """Creates the findings of one run."""

    def __init__(self, run: MemoryTracker) -> None:
        self._run = run
        self._launch = run.launch

    # Reads

    def read(self, suspect: SuspectRead) -> Finding:
        """Report a read that matters: of unwritten memory, padding, or another core's scratch."""
        buffer, name = suspect.buffer, suspect.buffer.name
        copy = self._run.padded.get(buffer.number) if suspect.kind == "padding" else None
        seen = sighting_of(
            self._launch,
            suspect,
            buffer,
            index=part_text(name, suspect.mask),
            other=None if copy is None else copy.step.site.line,
        )
        affected = int(suspect.mask.sum())
        first = first_of(element_text(name, suspect.element), some(affected, suspect.total))
        if suspect.kind == "padding":
            array = None if copy is None else copy.source.buffer
            return seen.of(
                Fault.PADDING_READ,
                first=first,
                copied=None if array is None else f"{array.name}, {shape_text(array)}",
            )
        if isinstance(suspect.step, ir.CopyStart) and suspect.step.of_pipeline:
            assert suspect.copy is not None
            target = suspect.copy.destination.buffer
            seen = seen.at(operand=target.name, index=None, shape=shape_text(target))
            return seen.of(Fault.OUTPUT_NOT_WRITTEN, missing=affected, total=suspect.total)
        facts: dict[str, Any] = {"first": first, "writes": self._writes(suspect)}
        if suspect.kind == "other core":
            facts = self._of_other_core(suspect)
        return seen.of(Fault.UNINITIALIZED_READ, **facts)

    def _of_other_core(self, suspect: SuspectRead) -> dict[str, Any]:
        """Facts about a read of what a grid point on another core may have left."""
        writer, launch = suspect.writer, self._launch
        assert writer is not None
        axes = [a for a, size in enumerate(launch.grid) if size != 1]
        differs = [a for a in axes if suspect.point[a] != writer.point[a]]
        begin = launch.numbers(a for a in axes if not launch.parallel[a])
        return {
            "parallel": list(launch.numbers(a for a in differs if launch.parallel[a])),
            "written_at": writer.point,
            "begin": f"where each core begins: {when_zero(begin)}"
            if begin
            else "at each grid point",
        }

    def _writes(self, suspect: SuspectRead) -> str | None:
        """Other lines than the reader's that have written a buffer; None if there are none."""
        reader = suspect.step.site.line
        written = [
            (line.line, point)
            for step, point in self._run.stored.get(suspect.buffer.name, {}).values()
            if (line := step.site.line) is not None and line != reader
        ]
        return writes_text(sorted({n for n, _ in written}), written[0][1]) if written else None

    # Arrays

    def arrays(self) -> list[Ordered]:
        """Return the findings about whole arrays."""
        ledger = self._run.arrays
        found = [self._overwritten(read) for read in ledger.overwritten.values()]
        found += [(LAST - 1, self._returned(back)) for back in ledger.returns.values()]
        if self._run.has_ended:
            found += [(LAST, finding) for finding in self._unwritten()]
        return found

    def _overwritten(self, read: OverwrittenRead) -> Ordered:
        window, record = read.block.window, read.writer
        name = window.operand.name
        seen = sighting_of(
            self._launch,
            read,
            read.buffer,
            index=part_text(name, read.block.mask),
            other=None if record is None else record.step.site.line,
        )
        writer = "another grid point"
        if record is not None:
            writer = step_text(record.point, record.iterations)
        finding = seen.of(
            Fault.OVERWRITTEN_READ,
            part=seen.witness.index or name,
            output=self._run.arrays.outputs[window.array.name],
            reader=step_text(read.point, read.iterations),
            writer=writer,
            is_under_way=read.block.is_under_way,
        )
        return (0 if record is None else record.number + 1), finding

    def _returned(self, back: BlockReturn) -> Finding:
        name = back.window.operand.name
        seen = sighting_of(
            self._launch,
            None,
            source=back.window.operand.line,
            grid_point=back.again,
            operand=name,
            index=block_text(name, back.block),
            shape=shape_text(back.window.array),
        )
        return revisited(
            seen,
            what=f"block {back.block} of {name}",
            first=back.first,
            last=back.last,
            again=back.again,
        )

    # Outputs that were not written

    def _unwritten(self) -> list[Finding]:
        found: dict[str, Finding] = {}  # of the first device with unwritten elements
        for kept in self._run.shadows.values():
            name = self._run.arrays.result_in(kept.buffer)
            if name is None or name in self._run.arrays.returns or name in found:
                continue
            # For an array that was passed in, these are elements of blocks that were revisited but
            # not written.
            mask = kept.unwritten()
            if mask is not None:
                found[name] = self._gap(name, kept.buffer, mask)
        return list(found.values())

    def _gap(self, name: str, buffer: MemoryBuffer, mask: shadow.Mask) -> Finding:
        part = part_of(name, mask)
        assert part is not None
        operand = next(one for one in self._launch.operands if one.name == name)
        thread = next(iter(self._run.threads.values()), None)
        visits = None if thread is None else thread.visits(name, shadow.first_in(mask))
        source = operand.line
        why: WhyUnwritten = "stores"
        if thread is None or not thread.num_points or visits == []:
            why = "left out"
        elif stored := list(self._run.stored.get(name, {}).values()):
            source = stored[-1][0].site.line
        seen = sighting_of(
            self._launch,
            None,
            source=source,
            grid_point=visits[0] if visits else None,
            operand=name,
            index=part.text,
            shape=shape_text(buffer),
            values={"elements": f"{part.elements} of {part.of}"},
        )
        what = part.text + (f" on device {buffer.device}" if self._launch.mesh else "")
        return seen.of(
            Fault.OUTPUT_NOT_WRITTEN,
            part=what,
            why=why,
            count=some(part.elements, part.of),
            is_aliased=buffer.kind != "output",
        )


def part_text(name: str, mask: shadow.Mask) -> str | None:
    """Unparse the elements in a mask as slices; None for all elements."""
    part = part_of(name, mask)
    return None if part is None or mask.all() else part.text
