"""Findings about memory, from the tracker's records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pallas_debug.bridge.instrument.sites import part_of
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.findings.facts import block_text, element_text, points_text, when_zero
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.memory import (
    FirstElement,
    GridStep,
    OverwrittenElement,
    UnwrittenPart,
    WhyUnwritten,
    Writes,
    some,
)
from pallas_debug.findings.order import of_axes
from pallas_debug.findings.sighting import Sighting, revisited
from pallas_debug.machine.bounds import origins
from pallas_debug.machine.grid import Window
from pallas_debug.machine.memory import MemoryBuffer
from pallas_debug.machine.shadow import shadow
from pallas_debug.machine.shadow.arrays import BlockReturn, OverwrittenRead, shared_by
from pallas_debug.machine.shadow.shadow import SuspectRead, plain_number
from pallas_debug.machine.shadow.tracked import TrackedThread, missing_steps
from pallas_debug.machine.shadow.tracking import MemoryTracker
from pallas_debug.machine.sightings import RecordedEvent, access_of, shape_text, sighting_of
from pallas_debug.model import Finding, SourceLine

Ordered = tuple[int, Finding]
"""Number of the write that a finding follows, and the finding."""

LAST = 1 << 60
"""Number for facts that are known only at the end of a run."""


@dataclass(frozen=True, eq=False)
class StoreSite:
    """A store or copy to an operand.

    Attributes:
      conditions: identities of the enclosing conditions.
    """

    operand: str
    step: ir.MachineStep
    conditions: frozenset[int]


_Names = dict[int, frozenset[str]]


def stores_of(launch: Launch) -> list[StoreSite]:
    """Return all stores and copies to operands, in program order."""
    names = {
        reg.number: frozenset([operand.name])
        for reg, operand in zip(launch.body.inputs, launch.operands, strict=True)
    }
    return list(_stores(launch.body, names, frozenset()))


def _stores(
    program: ir.KernelProgram, names: _Names, conditions: frozenset[int]
) -> Iterator[StoreSite]:
    for step in program.steps:
        place = None
        if isinstance(step, ir.StoreStep):
            place = step.place
        elif isinstance(step, ir.CopyStart):
            place = step.destination
        elif isinstance(step, ir.SelectRef):
            found = [names.get(place.ref.number, frozenset()) for place in step.places]
            names[step.output.number] = frozenset[str]().union(*found)
        if place is not None:
            for name in sorted(names.get(place.ref.number, ())):
                yield StoreSite(name, step, conditions)
        for inner, given in ir.inner_programs(step):
            own = {
                reg.number: names[outer.number]
                for reg, outer in zip(inner.inputs, given, strict=False)
                if outer.number in names
            }
            around = conditions | {id(step)} if isinstance(step, ir.Branch) else conditions
            yield from _stores(inner, own, around)


class MemoryWording:
    """Creates the findings of one run."""

    def __init__(self, run: MemoryTracker, arrays: Sequence[Sequence[Any]]) -> None:
        """Set up; `arrays` are those of the call, for each device."""
        self._run = run
        self._arrays = arrays
        self._stores = stores_of(run.launch)

    # Reads

    def uninitialized(self, suspect: SuspectRead, *, other_core: bool = False) -> Finding:
        """Report a read of unwritten memory or padding that matters."""
        name = suspect.buffer.name
        copy = self._run.padded.get(suspect.buffer.number) if suspect.kind == "padding" else None
        seen = self._seen(
            suspect,
            suspect.buffer,
            index=part_text(name, suspect.mask),
            other=None if copy is None else copy.step.site.line,
        )
        affected = int(suspect.mask.sum())
        first = FirstElement(element_text(name, suspect.element), some(affected, suspect.total))
        if suspect.kind == "padding":
            array = None if copy is None else copy.source.buffer
            copied = None if array is None else f"{array.name}, {shape_text(array)}"
            return seen.of(Fault.PADDING_READ, first=first, copied=copied, side=self._side(suspect))
        if isinstance(suspect.step, ir.CopyStart) and suspect.step.of_pipeline:
            assert suspect.copy is not None
            target = suspect.copy.destination.buffer
            seen = seen.at(operand=target.name, index=None, shape=shape_text(target))
            return seen.of(Fault.OUTPUT_NOT_WRITTEN, missing=affected, total=suspect.total)
        output = shared_by(self._run.launch).get(name)
        if other_core:
            return self._on_other_core(suspect, seen, output)
        line, is_array = suspect.step.site.line, suspect.buffer.kind == "output"
        sites = [s for s in self._stores if s.operand == name and s.step.site.line != line]
        stays = suspect.operand != "scoped" and self._run.threads[suspect.thread].keeps(name)
        return seen.of(
            Fault.UNINITIALIZED_READ,
            output=output,
            first=first,
            writes=self._writes(name, line),
            is_conditional=bool(sites) and all(site.conditions for site in sites),
            stays=stays and not is_array,
            is_array=is_array,
        )

    def _side(self, suspect: SuspectRead) -> Literal["start", "end", "either"]:
        """Side of the array at which the padding is that matters; later reads are not known."""
        if not self._run.launch.is_before(suspect.buffer.name, suspect.element):
            return "end"
        return "start" if suspect.count == 1 else "either"

    def _on_other_core(self, suspect: SuspectRead, seen: Sighting, output: str | None) -> Finding:
        """Report a read of what a grid point on another core may have left."""
        writer, launch = suspect.writer, self._run.launch
        assert writer is not None
        differs = [a != b for a, b in zip(suspect.point, writer.point, strict=True)]
        axes = range(len(launch.grid))
        parallel = launch.numbers(a for a in axes if launch.parallel[a] and differs[a])
        others = (a for a in axes if not launch.parallel[a] and launch.grid[a] != 1)
        begin = launch.numbers(others)
        return seen.with_values(of_axes(parallel)).of(
            Fault.UNINITIALIZED_READ,
            output=output,
            parallel=list(parallel),
            written_at=writer.point,
            begin=when_zero(begin) if begin else None,
        )

    def _writes(self, name: str, reader: SourceLine | None) -> Writes | None:
        """Lines other than the reader's that have written a buffer; None if there are none."""
        written = [
            (line.line, one.points)
            for one in self._run.stored.get(name, {}).values()
            if (line := one.step.site.line) is not None
            and (reader is None or line.line != reader.line)
        ]
        points = dict.fromkeys(point for _, points in written for point in points)
        return Writes(sorted({line for line, _ in written}), list(points)) if written else None

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
        window = read.block.window
        name = window.operand.name
        record = self._run.writes.get(int(read.block.numbers[read.element]))
        seen = self._seen(
            read,
            read.region.buffer,
            index=part_text(name, read.block.mask),
            other=None if record is None else record.step.site.line,
        )
        change, writer = self._change(read), "another grid point"
        values = {} if change is None else change.values
        if record is not None:
            writer = str(GridStep(record.point, record.iterations))
            values |= {f"other {n}": v for n, v in access_of(record, record.copy).facts.items()}
        finding = seen.with_values(values).of(
            Fault.OVERWRITTEN_READ,
            part=seen.witness.index or name,
            output=self._run.arrays.output_of(window.array),
            reader=GridStep(read.point, read.iterations),
            writer=writer,
            change=change,
            is_under_way=read.block.is_under_way,
            by_copy=record is not None and record.copy is not None,
        )
        return (0 if record is None else record.number + 1), finding

    def _change(self, read: OverwrittenRead) -> OverwrittenElement | None:
        """Values of the first element before and after; None while a write-back is under way."""
        if read.block.is_under_way:
            return None
        name = element_text(read.block.window.operand.name, read.element)
        return OverwrittenElement(name, self._original(read), plain_number(read.value))

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
        return revisited(
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
        why: WhyUnwritten = "stores"
        if not any(one.points for one in self._run.threads.values()):
            why = "no points"
        elif window is not None and not visits:
            why = "left out"
            source = self._run.launch.block_line(window.operand) or source
            if short := missing_steps(self._run.launch.grid, thread, window, mask):
                why = "rounded down" if max(short.values()) < 1 else "too few steps"
                source = self._run.launch.grid_line(window.operand, next(iter(short))) or source
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
        what = part.text + (f" on device {buffer.device}" if len(self._arrays) > 1 else "")
        return seen.of(
            Fault.OUTPUT_NOT_WRITTEN,
            part=UnwrittenPart(what, part.regions > 1),
            why=why,
            count=some(part.elements, part.of),
            visits=points_text(visits) if any(visits) else None,
            is_aliased=buffer.kind != "output",
        )

    # Shared helpers

    def _seen(
        self, event: RecordedEvent | None, buffer: MemoryBuffer | None = None, **facts: Any
    ) -> Sighting:
        return sighting_of(self._run.launch, event, buffer, **facts)


def _is_in_place(step: ir.MachineStep) -> bool:
    """Return whether a store writes the same elements whenever it runs."""
    return isinstance(step, ir.StoreStep) and step.place.is_constant


def part_text(name: str, mask: shadow.Mask) -> str | None:
    """Unparse the elements in a mask as slices; None for all elements."""
    if mask.all():
        return None
    part = part_of(name, mask)
    return None if part is None else part.text
