"""Tracking of an operation through the passes of the real compiler, both ways."""

from __future__ import annotations

from pathlib import Path

import pytest

from pallas_debug.ir.follow import Trail
from pallas_debug.ir.operations import Module


@pytest.fixture
def modules(passes: list[Path]) -> list[Module]:
    return [Module.of(path.read_text()) for path in passes]


def line_of(module: Module, name: str, source: int) -> int:
    """The operation of this name that comes from this line of `rows.py`, innermost."""
    found = [n for n, known in enumerate(module.names) if known == name]
    return next(n for n in found if [s.line for s in module.source(n)][:1] == [source])


def test_a_multiplication_to_the_last_pass(modules: list[Module]) -> None:
    steps = Trail(modules).follow(0, line_of(modules[0], "arith.mulf", 9))
    assert [s.module for s in steps] == list(range(1, len(modules)))
    assert all(len(s.lines) == 1 for s in steps)
    assert modules[-1].names[steps[-1].lines[0]] == "llo.vmul.f32"
    assert "renamed" in [s.fate for s in steps]


def test_a_load_becomes_that_of_the_next_dialect(modules: list[Module]) -> None:
    steps = Trail(modules).follow(0, line_of(modules[0], "vector.load", 22))
    names = [{modules[s.module].names[n] for n in s.lines} for s in steps]
    assert {"tpu.vector_load"} in names
    assert names[-1] == {"llo.vector_load"}


def test_backwards_is_where_it_came_from(modules: list[Module]) -> None:
    trail = Trail(modules)
    start = line_of(modules[0], "arith.mulf", 9)
    (last,) = trail.follow(0, start)[-1].lines
    steps = trail.trace(len(modules) - 1, last)
    assert steps[-1].module == 0
    assert steps[-1].lines == (start,)


def test_an_operation_that_is_gone(modules: list[Module]) -> None:
    """The load of what a store overwrites is dead, and the store is not what became of it."""
    dead = line_of(modules[0], "vector.load", 19)
    steps = Trail(modules).follow(0, dead)
    assert steps[-1].fate == "gone"
    assert steps[-1].lines == ()
    assert len(steps) < len(modules) - 1


def test_one_that_is_split_and_several_that_are_merged() -> None:
    alias = '#loc1 = loc("a.py":3:1)\n'
    one = Module.of("module {\n  %0 = a.load %x loc(#loc1)\n}\n" + alias)
    two = Module.of(
        "module {\n"
        + "".join(f"  %{n} = b.load %x, {n} loc(#loc1)\n" for n in range(4))
        + "}\n"
        + alias
    )
    (step,) = Trail([one, two]).follow(0, 1)
    assert (step.fate, step.lines) == ("split", (1, 2, 3, 4))
    for line in (1, 2, 3, 4):
        (back,) = Trail([one, two]).trace(1, line)
        assert (back.fate, back.lines) == ("renamed", (1,))


def test_equals_keep_their_place_in_the_row() -> None:
    def text(dialect: str, extra: str) -> Module:
        rows = "".join(f'  %{n} = {dialect}.mul %x, {n}{extra} loc("a.py":3:1)\n' for n in range(3))
        return Module.of("module {\n" + rows + "}\n")

    trail = Trail([text("a", ""), text("b", " new")])
    assert [trail.follow(0, n)[0].lines for n in (1, 2, 3)] == [(1,), (2,), (3,)]


def test_without_locations_the_same_operation_in_its_place_is_meant() -> None:
    old = Module.of("module {\n  %0 = a.b %x : i32\n  %1 = a.c %0 : i32\n  a.e\n}\n")
    new = Module.of(
        "module {\n  %0 = n.n : i32\n  %1 = a.b %x {l = 1} : i32\n  a.c %1 {l = 2}\n  a.e\n}\n"
    )
    trail = Trail([old, new])
    for line, there in ((1, 2), (2, 3)):
        (step,) = trail.follow(0, line)
        assert (step.fate, step.lines) == ("changed", (there,))
        (back,) = trail.trace(1, there)
        assert (back.fate, back.lines) == ("changed", (line,))
    assert trail.trace(1, 1)[0].fate == "gone"


def test_a_raw_dump_without_locations_is_followed_too() -> None:
    raw = Path(__file__).parents[1] / "store" / "data" / "libtpu-0.0.50" / "add"
    passes = sorted(p for p in raw.iterdir() if "mosaic-dump-add" in p.name)
    modules = [Module.of(path.read_text()) for path in passes]
    steps = Trail(modules).follow(0, modules[0].names.index("arith.addf"))
    assert [step.module for step in steps] == list(range(1, len(modules)))
    assert {"same", "changed", "renamed"} <= {step.fate for step in steps}
    assert [modules[-1].names[line] for line in steps[-1].lines] == ["llo.vadd.f32"]
