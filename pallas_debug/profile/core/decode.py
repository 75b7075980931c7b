"""Decoder of bundles for the walk through a schedule; keeps what the scalar core evaluates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pallas_debug.ir.bundles import Bundle, Instruction
from pallas_debug.profile.core import scalars
from pallas_debug.profile.core.copies import direction_of, memory_spaces
from pallas_debug.profile.core.scalars import DecodedScalar, MemoryPlace, Scalar
from pallas_debug.profile.schedule import Schedule, ScheduledBranch, ScheduledLoop
from pallas_debug.profile.units import is_copy

_OPPOSITE = {"gt": "le", "le": "gt", "lt": "ge", "ge": "lt", "eq": "ne", "ne": "eq"}


@dataclass(kw_only=True, slots=True)
class DecodedCopy:
    """Start of a copy.

    Attributes:
      direction: source and destination memories, such as `hbm_to_vmem`.
      arguments: source, size, destination, semaphore, strides.
    """

    direction: str
    arguments: tuple[str | Scalar, ...]
    predicate: tuple[str, bool] | None


@dataclass(kw_only=True, slots=True)
class DecodedWait:
    """A wait for the copies that signal a semaphore."""

    flag: str | Scalar
    amount: str | Scalar
    predicate: tuple[str, bool] | None


@dataclass(kw_only=True, slots=True)
class DecodedMove:
    """A scalar load or store."""

    place: MemoryPlace
    result: str | None
    source: str | Scalar
    predicate: tuple[str, bool] | None


@dataclass(kw_only=True, slots=True)
class DecodedPhi:
    """Choice between two values, depending on how control reached the bundle."""

    result: str
    first: str | Scalar
    second: str | Scalar


@dataclass(kw_only=True, slots=True)
class DecodedJump:
    """Branch and the index of its target bundle; None if the listing ends before the target."""

    predicate: tuple[str, bool] | None
    target: int | None


Decoded = DecodedCopy | DecodedWait | DecodedMove | DecodedJump
"""Operations that the walk evaluates besides scalar arithmetic."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodedBundle:
    """The part of a bundle that the walk evaluates.

    Attributes:
      operations: evaluated before `scalars`, because they read what earlier bundles wrote.
    """

    operations: tuple[Decoded, ...] = ()
    scalars: tuple[DecodedScalar, ...] = ()
    phis: tuple[DecodedPhi, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.operations or self.scalars or self.phis)


def decode(schedule: Schedule) -> list[DecodedBundle]:
    """Decode all bundles of a schedule."""
    spaces = memory_spaces(schedule.bundles)
    return [decode_bundle(bundle, schedule.starts, spaces) for bundle in schedule.bundles]


def decode_bundle(
    bundle: Bundle, starts: Mapping[int, int], spaces: Mapping[str, str]
) -> DecodedBundle:
    """Decode a bundle.

    Args:
      starts: index of the first bundle of each region.
      spaces: memory that each register with a pointer points into.
    """
    operations: list[Decoded] = []
    arithmetic: list[DecodedScalar] = []
    phis: list[DecodedPhi] = []
    for i in bundle.instructions:
        if i.opcode.startswith(("sphi", "pphi")) and len(i.operands) == 2:
            first, second = i.operands
            phis.append(DecodedPhi(result=i.results[0], first=first, second=second))
        elif isinstance(operation := _decoded(i, starts, spaces), DecodedScalar):
            arithmetic.append(operation)
        elif operation is not None:
            operations.append(operation)
    if not (operations or arithmetic or phis):
        return _NOTHING
    return DecodedBundle(operations=tuple(operations), scalars=tuple(arithmetic), phis=tuple(phis))


_NOTHING = DecodedBundle()


def passed(
    bundles: Sequence[DecodedBundle], registers: Mapping[str, int]
) -> Sequence[DecodedBundle]:
    """Bundles with the values of operands that are passed in registers."""
    if not registers:
        return bundles
    return [
        replace(
            bundle,
            scalars=tuple(
                replace(s, function=scalars.first, arguments=(registers[s.result],))
                if s.result in registers
                else s
                for s in bundle.scalars
            ),
        )
        if any(s.result in registers for s in bundle.scalars)
        else bundle
        for bundle in bundles
    ]


def _decoded(
    i: Instruction, starts: Mapping[int, int], spaces: Mapping[str, str]
) -> Decoded | DecodedScalar | None:
    if not i.opcode.startswith(("s", "dma.")):
        return scalars.decode(i)
    predicate = scalars.predicate_of(i)
    if i.opcode.startswith("sbr"):
        target = starts.get(i.target) if i.target is not None else None
        return DecodedJump(predicate=predicate, target=target)
    if is_copy(i.opcode):
        return DecodedCopy(
            direction=direction_of(i, spaces),
            arguments=tuple(_copy_arguments(i)),
            predicate=predicate,
        )
    if i.opcode.startswith("dma.done"):
        flag, amount, *_ = [*map(scalars.argument, i.arguments), None, None]
        return DecodedWait(flag=flag, amount=amount, predicate=predicate)
    if i.opcode.startswith(("sld", "sst")):
        return _move(i, predicate)
    return scalars.decode(i)


def test_of(schedule: Schedule, loop: ScheduledLoop) -> tuple[str | Scalar, str | Scalar] | None:
    """Return the operands of the comparison behind a loop's branch: `scmp.ge %i, 34`."""
    if loop.branch is None:
        return None
    return _compared(schedule.bundles[loop.start : loop.stop], loop.branch)


def guards_of(schedule: Schedule, loops: Iterable[int]) -> dict[int, int]:
    """Return the branches that skip loops without iterations, with the numbers of the loops.

    Such a branch compares the bound of the loop's own branch with 0, or with another register.
    """
    found: dict[int, int] = {}
    for number in loops:
        loop = schedule.loops[number]
        bounds = {a for a in test_of(schedule, loop) or () if isinstance(a, str)}
        around = [
            b for b in schedule.branches if b.bundle < loop.start and (b.target or 0) >= loop.stop
        ]
        for branch in around[-1:]:
            compared = _compared(schedule.bundles[: branch.bundle + 1], branch) or ()
            is_of_size = all(isinstance(a, str) or a == 0 for a in compared)
            if is_of_size and bounds.intersection(compared):
                found[branch.bundle] = number
    return found


def _compared(
    bundles: Sequence[Bundle], branch: ScheduledBranch
) -> tuple[str | Scalar, str | Scalar] | None:
    """Return the operands of the comparison that decides whether a branch is taken."""
    predicate = scalars.predicate_of(branch.instruction)
    if predicate is None:
        return None
    for bundle in bundles:
        for i in bundle.instructions:
            if i.results[0] == predicate[0] and i.opcode.startswith("scmp."):
                given = [scalars.argument(a) for a in i.arguments]
                if len(given) == 2:
                    return given[0], given[1]
    return None


def opposites(bundles: Sequence[Bundle]) -> dict[str, str]:
    """Map each result of a comparison to that of an earlier one that is true if it is false.

    The branches of `lax.cond` and of `if` may test two comparisons of the same registers.
    """
    found: dict[str, str] = {}
    seen: dict[tuple[str, ...], str] = {}
    for bundle in bundles:
        for i in bundle.instructions:
            stem, _, rest = i.opcode.partition(".")
            kind, _, rest = rest.partition(".")
            if stem != "scmp" or kind not in _OPPOSITE:
                continue
            before = seen.get((_OPPOSITE[kind], rest, *i.arguments))
            if before is not None:
                found[i.results[0]] = before
            seen.setdefault((kind, rest, *i.arguments), i.results[0])
    # Of two comparisons in one bundle, or in another order than their branches, either is earlier.
    return found | {before: after for after, before in found.items() if before not in found}


def _move(i: Instruction, predicate: tuple[str, bool] | None) -> DecodedMove | None:
    place = scalars.place_of(i)
    if place is None:
        return None
    is_load = i.opcode.startswith("sld")
    is_stored = not is_load and i.operands and not i.text.endswith("]")
    return DecodedMove(
        place=place,
        result=i.results[0] if is_load else None,
        source=i.operands[-1] if is_stored else None,
        predicate=predicate,
    )


def _copy_arguments(instruction: Instruction) -> Iterator[str | Scalar]:
    """Source, size, destination and flag of a copy: `[thread:$0]  %s1, 128, %s2, %s3`."""
    for position, text in enumerate(instruction.arguments):
        if position == 0 and text.startswith("[thread"):
            text = text.partition("]")[2].strip()
        yield scalars.argument(text)
