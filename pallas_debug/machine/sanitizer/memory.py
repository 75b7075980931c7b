"""Memory area of the sanitizer: uninitialized reads, stale reads, lost writes.

A read of memory that was never written is no fault by itself: the value may be masked. So suspect
reads are recorded, and if there are any, the kernel is run again with other values for them. A read
matters if the results differ in any bit, other branches are taken, or other elements are accessed.

Many kernels read scratch left by another output block on purpose: sums over blocks, prefetched
slots, counters. "Another" means another block of every output to which values of this scratch go.
Such a read is reported as stale

- if the two grid points differ on a parallel axis, and the read matters: on several cores the
  reader's scratch was never written (reported as `UninitializedRead`);
- if it is part of an accumulator: the buffer is updated, i.e. computed from its previous content,
  at two or more of the grid points that visit an output block, and the first of them continues from
  the last update for another block, by the same store. (If a table gives the number of grid points
  of a block, the first block to do so may have only one; then a later block counts.) Values stored
  without regard to the previous content, such as zeros left for the next block, were left on
  purpose; and if nothing else uses the buffer before its last update, it is a total over all
  blocks;
- if it is the state of a scan along a row of blocks, and goes on into the next row although the
  kernel treats rows separately;
- if the same store or copy writes less of the buffer than it did for the other block, and the rest
  is read with it.

In the last three cases, other *finite* values have to change the results and nothing else: a number
from which branches or indices are computed, such as a slot counter, is carried on purpose. Results
are compared bit by bit: a running maximum that is not reset is reported even if it cancels out
except for rounding.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pallas_debug.bridge.hosted.watch import WatchedPoints
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.wording import facts, writers
from pallas_debug.machine.copies import Counter, DmaCopy
from pallas_debug.machine.memory import MemoryBuffer, MemoryRegion
from pallas_debug.machine.sanitizer import unread_copies
from pallas_debug.machine.sanitizer.again import KernelCall
from pallas_debug.machine.sanitizer.occurrences import first_that_matters
from pallas_debug.machine.sanitizer.ordering import awaited
from pallas_debug.machine.sanitizer.ordering.events import OrderTracker
from pallas_debug.machine.sanitizer.ordering.groups import GroupedSums
from pallas_debug.machine.sanitizer.shadows import aliased, stale
from pallas_debug.machine.sanitizer.shadows.dropped import DroppedSum, DroppedSums
from pallas_debug.machine.sanitizer.shadows.outputs import ReplacedWrite
from pallas_debug.machine.sanitizer.shadows.replaced import ReplacedTotals
from pallas_debug.machine.sanitizer.shadows.replay import (
    BufferKey,
    ElementHistory,
    OtherValues,
    buffer_key,
    effect,
    narrow,
)
from pallas_debug.machine.sanitizer.shadows.shadow import ReadKind, SuspectRead
from pallas_debug.machine.sanitizer.shadows.tracked import Point
from pallas_debug.machine.sanitizer.shadows.tracking import MemoryTracker
from pallas_debug.machine.sanitizer.shadows.wording import LAST, MemoryWording
from pallas_debug.machine.threads import Thread
from pallas_debug.model import Finding

MAX_REPLAYS = 12
"""Maximum number of further runs that search for the one of several reads that matters."""

Slip = frozenset[int]
"""Identities of the conditions under which a buffer is reset."""


class MemorySanitizer(MemoryTracker):
    """Observes a run; `findings` runs the kernel again if that is needed to judge a read."""

    def __init__(
        self, launch: Launch, arrays: Sequence[Sequence[Any]], *,
        order: OrderTracker | None = None, watched: WatchedPoints | None = None, **options: Any,
    ) -> None:  # fmt: skip
        """Set up the shadow.

        Args:
          arrays: arrays of the call, for each device.
          order: observer of the same run that detects races; None if there is none.
          watched: grid points to check; None for all.
          options: options of the machine, except its observer.
        """
        super().__init__(launch, watched=watched)
        self._call = KernelCall(launch, arrays, options, watched)
        self._first: MemoryTracker = self
        self._replays = 0
        self._fill: OtherValues = "unlikely"
        self._sums = DroppedSums()
        self._totals = ReplacedTotals(launch)
        self._groups = GroupedSums()
        self._inputs = None if watched else aliased.ChangedInputs()
        self._copies = None if watched else unread_copies.UnreadCopies()
        self._awaited = None if watched else awaited.AwaitedCopies()
        self._copied_out: dict[str, bool] = {}
        self._order = order

    # Sums that are reset too late.

    def loads(self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any) -> None:
        super().loads(thread, step, region, value)
        self._sums.reads(thread, self.threads[thread.number], region)
        self._totals.reads(thread, region)
        if self._copies is not None:
            self._copies.reads(thread, region)
        if self._awaited is not None:
            self._awaited.reads(region)

    def point_begins(self, thread: Thread) -> None:
        super().point_begins(thread)
        if not self.watches(self.threads[thread.number], thread.point):
            self._sums.forget(thread)
            self._totals.forget(thread)

    def stores(
        self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any
    ) -> None:
        if self._inputs is not None:
            self._inputs.stores(self, thread, step, region, value)
        super().stores(thread, step, region, value)
        if self._copies is not None:
            self._copies.stores(thread, step, region, value)
        found = self.shadows.get(region.buffer.number)
        written = self.writes.get(self.count)
        if not isinstance(step, ir.StoreStep) or found is None or written is None:
            return
        state = self.threads[thread.number]
        if not self.watches(state, thread.point):
            return
        if found.operand in ("scratch", "scoped", "output"):
            is_output = found.operand == "output"
            if is_output or self._is_copied_out(region.buffer):
                self._sums.stores_output(thread, state, step, region.buffer, written)
                self._groups.stores_output(thread, step, written)
            self._totals.stores(thread, state, step, region, value, written, is_output=is_output)
            if step.mask is None:
                self._sums.stores(thread, state, step, region, value, written, is_output=is_output)
                if found.operand == "scratch":
                    is_sum = self._sums.is_sum(step, region.buffer)
                    self._groups.stores(thread, state, step, region, value, written, is_sum=is_sum)
            else:
                self._sums.reads(thread, state, region)

    def _is_copied_out(self, buffer: MemoryBuffer) -> bool:
        """Return whether any copy to an output has the buffer as its source."""
        name = buffer.name
        known = self._copied_out.get(name)
        if known is None:
            outputs = {o.name for o in self.launch.operands if o.kind == "output"}
            is_source = any(name in sources for sources in self.flow.copied.values())
            known = is_source and any(self.flow.stores_to_others(name, one) for one in outputs)
            self._copied_out[name] = known
        return known

    def copy_starts(self, thread: Thread, copy: DmaCopy) -> None:
        super().copy_starts(thread, copy)
        self._sums.reads(thread, self.threads[thread.number], copy.source)
        self._totals.reads(thread, copy.source)
        if self._copies is not None:
            self._copies.copy_starts(thread, copy)
        if self._awaited is not None:
            self._awaited.copy_starts(thread, copy)

    def waited(self, thread: Thread, step: ir.MachineStep, counter: Counter, amount: int) -> None:
        if self._awaited is not None:
            self._awaited.waited(thread, step, counter)

    def copy_ends(self, copy: DmaCopy) -> None:
        super().copy_ends(copy)
        if self._copies is not None:
            self._copies.copy_ends(copy)

    def freed(self, buffer: MemoryBuffer, thread: Thread) -> None:
        super().freed(buffer, thread)
        self._sums.freed(thread, buffer)
        if self._copies is not None:
            self._copies.freed(buffer)

    # Findings

    def findings(self) -> list[Finding]:
        """Return the faults of the run, in the order in which they happened."""
        for step in self.arrays.carrying:
            self.arrays.lost.pop(step, None)
        if self.arrays.lost and self.suspects:
            # A read may affect only values that are lost: compare all that was ever stored.
            self._first = MemoryTracker(self.launch, keeps_results=True, watched=self.watched)
            self._call.run(self._first)
        uninitialized = self._uninitialized()
        carried = self._carried({suspect.buffer.name for suspect in uninitialized})
        stale_reads = self._stale({s.buffer.name for s in (*uninitialized, *carried)})
        conflicts = self._conflicts()
        reads = [*uninitialized, *carried, *stale_reads]
        history = self._history((s.buffer, s.element) for s in reads)
        wording = MemoryWording(self, history, self._call.arrays)
        found: list[tuple[int, Finding]] = []
        slips: dict[int, Slip] = {}
        described = (
            *((s, wording.uninitialized(s)) for s in uninitialized),
            *((s, wording.uninitialized(s, other_core=True)) for s in carried),
            *((s, wording.stale(s)) for s in stale_reads),
        )
        for suspect, finding in described:
            found.append((suspect.first, finding))
            if suspect.kind != "parallel":
                of_buffer = history.buffers[buffer_key(suspect.buffer)]
                slips[id(finding)] = of_buffer.reset_under(suspect.element)
        known = {s.buffer.name for s in reads} | {w.operand for w in self.arrays.lost.values()}
        for dropped in self._dropped_sums():
            if dropped.buffer.name not in known:
                finding = wording.dropped(dropped)
                slips[id(finding)] = dropped.conditions
                found.append((dropped.before.number + 1, finding))
        for changed in self._inputs.faults() if self._inputs is not None else ():
            at = changed.writer.number + 1
            found.append((at, aliased.changed_input(self.launch, changed)))
        raced = self._order.detector.races.values() if self._order is not None else ()
        known |= {race.earlier.buffer.name for race in raced}
        known |= {finding.operand or "" for _, finding in found}
        for lost in self._copies.faults() if self._copies is not None and self.has_ended else ():
            if lost.copy.destination.buffer.name not in known:
                found.append((LAST - 2, unread_copies.finding(self.launch, lost)))
        for wait in self._awaited.faults() if self._awaited is not None and self.has_ended else ():
            if wait.copy.destination.buffer.name not in known:
                found.append((LAST - 2, awaited.finding(self.launch, wait)))
        if reads:
            self.arrays.lost.clear()  # the replaced values were computed from these reads
        found += wording.arrays(conflicts)
        found.sort(key=lambda one: one[0])
        slips |= wording.slips
        return _by_slip(_after_reads([finding for _, finding in found], slips), slips)

    def _dropped_sums(self) -> Iterator[DroppedSum]:
        yield from self._sums.faults(self.threads, self.launch, has_ended=self.has_ended)
        yield from self._totals.faults()
        if self.has_ended and self.watched is None:
            yield from self._groups.faults()

    # Reads of memory that was never written

    def _uninitialized(self) -> list[SuspectRead]:
        """Return the first read of each buffer that matters."""
        suspects = [
            suspect
            for suspect in self._of_kinds("unwritten", "padding")
            if not self._is_race(suspect) and not self._is_return(suspect)
        ]
        if not suspects or not self._matters(suspects):
            return []
        fill = self._fill
        found: dict[tuple[str, ReadKind], SuspectRead] = {}
        for suspect in suspects:
            name = suspect.buffer.name, suspect.kind
            if name not in found and (len(suspects) == 1 or self._matters([suspect])):
                found[name] = suspect
        chosen = list(found.values()) or self._needed(suspects)
        chosen = [first_that_matters(self._call, s, self._first, fill) for s in chosen]
        narrow(self._call, [s.key for s in suspects], chosen, self._first, fill)
        return chosen

    def _needed(self, suspects: Sequence[SuspectRead]) -> list[SuspectRead]:
        """Return the first read of each buffer in the minimal set of reads that matter together.

        Each read hides the effect of the others: a result stays NaN as long as one of them is. A
          read that the others do not need, such as a read of masked padding, is not in the set.
        """
        self._replays = 0
        needed: dict[tuple[ReadKind, str], list[SuspectRead]] = {}
        for suspect in suspects:
            needed.setdefault((suspect.kind, suspect.buffer.name), []).append(suspect)
        for left_out in sorted(needed):  # padding first
            rest = [group for key, group in needed.items() if key != left_out]
            if self._replays >= MAX_REPLAYS:
                break
            if rest and self._matters(itertools.chain(*rest)):
                del needed[left_out]
        return [group[0] for group in needed.values()]

    def _is_race(self, suspect: SuspectRead) -> bool:
        """Return whether a read may race with the copy that writes the data it reads."""
        if suspect.is_early or not suspect.is_sent_later or self._order is None:
            return suspect.is_early or suspect.is_sent_later
        races = self._order.detector.races.values()
        return any(race.earlier.buffer.name == suspect.buffer.name for race in races)

    def _is_return(self, suspect: SuspectRead) -> bool:
        """Return whether a read is the consequence of a revisited output block."""
        return suspect.visited and suspect.buffer.name in self.arrays.returns

    def _of_kinds(self, *kinds: ReadKind) -> list[SuspectRead]:
        found = [suspect for suspect in self.suspects.values() if suspect.kind in kinds]
        return sorted(found, key=lambda suspect: suspect.first)

    def _matters(self, suspects: Iterable[SuspectRead]) -> bool:
        if self._replays >= MAX_REPLAYS:
            return False
        self._replays += 1
        found = effect(self._call, [s.key for s in suspects], self._first)
        self._fill = found.fill
        return found.matters

    # Scratch left by other grid points

    def _carried(self, known: set[str]) -> list[SuspectRead]:
        """Return reads of what may be on another core, the first of each buffer that matters."""
        found: dict[str, SuspectRead] = {}
        for suspect in self._of_kinds("parallel"):
            name = suspect.buffer.name
            if name not in known and name not in found and self._matters([suspect]):
                found[name] = suspect
        return list(found.values())

    def _stale(self, known: set[str]) -> list[SuspectRead]:
        """Return reads of values left by another output block, the first of each buffer."""
        firsts = [s for s in self._of_kinds("stale") if s.buffer.name not in known]
        if not firsts:
            return []
        suspects = [*firsts, *(later for s in firsts for later in s.later)]
        suspects.sort(key=lambda suspect: suspect.first)
        points = {s.point for s in suspects} | {s.writer.point for s in suspects if s.writer}
        history = self._history(((s.buffer, s.element) for s in suspects), points)
        found: dict[str, SuspectRead] = {}
        for suspect in suspects:
            name = suspect.buffer.name
            if name in found or self._replays >= MAX_REPLAYS:
                continue
            thread, is_later = self.threads[suspect.thread], suspect not in firsts
            again = self._adds_again(suspect)
            if not stale.is_stale(
                suspect, thread, history, self.launch, is_later=is_later, adds_again=again
            ):
                continue
            self._replays += 1
            keys = [s.key for s in firsts if s.buffer is suspect.buffer]
            seen = effect(self._call, keys, self._first)
            if seen.on_results and not seen.on_control:
                found[name] = suspect
        return list(found.values())

    def _adds_again(self, suspect: SuspectRead) -> bool:
        """Return whether a read continues a sum with data also copied for its last write."""
        writer = suspect.writer
        if writer is None or self._awaited is None:
            return False
        return self._sums.is_sum(writer.step, suspect.buffer) and self._awaited.come_again(
            writer.point, suspect.point
        )

    # Writes

    def _conflicts(self) -> list[ReplacedWrite]:
        """Return writes to the same element without a read in between."""
        conflicts = list(self.arrays.conflicts.values())
        if not conflicts:
            return []
        history = self._history((c.buffer, c.change.element) for c in conflicts)
        return [conflict for conflict in conflicts if not stale.was_read(conflict, history)]

    def _history(
        self, places: Iterable[tuple[MemoryBuffer, Point]], points: Iterable[Point] = ()
    ) -> ElementHistory:
        elements: dict[BufferKey, list[Point]] = {}
        for buffer, element in places:
            elements.setdefault(buffer_key(buffer), []).append(element)
        history = ElementHistory(elements, self.flow, points)
        if elements:
            self._call.run(history)
        return history


def _by_slip(found: Sequence[Finding], slips: Mapping[int, Slip]) -> list[Finding]:
    """Merge findings of the same kind and grid point about several buffers if they share a cause.

    They do if they are at the same line, or the buffers are reset under the same conditions.
    Outputs that no line stores to are reported at the line of the call, and each is judged by how
    its callers use it.

    Args:
      slips: the conditions, by identity of the finding.
    """
    groups: list[list[Finding]] = []
    for finding in found:
        slip = slips.get(id(finding))
        for group in groups:
            first = group[0]
            is_alike = (first.kind, first.grid_point, first.loop) == (
                finding.kind, finding.grid_point, finding.loop,
            )  # fmt: skip
            is_one = slip and slip == slips.get(id(first))
            has_line = first.source and finding.values.get(facts.WHY) != "no store"
            if is_alike and (is_one or (has_line and first.source == finding.source)):
                group.append(finding)
                break
        else:
            groups.append([finding])
    return [writers.likewise(first, others) for first, *others in groups]


_READS = (Fault.UNINITIALIZED_READ, Fault.STALE_READ)


def _after_reads(found: Sequence[Finding], slips: dict[int, Slip]) -> list[Finding]:
    """Attach sums that a reset drops to a read of a buffer that is reset under the same condition.

    Args:
      slips: conditions under which that happens, by identity of the finding.
    """
    reads: dict[Slip, Finding] = {}
    for finding in found:
        if (slip := slips.get(id(finding))) and finding.kind in _READS:
            reads.setdefault(slip, finding)
    lost: dict[int, list[Finding]] = {}
    kept = []
    for finding in found:
        slip = slips.get(id(finding))
        if slip and slip in reads and finding.kind is Fault.LOST_WRITE:
            lost.setdefault(id(reads[slip]), []).append(finding)
        else:
            kept.append(finding)
    for i, finding in enumerate(kept):
        if (sums := lost.get(id(finding))) is not None:
            kept[i] = replace(finding, consequences=(*finding.consequences, *sums))
            slips[id(kept[i])] = slips[id(finding)]
    return kept
