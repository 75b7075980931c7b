"""Wording of the history of a wrong element, and of stores that leave a state without effect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pallas_debug.findings.wording.facts import Point, listed, loop, when_zero, where
from pallas_debug.model import SourceLine

MAX_SOURCES = 4
"""Maximum number of buffers behind a store whose writes are listed in a message."""


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """Writes by one line that contribute to an element.

    Attributes:
      first, last: first and last grid point.
      points: number of grid points.
      count: number of writes.
      updates: whether they update the previous value.
      of_other_block: whether the first write was made for another block of the output.
      since: first grid point of the output's block at which the previous value is updated.
      is_copy: whether they are DMAs.
      origin: for a DMA, the table entry from which the index of its source comes.
    """

    line: SourceLine | None
    first: Point
    last: Point
    points: int = 1
    count: int = 1
    updates: bool = False
    of_other_block: bool = False
    since: Point = ()
    is_copy: bool = False
    origin: str | None = None


@dataclass(frozen=True, kw_only=True)
class Contributions:
    """A buffer from which a stored value was computed, and its writers, oldest first.

    Attributes:
      is_mixed: whether it contains values set for another block of the output next to values set
        for this one.
    """

    buffer: str
    writes: tuple[Contribution, ...] = ()
    is_mixed: bool = False

    @property
    def carried(self) -> Contribution | None:
        """The last update, if the buffer was initialised for another block of the output and
        updated for this one."""
        if not self.writes or not self.writes[0].of_other_block or not self.writes[-1].updates:
            return None
        return self.writes[-1]


@dataclass(frozen=True, kw_only=True)
class StoreHistory:
    """Writes that led to an element's value.

    Attributes:
      output: name of the operand.
      writes: writes to the element itself, oldest first; the last one is the store.
      iterations: iterations of the loops around the store.
      sources: buffers from which its value was computed.
      status: "stored", "never" if no step writes the element, or "not again" if only an earlier
        visit of its block did.
      others: number of other differing blocks whose first element was examined.
      alike: number of these whose first element was last stored by the same line.
    """

    output: str
    writes: tuple[Contribution, ...] = ()
    iterations: Point = ()
    sources: tuple[Contributions, ...] = ()
    status: Literal["stored", "never", "not again"] = "stored"
    others: int = 0
    alike: int = 0

    @property
    def store(self) -> Contribution | None:
        return self.writes[-1] if self.writes else None

    @property
    def carried(self) -> Contributions | None:
        """The first source that was initialised for another block and updated for this one."""
        return next((source for source in self.sources if source.carried is not None), None)


def history(found: StoreHistory) -> list[str]:
    """Return the lines of a message."""
    store = found.store
    if store is None:
        again = " during the last visit of its block, only during an earlier one"
        return ["no step stored it" + (again if found.status == "not again" else "")]
    names = [source.buffer for source in found.sources]
    verb = "copied" if store.is_copy else "stored"
    by = f" by grid point {store.last}" if store.last else ""
    message = f"{verb} at {where(store.line)}{by}{loop(found.iterations)}"
    if names:
        message += f", from {listed(names)}"
    if store.origin is not None:
        message += f"; the index of its source comes from {store.origin}"
    if found.others and found.alike == found.others:
        message += f"; the same line stored the first element of {_others(found.others)}"
    elif found.others:
        message += (
            f"; the first element of {_others(found.others)}: {found.alike:,} by the same line"
        )
    is_plain = len(found.writes) == 1 and not (names or found.others or store.updates)
    if is_plain:
        return []
    own = Contributions(buffer=found.output, writes=found.writes)
    lines = [message]
    if len(found.writes) > 1 or store.updates:
        lines.append(contributions(own))
    lines += [contributions(source) for source in found.sources[:MAX_SOURCES] if source.writes]
    return lines


def values(found: StoreHistory) -> dict[str, str]:
    """Return facts for a witness: writers by buffer."""
    facts = {}
    if found.writes:
        facts[f"writers of {found.output}"] = _writers(found.writes)
    for source in found.sources:
        if source.writes:
            facts[f"writers of {source.buffer}"] = _writers(source.writes)
    return facts


def _writers(writes: Sequence[Contribution]) -> str:
    return contributions(Contributions(buffer="", writes=tuple(writes))).removeprefix(": ")


def _others(count: int) -> str:
    return "the other differing block" if count == 1 else f"{count:,} other differing blocks"


def contributions(source: Contributions) -> str:
    """Describe a buffer's writers: `acc_ref: set at line 12 by (0, 0); updated at line 19 by …`."""
    parts = []
    for i, write in enumerate(source.writes):
        verb = "updated" if write.updates else "copied" if write.is_copy else "set"
        text = f"{verb} at {where(write.line)}{_span(write)}"
        if write.of_other_block and (source.is_mixed or not i):
            begun = "begun " if write.last != write.first else ""
            text += f", {begun}for another block"
        if write.origin is not None:
            text += f"; the index of its source comes from {write.origin}"
        parts.append(text)
    return f"{source.buffer}: {'; '.join(parts)}"


def _span(write: Contribution) -> str:
    if not write.last:
        return f", {write.count:,} times" if write.count > 1 else ""
    if write.points == 1:
        text = f" by {write.last}"
    else:
        text = f" by {write.points:,} grid points, {write.first} to {write.last}"
    return text + (f", {write.count:,} times" if write.count > write.points else "")


def not_written(found: StoreHistory, element: str) -> tuple[str, str] | None:
    """Return cause and advice, if no step writes the element."""
    if found.status != "never":
        return None
    return (
        f"no step of the kernel writes {element}: it holds whatever its memory held before",
        "look at the ranges and conditions of the stores and at the bounds of the loops around "
        "them",
    )


def left_over(found: StoreHistory) -> tuple[str, str] | None:
    """Return cause and advice, if a buffer behind the store contains data of two output blocks."""
    source = next((source for source in found.sources if source.is_mixed), None)
    if source is None:
        return None
    old = [write for write in source.writes if write.of_other_block][-1]
    new = [write for write in source.writes if not write.of_other_block][-1]
    verb, new_verb = ("copied" if one.is_copy else "wrote" for one in (old, new))
    return (
        f"{source.buffer} holds what {where(old.line)} {verb} at grid point {old.last}, for "
        f"another block of {found.output}, alongside what {where(new.line)} {new_verb} at "
        f"{new.last}; if the value should depend only on the latter, the rest is stale",
        f"mask the part of {source.buffer} that this block did not write, or clear it first",
    )


def not_reset(found: StoreHistory, *, is_sum: bool) -> tuple[str, str] | None:
    """Return cause and advice, if a buffer behind the store was initialised for another block.

    Args:
      is_sum: whether several grid points have the block. Otherwise the buffer may be meant to carry
        values from block to block, as in a scan.
    """
    source = found.carried
    if source is None or source.carried is None:
        return None
    begun, goes_on = source.writes[0], source.carried
    begin = (
        f"was last set at {where(begun.line)} by grid point {begun.last}, for another block of "
        f"{found.output}"
        if not begun.updates
        else f"was never set and holds sums since grid point {begun.first}"
    )
    on = f"{where(goes_on.line)} continues from it at grid point {goes_on.since}"
    if not is_sum:
        return (
            f"{source.buffer} {begin}, and {on}; if this block should not depend on that one, a "
            "reset is missing",
            f"reset {source.buffer} before this block, unless it carries values from block to "
            "block; in that case, look at each line that sets it",
        )
    cause = f"{source.buffer} is not reset where this block begins: it {begin}, and {on}"
    advice = (
        f"reset {source.buffer} at the first step of each block of {found.output}: @pl.when("
        "pl.program_id(axis) == 0), with the axis along which the block stays the same"
    )
    return cause, advice


def carried_on(found: StoreHistory) -> tuple[str, str] | None:
    """Return cause and advice, if first steps of a dimension see values set by the step before.

    A state is carried along the inner dimensions.
    """
    reader = () if found.store is None else found.store.last
    for source in found.sources:
        last = source.writes[-1] if source.writes else None
        if last is None or not last.of_other_block or len(last.last) != len(reader):
            continue
        axis = next((i for i, (a, b) in enumerate(zip(last.last, reader, strict=True)) if a < b), 0)
        behind = range(axis + 1, len(reader))
        if last.last[:axis] != reader[:axis] or not behind or any(reader[axis + 1 :]):
            continue
        return (
            f"{source.buffer} holds what {where(last.line)} set at grid point {last.last}, where "
            f"grid dimension {axis} was at {last.last[axis]}; if nothing should carry over from "
            "one step of it to the next, that value is stale",
            f"if so, set {source.buffer} at the first step of each: {when_zero(behind)}",
        )
    return None


def stored_before(found: StoreHistory, last: Sequence[Point]) -> tuple[str, str] | None:
    """Return cause and advice, if a sum is stored before the last grid point of its block.

    Args:
      last: last grid point, if known.
    """
    store = found.store
    is_sum = any(write.updates for source in found.sources for write in source.writes)
    if store is None or store.updates or not is_sum or not last or store.last == last[0]:
        return None
    return (
        f"{where(store.line)} stores the block at grid point {store.last}, but its last grid "
        f"point is {last[0]}: anything added after the store is not in the result",
        "store at the last step of each block, after the last addition",
    )


def stored_alone(found: StoreHistory, visits: int) -> tuple[str, str] | None:
    """Return cause and advice, if the stored value was made at only one of the block's grid points.

    Args:
      visits: number of grid points that have the block.
    """
    store = found.store
    own = found.writes if store is not None and store.updates else found.writes[:-1]
    made = [(found.output, one) for one in own]
    made += [(source.buffer, one) for source in found.sources for one in source.writes]
    behind = [write for _, write in made]
    if store is None or not behind or (own and own[0].updates):
        return None
    if any(point != store.last for write in behind for point in (write.first, write.last)):
        return None
    names = list(dict.fromkeys(name for name, _ in made))
    return (
        f"{visits:,} grid points share the block, but the stored value comes only from grid point "
        f"{store.last}: {where(behind[0].line)} sets {names[0]} there",
        f"if it should combine all of them, set {listed(names)} only at the first step of each "
        "block, and update the previous value at the others",
    )
