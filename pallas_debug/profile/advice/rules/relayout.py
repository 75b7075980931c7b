"""Advice: relayouts of a value take a large part of the loop's vector work."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from pallas_debug.model import SourceLine
from pallas_debug.profile.advice.advice import (
    Advice,
    AdviceKind,
    Evidence,
    counted,
    derived,
    percent,
)
from pallas_debug.profile.advice.moves import is_move, is_vector_instruction
from pallas_debug.profile.advice.program import (
    LOADS,
    MAX_LINES,
    PASSED_ON,
    STORES,
    MosaicProgram,
    shape_of,
)
from pallas_debug.profile.advice.rules.products.broadcast_product import places_of_pairs
from pallas_debug.profile.advice.rules.reducing.narrow_values import places_of_narrow
from pallas_debug.profile.advice.subject import AdviceSubject, Place, selected
from pallas_debug.profile.units import MXU

MIN_SHARE = 0.2
"""Minimum share of the loop's vector instructions that move the relaid values of a line."""

MIN_MOVES = 16
"""Minimum number of such instructions in the code."""

_COLUMN = "one element per sublane"
_RELAYOUT = re.compile(
    r"\.relayout\b.*?in_layout = \[(?P<before>[^]]*)\].*?out_layout = \[(?P<after>[^]]*)\]"
)
_LAYOUT = re.compile(
    r'<"(?P<bits>\d+),\{(?P<a>[\d*]+),(?P<b>[\d*]+)\},\((?P<tile>[\d,]+)\)(?:,(?P<implicit>-\d))?'
)


def advise_relayout(subject: AdviceSubject) -> Iterator[Advice]:
    if subject.relaid is None or subject.is_memory_bound:
        return
    others = places_of_pairs(subject) | places_of_narrow(subject)
    for source, changes in _relayouts(subject).items():
        if source.place in others:
            continue  # with the shape that other advice proposes, there is no relayout
        lines = dict.fromkeys((source, *(line for change in changes for line in change.users)))
        moves = [p for line in lines for p in selected(subject.at(line), is_move)]
        loop = subject.loop_of(moves)
        if loop is None:
            continue
        moves = [p for p in moves if p.bundle in loop]
        if len(moves) < MIN_MOVES:
            continue
        inside = selected(subject.inside(loop), is_vector_instruction)
        if len(moves) < MIN_SHARE * len(inside):
            continue
        change = changes[0]
        evidence: list[Evidence] = [
            counted("relayouts inserted for this line", len(changes), "tpu.relayout operations"),
            counted("instructions of this line that only move data", len(moves)),
            counted("vector instructions of the loop", len(inside)),
        ]
        idle = ""
        used = subject.column(MXU, loop)
        if used is not None and used[0]:
            idles = used[1] - used[0]
            if idles < MIN_SHARE * used[1]:
                continue  # the MXU limits the loop, and the moves overlap with it
            evidence.append(derived("bundles of the loop without the MXU", idles))
            idle = f"; the MXU is idle in {percent(idles, used[1])} of its bundles"
        yield KIND.advice(
            source=source,
            message=(
                f"{change.shape} changes its layout, from {change.before} to "
                f"{change.after}; {len(moves)} of {len(inside)} vector instructions of the "
                f"loop only move it between lanes and sublanes{idle}"
            ),
            remedy=_remedy(change),
            evidence=tuple(evidence),
        )


def places_relaid(subject: AdviceSubject) -> frozenset[Place]:
    """Return the lines that this advice is about."""
    sources = (advice.source for advice in advise_relayout(subject))
    return frozenset(source.place for source in sources if source is not None)


@dataclass(frozen=True, kw_only=True)
class _Change:
    """Relayout that moves data: descriptions of both layouts, and the lines that use its result.

    Attributes:
      is_shifted: whether the relayout moves a single column to another lane.
    """

    before: str
    after: str
    shape: str
    users: tuple[SourceLine, ...]
    is_shifted: bool


def _relayouts(subject: AdviceSubject) -> dict[SourceLine, list[_Change]]:
    """Collect relayouts that move data, by line."""
    module = subject.relaid
    assert module is not None
    program = MosaicProgram(module)
    found: dict[SourceLine, list[_Change]] = defaultdict(list)
    for number, name in enumerate(module.names[:MAX_LINES]):
        if name is None or not name.endswith(".relayout"):
            continue
        text = module.lines[number]
        layouts = _RELAYOUT.search(text)
        source = module.source(number)
        shape = shape_of(text)
        if layouts is None or not source or shape is None:
            continue
        before, after = _LAYOUT.search(layouts["before"]), _LAYOUT.search(layouts["after"])
        if before is None or after is None or not _moves(before, after):
            continue
        if before["tile"] != after["tile"] and _is_loaded(program, number):
            continue  # the compiler chooses the tiles of an operand in memory
        is_tiled = before["tile"] != after["tile"] and before["implicit"] == after["implicit"]
        if is_tiled and (shape[0][-2:-1] == (1,) or _is_stored(program, number)):
            continue  # the same goes for a result; a row stays a row
        if before["implicit"] == "-2" and after["implicit"] is None:
            # Rows from a reduction over the second-to-last axis: keeping the axis took 99 to 107 %
            # of the cycles, for 8 sums of 128 rows, and for maxima of 32 rows and of 16.
            continue
        is_shifted = all(before[n] == after[n] for n in ("tile", "bits", "implicit"))
        is_column = len(shape[0]) > 1 and shape[0][-1] == 1
        if is_shifted and not is_column:
            # A slice with another offset: shifting rows and lanes by pltpu.roll and a mask instead
            # took 99 to 101 % of the cycles on v5e and v6e.
            continue
        result = text.split("=", 1)[0].strip()
        users = [lines[0] for n in module.uses(result, number) if (lines := module.source(n))]
        sizes = ", ".join(map(str, shape[0]))
        found[source[0]].append(
            _Change(
                before=_words(before),
                after=_words(after),
                shape=f"{shape[1]}[{sizes}]",
                users=tuple(users),
                is_shifted=is_shifted,
            )
        )
    return found


def _is_loaded(program: MosaicProgram, line: int) -> bool:
    """Return whether the relayout on a line is applied to a value as it was loaded.

    A slice of an image, such as `x[:, 1:33]`, is moved to the first row before its tiles change.
    """
    relaid = next((o for o in program.named("tpu.relayout") if o.line == line), None)
    if relaid is None or not relaid.operands:
        return False
    origin = program.origin(relaid.operands[0], line, PASSED_ON | {"tpu.relayout"})
    return origin is not None and origin.name in LOADS


def _is_stored(program: MosaicProgram, line: int) -> bool:
    """Return whether the result of a line's relayout is only stored, in the memory's tiling."""
    relaid = next((o for o in program.named("tpu.relayout") if o.line == line), None)
    if relaid is None:
        return False
    users = program.final_users(relaid)
    return bool(users) and all(user.name in STORES for user, _ in users)


def _moves(before: re.Match[str], after: re.Match[str]) -> bool:
    """Return whether a relayout moves data; a replicated value can be read at any offset."""
    if before["a"] == before["b"] == "*":
        return False
    if any(before[n] != after[n] for n in ("tile", "bits", "implicit")):
        return True
    return any(before[n] not in ("*", after[n]) for n in ("a", "b"))


def _words(layout: re.Match[str]) -> str:
    """Describe a layout: a column for a vector along sublanes, else along lanes, or its tiling."""
    if layout["implicit"] == "-1":
        return _COLUMN
    if layout["implicit"] == "-2":
        return f"along lanes in tiles of ({layout['tile']})"
    return f"tiles of ({layout['tile']}) from offset {layout['a']},{layout['b']}"


def _remedy(change: _Change) -> str:
    if _COLUMN in (change.before, change.after):
        return (
            "keep it as a column: reduce with keepdims=True, and store it in scratch of shape "
            "(rows, 128) or (rows, 1) instead of in a vector along lanes"
        )
    if change.is_shifted:
        return (
            "compute on whole registers instead of single columns, each of which moves to lane 0 "
            "and back: select columns with masks of lax.broadcasted_iota, and compute a running "
            "sum along lanes as a product with a triangular matrix of ones, with "
            "precision=HIGHEST for f32"
        )
    return (
        "keep the value in a single layout: produce and store it in the shape in which it is used"
    )


KIND = AdviceKind(
    name="relayout",
    title="A value changes its layout",
    condition=(
        "The compiler inserted a relayout for the line (not counting those to the tiles of a "
        "matrix unit right after a load, to those of a result or a reduction over the "
        f"second-to-last axis, or of a slice with another offset), and at least {MIN_SHARE:.0%} "
        "of its loop's vector instructions only move that value; the MXU is idle in the same "
        "share of the loop."
    ),
    remedy="Keep reduced values as columns (`keepdims=True`), and store values as they are used.",
    rule=advise_relayout,
)
