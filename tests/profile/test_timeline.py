"""Timelines of small schedules: steps, cores, what is not copied, the strip and the trace."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from trace_format import validated

from pallas_debug.errors import CannotRunError, UsageError
from pallas_debug.model import Compilation, Kernel, Operand
from pallas_debug.profile.blocks import BlockIndex, BlockMap, OperandBlocks
from pallas_debug.profile.core.copies import CopyModel
from pallas_debug.profile.cycles import NO_DELAYS
from pallas_debug.profile.figures import Figure
from pallas_debug.profile.stats import Profile, ScheduleTexts
from pallas_debug.profile.text import facts
from pallas_debug.profile.timeline import strip
from pallas_debug.profile.timeline.rates import CopyRates, copy_rates
from pallas_debug.profile.timeline.timeline import Timeline, timeline_of
from pallas_debug.profile.timeline.trace_events import trace_json

HEAD = """\
     0   :  { %s1_s0 = smov 0 } /* Start region 1 */
   0x1 LB: > { %s2_s0 = sphi %s1_s0, %s3_s0 } /* Start region 5 */
"""
TAIL = """\
   0x3   : > {{ %p1_p0 = scmp.ge.s32.totalorder %s3_s0, {trips} }}
   0x4   :  {{ %5 = sbr.rel (!%p1_p0) target = $region5 }}
   0x5   :  {{}}
   0x6   :  {{}}
   0x7   :  {{}}
   0x8   :  {{}} /* End region 5 */
   0x9   :  {{}} /* End region 1 */
"""
BODY = "   0x2   : > { %s3_s0 = sadd.s32 1, %s2_s0 }\n"
BOUNDS = BODY.replace(
    " }", " /* base_bounds: (8, 1)\niteration_bounds: ({bounds})\nstrides: (1, 1) */ }"
)
"""A loop of eight bundles without copies."""


def loop(trips: int, body: str = BODY, head: str = HEAD) -> str:
    return head + body + TAIL.format(trips=trips)


RATES = CopyRates(
    clock=Figure(value=1e9, origin="assumed", unit="Hz", note="of a test"),
    bandwidth=Figure(value=512e9, origin="assumed", unit="bytes/s", note="of a test"),
    latency=Figure(value=0, origin="assumed", unit="cycles"),
)
MODEL = CopyModel(latency={"hbm_to_vmem": 0}, bandwidth={"hbm_to_vmem": 512})


SIMULATED = (
    "the loop over grid steps was not recognised in the schedule: libtpu's pipeline is simulated, "
    "with the average cycles of a step"
)


@pytest.fixture
def _simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The schedule's loop is not recognised."""
    monkeypatch.setattr("pallas_debug.profile.timeline.timeline.walked", lambda *given: None)


simulated = pytest.mark.usefixtures("_simulated")


def rows(count: int, size: int = 8) -> tuple[BlockIndex, ...]:
    return (
        BlockIndex(kind="blocked", size=size, bound=count * size, strides=(1,)),
        BlockIndex(kind="blocked", size=128, bound=128, strides=(0,)),
    )


def operand(name: str, dimensions: tuple[BlockIndex, ...], **fields: Any) -> OperandBlocks:
    plain: dict[str, Any] = {
        "kind": "input", "shape": tuple(d.bound for d in dimensions), "dtype": "float32",
        "bits": 32, "space": "vmem", "is_pipelined": True, "buffers": 2,
    }  # fmt: skip
    return OperandBlocks(name=name, dimensions=dimensions, **(plain | fields))


def block_map(steps: int, *operands: OperandBlocks) -> BlockMap:
    return BlockMap(grid=(steps,), parallel=(False,), operands=operands)


def profile(steps: int, blocks: BlockMap | None = None, bundles: str | None = None) -> Profile:
    described = tuple(
        Operand(name=o.name, kind=o.kind, shape=o.shape, dtype=o.dtype, memory_space=o.space)
        for o in (blocks.operands if blocks else ())
    )
    return Profile(
        texts=ScheduleTexts(bundles=loop(steps) if bundles is None else bundles),
        kernel=Kernel(name="add", digest="", primitive="", grid=(steps,), operands=described),
        compilation=Compilation(kernel="add", target="v5e", status="ok", key=""),
    )


def made(blocks: BlockMap, bundles: str | None = None, first: int = 3, last: int = 2) -> Timeline:
    found = profile(blocks.grid[0], blocks, bundles)
    return timeline_of(found, blocks, RATES, MODEL, first=first, last=last, name="add")


COPIED = block_map(
    6, operand("x_ref", rows(6)), operand("o_ref", rows(6), kind="output")
)  # 4,096 bytes a block: 8 cycles, as long as a step


def test_a_loop_of_unknown_length_is_said_to_be_cut() -> None:
    head = ADDRESS.replace("{ %s1_s0", "{ %s50_s50 = sld [smem:[%s0_s0]]  ;;  %s1_s0")
    bundles = loop(6, COPIES + WAIT, head).replace(" %s3_s0, 6 ", " %s3_s0, %s50_s50 ")
    own = operand("x_ref", rows(6), is_pipelined=False, space="any", buffers=1)
    timeline = made(block_map(1, own), bundles)
    (note,) = (n for n in timeline.notes if n.startswith("loops of unknown length"))
    assert note.startswith("loops of unknown length run 6 times here; all cycles are ")
    assert " n; known only at run time: n, iterations of the loop at bundle 0x" in note


@simulated
def test_first_and_last_steps() -> None:
    timeline = made(COPIED)
    assert (timeline.steps, timeline.cores, timeline.bounds) == (6, 1, (6,))
    assert timeline.compute.value == 8
    assert [(p.start, p.stop) for p in timeline.parts] == [(0, 3), (4, 6)]
    assert [s.step for part in timeline.parts for s in part.steps] == [0, 1, 2, 4, 5]
    assert [lane.copies.value for lane in timeline.lanes] == [6, 6]
    # Twelve copies of 8 cycles, one after the other; in half of that time the core computes.
    assert timeline.cycles.value == 96
    assert timeline.stalled.value == 0.5
    assert timeline.microseconds(1000) == pytest.approx(1)


@simulated
def test_a_short_grid_is_one_part() -> None:
    assert [(p.start, p.stop) for p in made(COPIED, first=4, last=2).parts] == [(0, 6)]
    assert [(p.start, p.stop) for p in made(COPIED, first=99, last=99).parts] == [(0, 6)]


@pytest.mark.slow
@simulated
def test_a_long_grid_is_extrapolated() -> None:
    steps = 1_000_000
    long = block_map(steps, operand("x_ref", rows(steps)), operand("o", rows(steps), kind="output"))
    timeline = made(long)
    assert [(p.start, p.stop) for p in timeline.parts] == [(0, 3), (steps - 2, steps)]
    assert timeline.cycles.value == pytest.approx(16 * steps, rel=0.05)
    assert timeline.stalled.value == pytest.approx(0.5, abs=0.15)
    assert not timeline.lanes[0].copies.is_known
    assert timeline.notes == (
        SIMULATED,
        "of 1,000,000 steps, the first and the last ones were simulated; the time between them is "
        "extrapolated from those",
    )
    events = validated(trace_json(timeline))
    assert [e["name"] for e in events if e["ph"] == "i"] == ["999,995 steps are not shown"]


@simulated
def test_cores_share_the_grid_as_the_compiler_divided_it() -> None:
    timeline = made(COPIED, loop(3, BOUNDS.replace("{bounds}", "3")))
    assert (timeline.cores, timeline.steps, timeline.bounds) == (2, 3, (3,))
    assert timeline.notes[0] == (
        "2 cores share the grid along dimension 0: the first core is shown, as if the others "
        "copied nothing"
    )
    assert [lane.copies.value for lane in timeline.lanes] == [3, 3]


@pytest.mark.parametrize("bounds", ["7", "0", "3, 2", "9999999999"])
def test_bounds_that_do_not_fit_the_grid_are_ignored(bounds: str) -> None:
    assert made(COPIED, loop(6, BOUNDS.replace("{bounds}", bounds))).bounds == (6,)


@simulated
def test_operands_that_xla_placed_in_vmem_are_not_copied() -> None:
    placed = HEAD.replace(
        "{ %s1_s0 = smov 0 }",
        "{ %s1_s0 = smov 0  ;;  %s9_s9 = inlined_call_operand.vmem [shape: f32[48,128], index: 0, "
        "kind: input, shape index: {}] /* input window allocation for operator input 0. */ }",
    )
    bundles = loop(6, head=placed)
    x, o = made(COPIED, bundles).lanes
    assert x.note == "XLA placed the whole array in VMEM: nothing is copied"
    assert (x.copies.value, o.copies.value) == (0, 6)
    stats = replace(profile(6, COPIED, bundles), blocks=COPIED).stats
    assert stats.traffic.resident == ("x_ref",)
    assert (
        dict(facts(stats))["  in VMEM"] == "x_ref: placed in VMEM by XLA, not copied from or to HBM"
    )
    assert replace(profile(6, COPIED), blocks=COPIED).stats.traffic.resident == ()


def test_an_operand_in_a_register_is_not_copied() -> None:
    placed = HEAD.replace(
        "{ %s1_s0 = smov 0 }",
        "{ %s1_s0 = smov 0  ;;  %s9_s9 = inlined_call_operand.<no memory space> [shape: s32[1], "
        "index: 0, kind: input, shape index: {}] }",
    )
    x, _ = made(COPIED, loop(6, head=placed)).lanes
    assert x.note == "XLA passes the one element in a register: nothing is copied"


COPIES = """\
   0x2   : > { %s3_s0 = sadd.s32 1, %s2_s0  ;;  %7 = dma.hbm_to_vmem [thread:$0]  %s21_s1, 128, \
[#allocation2], [#allocation3] /* loc("kernel.py":12:4 to :20) */ }
"""
WAIT = """\
   0x2   : > { %8 = dma.done.wait [#allocation3], 128 }
   0x2   : > { %s21_s1 = scalar_lea.hbm %s20_s1, %s2_s0 }
"""
ADDRESS = HEAD.replace(
    "{ %s1_s0 = smov 0 }",
    "{ %s1_s0 = smov 0  ;;  %s20_s1 = inlined_call_operand.hbm [shape: f32[48,128], index: 0, "
    "kind: input, shape index: {}] }",
)
OWN = block_map(6, operand("x_ref", rows(6), is_pipelined=False, space="any", buffers=1))


def test_copies_that_the_kernel_starts_are_walked_through() -> None:
    timeline = made(OWN, loop(6, COPIES + WAIT, ADDRESS))
    assert timeline.notes == (NO_DELAYS,)
    (lane,) = timeline.lanes
    assert (lane.name, lane.copies.value, lane.size.value) == ("x_ref", 6, 4096)
    # 128 granules of 32 bytes take 8 cycles, for which the core waits in its next bundle.
    copies = [c for p in timeline.parts for c in p.copies]
    assert {(c.is_own, c.size, c.end - c.begin) for c in copies} == {(True, 4096, 8)}
    assert [(w.lane, w.end - w.begin) for w in timeline.parts[0].waits] == [(0, 7)] * 3
    assert [s.step for p in timeline.parts for s in p.steps] == [0, 1, 2, 4, 5]
    (source,) = timeline.sources.values()
    assert str(source) == "kernel.py:12"
    events = validated(trace_json(timeline))
    own = [e for e in events if e.get("cat") == "dma"]
    assert {e["name"] for e in own} == {"copy by the kernel"}
    assert {e["args"]["started by"] for e in own} == {"kernel.py:12"}


def test_copies_within_an_array_in_vmem_are_those_that_the_kernel_starts() -> None:
    """As of an all-gather: its output is in VMEM, and the kernel sends parts of it."""
    address = ADDRESS.replace("inlined_call_operand.hbm", "inlined_call_operand.vmem")
    sizes = {size: COPIES.replace(" 128,", f" {size},") for size in ("128", "%s3_s0")}
    for size, copied in (("128", 4096), ("%s3_s0", None)):
        blocks = block_map(6, operand("x_ref", rows(6)))
        (lane,) = made(blocks, loop(6, sizes[size] + WAIT, address)).lanes
        assert (lane.copies.value, lane.size.value) == (6, copied)
        assert (
            lane.note
            == "XLA placed the whole array in VMEM; the kernel copies the parts that it needs"
        )


@simulated
def test_copies_that_the_kernel_starts_are_not_simulated_and_this_is_said() -> None:
    timeline = made(OWN, loop(6, COPIES + WAIT, ADDRESS))
    assert timeline.notes == (
        SIMULATED,
        "copies that the kernel starts, and waits for them, are not shown",
    )


def test_a_loop_with_other_trips_is_not_taken_for_the_grid() -> None:
    timeline = made(COPIED, loop(9))
    assert timeline.notes == (SIMULATED,)
    assert timeline.lanes[0].copies.value == 6


def test_known_scalar_prefetch_is_simulated() -> None:
    table = operand("x_ref", rows(6), tables=("table_ref",))
    timeline = made(block_map(6, table))
    assert timeline.notes == (
        "blocks depend on scalar prefetch, whose values are in the dump but not in the schedule: "
        "libtpu's pipeline is simulated, with the average cycles of a step",
    )
    assert timeline.lanes[0].note == "as table_ref was in the first call"


@simulated
def test_unknown_index_maps_are_assumed_to_fetch_at_every_step() -> None:
    unknown = operand("x_ref", rows(6), unknown="it reads table_ref, whose values are unknown")
    timeline = made(block_map(6, unknown))
    assert timeline.lanes[0].copies.value == 6
    assert timeline.lanes[0].note == (
        "its block is assumed to change at every step: it reads table_ref, whose values are unknown"
    )
    assert strip.strip(timeline, 200)[-2] == (
        "note: x_ref: its block is assumed to change at every step: it reads table_ref, whose "
        "values are unknown"
    )
    copy = next(e for e in validated(trace_json(timeline)) if e.get("cat") == "dma")
    assert copy["name"] == "fetch block of unknown index"
    assert copy["args"]["block"] is None


@simulated
def test_a_block_at_the_end_of_the_array_is_cut_off() -> None:
    short = (replace(rows(6)[0], bound=44), rows(6)[1])
    timeline = made(block_map(6, operand("x_ref", short)), first=6)
    assert [c.size for c in timeline.parts[0].copies] == [4096] * 5 + [2048]


@pytest.mark.parametrize(
    "given, message",
    [
        (
            {"blocks": None},
            "add has no timeline: the dump does not record which blocks it touches, because an "
            "earlier version of pallas-debug wrote it. Dump the kernel again.",
        ),
        (
            {"blocks": BlockMap(unknown="its grid has a dimension whose size is unknown")},
            "add has no timeline: its grid has a dimension whose size is unknown. "
            "A timeline needs a grid of known size, with blocks.",
        ),
        (
            {"profile": profile(6, None, bundles="")},
            "add has no timeline: there is no schedule of bundles. "
            "To get one, dump it with `--stages bundles`.",
        ),
        (
            {"rates": copy_rates("mine")[0]},
            "add has no timeline: the clock of mine is unknown. To get one, pass --clock in MHz.",
        ),
        (
            {"blocks": BlockMap(grid=(0,), parallel=(False,))},
            "add has no timeline: its grid has no points.",
        ),
    ],
)
def test_what_is_missing_is_said(given: dict[str, Any], message: str) -> None:
    plain = {"profile": profile(6), "blocks": COPIED, "rates": RATES} | given
    kind = CannotRunError if "profile" in given else UsageError
    with pytest.raises(kind) as error:
        timeline_of(
            plain["profile"], plain["blocks"], plain["rates"], MODEL, first=3, last=2, name="add"
        )
    assert str(error.value) == message


def test_rates_as_given_and_of_another_chip() -> None:
    rates, model = copy_rates("mine", clock=1000, bandwidth=100)
    assert (rates.clock.value, rates.bandwidth.value) == (1e9, 1e11)
    assert model.time("hbm_to_vmem", 4096)[1] == 40.96
    assert rates.latency.note == "of another chip: libtpu gives no estimates for mine"
    rates, model = copy_rates("v5e:2x4")
    assert rates.clock.value == 1.5e9
    assert rates.bandwidth.value == pytest.approx(736.8e9)
    assert rates.bandwidth.note == "as in libtpu's own estimates"


STRIP = """\
add on v5e: grid 6, 6 steps, 96 cycles (0.1 µs), stalled 50 %

step           0     1           2     ┊      4           5
compute  ░░░░░░████████████░░░░░░██████┊ ░░░░░░██████░░░░░██████░░░░░░
x_ref    ▼▼▼▼▼▼▼▼▼▼▼▼······▼▼▼▼▼▼······┊ ▼▼▼▼▼▼·····▼▼▼▼▼▼▼···········
o_ref    ············▲▲▲▲▲▲······▲▲▲▲▲▲┊ ·····▲▲▲▲▲▲▲·····▲▲▲▲▲▲▲▲▲▲▲▲
"""


@simulated
def test_the_strip() -> None:
    lines = strip.strip(made(COPIED), 70)
    assert lines[:6] == STRIP.splitlines()


@simulated
def test_the_strip_in_ascii_and_at_any_width() -> None:
    odd = replace(COPIED, operands=(replace(COPIED.operands[0], name="größe\x1b[31m🦀" * 9),))
    timeline = made(odd)
    for width in (1, 40, 41, 80, 173):
        plain = strip.strip(timeline, width, ascii_only=True)
        assert all(line.isascii() and line.isprintable() for line in plain)
        drawn = strip.strip(timeline, width)
        assert all(line.isprintable() for line in drawn)
        for line in drawn[drawn.index("") + 1 :][:3]:
            assert strip.columns(line) <= max(width, strip.MIN_WIDTH)
    assert "# compute   - wait for a copy   v fetch   ^ write back   . idle" in plain


@simulated
def test_the_trace() -> None:
    timeline = made(COPIED)
    text = trace_json(timeline)
    events = validated(text)
    names = {e["args"]["name"] for e in events if e["name"] in ("process_name", "thread_name")}
    assert names == {
        "core 0 · add on v5e", "copies between HBM and VMEM or SMEM", "compute",
        "waits for copies", "DMA in: x_ref", "DMA out: o_ref",
    }  # fmt: skip
    steps = [e for e in events if e.get("cat") == "compute"]
    assert [e["name"] for e in steps] == ["step 0", "step 1", "step 2", "step 4", "step 5"]
    assert steps[0]["args"]["grid point"] == [0]
    assert (steps[0]["ts"], steps[0]["dur"]) == (0.008, 0.008)
    fetch = next(e for e in events if e["name"] == "fetch block (1, 0)")
    assert fetch["args"]["bytes"] == 4096
    assert fetch["args"]["bytes origin"] == "derived"
    assert fetch["args"]["duration origin"] == "assumed"
    assert json.loads(text)["otherData"]["HBM bandwidth"] == (
        "512,000,000,000 bytes/s (assumed: of a test)"
    )


@pytest.mark.slow
def test_damaged_schedules() -> None:
    """A damaged listing gives a timeline that is well-formed, or a message."""
    whole = loop(6, COPIES + WAIT, ADDRESS).splitlines(keepends=True)
    shown = 0
    for seed in range(80):
        draw = random.Random(seed)
        lines = list(whole)
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(lines))
            characters = list(lines[at])
            for _ in range(draw.randint(1, 6)):
                characters[draw.randrange(len(characters))] = draw.choice("0129%{}/*;()s_,=[]")
            lines[at : at + draw.randint(0, 2)] = ["".join(characters)]
        try:
            timeline = made(OWN, "".join(lines))
        except UsageError:
            continue
        shown += 1
        validated(trace_json(timeline))
        assert all(line.isprintable() for line in strip.strip(timeline, 60))
    assert shown > 20
