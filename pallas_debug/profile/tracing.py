"""Python lines of every instruction in a schedule, helpers and callers included.

The compiler names one place on most instructions: the innermost line. The calls that led there are
recovered from the kernel's Mosaic module, whose locations contain the whole chain. If several calls
lead to the same place, the neighbours decide: the lines of an instruction's producers and users are
compared with those in the module; if that is ambiguous, the instruction closest in the compiler's
own numbering decides, which follows the program.

Instructions without a place (spills, fills, constants, addresses) take the lines of the users of
their results, or else of their producers. Such a line is marked as derived.
"""

from __future__ import annotations

import bisect
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pallas_debug.ir.bundles import BundleListing, Instruction
from pallas_debug.ir.llo import SPILL_SLOT
from pallas_debug.ir.locations import first_place
from pallas_debug.ir.mosaic import COPY, operations
from pallas_debug.ir.operations import Module
from pallas_debug.model import SourceLine
from pallas_debug.profile.figures import Origin
from pallas_debug.profile.units import is_copy, is_vector

Chain = tuple[SourceLine, ...]
"""Python lines of an instruction, innermost first."""

Place = tuple[str, int]
"""File and number of a line."""

_MATRIX_UNIT = re.compile(r"\.(?:mrb\[(?P<entry>\d{1,6})\]\.)?(?P<unit>mxu\d{1,3})\b")
_NUMBER = re.compile(r"%[a-z]*(\d{1,15})")

_REACH = 12
"""Maximum distance, in instructions, over which an instruction without a place takes a line."""

_BUFFERED = 256
"""Maximum number of products whose results wait in the buffer of a matrix unit."""

_MAX_VISITS = 400
"""Maximum instructions to visit for one; a constant may have thousands of users."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Python lines of an instruction.

    Attributes:
      chain: lines, innermost first; empty if there is none.
      origin: `compiler` if the instruction names its place, `derived` if its line was taken from
        its users or producers.
    """

    chain: Chain = ()
    origin: Origin = "compiler"


NO_TRACE = Trace(origin="derived")


@dataclass(frozen=True, kw_only=True)
class Tracing:
    """Lines of all instructions: `traces[bundle][slot]`."""

    traces: tuple[tuple[Trace, ...], ...]


def trace(listing: BundleListing, mosaic: Module | None = None) -> Tracing:
    """Find the Python lines of all instructions.

    Args:
      mosaic: the kernel's module before any pass, with locations; without it, a chain has only the
        innermost line.
    """
    flow = _Flow(listing)
    chains = _Chains(flow, _Calls(mosaic) if mosaic is not None else None)
    found: list[Trace] = []
    known: dict[tuple[int, bool], Trace] = {}  # by identity of the chain, which `chains` keeps
    for number in range(len(flow.instructions)):
        own = chains.of(number)
        chain = own or chains.inherited(number)
        made = known.get((id(chain), not own)) if chain else NO_TRACE
        if made is None:
            made = Trace(chain=chain, origin="compiler" if own else "derived")
            known[id(chain), not own] = made
        found.append(made)
    traces: list[tuple[Trace, ...]] = []
    taken = 0
    for bundle in listing.bundles:
        traces.append(tuple(found[taken : taken + len(bundle.instructions)]))
        taken += len(bundle.instructions)
    return Tracing(traces=tuple(traces))


class _Flow:
    """Dependencies between instructions, through registers and spill slots."""

    def __init__(self, listing: BundleListing) -> None:
        self.listing = listing
        self.instructions: list[Instruction] = [
            i for bundle in listing.bundles for i in bundle.instructions
        ]

    @cached_property
    def _edges(self) -> tuple[list[list[int]], list[list[int]]]:
        definitions: dict[str, int] = {}
        for number, instruction in enumerate(self.instructions):
            for name in instruction.results:
                definitions.setdefault(name, number)
        producers: list[list[int]] = [[] for _ in self.instructions]
        users: list[list[int]] = [[] for _ in self.instructions]
        stored: dict[str, list[int]] = defaultdict(list)
        for number, instruction in enumerate(self.instructions):
            read = dict.fromkeys(instruction.operands)
            if instruction.kept:
                read[instruction.kept] = None
            sources = [definitions[name] for name in read if name in definitions]
            slot = SPILL_SLOT.search(instruction.text)
            if slot and instruction.opcode.startswith(("vst", "sst")):
                stored[slot[1]].append(number)
            elif slot:  # reads from the last store to the slot in the listing
                at = bisect.bisect(stored[slot[1]], number)
                sources += stored[slot[1]][max(at - 1, 0) : at]
            for source in sources:
                if source != number:
                    producers[number].append(source)
                    users[source].append(number)
        for source, number in _matrix_edges(self.instructions):
            producers[number].append(source)
            users[source].append(number)
        return producers, users

    @property
    def producers(self) -> list[list[int]]:
        """Producers of the operands of each instruction."""
        return self._edges[0]

    @property
    def users(self) -> list[list[int]]:
        """Users of the results of each instruction."""
        return self._edges[1]


def _matrix_edges(instructions: Sequence[Instruction]) -> Iterator[tuple[int, int]]:
    """Yield pairs of instructions that are connected by the state of a matrix unit.

    Weights pushed into a unit are used by its next product. A result belongs to the product that
    wrote its buffer entry or, where results form a queue, to the product at the same position.
    """
    pushed: dict[str, list[int]] = defaultdict(list)
    products: dict[str, list[tuple[int, int | None]]] = defaultdict(list)
    popped: dict[str, list[tuple[int, int | None]]] = defaultdict(list)
    for number, instruction in enumerate(instructions):
        if not instruction.opcode.startswith(("vmat", "vpop")):
            continue
        found = _MATRIX_UNIT.search(instruction.text)
        if found is None:
            continue
        unit = found["unit"]
        entry = int(found["entry"]) if found["entry"] else None
        if instruction.opcode.startswith("vmatmul"):
            yield from ((push, number) for push in pushed.pop(unit, ()))
            products[unit].append((number, entry))
        elif instruction.opcode.startswith("vpop"):
            popped[unit].append((number, entry))
        else:
            pushed[unit].append(number)
    for unit, pops in popped.items():
        yield from _products_of(pops, products.get(unit, []))


def _products_of(
    pops: Sequence[tuple[int, int | None]], products: Sequence[tuple[int, int | None]]
) -> Iterator[tuple[int, int]]:
    for position, (number, entry) in enumerate(pops):
        if entry is None:
            if products:
                yield products[position * len(products) // len(pops)][0], number
            continue
        end = bisect.bisect(products, number, key=lambda product: product[0])
        recent = [
            (base, product)
            for product, base in products[max(end - _BUFFERED, 0) : end]
            if base is not None and base <= entry
        ]
        if recent:
            yield max(recent)[1], number


class _Calls:
    """Calls that lead to each place, from the locations in the kernel's Mosaic module."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._places: dict[str, str] = {}

    @cached_property
    def chains(self) -> dict[str, list[Chain]]:
        """Chains that begin at each place, in program order."""
        return {place: list(chains) for place, chains in self.spans.items()}

    @cached_property
    def spans(self) -> dict[str, dict[Chain, tuple[int, int]]]:
        """For each place, first and last line of the module with an operation of each chain."""
        found: dict[str, dict[Chain, tuple[int, int]]] = defaultdict(dict)
        for line, name in enumerate(self._module.names):
            if name is not None and (place := self._place(line)):
                chain = self._module.source(line)
                first, last = found[place].get(chain, (line, line))
                found[place][chain] = min(first, line), max(last, line)
        return found

    @cached_property
    def copies(self) -> dict[str, list[Chain]]:
        """Chains of the copies that are started at each place, in program order."""
        found: dict[str, list[Chain]] = defaultdict(list)
        for copy in operations(self._module, COPY):
            if place := self._place(copy.line):
                found[place].append(self._module.source(copy.line))
        return found

    @cached_property
    def neighbours(self) -> dict[Chain, set[tuple[bool, Place]]]:
        """Lines of the producers (False) and users (True) of the operations of each chain."""
        module = self._module
        found: dict[Chain, set[tuple[bool, Place]]] = defaultdict(set)
        for line, name in enumerate(module.names):
            if name is None:
                continue
            mine = module.source(line)
            for operation in module.operations(line):
                for value in operation.operands:
                    at = module.definition(value.name, line)
                    if at is None or not mine:
                        continue
                    theirs = module.source(at)
                    if theirs and theirs != mine:
                        found[mine].add((False, (theirs[0].file, theirs[0].line)))
                        found[theirs].add((True, (mine[0].file, mine[0].line)))
        return found

    def _place(self, line: int) -> str | None:
        body = self._module.location(line)
        if body is None:
            return None
        if body not in self._places:
            self._places[body] = first_place(self._module.chains.without_aliases(body))
        return self._places[body] or None


class _Chains:
    """Chains of instructions: their own, completed with calls, or inherited from others."""

    def __init__(self, flow: _Flow, calls: _Calls | None) -> None:
        self._flow = flow
        self._own: list[Chain] = [flow.listing.sources(i) for i in flow.instructions]
        self._inherited: dict[int, Chain] = {}
        if calls is not None:
            self._complete(calls)

    def of(self, number: int) -> Chain:
        """Return the chain of an instruction that names its place."""
        return self._own[number]

    def inherited(self, number: int) -> Chain:
        """Return the chain of the users of an instruction's result, or else of its producers."""
        known = self._inherited.get(number)
        if known is None:
            known = self._nearest(number, self._flow.users)
            known = known or self._nearest(number, self._flow.producers)
            self._inherited[number] = known
        return known

    def _nearest(self, number: int, edges: Sequence[Sequence[int]]) -> Chain:
        """Return the most frequent chain among the closest instructions that have one."""
        seen = {number}
        ring = deque([number])
        for _ in range(_REACH):
            found: dict[Chain, int] = {}
            following: deque[int] = deque()
            for at in ring:
                for neighbour in edges[at]:
                    if neighbour in seen or len(seen) > _MAX_VISITS:
                        continue
                    seen.add(neighbour)
                    following.append(neighbour)
                    if chain := self._own[neighbour]:
                        found[chain] = found.get(chain, 0) + 1
            if found:
                return max(found, key=found.__getitem__)
            ring = following
        return ()

    def _complete(self, calls: _Calls) -> None:
        """Extend the places of instructions with the calls that led there."""
        open_: dict[str, list[int]] = defaultdict(list)
        lines: list[Place | None] = []  # innermost lines, used as votes
        interned: dict[Place, Place] = {}
        keys: dict[str, str] = {}
        anchors: list[tuple[int, int, int]] = []
        for number, instruction in enumerate(self._flow.instructions):
            own = self._own[number]
            if not own:
                lines.append(None)
                continue
            location = instruction.locations[0]
            key = keys.get(location)
            if key is None:
                key = keys[location] = first_place(location)
            known = calls.chains.get(key, [])
            if len(known) == 1:
                self._own[number] = own = known[0] or own
                if is_vector(instruction.opcode):  # later passes renumber scalars
                    anchors.append((_ordinal(instruction), *calls.spans[key][known[0]]))
            elif len(known) > 1:
                open_[key].append(number)
            line = own[0].file, own[0].line
            if all((chain[0].file, chain[0].line) == line for chain in known if chain):
                lines.append(interned.setdefault(line, line))
            else:
                lines.append(None)  # may belong to another line, so it has no vote
        order = _Order(sorted(anchors))
        for key, numbers in open_.items():
            left = self._pair_copies(numbers, calls.copies.get(key, []))
            self._decide(left, calls.spans[key], calls.neighbours, lines, order)

    def _pair_copies(self, numbers: Sequence[int], chains: Sequence[Chain]) -> list[int]:
        """Assign the program's chains to copies, if the counts match; return other instructions.

        The compiler numbers copies in program order.
        """
        instructions = self._flow.instructions
        copies = [number for number in numbers if is_copy(instructions[number].opcode)]
        if len(copies) != len(chains):
            return list(numbers)
        copies.sort(key=lambda number: _ordinal(instructions[number]))
        for number, chain in zip(copies, chains, strict=True):
            self._own[number] = chain
        return [number for number in numbers if not is_copy(instructions[number].opcode)]

    def _decide(
        self,
        numbers: Sequence[int],
        spans: Mapping[Chain, tuple[int, int]],
        neighbours: Mapping[Chain, set[tuple[bool, Place]]],
        lines: Sequence[Place | None],
        order_of_others: _Order,
    ) -> None:
        """Choose among several chains for the instructions at the same place."""
        decided: dict[int, Chain] = {}
        chains = list(spans)
        around = [neighbours.get(chain, set()) | _at_its_line(chain) for chain in chains]
        for number in numbers:
            votes = self._votes(number, lines)
            scores = [len(votes & near) for near in around]
            best = max(scores)
            if best and scores.count(best) == 1:
                decided[number] = chains[scores.index(best)]
                continue
            mine = _ordinal(self._flow.instructions[number])
            fitting = [chain for chain in chains if order_of_others.fits(mine, spans[chain])]
            if len(fitting) == 1:
                decided[number] = fitting[0]
        order = sorted((_ordinal(self._flow.instructions[n]), n) for n in decided)
        for number in numbers:
            if number in decided:
                self._own[number] = decided[number]
            elif order:
                at = bisect.bisect(order, (_ordinal(self._flow.instructions[number]), number))
                near = order[max(at - 1, 0) : at + 1]
                mine = _ordinal(self._flow.instructions[number])
                self._own[number] = decided[min(near, key=lambda n: abs(n[0] - mine))[1]]
            else:
                self._own[number] = chains[0][:1]  # most chains begin with the same line

    def _votes(self, number: int, lines: Sequence[Place | None]) -> set[tuple[bool, Place]]:
        """Return the lines of the closest instructions on other lines, up- and downstream."""
        producers = _first_others(number, self._flow.producers, lines)
        users = _first_others(number, self._flow.users, lines)
        return {(False, place) for place in producers} | {(True, place) for place in users}


def _at_its_line(chain: Chain) -> set[tuple[bool, Place]]:
    """Return votes for a chain's own line, as producers and users may be on the same line."""
    return {(is_user, line.place) for line in chain[:1] for is_user in (False, True)}


class _Order:
    """Instructions with known chains, in the compiler's numbering, which follows the program."""

    def __init__(self, anchors: Sequence[tuple[int, int, int]]) -> None:
        """Args: number of each instruction, and first and last module line of its operations."""
        self._anchors = anchors

    def fits(self, number: int, span: tuple[int, int]) -> bool:
        """Return whether operations on these lines are between the neighbours of an instruction."""
        at = bisect.bisect_left(self._anchors, (number,))
        end = bisect.bisect_left(self._anchors, (number + 1,))
        before, after = self._anchors[at - 1 : at] if at else [], self._anchors[end : end + 1]
        return all(span[1] >= first for _, first, _ in before) and all(
            span[0] <= last for _, _, last in after
        )


def _first_others(
    number: int, edges: Sequence[Sequence[int]], lines: Sequence[Place | None]
) -> Iterable[Place]:
    """Collect the first other lines that a search along the edges reaches from its start.

    Args:
      lines: line of each instruction; the same tuple for the same line.
    """
    mine = lines[number]
    seen = {number}
    queue = deque([number])
    found: dict[Place, None] = {}
    while queue and len(seen) < _MAX_VISITS and len(found) < _REACH:
        for neighbour in edges[queue.popleft()]:
            if neighbour in seen:
                continue
            seen.add(neighbour)
            line = lines[neighbour]
            if line is None or line is mine:
                queue.append(neighbour)
            else:
                found[line] = None
    return found


def _ordinal(instruction: Instruction) -> int:
    """Return the compiler's number of an instruction: `%v3014_v5` is 3014."""
    found = _NUMBER.match(instruction.results[0])
    return int(found[1]) if found else 0
