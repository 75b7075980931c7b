"""Timelines of small schedules: steps, cores, what is not copied, the strip and the trace."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from typing import Any

import pytest
from trace_format import validated

from pallas_debug.errors import CannotRunError, UsageError
from pallas_debug.model import Compilation, Kernel, Operand
from pallas_debug.profile.blocks import BlockIndex, BlockMap, OperandBlocks
from pallas_debug.profile.core.copies import CopyModel
from pallas_debug.profile.cycles import NO_DELAYS
from pallas_debug.profile.stats import Profile, ScheduleTexts
from pallas_debug.profile.text import lines_of
from pallas_debug.profile.timeline import strip
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


MODEL = CopyModel(latency={"hbm_to_vmem": 0}, bandwidth={"hbm_to_vmem": 512})


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


def profile(blocks: BlockMap | None, bundles: str) -> Profile:
    operands = blocks.operands if blocks else ()
    described = tuple(
        Operand(name=o.name, kind=o.kind, shape=o.shape, dtype=o.dtype, memory_space=o.space)
        for o in operands
    )
    grid = blocks.grid if blocks else ()
    return Profile(
        texts=ScheduleTexts(bundles=bundles),
        kernel=Kernel(name="add", digest="", primitive="", grid=grid, operands=described),
        compilation=Compilation(kernel="add", target="v5e", status="ok", key=""),
        blocks=blocks,
    )


def made(
    blocks: BlockMap | None, bundles: str | None = None, first: int = 3, last: int = 2
) -> Timeline:
    """Return a timeline in which 512 bytes are copied in a cycle, without latency."""
    found = profile(blocks, loop(6) if bundles is None else bundles)
    return timeline_of(found, first=first, last=last, name="add", model=MODEL)


COPIED = block_map(6, operand("x_ref", rows(6)), operand("o_ref", rows(6), kind="output"))


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
OWN_COPIES = loop(6, COPIES + WAIT, ADDRESS)
"""Copies of 4,096 bytes, which take 8 cycles, and are waited for at once."""


def test_a_loop_of_unknown_length_is_said_to_be_cut() -> None:
    head = ADDRESS.replace("{ %s1_s0", "{ %s50_s50 = sld [smem:[%s0_s0]]  ;;  %s1_s0")
    bundles = loop(6, COPIES + WAIT, head).replace(" %s3_s0, 6 ", " %s3_s0, %s50_s50 ")
    own = operand("x_ref", rows(6), is_pipelined=False, space="any", buffers=1)
    timeline = made(block_map(1, own), bundles)
    (note,) = (n for n in timeline.notes if n.startswith("loops of unknown length"))
    assert note.startswith("loops of unknown length run 6 times here; all cycles are ")
    assert " n; known only at run time: n, iterations of the loop at bundle 0x" in note


def test_first_and_last_steps() -> None:
    timeline = made(OWN, OWN_COPIES)
    assert (timeline.steps, timeline.cores, timeline.bounds) == (6, 1, (6,))
    assert [s.step for part in timeline.parts for s in part.steps] == [0, 1, 2, 4, 5]
    assert timeline.stalled.value == pytest.approx(42 / timeline.cycles.value, abs=1e-9)
    assert timeline.microseconds(1500) == pytest.approx(1)
    for first, last, parts in ((3, 2, [(0, 3), (4, 6)]), (4, 2, [(0, 6)]), (99, 99, [(0, 6)])):
        found = made(OWN, OWN_COPIES, first, last)
        assert [(part.start, part.stop) for part in found.parts] == parts


def test_only_the_first_steps_of_a_long_grid_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pallas_debug.profile.timeline.walked._BUDGET", 2000)
    steps = 1_000_000
    timeline = made(block_map(steps, operand("x_ref", rows(steps))), loop(steps))
    assert [(p.start, p.stop) for p in timeline.parts] == [(0, 3)]
    assert timeline.cycles.value == pytest.approx(8 * steps, rel=0.01)
    assert not timeline.lanes[0].copies.is_known
    assert re.fullmatch(
        r"of 1,000,000 steps, the first \d{3} were walked through one by one; the last ones are not "
        "shown",
        timeline.notes[-1],
    )


def test_cores_share_the_grid_as_the_compiler_divided_it() -> None:
    timeline = made(COPIED, loop(3, BOUNDS.replace("{bounds}", "3")))
    assert (timeline.cores, timeline.steps, timeline.bounds) == (2, 3, (3,))
    assert timeline.notes[0] == (
        "2 cores share the grid along dimension 0: the first core is shown, as if the others "
        "copied nothing"
    )


@pytest.mark.parametrize("bounds", ["7", "0", "3, 2", "9999999999"])
def test_bounds_that_do_not_fit_the_grid_are_ignored(bounds: str) -> None:
    assert made(COPIED, loop(6, BOUNDS.replace("{bounds}", bounds))).bounds == (6,)


def placed(operand: str) -> str:
    head = (
        f"{{ %s1_s0 = smov 0  ;;  %s9_s9 = inlined_call_operand.{operand}, index: 0, kind: input }}"
    )
    return loop(6, head=HEAD.replace("{ %s1_s0 = smov 0 }", head))


@pytest.mark.parametrize(
    "operand, note",
    [
        ("vmem [shape: f32[48,128]", "XLA placed the whole array in VMEM: nothing is copied"),
        (
            "cmem [shape: f32[48,128]",
            "XLA placed the whole array in CMEM, and blocks come from there",
        ),
        (
            "<no memory space> [shape: s32[1]",
            "XLA passes the one element in a register: nothing is copied",
        ),
    ],
)
def test_operands_that_xla_did_not_place_in_hbm(operand: str, note: str) -> None:
    assert made(COPIED, placed(operand)).lanes[0].note == note


def test_operands_in_vmem_are_named() -> None:
    stats = profile(COPIED, placed("vmem [shape: f32[48,128]")).stats
    assert stats.traffic.resident == ("x_ref",)
    assert any(
        line.endswith(" x_ref: placed in VMEM by XLA, not copied from or to HBM")
        for line in lines_of(stats)
    )
    assert profile(COPIED, loop(6)).stats.traffic.resident == ()


def test_copies_that_the_kernel_starts_are_walked_through() -> None:
    timeline = made(OWN, OWN_COPIES)
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


@pytest.mark.parametrize(
    "fields, note",
    [
        ({"tables": ("table_ref",)}, "as table_ref was in the first call"),
        (
            {"unknown": "it reads table_ref, whose values are unknown"},
            "which blocks are copied is unknown: it reads table_ref, whose values are unknown",
        ),
    ],
)
def test_blocks_that_depend_on_tables(fields: dict[str, Any], note: str) -> None:
    timeline = made(block_map(6, operand("x_ref", rows(6), **fields)))
    assert timeline.lanes[0].note == note
    assert f"note: x_ref: {note}" in strip.strip(timeline, 200)


@pytest.mark.parametrize(
    "blocks, bundles, message",
    [
        (
            None,
            loop(6),
            "the dump does not record which blocks it touches, because an earlier version of "
            "pallas-debug wrote it. Dump the kernel again.",
        ),
        (
            BlockMap(unknown="its grid has a dimension whose size is unknown"),
            loop(6),
            "its grid has a dimension whose size is unknown. A timeline needs a grid of known "
            "size, with blocks.",
        ),
        (BlockMap(grid=(0,), parallel=(False,)), loop(6), "its grid has no points."),
        (
            COPIED,
            "",
            "there is no schedule of bundles",
        ),
        (
            COPIED,
            loop(9),
            "the loop over its 6 grid steps was not recognised in the schedule",
        ),
    ],
)
def test_what_is_missing_is_said(blocks: BlockMap | None, bundles: str, message: str) -> None:
    with pytest.raises((UsageError, CannotRunError)) as error:
        made(blocks, bundles)
    assert str(error.value) == f"add has no timeline: {message}"


STRIP = """\
add on v5e: grid 6, 6 steps, 104 cycles (0.1 µs), stalled 40 %

step     0           1           2           ┊ 4          5
compute  ██░░░░░███████░░░░░███████░░░░██████┊ █░░░░░██████░░░░░██████
x_ref    ·▼▼▼▼▼▼······▼▼▼▼▼▼·····▼▼▼▼▼▼▼·····┊ ▼▼▼▼▼▼·····▼▼▼▼▼▼▼·····
"""


def test_the_strip() -> None:
    lines = strip.strip(made(OWN, OWN_COPIES), 70)
    assert lines[:5] == STRIP.splitlines()


def test_the_strip_at_any_width() -> None:
    odd = replace(OWN, operands=(replace(OWN.operands[0], name="größe\x1b[31m🦀" * 9),))
    timeline = made(odd, OWN_COPIES)
    for width in (1, 40, 41, 80, 173):
        drawn = strip.strip(timeline, width)
        assert all(line.isprintable() for line in drawn)
        for line in drawn[drawn.index("") + 1 :][:3]:
            assert strip.columns(line) <= max(width, strip.MIN_WIDTH)


def test_the_trace() -> None:
    timeline = made(OWN, OWN_COPIES)
    text = trace_json(timeline)
    events = validated(text)
    names = {e["args"]["name"] for e in events if e["name"] in ("process_name", "thread_name")}
    assert names == {
        "core 0 · add on v5e", "copies between HBM and VMEM or SMEM", "compute",
        "waits for copies", "DMA in: x_ref (the kernel copies the parts that it needs)",
    }  # fmt: skip
    steps = [e for e in events if e.get("cat") == "compute"]
    assert list(dict.fromkeys(e["name"] for e in steps)) == [f"step {n}" for n in (0, 1, 2, 4, 5)]
    assert steps[0]["args"]["grid point"] == [0]
    copies = [e for e in events if e.get("cat") == "dma"]
    assert {(e["name"], e["args"]["started by"]) for e in copies} == {
        ("copy by the kernel", "kernel.py:12")
    }
    assert copies[0]["args"]["bytes"] == 4096
    assert json.loads(text)["otherData"]["clock"] == "1,500 MHz"


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
        except (UsageError, CannotRunError):
            continue
        shown += 1
        validated(trace_json(timeline))
        assert all(line.isprintable() for line in strip.strip(timeline, 60))
    assert shown > 20
