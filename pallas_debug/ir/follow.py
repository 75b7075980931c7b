"""Tracking of an operation through the compiler passes, forwards and backwards.

Lines that are equal in two passes except for names and locations are the same operation. Otherwise
locations decide: a pass that rewrites an operation gives its location to the new ones. Among
several operations at one location, those with the same name match, and if n became m, those at the
same relative position. An operation without a location matches one of its family in the same place.

Texts of different kinds print locations differently: there, Python lines take their place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pallas_debug.ir.diff import diff
from pallas_debug.ir.match import Budget
from pallas_debug.ir.operations import Module

_PLAIN = ("matmul", "load", "store", "add", "sub", "mul", "div", "max", "min", "exp", "cmp", "log")
"""Stems shared by the operations of a family: `mulf`, `muli`, `vmul.f32`."""

_DECOMPOSED = {"pow2": "exp", "rcp": "div", "ld": "load", "st": "store"}
"""Stems of LLO, and the families of the operations that become it."""

Fate = Literal["same", "changed", "renamed", "lowered", "split", "merged", "gone"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """The operation in one pass.

    Attributes:
      module: index of the pass in the given modules.
      lines: its lines in the text of that pass, from 0; empty if it is gone.
      fate: `same` except for names; `changed` operands, types or attributes; `renamed` to another
        operation; `lowered` to another kind of text; `split` into several; `merged` with others
        into fewer; `gone`.
    """

    module: int
    lines: tuple[int, ...]
    fate: Fate


class Trail:
    """Follows operations through a list of modules; caches the alignment of neighbours."""

    def __init__(self, modules: Sequence[Module]) -> None:
        self._modules = [_Located(m) for m in modules]
        self._aligned: dict[int, tuple[_Aligned, _Aligned]] = {}

    def follow(self, module: int, line: int) -> list[Step]:
        """Return the successors of the operation on a line, pass by pass until it is gone."""
        return self._walk(module, line, 1)

    def trace(self, module: int, line: int) -> list[Step]:
        """Return the origins of the operation on a line, going back pass by pass."""
        return self._walk(module, line, -1)

    def _walk(self, module: int, line: int, step: Literal[1, -1]) -> list[Step]:
        lines: tuple[int, ...] = (line,)
        steps: list[Step] = []
        while lines and 0 <= module + step < len(self._modules):
            found, fate = self._next(module, lines, step)
            module += step
            lines = found
            steps.append(Step(module=module, lines=lines, fate=fate))
        return steps

    def _next(
        self, module: int, lines: tuple[int, ...], step: Literal[1, -1]
    ) -> tuple[tuple[int, ...], Fate]:
        here, there = self._modules[module], self._modules[module + step]
        if here.module.kind != there.module.kind:
            lowered = {n for at in lines for n in counterparts(here.module, at, there.module)}
            return tuple(sorted(lowered)), "lowered" if lowered else "gone"
        aligned = self._side(module, step)
        same = aligned.same
        if all(line in same for line in lines):
            return tuple(same[line] for line in lines), "same"
        found: set[int] = set()
        for line in lines:
            if line in same:
                found.add(same[line])
            elif line in here.keys:
                found.update(_counterparts(here, there, line))
            elif line in aligned.in_place:
                found.add(aligned.in_place[line])
        return tuple(sorted(found)), _fate(here, there, lines, found)

    def _side(self, module: int, step: Literal[1, -1]) -> _Aligned:
        """Alignment of a module's lines with those of the next or previous one."""
        first = min(module, module + step)
        known = self._aligned.get(first)
        if known is None:
            old, new = self._modules[first].module, self._modules[first + 1].module
            there = _align(old, new)
            known = self._aligned[first] = there, there.backwards
        return known[0 if step == 1 else 1]


@dataclass(frozen=True, kw_only=True)
class _Aligned:
    """Lines of a module, paired with those of the next.

    Attributes:
      same: pairs that are equal except for names and locations.
      in_place: pairs of the same family at the same place among changed lines.
    """

    same: dict[int, int]
    in_place: dict[int, int]

    @property
    def backwards(self) -> _Aligned:
        return _Aligned(
            same={b: a for a, b in self.same.items()},
            in_place={b: a for a, b in self.in_place.items()},
        )


def _align(old: Module, new: Module) -> _Aligned:
    found = diff(old.lines, new.lines, ignore=("ssa", "loc"), kind=new.kind)
    a, b = found.old.numbers, found.new.numbers
    budget = Budget()
    same: dict[int, int] = {}
    in_place: dict[int, int] = {}
    for change in found.changes:
        if change.tag == "equal":
            pairs = zip(change.old, change.new, strict=True)
            same.update((a[i], b[j]) for i, j in pairs)
        elif change.tag == "replace":
            families = (
                [_family(module.names[numbers[n]] or "") for n in lines]
                for module, numbers, lines in ((old, a, change.old), (new, b, change.new))
            )
            for i, j, size in budget.close(*families):
                for k in range(size):
                    in_place[a[change.old[i + k]]] = b[change.new[j + k]]
    return _Aligned(same=same, in_place=in_place)


class _Located:
    """A module whose operations are indexed by location."""

    def __init__(self, module: Module) -> None:
        self.module = module

    @cached_property
    def keys(self) -> dict[int, str]:
        """Location of each operation's line, with aliases expanded."""
        module = self.module
        expanded: dict[str, str] = {}
        found = {}
        for line, name in enumerate(module.names):
            body = None if name is None else module.location(line)
            if body is None:
                continue
            if body not in expanded:
                known = bool(module.chains.resolve(body)) or module.kind != "mlir"
                expanded[body] = module.chains.without_aliases(body) if known else ""
            if expanded[body]:
                found[line] = expanded[body]
        return found

    def named(self, key: str) -> list[tuple[int, str]]:
        """Operations at a location, as lines and names."""
        return [(line, self.module.names[line] or "") for line in self.rows[key]]

    @cached_property
    def rows(self) -> dict[str, list[int]]:
        """Lines of the operations at each location."""
        found: dict[str, list[int]] = {}
        for line, key in self.keys.items():
            found.setdefault(key, []).append(line)
        return found


def _counterparts(here: _Located, there: _Located, line: int) -> list[int]:
    """Find operations in `there` at the location of a line in `here`, by relative position."""
    key = here.keys.get(line)
    if key is None or key not in there.rows:
        return []
    ours, theirs = here.named(key), there.named(key)
    mine = here.module.names[line] or ""
    for key_of in (str, _family):
        a = [n for n, name in ours if key_of(name) == key_of(mine)]
        b = [n for n, name in theirs if key_of(name) == key_of(mine)]
        if b:
            return _share(a.index(line), len(a), b)
    # Either replaced by operations of a family that is new at this location, or gone.
    kept = {_family(name) for _, name in ours} & {_family(name) for _, name in theirs}
    constant = _is_constant(mine)
    a = [n for n, name in ours if _family(name) not in kept and _is_constant(name) == constant]
    b = [n for n, name in theirs if _family(name) not in kept and _is_constant(name) == constant]
    return _share(a.index(line), len(a), b) if b else []


def counterparts(
    here: Module,
    line: int,
    there: Module,
    moved: Callable[[tuple[str, int]], tuple[str, int]] = lambda place: place,
) -> list[int]:
    """Return the lines of another text with the operations that a line's operations became.

    They come from the same Python line. Those of the same family match, or else all that are left,
    by their relative position.

    Args:
      moved: returns where the Python file of the other text has a line.
    """
    found: set[int] = set()
    for name, chain in here.placed(line):
        place = next((s.place for s in chain if there.from_source.get(moved(s.place))), None)
        if place is None:
            continue
        ours = _operations(here, place)
        theirs = _operations(there, moved(place))
        for key_of in (_family, lambda _: ""):
            a = [n for n, other in ours if key_of(other) == key_of(name)]
            b = [n for n, other in theirs if key_of(other) == key_of(name)]
            if b or not name:
                found.update(_share(a.index(line), len(a), b) if name else [n for n, _ in theirs])
                break
    return sorted(found)


def _operations(module: Module, place: tuple[str, int]) -> list[tuple[int, str]]:
    """Operations that come from a Python line, as lines and names."""
    return [
        (line, name)
        for line in module.from_source.get(place, ())
        for name, chain in module.placed(line)
        if any(source.place == place for source in chain)
    ]


def _share(position: int, size: int, row: list[int]) -> list[int]:
    """Return the share of `row` that the operation at `position`, one of `size`, became."""
    start = position * len(row) // size
    return row[start : max((position + 1) * len(row) // size, start + 1)]


def _is_constant(name: str) -> bool:
    return name.endswith("constant")


def _family(name: str) -> str:
    """Family of an operation: `vector.load`, `tpu.vector_load` and `llo.vector_load` share one."""
    _, llo, word = name.rpartition("llo.")
    is_llo = llo or (name.startswith("v") and "vector" not in name)
    word = word.partition(".")[0] if is_llo else word.rpartition(".")[2]
    word = word.removeprefix("vector_").removeprefix("v")
    found = next((plain for plain in _PLAIN if word.startswith(plain)), word)
    return _DECOMPOSED.get(found, found)


def _fate(here: _Located, there: _Located, lines: Sequence[int], found: set[int]) -> Fate:
    if not found:
        return "gone"
    if len(found) > len(lines):
        return "split"
    if len(found) < len(lines):
        return "merged"
    before = {here.module.names[n] for n in lines}
    return "changed" if before == {there.module.names[n] for n in found} else "renamed"
