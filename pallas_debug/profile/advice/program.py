"""Graph of the kernel's Mosaic program: operations, the producers of their operands, and loops.

Parses the text of the module before any pass. Operations that are not recognised have no operands
and no uses, so queries about them return "unknown".
"""

from __future__ import annotations

import bisect
import itertools
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from pallas_debug.ir.operations import Module
from pallas_debug.model import SourceLine

MAX_LINES = 20_000
"""Maximum lines of a module to read; splash attention's largest kernel has 2,000."""

MAX_VISITED = 2_000
"""Maximum operations to visit when following an operand back to its origin."""

MAX_LOOPS = 200
"""Maximum loops of a program; further loops are ignored."""

MAX_WORK = 500_000
"""Maximum look-ups of the producer of a value, over all rules; further ones return None."""

MAX_DEPTH = 12
"""Maximum depth of an expression of constants; each operation has two operands."""

PASSED_ON = frozenset(
    (
        *("vector.shape_cast", "vector.broadcast", "vector.extract"),
        *("tpu.reshape", "tpu.broadcast", "tpu.assume_multiple"),
        *("arith.index_cast", "arith.extui", "arith.extsi", "arith.trunci"),
    )
)
"""Operations that change the form of a value but none of its elements."""

LOADS = ("vector.load", "tpu.vector_load", "tpu.load", "memref.load")
"""Operations that read memory; operands are the memory, then indices."""

STORES = ("vector.store", "tpu.vector_store", "tpu.store", "memref.store")
"""Operations that write memory."""

_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "arith.addi": operator.add,
    "arith.subi": operator.sub,
    "arith.muli": operator.mul,
}

Shape = tuple[tuple[int, ...], str]
"""Sizes and element type."""

_DIALECTS = ("xir.", "mosaic_tc.")
"""Other dialects of `tpu` operations: in its passes, libtpu 0.0.52 writes `tpu.reshape` in the
first, and libtpu 0.0.50 writes `tpu.relayout` in the second."""

_FUNCTION = re.compile(r"\s*func\.func (?:private |public )?@(?P<name>[\w$.-]+)\(")
_FOR = re.compile(
    r"(?P<iv>%[\w$.-]+) = (?P<lower>%[\w$.-]+) to (?P<upper>%[\w$.-]+) step (?P<step>%[\w$.-]+)"
    r"(?:\s+iter_args\((?P<carried>[^)]*)\))?"
)
_CARRIED = re.compile(r"(%[\w$.-]+) = (%[\w$.-]+)")
_CONSTANT = re.compile(r"arith\.constant (?:dense<)?(?P<value>-?\d{1,18}|true|false)\b")
_VALUE = re.compile(r"%[\w$.-]+(?:#\d+)?")
_RESULTS = re.compile(r"\s*(?P<results>%[\w$.-]+(?::\d+)?(?:, %[\w$.-]+(?::\d+)?)*) = ")
_BLOCK_INTEGERS = re.compile(r"(?:i\d+|index)\b")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramOperation:
    """An operation of the program.

    Attributes:
      line: line number in the module.
      operands: values that the operation reads, in order.
      text: text of the line.
    """

    line: int
    name: str
    results: tuple[str, ...]
    operands: tuple[str, ...]
    text: str

    @property
    def shape(self) -> Shape | None:
        """Shape and element type of the result, or of the vector or memory that it works on."""
        return shape_of(self.text.partition(" loc(")[0])

    @property
    def dtype(self) -> str | None:
        """Element type of `shape`."""
        return self.shape[1] if self.shape is not None else None

    @property
    def operand_shape(self) -> Shape | None:
        """Shape and element type before a conversion or broadcast."""
        return shape_of(self.text.partition(" to ")[0])


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramLoop:
    """A counted loop of the program.

    Attributes:
      line, stop: lines of the loop's head and of its closing brace.
      counter: name of the induction variable.
      start, step: first value and increment of the counter; None if not constant.
      trips: number of iterations; None if not constant.
      carried: values that are carried from one iteration to the next.
    """

    line: int
    stop: int
    counter: str
    start: int | None
    step: int | None
    trips: int | None
    carried: tuple[str, ...]

    def __contains__(self, line: int) -> bool:
        return self.line < line < self.stop

    def passes(self, value: str) -> bool:
        """Return whether a value is the loop's counter or one of its carried values."""
        return value == self.counter or value in self.carried


class MosaicProgram:
    """Operations of the kernel's function in a Mosaic module."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self._work = MAX_WORK
        self._identities: dict[int, str] = {}
        self._numbers: dict[tuple[str, ...], int] = {}

    @cached_property
    def span(self) -> tuple[int, int]:
        """Lines of the kernel's function: the first function; index maps follow it."""
        for region in self.module.regions:
            if region.start < MAX_LINES and _FUNCTION.match(self.module.lines[region.start]):
                return region.start, min(region.stop, MAX_LINES)
        return 0, 0

    @cached_property
    def operations(self) -> tuple[ProgramOperation, ...]:
        """All operations, in order."""
        start, stop = self.span
        names = self.module.names
        return tuple(
            self._operation(line, name)
            for line in range(start + 1, stop)
            if (name := names[line]) is not None
        )

    @cached_property
    def _by_line(self) -> dict[int, ProgramOperation]:
        return {operation.line: operation for operation in self.operations}

    def _operation(self, line: int, name: str) -> ProgramOperation:
        if name.startswith(_DIALECTS):
            name = f"tpu.{name.partition('.')[2]}"
        text = self.module.lines[line]
        found = _RESULTS.match(text)
        results = tuple(_VALUE.findall(found["results"])) if found else ()
        rest = text[found.end() :] if found else text
        return ProgramOperation(
            line=line,
            name=name,
            results=results,
            operands=tuple(_VALUE.findall(rest.partition(" loc(")[0])),
            text=text,
        )

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        """Memory parameters of the kernel, one per operand."""
        head = self.module.lines[self.span[0]] if self.operations else ""
        found = re.findall(r"(%[\w$.-]+): ([^,\s]+)", head)
        return tuple(name for name, kind in found if not _BLOCK_INTEGERS.match(kind))

    @cached_property
    def counters(self) -> tuple[str, ...]:
        """Grid index parameters of the kernel, one per axis."""
        head = self.module.lines[self.span[0]] if self.operations else ""
        found = re.findall(r"(%[\w$.-]+): ([^,\s]+)", head)
        return tuple(name for name, kind in found if _BLOCK_INTEGERS.match(kind))

    def body(self, loop: ProgramLoop) -> list[ProgramOperation]:
        """Return the operations of a loop, including those of nested regions."""
        return [operation for operation in self.operations if operation.line in loop]

    def head(self, loop: ProgramLoop) -> ProgramOperation:
        """Return the operation of a loop."""
        return self._by_line[loop.line]

    def named(self, *names: str) -> Iterator[ProgramOperation]:
        """Yield operations with one of these names, in order."""
        return (operation for operation in self.operations if operation.name in names)

    def operations_after(self, line: int) -> Iterator[ProgramOperation]:
        """Yield operations that follow a line within its region."""
        stop = min(
            (s for start, s in self._stops.items() if start < line < s), default=self.span[1]
        )
        start = bisect.bisect_right(self._lines, line)
        for operation in itertools.islice(self.operations, start, None):
            if operation.line >= stop:
                return
            yield operation

    @cached_property
    def _lines(self) -> list[int]:
        return [operation.line for operation in self.operations]

    def source(self, operation: ProgramOperation) -> SourceLine | None:
        """Return the innermost Python line of an operation."""
        found = self.module.source(self._stops.get(operation.line, operation.line))
        return found[0] if found else None

    @cached_property
    def _stops(self) -> dict[int, int]:
        """Last line of each region by its first; an operation's location follows its region."""
        return {region.start: region.stop for region in self.module.regions}

    def producer(self, value: str, line: int) -> ProgramOperation | None:
        """Return the operation that defines a value used on a line; None for block arguments."""
        self._work -= 1
        found = self.module.definition(value, line) if self._work > 0 else None
        operation = self._by_line.get(found) if found is not None else None
        if operation is None or value.partition("#")[0] not in operation.results:
            return None
        return operation

    def users(self, operation: ProgramOperation) -> tuple[ProgramOperation, ...]:
        """Return the operations that read a result of an operation."""
        return tuple(self._users.get(operation.line, ()))

    @cached_property
    def _users(self) -> dict[int, list[ProgramOperation]]:
        """Users of each operation, by its line; computed once, as names may be reused often."""
        found: dict[int, list[ProgramOperation]] = {}
        for operation in self.operations:
            makers = (self.producer(o, operation.line) for o in dict.fromkeys(operation.operands))
            for line in dict.fromkeys(maker.line for maker in makers if maker is not None):
                found.setdefault(line, []).append(operation)
        return found

    def origin(
        self, value: str, line: int, through: frozenset[str] = PASSED_ON
    ) -> ProgramOperation | None:
        """Return the producer of a value, looking through operations that only change its form."""
        for _ in range(MAX_VISITED):
            found = self.producer(value, line)
            if found is None or found.name not in through or not found.operands:
                return found
            value, line = found.operands[0], found.line
        return None

    def final_users(
        self, operation: ProgramOperation, through: frozenset[str] = PASSED_ON
    ) -> tuple[tuple[ProgramOperation, ProgramOperation], ...]:
        """Return pairs of a user and the operation it reads, looking through changes of form."""
        found: list[tuple[ProgramOperation, ProgramOperation]] = []
        waiting = [operation]
        for _ in range(MAX_VISITED):
            if not waiting:
                break
            current = waiting.pop()
            for user in self.users(current):
                if user.name in through:
                    waiting.append(user)
                else:
                    found.append((user, current))
        return tuple(found)

    def sources_of(self, value: str, line: int) -> tuple[ProgramOperation, ...] | None:
        """Return all operations that a value depends on; None if there are too many."""
        seen: dict[int, ProgramOperation] = {}
        waiting = [(value, line)]
        while waiting:
            name, at = waiting.pop()
            found = self.producer(name, at)
            if found is None or found.line in seen:
                continue
            seen[found.line] = found
            if len(seen) > MAX_VISITED:
                return None
            waiting += [(operand, found.line) for operand in found.operands]
        return tuple(seen.values())

    def depends_on(self, value: str, line: int, other: str) -> bool:
        """Return whether a value is computed from another; true if too much has to be visited."""
        sources = self.sources_of(value, line)
        if sources is None:
            return True
        return value == other or any(other in operation.operands for operation in sources)

    def constant(self, value: str, line: int, depth: int = 0) -> int | None:
        """Return the integer that a value always has; None if it is not known."""
        found = self.origin(value, line)
        if found is None or depth > MAX_DEPTH:
            return None
        if found.name == "arith.constant":
            number = _CONSTANT.search(found.text)
            return _integer(number["value"]) if number else None
        if found.name in _ARITHMETIC and len(found.operands) == 2:
            a, b = (self.constant(operand, found.line, depth + 1) for operand in found.operands)
            return _ARITHMETIC[found.name](a, b) if a is not None and b is not None else None
        return None

    def identity(self, value: str, line: int, depth: int = 0) -> str:
        """Return a name that values share if they are computed by the same arithmetic.

        Each `1 - slot` in a kernel defines a new value, although they are all equal.
        """
        made = self.producer(value, line)
        if made is None:
            around = (loop.line for loop in self.loops_around(line) if loop.passes(value))
            return f"{value}@{next(around, 0)}"
        if made.name == "arith.index_cast":
            return self.identity(made.operands[0], made.line, depth + 1)
        text = made.text.partition(" = ")[2].partition(" loc(")[0]
        if not made.name.startswith("arith.") or depth > MAX_DEPTH:
            return f"{value}@{made.line}"
        if made.line not in self._identities:
            operands = [self.identity(o, made.line, depth + 1) for o in made.operands]
            key = (_VALUE.sub("%", text), *operands)
            self._identities[made.line] = f"#{self._numbers.setdefault(key, len(self._numbers))}"
        return self._identities[made.line]

    @cached_property
    def loops(self) -> tuple[ProgramLoop, ...]:
        """Counted loops, outer ones first."""
        found: list[ProgramLoop] = []
        for operation in itertools.islice(self.named("scf.for"), MAX_LOOPS):
            head = _FOR.search(operation.text)
            if head is None:
                continue
            at = operation.line
            lower, upper, step = (self.constant(head[n], at) for n in ("lower", "upper", "step"))
            trips = None
            if lower is not None and upper is not None and step:
                trips = max(0, -((lower - upper) // step))
            found.append(
                ProgramLoop(
                    line=at,
                    stop=self._stops.get(at, at),
                    counter=head["iv"],
                    start=lower,
                    step=step,
                    trips=trips,
                    carried=tuple(name for name, _ in _CARRIED.findall(head["carried"] or "")),
                )
            )
        return tuple(found)

    def is_conditional(self, line: int) -> bool:
        """Return whether a line is inside a branch, such as that of `pl.when`."""
        return any(
            operation.line < line < self._stops.get(operation.line, operation.line)
            for operation in self.named("scf.if", "scf.index_switch")
        )

    def operations_around(self, line: int) -> tuple[ProgramOperation, ...]:
        """Return operations whose regions enclose a line, innermost first."""
        around = (o for o in self.operations if o.line < line < self._stops.get(o.line, o.line))
        return tuple(reversed(tuple(around)))

    def loops_of(self, trips: int) -> Iterator[ProgramLoop]:
        """Return loops that are known to have at least this many iterations, outer loops first."""
        return (loop for loop in self.loops if loop.trips is not None and loop.trips >= trips)

    def loops_around(self, line: int) -> tuple[ProgramLoop, ...]:
        """Return the counted loops around a line, innermost first."""
        return tuple(loop for loop in reversed(self.loops) if line in loop)


def _integer(text: str) -> int:
    return {"true": 1, "false": 0}[text] if text in ("true", "false") else int(text)


def shape_of(text: str) -> Shape | None:
    """Return shape and element type of the last `vector<…>` or `memref<…>` in a text."""
    found = re.findall(r"(?:vector|memref)<((?:\d{1,9}x)*)([a-z]\w*)", text)
    if not found:
        return None
    sizes, kind = found[-1]
    return tuple(int(n) for n in sizes.split("x") if n), kind
