"""Reader of final bundles: instructions, predicates, comments, regions, and broken texts."""

from __future__ import annotations

import pytest

from pallas_debug.ir import bundles
from pallas_debug.ir.bundles import read_bundles

HEAD = "= control target key start\nLB: loop body\n= control target key end\n\n"


def one(text: str):
    (bundle,) = read_bundles(text).bundles
    return bundle


def test_instructions_of_a_bundle() -> None:
    bundle = one(
        '  0x1f LB: >> { %v202_v2 = vadd.f32 %v201_v1, %v200_v0 /* loc("k.py":19:19 to :42) */'
        "  ;;  %203 = vst [vmem:[%s199_s14] sm:$0xff] /*vst_source=*/%v202_v2 } "
        "/* Start region 7 :: Start/End empty region 8 :: End region 7 */\n"
    )
    assert (bundle.number, bundle.mark, bundle.depth) == (0x1F, "LB", 2)
    add, store = bundle.instructions
    assert (add.opcode, add.results, add.operands) == (
        "vadd.f32",
        ("%v202_v2",),
        ("%v201_v1", "%v200_v0"),
    )
    assert add.locations == ('"k.py":19:19 to :42',)
    assert store.operands == ("%s199_s14", "%v202_v2")
    assert store.remarks == ("vst_source=",)
    assert (bundle.starts, bundle.empties, bundle.ends) == ((7,), (8,), (7,))


def test_predicates_and_the_value_that_is_kept() -> None:
    listing = read_bundles(
        "     0   :  { %s9_s2 = smov (!%p1_p0, %s4_s2), %s5_s3  ;;  "
        '%6 = sbr.rel (%p2_p1) /* loc("a.py":1:2 to :3) */ target = $region32 }\n'
    )
    move, branch = listing.bundles[0].instructions
    assert (move.predicate, move.kept, move.operands) == ("!%p1_p0", "%s4_s2", ("%s5_s3",))
    assert (branch.predicate, branch.target) == ("%p2_p1", 32)


def test_comments_nest_span_lines_and_contain_braces() -> None:
    listing = read_bundles(
        HEAD + "     0   :  { %395 = shalt.err (!%p3) /* BoundsCheck 0 for %337 = dma.hbm_to_vmem"
        " /*hbm=*/%s1 /* \nbase_bounds: (4, 1)\n */\nhlo: k } ;;\n */ }\n"
        "   0x1   :  {} /* End region 3 */\n"
    )
    first, second = listing.bundles
    assert [i.opcode for i in first.instructions] == ["shalt.err"]
    assert (first.line, second.line) == (4, 9)
    assert second.ends == (3,)
    assert not listing.is_cut


def test_a_comment_that_is_not_closed_ends_with_its_bundle() -> None:
    listing = read_bundles("     0   :  { %1 = vadd %v2 } /* open\n   0x1   :  { %3 = vsub %v4 }\n")
    assert [b.instructions[0].opcode for b in listing.bundles] == ["vadd", "vsub"]


def test_several_locations_and_remarks_of_a_combined_instruction() -> None:
    bundle = one(
        '     0   :  { %v1 = vld [vmem:[%s1]] /* loc("a.py":1:2 to :3) :: loc("b.py":4:5 to 6:7) ::'
        " combined load */ }\n"
    )
    (load,) = bundle.instructions
    assert load.locations == ('"a.py":1:2 to :3', '"b.py":4:5 to 6:7')
    assert load.remarks == ("combined load",)
    listing = read_bundles('     0   :  { %v1 = vld /* loc("a.py":1:2 to :3) */ }\n')
    assert [str(s) for s in listing.sources(listing.bundles[0].instructions[0])] == ["a.py:1"]


def test_what_is_no_instruction_is_kept_as_text() -> None:
    bundle = one("     0   :  { ?? what  ;;  %1 = new.opcode.v9 %s2 }\n")
    assert bundle.unread == ("?? what",)
    assert bundle.instructions[0].opcode == "new.opcode.v9"


@pytest.mark.parametrize("tail", ["   0x1   :  { %2 = vadd", "   0x1   :  { %2 = vadd /* loc("])
def test_a_bundle_that_is_cut_off_ends_the_listing(tail: str) -> None:
    listing = read_bundles("     0   :  { %1 = vsub %v2 }\n" + tail)
    assert len(listing.bundles) == 1
    assert listing.is_cut


def test_number_of_bundles_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "MAX_BUNDLES", 2)
    listing = read_bundles("".join(f" {n:#x}   :  {{}}\n" for n in range(1, 6)))
    assert len(listing.bundles) == 2
    assert listing.is_cut


@pytest.mark.parametrize("text", ["", "no bundles\n", "\0\0", "*/ /* */ {", " 0 : {" * 50])
def test_any_text_can_be_read(text: str) -> None:
    assert read_bundles(text).bundles == ()
