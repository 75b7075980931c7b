"""Sums that a reset drops: values added to a buffer that nothing reads before the reset.

A reset is a store that sets the whole buffer to one number, or to a constant pattern such as one
element at 0 and the others at -1e9; what was added before is lost. A
correct kernel does that too, with values that it no longer needs: the last maximum of a block, or a
state that a flag in a table ends. So it is a fault only if

- the addition and the reset belong to the same blocks of all outputs that receive the buffer's
  values, and the buffer is read again before these blocks end;
- nothing else uses the stored sum;
- only grid point and loop iterations decide whether the reset runs, not data;
- no output receives a value that is computed from the sum at the moment of the addition, as in an
  exclusive scan, or the reset is under no condition; and
- each run of the reset drops an addition, except for the first in each block of an output, or the
  first iteration of a loop, if data do not decide when the sum is read; or it is in no loop except
  a pipeline's, and all outputs keep their blocks, or it is under no condition, or each grid point
  resets an output without having read what others wrote.

A sum is also dropped if its output is stored too early: the last addition for a block comes at a
moment that stores nothing that is computed from it to an output, and the reset for the next block
drops it. That is a fault if every reset that follows an addition drops such an addition, and if the
moments at which outputs are stored depend only on grid point and loop iterations, or on data that
also decide about the addition. (A running total that a scan leaves at the end of a row is also
stored to at moments that store to its output.) The same applies to values that are added after the
last such store, and left unread at the end of the run, if the sum consists of floats and goes to an
output, unless it began after that store: nothing needs the sums of the last steps of a padded grid.
If other values are stored then or later, it must have been put out once, for a block that has not
ended: of a running sum, only the first values may be wanted.

A running state, whose value goes elsewhere too, is dropped if each grid point sets its part of a
scratch buffer to 0, under no condition and in no loop, before it is read at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.machine.memory import MemoryBuffer, MemoryRegion
from pallas_debug.machine.sanitizer.ordering.regions import Box, boxes, covers, first_meeting
from pallas_debug.machine.sanitizer.shadows import reach, shadow
from pallas_debug.machine.sanitizer.shadows.shadow import WriteChange, WriteRecord
from pallas_debug.machine.sanitizer.shadows.tracked import OutputStores, begins_moment
from pallas_debug.machine.threads import Thread

if TYPE_CHECKING:
    from pallas_debug.machine.sanitizer.shadows.tracked import TrackedThread

Point = tuple[int, ...]

_T = TypeVar("_T")

Slip = Literal["late", "early", "unstored", "always", "state", "replaced"]
"""Kind of slip: reset after the addition; the output is stored before the addition, and the reset
is for another block, or missing; each grid point resets it, or a running state; replaced by the
next part."""


@dataclass(eq=False, slots=True)
class DroppedSum:
    """A sum that a reset dropped.

    Attributes:
      before: write record of the addition.
      step, point, iterations: those of the reset.
      moment: moment of the thread at the reset.
      change: elements whose values changed, of those that were reset.
      is_one_visit: whether all outputs had the same blocks at both, or each grid point resets an
        output; and no loop except a pipeline's runs the reset.
      slip: kind of mistake.
      conditions: identities of the conditions around the reset.
      is_again: whether the same line had already reset the buffer at that moment, as in a loop.
      stored: last store to an output, if it came too early.
    """

    buffer: MemoryBuffer
    before: WriteRecord
    step: ir.MachineStep
    thread: int
    point: Point
    iterations: Point
    moment: int
    change: WriteChange
    slip: Slip
    is_one_visit: bool = False
    conditions: frozenset[int] = frozenset()
    is_again: bool = False
    stored: WriteRecord | None = None


@dataclass(eq=False, slots=True)
class _ResetSite:
    """A store that resets a buffer.

    Attributes:
      runs, drops: how often it ran, and how often it dropped an addition.
      found: drops that are read again within the block: the first, and the first within a visit.
      firsts: how often the buffer was an output to whose block nothing had been added.
      starts: how often it was the first iteration of a loop, and nothing unread had been added.
      idle: how often nothing had been added since the previous reset.
      unused: how often it dropped an addition made after the output was stored.
      early: first drop of those.
      vain: how often it dropped, under no condition, an addition at whose moment the output was
        stored.
      always: first drop of those.
      ends: how often its addition had been read, under a condition that grid point and loop
        iterations decide, as at the end of a row.
      states: how often it dropped a running state, and how often there was none.
      keeps_state: whether a state had ever been read, or may have been.
      state: first such drop.
    """

    runs: int = 0
    drops: int = 0
    firsts: int = 0
    starts: int = 0
    idle: int = 0
    unused: int = 0
    early: DroppedSum | None = None
    vain: int = 0
    always: DroppedSum | None = None
    ends: int = 0
    states: tuple[int, int] = (0, 0)
    keeps_state: bool = False
    state: DroppedSum | None = None
    found: list[DroppedSum] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class _Addition:
    """The last addition to the part `index` of a buffer, not read so far.

    Attributes:
      stored: last store to an output before it, since the block of the addition began.
      is_running: whether outputs were stored at several moments before it, since the sum began.
    """

    index: int
    record: WriteRecord
    buffer: MemoryBuffer
    stored: WriteRecord | None
    is_running: bool


@dataclass(eq=False, slots=True)
class _State:
    """A running state, the part of its buffer, and whether that has been read since."""

    record: WriteRecord
    boxes: tuple[Box, ...]
    is_used: bool = False


_Key = tuple[int, int]
"""Thread and buffer."""

_Part = Point | None
"""Element in SMEM that is accessed alone; None for any other access."""


class DroppedSums:
    """Additions and resets so far."""

    def __init__(self) -> None:
        self._sites: dict[tuple[int, str], _ResetSite] = {}
        self._added: dict[_Key, dict[_Part, _Addition]] = {}
        self._loaded: dict[_Key, list[_Addition]] = {}
        self._dropped: dict[_Key, dict[_Part, DroppedSum]] = {}
        self._used: set[_Key] = set()
        self._used_if: set[_Key] = set()
        self._states: dict[_Key, list[_State]] = {}
        self._read_on_data: set[str] = set()
        self._stored = OutputStores()
        self._begun: dict[tuple[_Key, _Part], WriteRecord] = {}
        self._stored_if: set[frozenset[int]] = set()
        self._is_partial = False
        self._is_sum: dict[tuple[int, str], bool | None] = {}
        self._constant: dict[tuple[int, str], bool] = {}
        self._reset_at: dict[tuple[object, ...], int] = {}
        self._on_data: dict[int, frozenset[int]] = {}

    def reads(self, thread: Thread, state: TrackedThread, region: MemoryRegion) -> None:
        """Handle a read or copy of memory."""
        buffer, part = region.buffer, _part(region)
        key = thread.number, buffer.number
        self._loaded[key] = _taken(self._added, key, part)
        if self._loaded[key]:
            self._used.add(key)
            conditions = reach.conditions(thread.frames)
            if conditions and not reach.depends_on_data(thread.frames):
                self._used_if.add(key)
            if thread.iterations and reach.depends_on_data(thread.frames):
                self._read_on_data.add(buffer.name)
        for one in self._states.get(key, ()):
            found = boxes(region)
            one.is_used |= not found or first_meeting(found, one.boxes) is not None
        for dropped in _taken(self._dropped, key, part):
            if dropped.before.number < block_begins(state, buffer.name):
                continue
            site = self._sites[id(dropped.step), buffer.name]
            if not site.found or (dropped.is_one_visit and not site.found[-1].is_one_visit):
                site.found.append(dropped)

    def stores_output(
        self, thread: Thread, state: TrackedThread, step: ir.StoreStep, buffer: MemoryBuffer,
        written: WriteRecord,
    ) -> None:  # fmt: skip
        """Handle a store to an output, or to a buffer that is copied to an output."""
        self._stored.add(thread, state, step, buffer.name, written)
        self._stored_if.add(self._data_conditions(thread, step))

    def forget(self, thread: Thread) -> None:
        """Handle an unwatched grid point, whose reads are unknown."""
        self._is_partial = True
        for kept in (self._added, self._dropped):
            for key in [key for key in kept if key[0] == thread.number]:
                del kept[key]

    def stores(
        self, thread: Thread, state: TrackedThread, step: ir.StoreStep, region: MemoryRegion,
        value: Any, written: WriteRecord, *, is_output: bool,
    ) -> None:  # fmt: skip
        """Handle a write to a buffer, before it; `written` is its record."""
        buffer = region.buffer
        part = _part(region)
        key, site_key = (thread.number, buffer.number), (id(step), buffer.name)
        if site_key not in self._is_sum:
            self._is_sum[site_key] = _is_sum(thread, step, buffer)
        is_sum = self._is_sum[site_key]
        if buffer.kind == "scratch":
            self._stores_state(thread, state, step, region, value, written, is_sum=is_sum)
        if is_sum:
            self._data_conditions(thread, step)
            if step.adds:
                self.reads(thread, state, region)
            if part is None:
                self._added.pop(key, None)
            if not step.adds and self._stored and not shadow.changes(region, value):
                self._leaves(key, part)  # as for masked blocks
                return
            stored = self._stored.last(thread.number, state, buffer.name)
            if stored is not None and stored.number < block_begins(state, buffer.name):
                stored = None
            begun = self._begun.get((key, part))
            is_running = self._stored.is_repeated(thread.number, state, buffer.name, begun)
            index = shadow.index_key(region)
            addition = _Addition(index, written, buffer, stored, is_running)
            self._added.setdefault(key, {})[part] = addition
            self._used.discard(key)
            self._used_if.discard(key)
            return
        if is_sum is False:
            self._begun[key, part] = written
        additions = _taken(self._added, key, part)
        added = additions[-1] if additions else None
        _taken(self._dropped, key, part)
        if is_sum is None or not (is_uniform(value) or self._is_constant(thread, step, site_key)):
            return
        site = self._sites.setdefault(site_key, _ResetSite())
        site.runs += 1
        line_key = *key, step.site.line
        is_again = self._reset_at.get(line_key) == state.moment
        self._reset_at[line_key] = state.moment
        begins = block_begins(state, buffer.name)
        is_first = is_output and (added is None or added.record.number < begins)
        site.firsts += is_first
        site.starts += not is_first and added is None and thread.iterations[-1:] == (0,)
        if added is None and key not in self._used and not (self._is_partial and site.runs > 1):
            site.idle += 1
        site.ends += added is None and key in self._used_if
        self._used.discard(key)
        self._used_if.discard(key)
        if added is None or (added.index != shadow.index_key(region) and not region.is_whole):
            return
        if self._data_conditions(thread, step):
            return
        is_late = added.record.number >= begins
        conditions = frozenset(id(branch) for branch in reach.conditions(thread.frames))
        at = thread.number, added.record.moment
        is_left = not is_late and (is_output or self._stored.at(*at))
        if is_left and (is_output or conditions or thread.iterations):
            if is_output or added.is_running or self._stored.at(*at, state, buffer.name):
                return
            is_left = False
        is_scan = is_late and not is_output and self._stored.at(*at, state, buffer.name)
        if is_scan and conditions:
            return  # it needs no addition of its last step
        if is_late:
            site.drops += 1
        slip: Slip = "late" if is_late else "always" if is_left else "early"
        dropped = dropped_by(thread, state, step, region, value, added.record, slip)
        if dropped is None:
            return
        # As if each grid point stored to an output instead of adding to it.
        replaces_all = is_output and len(thread.frames) == 1 and not state.has_carried
        everything = range(len(state.outputs) + len(state.arrays))
        dropped.is_one_visit = not _is_in_loop(thread) and (
            added.record.number >= _latest(state, everything)
            or replaces_all
            or (is_late and not conditions)
        )
        dropped.conditions, dropped.is_again = conditions, is_again
        if is_late:
            self._dropped.setdefault(key, {})[part] = dropped
        elif is_left:
            site.vain += 1
            site.always = site.always or dropped
        else:
            site.unused += 1
            dropped.stored = added.stored
            if added.stored is not None:  # otherwise, the output was not written
                site.early = site.early or dropped

    def _stores_state(
        self, thread: Thread, state: TrackedThread, step: ir.StoreStep, region: MemoryRegion,
        value: Any, written: WriteRecord, *, is_sum: bool | None,
    ) -> None:  # fmt: skip
        """Handle a write to scratch of a running state, or one that may reset it."""
        key, found = (thread.number, region.buffer.number), boxes(region)
        states = self._states.get(key, [])
        kept = [one for one in states if found and first_meeting(found, one.boxes) is None]
        lost = [one for one in states if one not in kept]
        if is_sum is None:
            kept.append(_State(written, found, is_used=bool(thread.iterations) or not found))
        elif is_sum is False and is_uniform(value) and not np.asarray(value).any():
            site = self._sites.setdefault((id(step), region.buffer.name), _ResetSite())
            around = thread.iterations or reach.conditions(thread.frames)
            if around or not all(not o.is_used and covers(found, o.boxes) for o in lost):
                site.keeps_state = True
            site.states = site.states[0] + bool(lost), site.states[1] + (not lost)
            if lost and site.state is None:
                site.state = dropped_by(thread, state, step, region, value, lost[0].record, "state")
        self._states[key] = kept

    def is_sum(self, step: ir.MachineStep, buffer: MemoryBuffer) -> bool:
        """Return whether a store adds to a buffer, and nothing else uses its value."""
        return bool(self._is_sum.get((id(step), buffer.name)))

    def _leaves(self, key: _Key, part: _Part) -> None:
        """Handle a sum that adds nothing: what its own load took is as unread as before."""
        loaded = self._loaded.pop(key, [])
        if len(loaded) == 1:
            self._added.setdefault(key, {})[part] = loaded[0]
            self._used.discard(key)

    def _is_constant(self, thread: Thread, step: ir.StoreStep, site: tuple[int, str]) -> bool:
        """Return whether a store's value depends on nothing in memory."""
        if site not in self._constant:
            made_of = reach.sources(thread.frames, step.value.number)
            self._constant[site] = next(made_of, None) is None
        return self._constant[site]

    def freed(self, thread: Thread, buffer: MemoryBuffer) -> None:
        """Handle the end of a buffer."""
        self._added.pop((thread.number, buffer.number), None)
        self._dropped.pop((thread.number, buffer.number), None)

    def _data_conditions(self, thread: Thread, step: ir.StoreStep) -> frozenset[int]:
        """Return the store's conditions that depend on more than grid point and loop iterations."""
        found = self._on_data.get(id(step))
        if found is None:
            branches = reach.data_conditions(thread.frames)
            found = self._on_data[id(step)] = frozenset(map(id, branches))
        return found

    def _is_stored_on_data(self, addition: WriteRecord) -> bool:
        """Return whether data that did not affect an addition decide when outputs are stored."""
        added = self._on_data.get(id(addition.step), frozenset())
        return not all(conditions <= added for conditions in self._stored_if)

    def faults(
        self, threads: Mapping[int, TrackedThread], launch: Launch, *, has_ended: bool
    ) -> list[DroppedSum]:
        """Return the sums that are dropped by mistake; in a run that was stopped, fewer."""
        found = []
        for (_, name), site in self._sites.items():
            begun = site.firsts if name in self._read_on_data else site.firsts + site.starts
            if site.found and site.drops + begun == site.runs:
                found.append(site.found[0])
            elif site.found and site.found[-1].is_one_visit:
                found.append(site.found[-1])
            elif (
                site.early
                and site.unused + site.idle == site.runs
                and not self._is_stored_on_data(site.early.before)
            ):
                found.append(site.early)
            elif site.always and site.vain + site.ends == site.runs - 1 and site.vain > site.ends:
                found.append(site.always)
            elif (
                site.state
                and not (site.keeps_state or self._is_partial)
                and site.states[0] >= site.states[1]
            ):
                found.append(site.state)
        known = {dropped.buffer.name for dropped in found}
        unstored = self._unstored(threads, launch) if has_ended and not self._is_partial else ()
        return [*found, *(one for one in unstored if one.buffer.name not in known)]

    def _unstored(
        self, threads: Mapping[int, TrackedThread], launch: Launch
    ) -> Iterator[DroppedSum]:
        """Yield sums with unread additions after the last store to an output that receives them."""
        for key, parts in self._added.items():
            number, _ = key
            for part, added in parts.items():
                stored = self._stored.last(number, threads[number], added.buffer.name)
                begun = self._begun.get((key, part))
                if stored is None or (begun is not None and begun.number > stored.number):
                    continue
                is_beside = self._stored.latest(number) >= added.record.moment
                if is_beside and (added.is_running or added.stored is None):
                    continue
                if reach.choice_in(launch, added.record.step) is not None:
                    continue  # a `jnp.where` may begin the sum
                buffer, content = added.buffer, added.buffer.content
                is_later = added.record.moment > stored.moment
                if buffer.kind != "scratch" or content.dtype.kind in "biu" or not is_later:
                    continue
                reaches = threads[number].reaches_output(buffer.name)
                if self._is_stored_on_data(added.record) or not reaches:
                    continue
                first = (0,) * content.ndim
                value = content[first].item()
                yield DroppedSum(
                    buffer, added.record, stored.step, number, stored.point, stored.iterations,
                    stored.moment, WriteChange(first, value, value, content.size, content.size),
                    slip="unstored", stored=stored,
                )  # fmt: skip


def dropped_by(
    thread: Thread, state: TrackedThread, step: ir.StoreStep, region: MemoryRegion, value: Any,
    before: WriteRecord, slip: Slip,
) -> DroppedSum | None:  # fmt: skip
    """Describe what a store is about to drop of an earlier write; None if it changes nothing."""
    old = region.read()
    found = shadow.change_of(
        region, np.broadcast_to(np.asarray(value), old.shape).astype(old.dtype)
    )
    if found is None:
        return None
    return DroppedSum(
        region.buffer, before, step, thread.number, thread.point, thread.iterations, state.moment,
        found, slip=slip,
    )  # fmt: skip


def _is_in_loop(thread: Thread) -> bool:
    """Return whether the current step is in a loop other than that of a pipeline."""
    loops = [f.caller for f in thread.frames if f.stage in ("body", "condition")]
    return not all(loop is not None and begins_moment(loop) for loop in loops)


def _part(region: MemoryRegion) -> _Part:
    if region.buffer.type.space != "smem" or region.index is None:
        return None
    numbers = tuple(entry for entry in region.index if isinstance(entry, int))
    return numbers if len(numbers) == len(region.index) else None


def _taken(kept: dict[_Key, dict[_Part, _T]], key: _Key, part: _Part) -> list[_T]:
    """Remove and return the records of a part of a buffer, and of parts that may overlap it."""
    parts = kept.get(key)
    if parts is None:
        return []
    if part is None:
        return list(kept.pop(key).values())
    return [parts.pop(one) for one in (None, part) if one in parts]


def is_uniform(value: Any) -> bool:
    """Return whether all elements of a value are equal."""
    array = np.asarray(value)
    return bool(array.size and (array == array.flat[0]).all())


def _is_sum(thread: Thread, step: ir.StoreStep, buffer: MemoryBuffer) -> bool | None:
    """Return whether a store accumulates into its buffer, or None if the sum is also used."""
    if step.adds:
        return True
    if not reach.depends_on(thread.frames, step.value.number, buffer):
        return False
    return reach.is_sum(thread.frames[-1].program, step) or None


def _latest(state: TrackedThread, outputs: Any) -> int:
    """Return the first number since which all of these outputs have had their current blocks."""
    return max(map(state.start_of, outputs), default=0)


def block_begins(state: TrackedThread, name: str) -> int:
    """Return the first number of writes for the current blocks of a buffer's outputs."""
    return _latest(state, state.outputs_of(name))
