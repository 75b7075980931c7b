"""Wording of results that differ from a reference's."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pallas_debug.findings.faults import Fault
from pallas_debug.findings.sighting import Sighting
from pallas_debug.findings.wording import diverging, stored
from pallas_debug.findings.wording.diverging import Divergence
from pallas_debug.findings.wording.facts import listed, where
from pallas_debug.findings.wording.regions import (
    DifferingRegion,
    Relation,
    RelationKind,
    indices_text,
    region_text,
    relation_text,
)
from pallas_debug.findings.wording.stored import StoreHistory
from pallas_debug.model import Finding, SourceLine

MAX_UNREAD = 4
"""Maximum number of inputs whose unread parts are listed in a message."""

MAX_PARTS = 3
"""Maximum number of parts of an input listed in a message."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """The differing part of a kernel's output, in blocks.

    Attributes:
      block: ranges of the first block that differs, in grid order: `0:8, 128:256`.
      points: first and last grid point that visit that block; empty if there are none, or they are
        unknown.
      visits: number of grid points that visit it; None if unknown.
      differing, blocks: number of differing blocks, and of all blocks; 0 if unknown.
      region: region of the differing blocks, by block index.
      inside: differing region within each of these blocks, if it is the same in all of them.
      unvisited: number of differing blocks that no grid point visits.
    """

    block: str
    points: tuple[tuple[int, ...], ...] = ()
    visits: int | None = None
    differing: int = 0
    blocks: int = 0
    region: DifferingRegion | None = None
    inside: DifferingRegion | None = None
    unvisited: int = 0


@dataclass(frozen=True, kw_only=True)
class UnreadInput:
    """An input with a part that is in no block of the grid.

    Attributes:
      elements: number of elements in no block, and of all elements.
      parts: first such parts: `[128:512, 0:64]`.
      has_more: whether there are more parts.
      line: line of its index map.
    """

    operand: str
    elements: tuple[int, int]
    parts: tuple[str, ...]
    has_more: bool = False
    line: SourceLine | None = None


@dataclass(frozen=True, kw_only=True)
class RoundingError:
    """The largest error of an output, in units of rounding.

    Attributes:
      dtype: least precise dtype that the kernel computes in.
      unit: distance from 1 to the next larger number of that dtype.
      size: largest expected magnitude, used as that of the sums behind it.
      units: largest error divided by `unit` times `size`.
      most: maximum number of units that rounding explains.
    """

    dtype: str
    unit: str
    size: str
    units: float
    most: int

    @property
    def explains(self) -> bool:
        """True if rounding may explain the whole mismatch."""
        return self.units <= self.most


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """An output that differs from that of the reference.

    Attributes:
      what: name of the output, as in `output [1]`.
      array: dtype and shape: `float32[16, 128]`.
      reference: name of the reference.
      count, total: number of differing elements, and of all elements.
      element: index of the first differing element.
      value, expected: values of that element.
      absolute, relative: largest errors, with the elements that have them.
      allowed: the tolerance; empty if elements must be equal.
      region: region of the differing elements.
      relations: patterns of their values.
      written: blocks that contain them, if the output comes straight from a kernel.
      unknown: why block and grid point are unknown, as the end of a sentence.
      history: history of the first element.
      unwatched: why the history is unknown, as the end of a sentence.
      diverged: first divergence between the kernels of both functions.
      unaligned: why the divergence is unknown, as the end of a sentence.
      agrees: whether the kernels do not diverge.
      unjudged: number of elements at which the reference is NaN.
      rounding: the largest error in units of rounding, if all values are finite floats.
      not_compared: operands whose stores were not compared to determine `diverged` or `agrees`,
        each with the reason, as clauses.
      unread: inputs that the grid does not visit completely.
      exchanged: name of the output as which the reference returns these values.
    """

    what: str
    array: str
    reference: str
    count: int
    total: int
    element: tuple[int, ...]
    value: str
    expected: str
    absolute: tuple[str, tuple[int, ...]]
    relative: tuple[str, tuple[int, ...]] | None
    allowed: str
    region: DifferingRegion
    relations: tuple[Relation, ...] = ()
    written: Written | None = None
    unknown: str = ""
    history: StoreHistory | None = None
    unwatched: str = ""
    diverged: Divergence | None = None
    unaligned: str = ""
    agrees: bool = False
    unjudged: int = 0
    rounding: RoundingError | None = None
    not_compared: tuple[str, ...] = ()
    unread: tuple[UnreadInput, ...] = ()
    exchanged: str = ""


def value_mismatch(seen: Sighting, found: Mismatch) -> Finding:
    """Report results of a function that differ from those of its reference."""
    facts = {
        "element": place(found.element),
        "value": found.value,
        "expected": found.expected,
        "differing": f"{found.count} of {found.total}",
        "largest absolute error": found.absolute[0],
    }
    if found.relative is not None:
        facts["largest relative error"] = found.relative[0]
    facts["pattern"] = pattern(found)
    lines = [
        f"{found.what}, {found.array}: {_of(found.count, found.total)} from those of "
        f"`{found.reference}`",
        _first(found),
        *_diverged(found),
        *_history(found),
        _errors(found),
        f"pattern: {facts['pattern']}",
    ]
    if found.unwatched:
        lines.append(f"the line that stored it is unknown: {found.unwatched}")
    lines += [_unread(one) for one in found.unread[:MAX_UNREAD]]
    if found.unjudged:
        lines.append(f"not judged: {found.unjudged:,} where the reference is NaN")
    cause, advice = _cause(found)
    if found.history is not None:
        facts |= stored.values(found.history)
        carried = found.history.carried
        if carried is not None and carried.carried is not None:
            seen = seen.at(other=carried.carried.line)
    return seen.with_values(facts).found(Fault.VALUE_MISMATCH, "\n".join(lines), cause, advice)


def _diverged(found: Mismatch) -> list[str]:
    left = [diverging.not_compared(found.not_compared)] if found.not_compared else []
    if found.diverged is not None:
        return [diverging.sentence(found.diverged), *left]
    if found.unaligned:
        return [diverging.not_known(found.unaligned)]
    if not found.agrees:
        return []
    return [diverging.AGREE_AS_FAR, *left] if left else [diverging.AGREE]


def _history(found: Mismatch) -> list[str]:
    if found.history is None:
        return []
    return stored.history(found.history, is_shown=found.diverged is None)


def _unread(one: UnreadInput) -> str:
    left, total = one.elements
    more = " and others" if one.has_more or len(one.parts) > MAX_PARTS else ""
    parts = ", ".join(f"{one.operand}{part}" for part in one.parts[:MAX_PARTS])
    return f"no grid point gets {parts}{more}: {left:,} of {total:,} elements of {one.operand}"


def place(element: Sequence[int]) -> str:
    """Format an element's index: `[3, 0]`, or `the scalar`."""
    return str([*element]) if element else "the scalar"


def _of(count: int, total: int) -> str:
    if total == 1:
        return "its only element differs"
    return f"{count:,} of {total:,} elements differ" if count > 1 else f"1 of {total:,} differs"


def _first(found: Mismatch) -> str:
    differs = f"{place(found.element)} is {found.value} where {found.expected} is expected"
    if found.written is None:
        is_known = not found.unknown or (found.history is not None and found.history.writes)
        why = "" if is_known else f"; the grid point that wrote it is unknown: {found.unknown}"
        return f"first: {differs}{why}"
    written = found.written
    return f"first in block [{written.block}]{_visited(written)}: {differs}"


def _visited(written: Written) -> str:
    if written.visits is None:
        return ""
    if not written.visits:
        return ", which no grid point visits"
    points = [str(point) for point in written.points]
    if not points or points[0] == "()":
        return ""
    if written.visits == 1:
        return f" of grid point {points[0]}"
    return f", which {written.visits:,} grid points visit, {points[0]} to {points[-1]}"


def _errors(found: Mismatch) -> str:
    error, where = found.absolute
    text = f"largest error: {error} at {place(where)}"
    if found.relative is not None:
        error, where = found.relative
        text += f"; relative: {error} at {place(where)}"
    return f"{text}; allowed: {found.allowed or 'none, since these are not floats'}"


def pattern(found: Mismatch) -> str:
    """Describe the pattern of a mismatch: places of its elements, relations to the reference."""
    parts = [region_text(found.region)]
    written = found.written
    if written is not None and written.blocks > 1:
        parts.append(_blocks(written))
    parts += [relation_text(relation, len(found.region.dims)) for relation in found.relations]
    return "; ".join(parts)


def _blocks(written: Written) -> str:
    if written.differing == 1:
        text = f"all in 1 of {written.blocks:,} blocks"
    elif written.differing == written.blocks:
        text = f"in each of {written.blocks:,} blocks"
    else:
        text = f"in {written.differing:,} of {written.blocks:,} blocks"
        region = written.region
        if region is not None and region.share == 1:
            ends = [
                f"{indices_text(one, 'block')} along dimension {d}"
                for d, one in enumerate(region.dims)
                if not one.is_all
            ]
            text += f", {' and '.join(ends)}" if ends else ""
    if written.inside is not None and not all(one.is_all for one in written.inside.dims):
        text += f", within each: {region_text(written.inside)}"
    if 0 < written.unvisited < written.differing:
        text += f"; no grid point visits {written.unvisited:,} of these"
    return text


_NEVER = (
    "nothing wrote them, or zeros were written",
    "check that every block is visited and stored at its last step: is a store under a pl.when "
    "whose condition is false?",
)
_STORED_ZERO = (
    "zero was stored there",
    "look at the operands of that line: a mask, a branch, an accumulator that was reset, or a "
    "block that the kernel skips",
)
_CAUSES: dict[RelationKind, tuple[str, str]] = {
    "nan": (
        "the kernel produces a NaN, or leaves one in memory, where the reference does not",
        "pallas_debug.check and the other engines of `pallas-debug verify` report the line that "
        "produced it if they can run the kernel",
    ),
    "infinite": (
        "an overflow, a division by zero, or a mask value that is never replaced",
        'run pallas_debug.check with "inf,float_div": it reports the line',
    ),
    "zero": _NEVER,
    "factor": (
        "a missing or doubled scale, or terms that are added more than once or left out",
        "compare the scales of both functions, and count the steps that add to each block",
    ),
    "negated": ("a wrong sign", "compare the signs of both functions"),
    "offset": (
        "a term that is added too often or not at all, or an accumulator that does not start at "
        "zero",
        "look at the initial value of the accumulator and at the terms added to all elements",
    ),
    "wrapped": (
        "a narrow integer overflowed",
        "accumulate in int32 and convert the result",
    ),
    "factor per slice": (
        "these share a wrong factor, such as a normalisation or a rescaling",
        "look at the divisions and multiplications along this dimension",
    ),
    "shifted": (
        "an index map or a slice is off by this distance",
        "compare the index maps of the operands with that of the output",
    ),
    "rotated": (
        "an index map or a slice is off by this distance",
        "compare the index maps of the operands with that of the output",
    ),
    "transposed": (
        "an operand or a product is transposed, or indices are swapped",
        "look at the order of the indices and at the dimensions that dot_general contracts",
    ),
}

_SCALED: tuple[RelationKind, ...] = ("factor", "factor per slice", "offset")
"""Patterns that also arise if an operand is read from the wrong place."""


def _cause(found: Mismatch) -> tuple[str | None, str | None]:
    """Return cause and advice for the pattern; None uses those of the fault's explanation."""
    if found.exchanged:
        return (
            f"it holds what `{found.reference}` returns as {found.exchanged}",
            "look at the order of the outputs: of the kernel's references, of out_shape and "
            "out_specs, and of what the function returns",
        )
    written = found.written
    if written is not None and written.unvisited == written.differing > 0:
        return (
            "no grid point visits the blocks that differ",
            "visit every block: make the grid and the index map cover the array, with pl.cdiv",
        )
    if written is not None and 0 < written.unvisited < written.differing:
        return (
            f"no grid point visits {written.unvisited:,} of the {written.differing:,} blocks that "
            "differ",
            "make the grid and the output's index map reach every block",
        )
    if found.history is not None:
        visits = None if found.written is None else found.written.visits
        cause = stored.not_reset(found.history, is_sum=visits != 1)
        cause = cause or stored.not_written(found.history, place(found.element))
        if cause is not None:
            return cause
    related = [one for one in found.relations if one.kind in _CAUSES and one.share == 1]
    if found.rounding is not None and found.rounding.explains and not related:
        return _rounding(found.rounding)
    if found.diverged is not None:
        return diverging.cause(found.diverged)
    if found.agrees and not found.not_compared:
        return diverging.AROUND
    mixed = None if found.history is None else stored.left_over(found.history)
    if found.unread and mixed is None and all(one.kind in _SCALED for one in related):
        return _not_all_read(found.unread)
    for relation in related:
        is_stored = found.history is not None and found.history.store is not None
        if relation.kind == "zero" and is_stored:
            return _STORED_ZERO
        return _CAUSES[relation.kind]
    if mixed is not None:
        return mixed
    if found.history is not None:
        later = stored.carried_on(found.history)
        if later is None and written is not None and (written.visits or 0) > 1:
            later = stored.stored_before(found.history, written.points[-1:])
            later = later or stored.stored_alone(found.history, written.visits or 0)
        if later is not None:
            return later
    ends = [one for one in found.region.dims if not one.is_all]
    is_end = len(ends) == 1 and ends[0].step == 1 and ends[0].last == ends[0].size - 1
    if is_end and written is not None and written.blocks > written.differing == 1:
        return (
            "only the last block is wrong",
            "look at what is special about it: a ragged edge, a mask, the condition of the last "
            "step",
        )
    return None, None


def _not_all_read(unread: Sequence[UnreadInput]) -> tuple[str, str]:
    names = listed([one.operand for one in unread])
    lines = dict.fromkeys(where(one.line) for one in unread if one.line is not None)
    at = f" ({listed([*lines])})" if lines else ""
    one = len(unread) == 1
    return (
        f"the blocks of {names} leave out a part that the reference may use",
        f"compare {'its index map' if one else 'their index maps'}{at} with the output's: "
        f"{'does it' if one else 'do they'} move along with it to the end?",
    )


def _rounding(found: RoundingError) -> tuple[str, str]:
    units = "less than 1 unit" if found.units < 1 else f"{found.units:.0f} units"
    if 1 <= found.units < 1.5:
        units = "1 unit"
    return (
        f"rounding alone can explain it: the largest error is {units} of {found.dtype} rounding "
        f"(a unit is {found.unit} of the largest element, {found.size}), and up to {found.most} "
        "may be due to rounding",
        f"pass an rtol and atol that {found.dtype} can meet, or compute in a more precise dtype",
    )


def after_cause(wrong: Finding, cause: Finding) -> Finding:
    """Reword a mismatch in a kernel with another fault that may have changed its results."""
    line = "" if cause.source is None else f" at {where(cause.source, wrong.source)}"
    advice = f"first fix the {cause.kind}{line}, which can change these values, and compare again"
    return replace(wrong, advice=advice)


def reference_nan(
    *,
    what: str,
    array: str,
    reference: str,
    count: int,
    total: int,
    first: Sequence[int],
    same: int,
) -> str:
    """Describe the elements that cannot be judged because the reference is NaN there.

    Args:
      same: number of those elements at which the function's result is NaN as well.
    """
    also = "all" if same == count else f"{same:,}" if same else "none"
    return (
        f"{what}, {array}: `{reference}` is NaN at {count:,} of {total:,} elements, first at "
        f"{place(first)}, and the function is NaN at {also} of these: they were not judged. Is "
        "the reference correct and defined for these arguments?"
    )


def ranges(block: Sequence[tuple[int, int]]) -> str:
    """Format the ranges of a block in Python notation: `0:8, 128:256`."""
    return ", ".join(itertools.starmap("{}:{}".format, block))
