"""Wording of reads of overwritten memory and of unwritten blocks, and of several operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pallas_debug.findings.facts import WrittenElement, listed, number
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.order import Access
from pallas_debug.findings.sighting import Sighting
from pallas_debug.model import Finding


def _at(access: Access) -> str:
    """Describe the place: `grid point (0, 1), loop iteration (2,)`."""
    if access.loop and not access.grid_point:
        return f"loop iteration {access.loop}"
    loop = f", loop iteration {access.loop}" if access.loop else ""
    return f"grid point {access.grid_point}{loop}"


def _other(seen: Sighting, other: Access, *more: dict[str, str]) -> Sighting:
    """Add facts about the other side to the sighting, and any further ones."""
    facts = {f"other {name}": value for name, value in other.facts.items()}
    for part in more:
        facts |= part
    return seen.with_values(facts)


def overwritten_read(
    seen: Sighting,
    *,
    output: str,
    reader: Access,
    writer: Access,
    element: WrittenElement,
    is_under_way: bool = False,
) -> Finding:
    """Report an aliased operand that is read after its memory was overwritten through an output.

    Args:
      seen: sighting with the operand, and the part that is read as `index`.
      output: name of the output that shares the operand's memory.
      reader: copy that fetched the operand, if any.
      is_under_way: whether the two are unordered: the write-back may come first or second.
    """
    at = seen.witness
    what = at.index or at.operand
    both = f"{at.operand} and {output} share one array through input_output_aliases"
    facts = element.facts(at.operand)
    if is_under_way:
        message = (
            f"{what} is fetched for {_at(reader)} while what {_at(writer)} wrote to {output} is "
            "copied back to the same memory"
        )
        cause = f"{both}, and a block is fetched one grid point ahead of its use"
    else:
        message = (
            f"{what} is read at {_at(reader)} after {_at(writer)} overwrote it through {output}"
        )
        cause = both
        if element.value is not None and element.before is not None:
            message += (
                f": {element.name(at.operand)} was {number(element.before)} and is now "
                f"{number(element.value)}"
            )
    if writer.copy or (reader.copy and not is_under_way):
        advice = (
            f"keep the data that is still needed in scratch, or do not alias {at.operand} "
            f"and {output}"
        )
    else:
        advice = (
            f"give {at.operand} and {output} the same index map, so that the grid point that "
            "overwrites a block also reads it, or do not alias them"
        )
    return _other(seen, writer, facts).found(Fault.OVERWRITTEN_READ, message, cause, advice)


def window_not_written(seen: Sighting, *, elements: tuple[int, int]) -> Finding:
    """Report a block that a pipeline in the kernel's body copies to an output unwritten.

    Args:
      seen: sighting with the output as operand.
      elements: number of unwritten elements, and of all in the block.
    """
    name, (missing, total) = seen.witness.operand, elements
    count = f": {missing:,} of its {total:,} elements hold whatever VMEM held before"
    return seen.found(
        Fault.OUTPUT_NOT_WRITTEN,
        f"a block that the pipeline copies to {name}, {seen.witness.shape}, is not written{count}",
        "the body of the pipeline does not store to all of the block, or stores under a condition "
        "that is never true for this block",
        f"store to all of a block of {name} before the pipeline moves on to the next one",
    )


LIKEWISE = "likewise"
"""Name in a witness: other operands to which the finding applies."""


def likewise(found: Finding, others: Sequence[Finding]) -> Finding:
    """Merge findings of one slip in several buffers: the first finding names the others."""
    before = found.values.get(LIKEWISE)
    known = {found.operand, *(before.split(", ") if before else ())}
    names = {
        other.operand: other.operand
        + ("" if other.source in (None, found.source) else f" in line {other.source.line}")
        for other in others
        if other.operand is not None and other.operand not in known
    }
    if not names:
        return found
    message = f"{found.message}; likewise {listed(list(names.values()))}"
    operands = ", ".join([*([before] if before else ()), *names])
    values = {**found.witness.values, LIKEWISE: operands}
    return replace(found, message=message, witness=replace(found.witness, values=values))
