"""Wording of the chain of writers behind a wrong element, and of what is unusual about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pallas_debug.findings.facts import Point, listed, loop, where
from pallas_debug.model import Link, SourceLine


@dataclass(frozen=True, kw_only=True)
class ChainPlace:
    """A line, at a grid point and in iterations of the loops around it."""

    line: SourceLine | None
    point: Point = ()
    iterations: Point = ()


Verb = Literal["sets", "updates", "copies to", "reads"]


@dataclass(frozen=True, kw_only=True)
class WriterLink:
    """Writes by one line to a buffer, or a read of it.

    Attributes:
      place: the last of them.
      since: first grid point, if there are several.
      names: what the value was computed from, apart from the buffer itself.
      is_constant: whether it was computed from no memory at all.
      of_other_block: whether it was done for another block of the output.
    """

    buffer: str
    verb: Verb
    place: ChainPlace
    since: Point | None = None
    count: int = 1
    names: tuple[str, ...] = ()
    is_constant: bool = False
    of_other_block: bool = False


CauseKind = Literal["replaced", "not reset", "stored early", "left over"]


@dataclass(frozen=True, kw_only=True)
class ChainCause:
    """Something certain about a chain that explains a wrong value.

    Attributes:
      place: line to look at: of the write that replaces another, or of the read.
      other: the other side: the write that is replaced, continued from, read, or comes too late.
      begun: for a buffer that is not reset, the oldest write that the value continues from.
    """

    kind: CauseKind
    place: ChainPlace
    other: ChainPlace
    begun: ChainPlace | None = None
    output: str = ""
    buffer: str = ""


@dataclass(frozen=True, kw_only=True)
class WriterChain:
    """Writers behind an element of an output, newest first.

    Attributes:
      output: name of the operand.
      element: the element.
      block: the block that contains it, as `8:16, 0:128`; empty if the output has no blocks.
      written: grid point after which the block was last written back, or ().
      is_missing: whether no step writes the element.
    """

    output: str
    element: Point
    block: str = ""
    written: Point = ()
    links: tuple[WriterLink, ...] = ()
    cause: ChainCause | None = None
    is_missing: bool = False


def link(found: WriterLink, output: str) -> Link:
    """The link as data, with its action as text."""
    verb, buffer, names = found.verb, found.buffer, listed(found.names) if found.names else ""
    if verb == "copies to":
        action = f"copies {names} to {buffer}"
    elif verb == "reads":
        action = f"reads {buffer}"
    else:
        value = "to a constant" if found.is_constant and verb == "sets" else f"from {names}"
        action = f"{verb} {buffer} {value}" if names or found.is_constant else f"{verb} {buffer}"
    if found.count > 1:
        action += f", {found.count:,} times"
    if found.of_other_block:
        action += f", for another block of {output}"
    return Link(
        buffer=buffer,
        action=action,
        sources=tuple(name.partition("[")[0] for name in found.names),
        source=found.place.line,
        grid_point=found.place.point or None,
        loop=found.place.iterations,
        since=found.since,
    )


MAX_SHOWN = 6
"""Maximum number of links of a chain in a message; `Finding.chain` has all."""


def lines(links: Sequence[Link]) -> list[str]:
    """The chain in one line; none for a single link, which is the finding's own line."""
    if len(links) < 2:
        return []
    texts = []
    for one in links[:MAX_SHOWN]:
        point = "" if one.grid_point is None else f" at {one.grid_point}"
        if one.since is not None:
            point = f" at {one.since} to {one.grid_point}"
        texts.append(f"{where(one.source)}{point}{loop(one.loop)} {one.action}")
    more = [f"{len(links) - MAX_SHOWN} more"] if len(links) > MAX_SHOWN else []
    return ["writers, newest first: " + " < ".join([*texts, *more])]


def missing(element: str) -> tuple[str, str]:
    """Return cause and advice for an element that no step writes."""
    return (
        f"no step of the kernel writes {element}: it holds whatever its memory held before",
        "does a grid point visit this block? Make the grid and the index map cover the array, with "
        "pl.cdiv; then look at the ranges, conditions and loops of the stores",
    )


def cause(found: ChainCause) -> tuple[str, str]:
    """Return cause and advice."""
    buffer, output, place, other = found.buffer, found.output, found.place, found.other
    here, there = where(place.line), where(other.line)
    if found.kind == "replaced":
        wrote = "it" if here == there else there
        return (
            f"{here} replaces at grid point {place.point} what {wrote} wrote to {buffer} at "
            f"{other.point}, which nothing had read",
            f"if both should count, add to {buffer} in {here}, or run it only at the first step of "
            f"each block of {output}",
        )
    if found.kind == "not reset":
        begun = found.begun or other
        return (
            f"{buffer} is not reset where this block begins: it was last set by {begun.point}, "
            f"{where(begun.line)}, for another block of {output}, and {here} continues from it at "
            f"{place.point}",
            f"reset {buffer} at the first step of each block of {output}, unless it should carry "
            "values from block to block: @pl.when(pl.program_id(axis) == 0), with the axis along "
            "which the block stays the same",
        )
    if found.kind == "stored early":
        return (
            f"{here} stores the block at grid point {place.point}, and {there} updates {buffer} "
            f"after that, at {other.point}: that is not in the result",
            "store at the last step of each block, after the last update",
        )
    return (
        f"{buffer} holds what {there} wrote at grid point {other.point}, for another block of "
        f"{output}, and {here} reads it at {place.point}",
        f"clear {buffer}, or mask that part of it, unless it should carry values from block to "
        "block",
    )
