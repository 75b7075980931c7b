"""Classification of the lines of compiler text, on dumps of the real compiler."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from pallas_debug.ir.operations import Module, guess_kind, location_at, name_of, read_line

BUNDLES = """\
= control target key start
LH: loop header
= control target key end

     0   :  { %7 = vsyncpa [#allocation3], 0 /* loc("…/rows.py":9:11 to :21) */  ;;  %s15_s11 = sshll.u32 %s0, 4 }
   0x1 LB: { %20 = dma.hbm_to_vmem [thread:$0]  /*hbm=*/%s15_s11, /*size=*/128 /*
base_bounds: (1, 1) */ }
   0x2   :  { (%p3) %v42_v2 = vadd.f32 %v41_v1, %v40_v0 /* loc("…/rows.py":9:11 to :21) */ }
"""

LLO = """\
$region0: #{add.1}
  #allocation0 [shape = 'u32[]', space=smem, size = 0x4]
  %s0 = inlined_call_operand.hbm [shape: f32[8,128], index: 0]
  $region1: #{add.1} parent=0
    %7 = vsyncpa [#allocation3], 0 /* loc("…/rows.py":21:17 to :27) */
    %v42 = vadd.f32 %v41, %v40
  %9 = sld [smem:[#allocation0]]
"""


def module(path: Path) -> Module:
    return Module.of(path.read_text())


def test_kinds(dump: Path, passes: list[Path]) -> None:
    assert {module(p).kind for p in passes} == {"mlir"}
    assert module(dump / "v5e" / "mosaic.mlir").kind == "mlir"
    assert module(dump / "v5e" / "stablehlo.mlir").kind == "mlir"
    assert module(dump / "jaxpr.txt").kind == "jaxpr"
    assert (guess_kind(LLO), guess_kind(BUNDLES)) == ("llo", "bundles")
    assert guess_kind("def f():\n    pass\n") == guess_kind("") == "text"
    assert guess_kind("\n\n  $region0: #{x}\n") == "llo"
    assert guess_kind("\n\n\t%a:2 = b.c\n") == guess_kind("#loc = loc(unknown)") == "mlir"


def test_blanks_take_no_time() -> None:
    start = time.process_time()
    for blanks in ("\n", " ", "\t \n", "0 ", "0\t", "%a", "%a:1"):
        assert guess_kind(blanks * 60_000) == "text"
    assert guess_kind("0" + " " * 60_000) == "text"
    assert time.process_time() - start < 2  # it takes 0.1 s; in all ways it took half a minute


def test_every_line_of_mlir_is_an_operation_or_known_not_to_be(passes: list[Path]) -> None:
    for path in passes:
        found = module(path)
        for name, line in zip(found.names, found.lines, strict=True):
            bare = line.strip()
            if name is None:
                assert bare.startswith(("}", "#loc", "^bb")), line
            else:
                (operation,) = found.operations(found.lines.index(line))
                assert operation.name == name
                assert name in line


def test_the_positions_of_values_are_theirs(dump: Path, passes: list[Path]) -> None:
    for path in [*passes, dump / "jaxpr.txt"]:
        found = module(path)
        for number, line in enumerate(found.lines):
            for operation in found.operations(number):
                for value in (*operation.results, *operation.operands):
                    assert line[value.start : value.stop].startswith(value.name)


def test_an_operation_with_everything() -> None:
    line = '    %5:2, %x = "llo.vmatres"(%arg0, %4#1) <{m = 1 : i32}> : () -> f32 loc(#loc12)'
    (operation,) = read_line(line, "mlir", line=3)
    assert (operation.line, operation.name) == (3, "llo.vmatres")
    assert [v.name for v in operation.results] == ["%5", "%x"]
    assert [v.name for v in operation.operands] == ["%arg0", "%4#1"]
    at = location_at(line, "mlir")
    assert at is not None
    assert line[slice(*at)].strip() == "loc(#loc12)"


def test_operations_of_a_jaxpr(dump: Path) -> None:
    found = module(dump / "jaxpr.txt")
    for name, count in {
        "program_id": 1,
        "cond": 1,
        "scan": 1,
        "mul": 2,
        "get": 2,
        "swap": 2,
    }.items():
        assert found.counts[name] == count, name
    swap = found.names.index("swap")
    assert [line.line for line in found.source(swap)] == [19]
    assert found.source(swap)[0].function == "rows_kernel.<locals>._first"


def test_operations_of_bundles_and_llo() -> None:
    bundles, llo = Module.of(BUNDLES), Module.of(LLO)
    assert bundles.counts == {"vsyncpa": 1, "sshll.u32": 1, "dma.hbm_to_vmem": 1, "vadd.f32": 1}
    (added,) = bundles.operations(7)
    assert [v.name for v in added.operands] == ["%p3", "%v41_v1", "%v40_v0"]
    assert bundles.source(7)[0].line == 9
    assert llo.counts["vadd.f32"] == 1
    assert [(r.start, r.stop) for r in llo.regions] == [(0, 6), (3, 5)]
    assert llo.definition("%v42", 5) == 5


def test_regions_nest_and_end_where_they_close(passes: list[Path]) -> None:
    for path in passes:
        found = module(path)
        starts = [found.lines[r.start] for r in found.regions]
        assert any("func.func @rows" in line for line in starts)
        for region in found.regions:
            assert found.lines[region.start].endswith("{")
            assert found.lines[region.stop].lstrip().startswith("}")
            assert region.start < region.stop
        for a, b in zip(found.regions, found.regions[1:], strict=False):
            assert b.start >= a.stop or b.stop <= a.stop


def test_source_lines_through_helpers(passes: list[Path]) -> None:
    first = module(passes[0])
    lines = {line for _, line in first.from_source}
    assert {9, 13, 19, 22, 23, 25} <= lines
    multiplied = [n for n, name in enumerate(first.names) if name == "arith.mulf"]
    chains = [[s.line for s in first.source(n)] for n in multiplied]
    assert any(chain[0] == 9 for chain in chains)
    assert all(s.file.endswith("rows.py") for n in multiplied for s in first.source(n))
    (scaled,) = (n for n, chain in zip(multiplied, chains, strict=True) if chain[0] == 9)
    assert first.source(scaled)[0].function == "scale"


def test_locations_of_a_module_with_call_sites_and_circles() -> None:
    found = Module.of(
        'module {\n  %0 = "a.b"() : () -> () loc(#loc9)\n  %1 = c.d loc(#loc5)\n} loc(#loc)\n'
        "#loc = loc(unknown)\n"
        '#loc1 = loc("h.py":3:1 to :5)\n#loc2 = loc("k.py":8:1 to :5)\n'
        '#loc3 = loc("helper"(#loc1))\n#loc4 = loc("kernel"(#loc2))\n'
        "#loc7 = loc(callsite(#loc3 at #loc4))\n"
        '#loc9 = loc("mul:"(#loc7))\n#loc5 = loc(#loc6)\n#loc6 = loc(#loc5)\n'
    )
    assert [(s.file, s.line, s.function) for s in found.source(1)] == [
        ("h.py", 3, "helper"),
        ("k.py", 8, "kernel"),
    ]
    assert found.source(2) == ()
    assert found.from_source == {("h.py", 3): [1], ("k.py", 8): [1]}


def test_definitions_and_uses_in_regions_beside_each_other() -> None:
    found = Module.of(
        "func.func @f(%arg0: i32) {\n"  # 0
        "  %0 = a.b %arg0 : i32\n"
        "  scf.if %0 {\n"
        "    %1 = a.c %0 : i32\n"  # 3
        "    a.d %1 : i32\n"
        "  } else {\n"
        "    %1 = a.e %arg0 : i32\n"  # 6
        "    a.f %1 : i32\n"
        "  }\n"
        "  %1:2 = scf.for %arg1 = %0 to %0 step %0 -> (i32, i32) {\n"  # 9
        "    a.g %arg1 : i32\n"
        "  }\n"
        "  a.h %1#0, %1#1 : i32\n"  # 12
        "}\n"
    )
    assert [found.definition("%1", n) for n in (4, 7, 12)] == [3, 6, 9]
    assert found.definition("%1#1", 12) == 9
    assert found.uses("%1", 3) == (4,)
    assert found.uses("%1", 7) == (7,)
    assert found.uses("%1", 9) == (12,)
    assert found.uses("%0", 1) == (2, 3, 9)
    assert (found.definition("%arg0", 6), found.definition("%arg1", 10)) == (0, 9)
    assert found.definition("%arg1", 12) is None
    assert found.definition("%missing", 5) is None


def test_every_value_of_a_pass_is_defined_before_it_is_used(passes: list[Path]) -> None:
    for path in passes:
        found = module(path)
        for number in range(len(found.lines)):
            for operation in found.operations(number):
                for value in operation.operands:
                    defined = found.definition(value.name, number)
                    assert defined is not None, (path.name, found.lines[number])
                    assert defined <= number
                    assert defined == number or number in found.uses(value.name, number)


def test_hostile_texts_are_read_as_lines(passes: list[Path]) -> None:
    rng = random.Random(3)
    text = passes[-1].read_text()
    for _ in range(60):
        at = rng.randrange(len(text))
        piece = rng.choice(
            ["\x1b[2J", "[red]", "{", "}", '"', "loc(", "%", "\x00", "#loc1 = loc(", "\n"]
        )
        broken = text[:at] + piece * rng.randrange(1, 4) + text[at + rng.randrange(30) :]
        found = Module.of(broken[: rng.randrange(len(broken))], "mlir")
        tables = (found.counts, found.regions, found.from_source, found.chains)
        assert len(found.names) == len(found.lines)
        assert tables
        for number in range(0, len(found.lines), 7):
            found.operations(number)
            found.uses("%0", number)


@pytest.mark.parametrize("kind", ["mlir", "jaxpr", "llo", "bundles"])
@pytest.mark.parametrize("unit", ["%a, ", "loc(", "a:f32[8] ", '"', "{ ", "%0 = ", "/* loc("])
def test_a_huge_line_takes_no_time(kind: str, unit: str) -> None:
    line = "  %0 = a.b " + unit * (1_000_000 // len(unit))
    start = time.process_time()
    read_line(line, kind)  # type: ignore[arg-type]
    name_of(line, kind)  # type: ignore[arg-type]
    found = Module([line, line], kind)  # type: ignore[arg-type]
    _ = (found.regions, found.from_source, found.definition("%0", 1), found.uses("%0", 1))
    assert time.process_time() - start < 2
