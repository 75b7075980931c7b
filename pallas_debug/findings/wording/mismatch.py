"""Wording of results that differ from a reference's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pallas_debug.findings.facts import where
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.sighting import Sighting
from pallas_debug.findings.wording import chain as wording
from pallas_debug.findings.wording.chain import WriterChain
from pallas_debug.findings.wording.regions import (
    DifferingRegion,
    SpecialKind,
    SpecialValues,
    region_text,
    special_text,
)
from pallas_debug.model import Finding, Link


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
      absolute, relative: largest errors.
      allowed: the tolerance; empty if elements must be equal.
      region: region of the differing elements.
      special: NaN, infinities and zeros among them.
      chain: writers behind the first element; if they are unknown, `unknown` says why, as the end
        of a sentence.
      unjudged: number of elements at which the reference is NaN.
      rounding: the largest error in units of rounding, if all values are finite floats.
    """

    what: str
    array: str
    reference: str
    count: int
    total: int
    element: tuple[int, ...]
    value: str
    expected: str
    absolute: str
    relative: str | None
    allowed: str
    region: DifferingRegion
    special: tuple[SpecialValues, ...] = ()
    chain: WriterChain | None = None
    unknown: str = ""
    unjudged: int = 0
    rounding: RoundingError | None = None


def value_mismatch(seen: Sighting, found: Mismatch) -> Finding:
    """Report results of a function that differ from those of its reference."""
    facts = {
        "element": place(found.element),
        "value": found.value,
        "expected": found.expected,
        "differing": f"{found.count} of {found.total}",
        "largest absolute error": found.absolute,
    }
    if found.relative is not None:
        facts["largest relative error"] = found.relative
    facts["pattern"] = pattern(found)
    links: tuple[Link, ...] = ()
    if found.chain is not None:
        links = tuple(wording.link(one, found.chain.output) for one in found.chain.links)
        seen = _at(seen, found.chain)
    lines = [_differs(found, facts["pattern"]), *wording.lines(links)]
    if found.unjudged:
        lines[0] += f"; not compared: {found.unjudged:,} where the reference is NaN"
    if found.chain is None:
        lines[0] += f"; what wrote it is unknown: {found.unknown}"
    cause, advice = _cause(found)
    text = "\n".join(lines)
    finding = seen.with_values(facts).found(Fault.VALUE_MISMATCH, text, cause, advice)
    return replace(finding, chain=links)


def _at(seen: Sighting, chain: WriterChain) -> Sighting:
    """Name the line that the cause is about, or else the line that wrote the element."""
    cause = chain.cause
    if not chain.links:
        return seen.at(grid_point=chain.written or None)
    at = chain.links[0].place if cause is None else cause.place
    if cause is not None:
        seen = seen.at(other=(cause.begun or cause.other).line)
    return seen.at(source=at.line, grid_point=at.point, loop=at.iterations)


def place(element: Sequence[int]) -> str:
    """Format an element's index: `[3, 0]`, or `the scalar`."""
    return str([*element]) if element else "the scalar"


def _differs(found: Mismatch, pattern: str) -> str:
    """One line: how many elements differ, which, the first of them, and by how much."""
    of = "its only element differs" if found.total == 1 else f"{found.count:,} of {found.total:,}"
    verb = "" if found.total == 1 else " elements differ" if found.count > 1 else " differs"
    relative = "" if found.relative is None else f" (relative {found.relative})"
    allowed = found.allowed or "none, since these are not floats"
    return (
        f"{found.what}, {found.array}: {of}{verb} from `{found.reference}` ({pattern}); first, "
        f"{_first(found)}; largest error {found.absolute}{relative}, allowed {allowed}"
    )


def _first(found: Mismatch) -> str:
    differs = f"{place(found.element)} is {found.value}, expected {found.expected}"
    if found.chain is None or not found.chain.block:
        return differs
    point = f" of grid point {found.chain.written}" if found.chain.written else ""
    return f"in block [{found.chain.block}]{point}: {differs}"


def pattern(found: Mismatch) -> str:
    """Describe the pattern of a mismatch: places of its elements, and their special values."""
    return "; ".join([region_text(found.region), *map(special_text, found.special)])


_CAUSES: dict[SpecialKind, tuple[str, str]] = {
    "NaN": (
        "the kernel produces a NaN, or leaves one in memory, where the reference does not",
        "the other engines of `pallas-debug verify` report the line that produced it",
    ),
    "infinite": (
        "an overflow, a division by zero, or a mask value that is never replaced",
        'run pallas_debug.check with "inf,float_div": it reports the line',
    ),
    "zero": (
        "zero was stored there",
        "look at the operands of that line: a mask, a branch, an accumulator that was reset, or a "
        "block that the kernel skips",
    ),
}


def _cause(found: Mismatch) -> tuple[str | None, str | None]:
    """Return cause and advice; None uses those of the fault's explanation."""
    chain = found.chain
    if chain is not None and chain.is_missing:
        return wording.missing(place(found.element))
    if found.rounding is not None and found.rounding.explains:
        return _rounding(found.rounding)
    if chain is not None and chain.cause is not None:
        return wording.cause(chain.cause)
    for special in found.special:
        if special.share == 1:
            return _CAUSES[special.kind]
    return None, None


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
