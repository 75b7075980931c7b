"""Advice: a whole block is fetched and written back, although only one row of it changes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pallas_debug.model import Operand
from pallas_debug.profile.advice.advice import Advice, AdviceKind, derived
from pallas_debug.profile.advice.pipelines import copies, idle_bundles, size_text
from pallas_debug.profile.advice.program import LOADS, STORES, ProgramOperation, shape_of
from pallas_debug.profile.advice.rules.row_loop import index_values, memory_of
from pallas_debug.profile.advice.steady import SteadyOperand, steady_cycles
from pallas_debug.profile.advice.subject import AdviceSubject
from pallas_debug.profile.advice.tiles import SUBLANES
from pallas_debug.profile.blocks import OperandBlocks
from pallas_debug.profile.timeline.parts import Direction

MIN_GAIN = 0.25
"""Minimum share of the estimated cycles that the change must save."""

MIN_STEP = 190
"""Minimum cycles of a step whose index maps read a table; compiled kernels take 112 to 193."""

_SHAPES = frozenset(("vector.shape_cast", "tpu.reshape"))
_SPREAD = _SHAPES | {"vector.broadcast"}
_IOTA = re.compile(r"dimensions = array<i32: (?P<axis>\d{1,2})>")
_SCALAR = re.compile(r"arith\.\w+i|arith\.constant|arith\.index_cast|memref\.load")


@dataclass(frozen=True, kw_only=True)
class _Update:
    """Output whose blocks equal those of an input except for one row.

    Attributes:
      axis: dimension of the blocks along which one row changes.
      table: scalar prefetch operand from which the row number is read.
    """

    given: OperandBlocks
    output: OperandBlocks
    axis: int
    table: Operand


def advise_unchanged_rows(subject: AdviceSubject) -> Iterator[Advice]:
    blocks, step, rate = subject.blocks, subject.step, subject.bytes_per_cycle
    if blocks is None or step is None or not rate or not subject.cycles:
        return
    if not subject.is_memory_bound:
        return
    for output in blocks.pipelined:
        update = _update(subject, output)
        count = copies(output, blocks.grid)
        if update is None or count is None:
            continue
        rows, size = output.dimensions[update.axis].size, output.block_bytes
        is_tiled = update.axis == len(output.dimensions) - 2
        kept = SUBLANES * max(32 // output.bits, 1) if is_tiled else 1
        if rows < 2 * kept:
            continue
        small = size * kept // rows
        idle = idle_bundles(subject, subject.core_points)
        compute = max(idle + max(step.compute - idle, 0.0) * kept / rows, MIN_STEP)
        others = step.copies - 2 * (size - small) * count / blocks.points / rate
        # The table itself is fetched before the first step.
        cycles = subject.latency + _in_small_blocks(subject, small, compute)
        cycles = max(cycles, others * subject.core_points)
        if cycles > (1 - MIN_GAIN) * subject.cycles:
            continue
        yield _advice(subject, update, kept, count, cycles)


def _in_small_blocks(subject: AdviceSubject, size: int, compute: float) -> float:
    """Estimate the cycles of all steps if each fetches and writes back a block of this size."""
    steps = subject.core_points
    directions: tuple[Direction, ...] = ("in", "out")
    moved = [SteadyOperand(direction=d, size=size, copies=steps) for d in directions]
    return steady_cycles(subject, moved, steps=steps, compute=compute)


def _advice(
    subject: AdviceSubject, update: _Update, kept: int, count: int, cycles: float
) -> Advice:
    given, output, axis = update.given, update.output, update.axis
    rows, size = output.dimensions[axis].size, output.block_bytes
    moved, then = 2 * count * size, 2 * count * size * kept // rows
    sizes = [d.size for d in output.dimensions if d.kind != "squeezed"]
    place = axis - sum(d.kind == "squeezed" for d in output.dimensions[:axis])
    sizes[place] = kept
    passed = [o.name for o in subject.kernel.operands if o.kind in ("scalar_prefetch", "input")]
    outputs = [o.name for o in subject.kernel.of_kind("output")]
    divided = f" // {kept}" if kept > 1 else ""
    return KIND.advice(
        source=subject.block_source(output.name),
        operand=output.name,
        message=(
            f"each block of {output.name} equals that of {given.name} except for one of its "
            f"{rows:,} rows in dimension {axis}: {size_text(moved)} are fetched and written back "
            f"in total, although {kept} rows of each block would be enough"
        ),
        remedy=(
            f"give both blocks of ({', '.join(map(str, sizes))}), with the number in "
            f"{update.table.name}{divided} as their index in dimension {axis}"
            + (", compare the rows with the remainder" if kept > 1 else "")
            + ", and keep the rest with pallas_call(…, "
            f"input_output_aliases={{{passed.index(given.name)}: "
            f"{outputs.index(output.name)}}}): {size_text(then)} are moved; donate the array to "
            "the jitted function, or XLA copies it before the call"
        ),
        evidence=(
            derived("bytes moved for both", moved, unit="bytes"),
            derived("bytes moved with small blocks", then, unit="bytes"),
            derived("rows of a block", rows),
            derived("rows of a block that would do", kept),
            derived("estimated cycles", round(subject.cycles or 0), unit="cycles"),
            derived("estimated cycles with small blocks", round(cycles), unit="cycles"),
        ),
    )


def _update(subject: AdviceSubject, output: OperandBlocks) -> _Update | None:
    """Return how an output updates a single row in each block of an input; None if it does not."""
    program = subject.program
    if output.kind != "output" or output.name in subject.resident or program.loops:
        return None
    stores = _accesses(subject, output.name, STORES) or []
    if any(program.is_conditional(o.line) or " masked " in o.text for o in stores):
        return None
    # The whole block is stored, and the row is selected by a mask or stored afterwards.
    kept: tuple[ProgramOperation, str] | None = None
    row: tuple[int, Operand] | None = None
    shape = _of_memory(stores[0]) if stores else None
    if len(stores) == 1 and shape is not None:
        chosen = program.origin(_stored(stores[0]), stores[0].line, _SHAPES)
        if chosen is not None and chosen.name == "arith.select":
            row = _chosen_row(subject, chosen, shape)
            kept = chosen, chosen.operands[2]
    elif len(stores) == 2:
        row = _stored_row(subject, stores[1], shape)
        kept = stores[0], _stored(stores[0])
    if kept is None or row is None:
        return None
    user, value = kept
    loaded = program.origin(value, user.line, _SHAPES)
    given = _unchanged(subject, output, loaded, user)
    if given is None or loaded is None or _of_memory(loaded) != shape:
        return None
    if shape != tuple(d.size for d in output.dimensions) or row[0] == len(shape) - 1:
        return None
    dimension = output.dimensions[row[0]]
    if dimension.size != output.shape[row[0]] or dimension.strides is None:
        return None
    if any(dimension.strides):
        return None  # the grid goes over the rows as well
    return _Update(given=given, output=output, axis=row[0], table=row[1])


def _stored(store: ProgramOperation) -> str:
    """Return the value that is stored: the first operand, or the last."""
    return store.operands[0 if store.name == "vector.store" else -1]


def _unchanged(
    subject: AdviceSubject,
    output: OperandBlocks,
    loaded: ProgramOperation | None,
    chosen: ProgramOperation,
) -> OperandBlocks | None:
    """Return the input that a value is loaded from, if it has equal blocks and no other use."""
    if loaded is None or loaded.name not in LOADS or subject.blocks is None:
        return None
    operand = subject.operand(loaded.operands[0])
    if operand is None or _accesses(subject, operand.name, LOADS) != [loaded]:
        return None
    if [user for user, _ in subject.program.final_users(loaded, _SHAPES)] != [chosen]:
        return None
    for given in subject.blocks.pipelined:
        alike = (given.shape, given.dtype) == (output.shape, output.dtype)
        if given.name == operand.name and given.kind == "input" and alike:
            same = all(
                a.strides is not None and (a.size, a.kind, a.strides) == (b.size, b.kind, b.strides)
                for a, b in zip(given.dimensions, output.dimensions, strict=True)
            )
            return given if same and given.name not in subject.resident else None
    return None


def _chosen_row(
    subject: AdviceSubject, chosen: ProgramOperation, shape: tuple[int, ...]
) -> tuple[int, Operand] | None:
    """Return the dimension along which a mask selects a row, and the table with its number."""
    program = subject.program
    compare = program.origin(chosen.operands[0], chosen.line, _SPREAD)
    if compare is None or " eq, " not in compare.text or len(compare.operands) != 2:
        return None
    for one, other in (compare.operands, compare.operands[::-1]):
        iota = program.origin(one, compare.line, frozenset())
        number = program.origin(other, compare.line, frozenset())
        if iota is None or number is None or iota.name != "tpu.iota":
            continue
        axis, sizes = _IOTA.search(iota.text), iota.shape
        if number.name != "vector.broadcast" or axis is None or sizes is None:
            continue
        place = int(axis["axis"]) + len(shape) - len(sizes[0])
        table = _table(subject, number.operands[0], number.line)
        if table is not None and place >= 0 and shape[place] == sizes[0][int(axis["axis"])]:
            return place, table
    return None


def _stored_row(
    subject: AdviceSubject, store: ProgramOperation, shape: tuple[int, ...] | None
) -> tuple[int, Operand] | None:
    """Return the dimension along which one row is stored, and the table with its number."""
    vector = store.shape
    if vector is None or shape is None or len(vector[0]) != len(shape):
        return None
    places = [n for n, size in enumerate(vector[0]) if size != shape[n]]
    indices = index_values(store)
    if len(places) != 1 or vector[0][places[0]] != 1 or len(indices) != len(shape):
        return None
    table = _table(subject, indices[places[0]], store.line)
    return (places[0], table) if table is not None else None


def _table(subject: AdviceSubject, value: str, line: int) -> Operand | None:
    """Return the scalar prefetch operand from which a number is computed, if there is only one."""
    sources = subject.program.sources_of(value, line) or ()
    if any("vector<" in o.text or not _SCALAR.fullmatch(o.name) for o in sources):
        return None
    tables = [subject.operand(o.operands[0]) for o in sources if o.name == "memref.load"]
    if len(tables) != 1 or tables[0] is None or tables[0].kind != "scalar_prefetch":
        return None
    return tables[0]


def _accesses(
    subject: AdviceSubject, name: str, wanted: tuple[str, ...]
) -> list[ProgramOperation] | None:
    """Return the used loads, or the stores, of an operand; None if it has other accesses."""
    program = subject.program
    found = []
    for operation in program.operations:
        memories = [subject.operand(value) for value in operation.operands]
        if not any(memory is not None and memory.name == name for memory in memories):
            continue
        if operation.name in LOADS and not program.final_users(operation, _SHAPES):
            continue  # Pallas loads the value that a store replaces
        accessed = memory_of(program, operation) if operation.name in (*LOADS, *STORES) else None
        if accessed is None or operation.name not in wanted:
            return None
        found.append(operation)
    return found


def _of_memory(access: ProgramOperation) -> tuple[int, ...] | None:
    """Return the shape that is loaded or stored, if it is that of the whole memory."""
    types = access.text.partition(" loc(")[0].rpartition(" : ")[2].rstrip(", ")
    memory, _, vector = types.rpartition("vector<")
    of_memory, of_vector = shape_of(memory), shape_of(f"vector<{vector}")
    if of_memory is None or of_vector is None or of_memory[0] != of_vector[0]:
        return None
    return of_memory[0]


KIND = AdviceKind(
    name="unchanged-rows",
    title="Blocks that are copied to change a single row",
    condition=(
        "A kernel stores to an output only the block of an input with one row changed, chosen by "
        "a number from scalar prefetch, and waits for its copies; blocks of the rows around it "
        f"would save at least {MIN_GAIN:.0%} of the estimated cycles."
    ),
    remedy="Alias the output to the input, and let the index maps choose the block of the row.",
    rule=advise_unchanged_rows,
)
