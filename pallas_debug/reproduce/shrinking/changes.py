"""Changes that make a program smaller. The caller checks whether it still fails in the same way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from pallas_debug.reproduce.shrinking.lines import Node, Program, every, parse

_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
_SHAPE = re.compile(r"[(\[]([\d, ]+)[)\]]")
_GRID = re.compile(r"^(?P<head> *grid=\()(?P<sizes>[\d, ]+)(?P<tail>\),)$")
_LOOP = re.compile(
    r"(?:(?P<results>.*) = )?lax\.fori_loop\((?P<first>-?\d+), -?\d+, (?P<body>\w+), "
    r"(?P<start>.*?)(?:, unroll=\w+)?\)$"
)
_CHOICE = re.compile(r"(?:(?P<results>.*) = )?lax\.cond\(.*, (?P<yes>\w+), (?P<no>\w+)\)$")
_BLOCK = re.compile(
    r"pl\.BlockSpec\(\((?P<shape>.*?)\), (?P<map>lambda[^:]*: \([^()]*\)|\w+)(?=[,)])"
)
_PARAMETERS = re.compile(r"^def (?P<name>\w+)\((?P<parameters>.*)\):$")
_OPTIONS = ("name=", "input_output_aliases=", "compiler_params=", "cost_estimate=", "metadata=")

_SMALL = (1, 8, 16, 32, 128)
"""Sizes to try before halving, chosen for the tiles of a TPU."""


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """A smaller program, and a description of the change."""

    what: str
    program: Program


Kind = Callable[[Program], Iterator[Reduction]]


def without_statements(program: Program) -> Iterator[Reduction]:
    """Remove half of the statements, then fewer down to one, or replace them with zeros."""
    total = program.size
    chunk = max(total // 2, 1)
    while True:
        for first in range(0, total, chunk):
            chosen = range(first, min(first + chunk, total))
            body, removed = _without(program.body, chosen)
            if removed:
                words = "a statement" if removed == 1 else f"{removed} statements"
                yield Reduction(what=f"removed or zeroed {words}", program=program.with_body(body))
        if chunk == 1:
            return
        chunk //= 2


def _without(body: Sequence[Node], chosen: range) -> tuple[tuple[Node, ...], int]:
    """Remove the statements with these numbers, and return how many were removed.

    A statement whose results are read is replaced with zeros; a function that is called is kept.
    """
    read = set().union(*(node.reads for node in every(body)))
    number = -1
    removed = 0

    def walk(nodes: Sequence[Node]) -> tuple[Node, ...]:
        nonlocal number, removed
        kept = []
        for node in nodes:
            number += 1
            is_chosen = number in chosen
            if is_chosen and node.is_branch:
                number += sum(1 for _ in every(node.body))
                removed += 1
                continue
            if node.is_function:
                kept.append(replace(node, body=walk(node.body)))
                continue
            if not is_chosen or node.is_return:
                kept.append(node)
                continue
            needed = set(node.targets) & read
            zeros = node.zeros() if needed else None
            removed += not needed or zeros is not None
            kept += [zeros or node] if needed else []
        return tuple(kept)

    return walk(body), removed


def unwrapped(program: Program) -> Iterator[Reduction]:
    """Inline a branch as if it were always taken, or a loop as if it ran once."""
    for number, node in enumerate(every(program.body)):
        inline = _inline(node, program.body)
        if inline is not None:
            what, nodes = inline
            body = _replaced(program.body, number, nodes)
            yield Reduction(what=what, program=program.with_body(body))


def _inline(node: Node, body: Sequence[Node]) -> tuple[str, tuple[Node, ...]] | None:
    if node.is_branch:
        return "assumed that a branch is taken", node.body
    loop, choice = _LOOP.match(node.code), _CHOICE.match(node.code)
    called = loop["body"] if loop else choice["yes"] if choice else None
    function = next((n for n in every(body) if n.text.startswith(f"def {called}(")), None)
    if function is None:
        return None
    *nodes, last = function.body or (Node("pass"),)
    if not last.is_return:
        nodes.append(last)
    matched = loop or choice
    results = matched["results"] if matched else None
    if loop:
        defined = _PARAMETERS.match(function.text)
        names = defined["parameters"].split(", ") if defined else []
        given = [f"np.int32({loop['first']})", loop["start"]]
        nodes = [Node(f"{n} = {g}") for n, g in zip(names, given, strict=False) if n != "_"] + nodes
    if results and last.is_return:
        nodes.append(Node(f"{results} = {last.code.removeprefix('return ')}  # {node.types}"))
    return "reduced a loop to one iteration" if loop else "assumed that a branch is taken", tuple(
        nodes
    )


def _replaced(body: Sequence[Node], number: int, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Replace the statement with this number, as `every` counts."""
    kept: list[Node] = []
    for node in body:
        size = 1 + sum(1 for _ in every(node.body))
        if number == 0:
            kept += nodes
        elif 0 < number < size:
            kept.append(replace(node, body=_replaced(node.body, number - 1, nodes)))
        else:
            kept.append(node)
        number -= size
    return tuple(kept)


def smaller_grid(program: Program) -> Iterator[Reduction]:
    """Set all dimensions of the grid to 1, then each one separately."""
    for at, line in enumerate(program.after):
        found = _GRID.match(line)
        if found is None:
            continue
        sizes = [int(size) for size in found["sizes"].split(",") if size.strip()]
        ones = [[1] * len(sizes), *([*sizes[:i], 1, *sizes[i + 1 :]] for i in range(len(sizes)))]
        for tried in ones:
            if tried != sizes:
                text = ", ".join(map(str, tried)) + ("," if len(tried) == 1 else "")
                line = f"{found['head']}{text}{found['tail']}"
                after = (*program.after[:at], line, *program.after[at + 1 :])
                was, now = _sizes(sizes), _sizes(tried)
                yield Reduction(
                    what=f"reduced the grid from {was} to {now}",
                    program=replace(program, after=after),
                )


def bypassed(program: Program) -> Iterator[Reduction]:
    """Replace a result with one of its operands of the same type."""
    nodes = list(every(program.body))
    types = {node.targets[0]: node.types for node in nodes if len(node.targets) == 1}
    for number, node in enumerate(nodes):
        for name in sorted(node.reads) if len(node.targets) == 1 else ():
            if types.get(name) == node.types and not node.is_function:
                alias = Node(f"{node.targets[0]} = {name}  # {node.types}")
                body = _replaced(program.body, number, [alias])
                yield Reduction(
                    what="replaced a result with an operand", program=program.with_body(body)
                )


def _sizes(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))


def smaller_sizes(program: Program) -> Iterator[Reduction]:
    """Reduce each size of an array or block, everywhere in the program."""
    text = program.text
    sizes = {int(n) for found in _SHAPE.finditer(text) for n in _NUMBER.findall(found[1])}
    for size in sorted(sizes, reverse=True):
        tried = [small for small in _SMALL if small < size]
        tried += [size // 2] if size % 2 == 0 and size // 2 not in tried else []
        for small in tried:
            changed = "\n".join(_with_size(line, size, small) for line in text.split("\n"))
            if changed != text:
                yield Reduction(what=f"reduced {size} to {small}", program=parse(changed))


def _with_size(line: str, size: int, small: int) -> str:
    if _GRID.match(line) or line.startswith("#"):
        return line
    return re.sub(rf"(?<![\w.]){size}(?![\w.])", str(small), line)


def without_options(program: Program) -> Iterator[Reduction]:
    """Remove arguments of the call other than its blocks."""
    for at, line in enumerate(program.after):
        if line.strip().startswith(_OPTIONS):
            name = line.strip().partition("=")[0]
            after = (*program.after[:at], *program.after[at + 1 :])
            yield Reduction(what=f"removed {name}", program=replace(program, after=after))


def simpler_index_maps(program: Program) -> Iterator[Reduction]:
    """Replace index maps with ones that return the first block at every grid point."""
    for at, line in enumerate(program.after):
        found = _BLOCK.search(line)
        grid = next(filter(None, map(_GRID.match, program.after)), None)
        if found is None or grid is None or found["map"].startswith("lambda *_: "):
            continue
        rank = len([size for size in found["shape"].split(",") if size.strip()])
        zeros = "0, " * rank
        new = (
            line[: found.start("map")] + f"lambda *_: ({zeros.strip()})" + line[found.end("map") :]
        )
        after = (*program.after[:at], new, *program.after[at + 1 :])
        yield Reduction(what="simplified an index map", program=replace(program, after=after))


def without_operands(program: Program) -> Iterator[Reduction]:
    """Remove an operand that the kernel does not use."""
    read = set().union(*(node.reads for node in every(program.body)))
    found = _PARAMETERS.match(program.before[-1])
    names = found["parameters"].split(", ") if found else []
    for name in names:
        if found is None or name in read:
            continue
        comment = re.compile(rf"  # {re.escape(name)}$")
        rest = ", ".join(n for n in names if n != name)
        before = [line for line in program.before[:-1] if not comment.search(line)]
        after = [line for line in program.after if not comment.search(line)]
        if any("num_scalar_prefetch" in line for line in after) and any(
            re.search(rf"\b{name}\b", line) for line in after
        ):
            after = [_without_prefetch(line, name) for line in after]
        if "out_shape=[]," in re.sub(r"\s", "", "".join(after)):
            continue  # a TPU program needs results
        changed = (*before, f"def {found['name']}({rest}):")
        yield Reduction(
            what=f"removed the operand {name}",
            program=replace(program, before=changed, after=tuple(after)),
        )


def _without_prefetch(line: str, name: str) -> str:
    """Remove a scalar-prefetch operand from a line of the call."""
    count = re.search(r"num_scalar_prefetch=(\d+)", line)
    if count:
        return line.replace(count[0], f"num_scalar_prefetch={int(count[1]) - 1}")
    return re.sub(rf", {name}\b(?=[^=]*:)", "", line)


def without_unused_functions(program: Program) -> Iterator[Reduction]:
    """Remove index maps that no block uses any more."""
    text = "\n".join(program.after)
    for found in re.finditer(r"^def (\w+)\(.*\):\n(?:    .*\n|\n)+", text, re.MULTILINE):
        name = found[1]
        if name != "call" and len(re.findall(rf"\b{name}\b", text)) == 1:
            after = text[: found.start()] + text[found.end() :]
            yield Reduction(
                what="removed an index map",
                program=replace(program, after=tuple(after.split("\n"))),
            )


KINDS: tuple[Kind, ...] = (
    smaller_grid,
    without_statements,
    unwrapped,
    bypassed,
    without_operands,
    without_options,
    simpler_index_maps,
    without_unused_functions,
    smaller_sizes,
)
"""Changes in the order of trial, repeated until none of them helps."""
