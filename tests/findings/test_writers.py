"""Sentences about who wrote what: stale and overwritten reads, lost and conflicting writes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pallas_debug.findings.sighting import Sighting
from pallas_debug.findings.wording import contents, writers
from pallas_debug.findings.wording.facts import Reset, WrittenElement
from pallas_debug.findings.wording.order import Access
from pallas_debug.findings.wording.writers import OutputBlock
from pallas_debug.model import Finding, SourceLine, Witness
from pallas_debug.render import finding_text

HERE = SourceLine(file="rows.py", line=14, text="acc_ref[...] += x_ref[...]")
THERE = SourceLine(file="rows.py", line=12, text="acc_ref[...] = zeros")


def seen(operand: str, index: str | None = None) -> Sighting:
    witness = Witness(
        source=HERE, other=THERE, operand=operand, index=index, grid_point=(0, 1, 0),
        shape="float32[8, 128] in VMEM",
    )  # fmt: skip
    return Sighting(kernel="matmul", engine="machine", witness=witness)


def read(*point: int, loop: tuple[int, ...] = ()) -> Access:
    return Access(writes=False, grid_point=point, loop=loop)


def write(*point: int, loop: tuple[int, ...] = ()) -> Access:
    return Access(writes=True, grid_point=point, loop=loop)


def words(finding: Finding) -> tuple[str, str | None, str | None]:
    return finding.message, finding.cause, finding.advice


BLOCK = OutputBlock(output="out_ref", index=(0, 1), steps=(2,))
AT_THE_START = Reset(line=12, points=((0, 0, 0),), condition="is_first")
ALL = WrittenElement(index=(0, 0), value=3.25, affected=1024, total=1024)


def stale(
    *resets: Reset,
    block: OutputBlock | None = BLOCK,
    left_by: str | None = "block (0, 0)",
    element: WrittenElement = ALL,
    accumulates: bool = True,
    choice: SourceLine | None = None,
) -> Finding:
    return writers.stale_read(
        seen("acc_ref"), reader=read(0, 1, 0), writer=write(0, 0, 1), element=element,
        block=block, left_by=left_by, resets=resets, accumulates=accumulates, choice=choice,
    )  # fmt: skip


def test_scratch_reset_at_the_start_of_the_grid_alone() -> None:
    finding = stale(AT_THE_START)
    assert words(finding) == (
        "grid point (0, 1, 0), for block (0, 1) of out_ref, reads what grid point (0, 0, 1) left "
        "in acc_ref for block (0, 0): acc_ref[0, 0] = 3.25",
        "it is reset only at grid point (0, 0, 0), in line 12, under @pl.when(is_first)",
        "reset it at the first step of each block of out_ref: @pl.when(pl.program_id(2) == 0)",
    )
    assert (finding.kind, finding.engines) == ("StaleRead", ("machine",))
    assert finding.values == {
        "other grid point": "(0, 0, 1)",
        "acc_ref[0, 0]": "3.25",
        "reset at": "grid point (0, 0, 0)",
    }
    assert (finding.source, finding.other) == (HERE, THERE)


@pytest.mark.parametrize(
    "resets, accumulates, cause, advice",
    [
        (
            (),
            True,
            "nothing resets acc_ref: this line adds to what the previous block left",
            "reset it at the first step of each block of out_ref: @pl.when(pl.program_id(2) == 0)",
        ),
        (
            (),
            False,
            "nothing resets acc_ref, and nothing writes it before this line at this grid point",
            "write all of acc_ref at the first step of each block of out_ref: "
            "@pl.when(pl.program_id(2) == 0)",
        ),
        (
            (Reset(line=12, points=((0, 0, 1), (0, 1, 1), (1, 0, 1))),),
            True,
            "it is reset at grid point (0, 1, 1), in line 12, but block (0, 1) of out_ref begins "
            "before that",
            "reset it at the first step of each block of out_ref: @pl.when(pl.program_id(2) == 0)",
        ),
        (
            (Reset(line=16, points=((0, 0, 0), (0, 1, 0)), condition="k == 0"),),
            True,
            "it is reset at this grid point in line 16, under @pl.when(k == 0), but only after this "
            "line",
            "move line 16 before this line",
        ),
        (
            (Reset(line=12, points=((0, 1, 0),), index="acc_ref[0:4, 0:128]", reaches=False),),
            True,
            "line 12 writes only acc_ref[0:4, 0:128]",
            "reset all of acc_ref",
        ),
        (
            (
                Reset(line=11, points=((0, 1, 0),), index="acc_ref[0, 0:128]", reaches=False),
                Reset(line=12, points=((0, 1, 0),), index="acc_ref[1, 0:128]", reaches=False),
            ),
            False,
            "lines 11 and 12 write only acc_ref[0, 0:128] and acc_ref[1, 0:128]",
            "write all of acc_ref before this line",
        ),
        (
            (Reset(line=12, points=((0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1), (1, 1, 1))),),
            False,
            "it is written only at grid points (0, 0, 0), (0, 0, 1), (1, 0, 0) and 2 more, in line "
            "12",
            "write all of acc_ref at the first step of each block of out_ref: "
            "@pl.when(pl.program_id(2) == 0)",
        ),
    ],
    ids=["no-reset", "no-store", "late", "below", "part", "parts", "elsewhere"],
)
def test_the_cause_of_a_stale_read_follows_from_its_resets(
    resets: tuple[Reset, ...], accumulates: bool, cause: str, advice: str
) -> None:
    assert words(stale(*resets, accumulates=accumulates))[1:] == (cause, advice)


def test_a_choice_that_keeps_what_the_previous_block_left() -> None:
    cause, advice = words(stale(accumulates=True, choice=HERE))[1:]
    assert cause == (
        f"nothing resets acc_ref at grid point (0, 1, 0): the jnp.where in line {HERE.line} keeps "
        "what the previous block left"
    )
    assert advice == (
        "reset it at the first step of each block of out_ref: @pl.when(pl.program_id(2) == 0)"
    )


@pytest.mark.parametrize(
    "block, advice",
    [
        (
            replace(BLOCK, steps=(1, 2)),
            "reset it at the first step of each block of out_ref: "
            "@pl.when((pl.program_id(1) == 0) & (pl.program_id(2) == 0))",
        ),
        (
            replace(BLOCK, steps=None),
            "reset it before this line whenever another block of out_ref begins",
        ),
        (
            None,
            "reset it before this line at each grid point that must not see data left by others",
        ),
    ],
    ids=["two-axes", "by-table", "no-block"],
)
def test_a_reset_is_advised_where_a_block_begins(block: OutputBlock | None, advice: str) -> None:
    assert stale(AT_THE_START, block=block).advice == advice


def test_a_stale_read_of_some_elements_in_a_loop() -> None:
    finding = writers.stale_read(
        seen("rows_ref"), reader=read(1), writer=write(0, loop=(5,)),
        element=WrittenElement(index=(5, 0), affected=384, total=1024),
    )  # fmt: skip
    assert finding.message == (
        "grid point (1,) reads what grid point (0,), loop iteration (5,) left in rows_ref in 384 "
        "of 1,024 elements"
    )
    assert finding.values == {"other grid point": "(0,)", "other loop iteration": "(5,)"}


def test_an_aliased_operand_is_read_after_it_was_overwritten() -> None:
    element = WrittenElement(index=(0, 0), value=2.5, before=1.0)
    finding = writers.overwritten_read(
        seen("x_ref", "x_ref[24:32, 0:128]"), output="out_ref", reader=read(3), writer=write(0),
        element=element,
    )  # fmt: skip
    assert words(finding) == (
        "x_ref[24:32, 0:128] is read at grid point (3,) after grid point (0,) overwrote it "
        "through out_ref: x_ref[0, 0] was 1 and is now 2.5",
        "x_ref and out_ref share one array through input_output_aliases",
        "give x_ref and out_ref the same index map, so that the grid point that overwrites a "
        "block also reads it, or do not alias them",
    )
    assert finding.values == {
        "other grid point": "(0,)", "x_ref[0, 0]": "2.5", "x_ref[0, 0] before": "1",
    }  # fmt: skip
    by_copy = replace(write(0), copy=("rows_ref", "out_ref"))
    copied = writers.overwritten_read(
        seen("x_ref"),
        output="out_ref",
        reader=read(3),
        writer=by_copy,
        element=WrittenElement(index=(0,)),
    )
    assert (
        copied.message == "x_ref is read at grid point (3,) after grid point (0,) overwrote it "
        "through out_ref"
    )
    assert (
        copied.advice == "keep the data that is still needed in scratch, or do not alias x_ref "
        "and out_ref"
    )


def test_a_block_is_fetched_while_it_is_written_back() -> None:
    finding = writers.overwritten_read(
        seen("x_ref", "x_ref[16:24, 0:128]"), output="out_ref", reader=read(2), writer=write(1),
        element=WrittenElement(index=(0, 0)), is_under_way=True,
    )  # fmt: skip
    assert words(finding)[:2] == (
        "x_ref[16:24, 0:128] is fetched for grid point (2,) while what grid point (1,) wrote to "
        "out_ref is copied back to the same memory",
        "x_ref and out_ref share one array through input_output_aliases, and a block is fetched "
        "one grid point ahead of its use",
    )


def test_a_write_is_lost_to_the_next_step() -> None:
    element = WrittenElement(index=(0, 0), value=2.5, before=1.0)
    block = OutputBlock(output="out_ref", index=(0, 0), steps=(1,))
    finding = writers.lost_write(
        seen("out_ref", "out_ref[0:8, 0:128]"), block=block, lost=write(0, 0),
        replaced_by=write(0, 1), element=element,
    )  # fmt: skip
    assert words(finding) == (
        "what grid point (0, 0) wrote to out_ref[0:8, 0:128] is replaced at grid point (0, 1) "
        "without being used: out_ref[0, 0] was 1 and is now 2.5",
        "block (0, 0) of out_ref stays the same along grid dimension 1, but this line replaces it "
        "at each step",
        "combine it with the previous value (`+=`, jnp.maximum) after a reset at the first step: "
        "@pl.when(pl.program_id(1) == 0)",
    )
    by_table = writers.lost_write(
        seen("out_ref"), block=replace(block, steps=None), lost=write(1), replaced_by=write(2),
        element=WrittenElement(index=(0, 0)),
    )  # fmt: skip
    assert words(by_table) == (
        "what grid point (1,) wrote to out_ref is replaced at grid point (2,) without being used",
        "the index map of out_ref returns (0, 0) at both grid points",
        "give each grid point its own block, or combine it with the previous value (`+=`, "
        "jnp.maximum) after a reset at the first visit of a block",
    )


def test_grid_points_write_different_values_to_one_element() -> None:
    element = WrittenElement(index=(8, 0), value=2.5, before=1.0, affected=1024, total=2048)
    at = seen("out_ref", "out_ref[8:16, 0:128]")
    here = replace(write(1), copy=("x_ref", "out_ref[8:24, 0:128]"))
    there = replace(write(0), copy=("x_ref", "out_ref[0:16, 0:128]"))
    copies = writers.conflicting_writes(at, here=here, there=there, element=element)
    assert words(copies) == (
        "out_ref[8:16, 0:128] is written at grid point (1,), and with different values at grid "
        "point (0,): out_ref[8, 0] was 1 and is now 2.5",
        "the copies to out_ref[0:16, 0:128] and out_ref[8:24, 0:128] overlap, and the last one wins",
        "let each grid point copy its own rows, or accumulate in scratch before the copy",
    )
    assert copies.values["other copy"] == "x_ref to out_ref[0:16, 0:128]"
    one = WrittenElement(index=(8, 0), affected=1, total=1)
    stores = writers.conflicting_writes(at, here=write(1), there=write(0), element=one)
    assert words(stores) == (
        "out_ref[8:16, 0:128] is written at grid point (1,), and with a different value at grid "
        "point (0,)",
        "both grid points write to the same place, and the last one wins",
        "let each grid point write its own elements, or accumulate in scratch first",
    )
    blocks = (
        OutputBlock(output="out_ref", index=(8, 0)),
        OutputBlock(output="out_ref", index=(0, 0)),
    )
    windows = writers.conflicting_writes(
        at, here=write(1), there=write(0), element=element, blocks=blocks
    )
    assert words(windows)[1:] == (
        "blocks (0, 0) and (8, 0) of out_ref overlap",
        "make the blocks disjoint, or write the shared part at only one grid point",
    )


@pytest.mark.parametrize(
    "write, cause",
    [
        (
            Reset(line=12, points=((0, 1, 1),), condition="k == 1"),
            "it is written only at grid point (0, 1, 1), in line 12, under @pl.when(k == 1)",
        ),
        (
            Reset(line=16, points=((0, 1, 0),)),
            "it is written at this grid point in line 16, but only after this line",
        ),
        (
            Reset(line=12, points=((0, 1, 0),), index="acc_ref[0:4, 0:128]", reaches=False),
            "the stores before this line write only acc_ref[0:4, 0:128] in line 12",
        ),
    ],
    ids=["elsewhere", "below", "part"],
)
def test_an_uninitialised_read_says_where_the_buffer_is_written(write: Reset, cause: str) -> None:
    finding = contents.uninitialized_read(
        seen("acc_ref"),
        element=WrittenElement(index=(4, 0), affected=512, total=1024),
        writes=(write,),
    )
    assert words(finding) == (
        "acc_ref, float32[8, 128] in VMEM, is read before it is written, and the value is stored: "
        "512 of 1,024 elements, starting with acc_ref[4, 0]",
        cause,
        "write all of it before this line",
    )


def test_padding_and_unwritten_outputs_name_elements_and_grid_points() -> None:
    padding = contents.padding_read(seen("x_ref"), element=WrittenElement(index=(4, 0)))
    assert padding.message == (
        "padding of x_ref, float32[8, 128] in VMEM, is read and reaches an output: x_ref[4, 0]"
    )
    unwritten = contents.output_not_written(
        seen("out_ref"), what="out_ref[13:16, 0:128]", why="stores", visits=[(1, 0), (1, 1)]
    )
    assert unwritten.cause == (
        "the stores to out_ref do not reach it; its block belongs to grid points (1, 0) and (1, 1)"
    )


def test_a_kernel_without_a_grid_has_no_grid_points_in_its_causes() -> None:
    unwritten = contents.output_not_written(
        seen("out_ref"), what="out_ref[4:8]", why="stores", elements=(4, 8), visits=((),)
    )
    assert unwritten.cause == "the stores to out_ref do not reach it"
    at = replace(seen("acc_ref"), witness=replace(seen("acc_ref").witness, grid_point=()))
    element = WrittenElement(index=(4, 0), affected=512, total=1024)
    early = contents.uninitialized_read(at, element=element, writes=[Reset(line=16, points=((),))])
    assert early.cause == "it is written in line 16, but only after this line"


def test_the_text_names_both_lines() -> None:
    text = finding_text(stale(AT_THE_START))
    assert text.splitlines()[:2] == [
        "StaleRead in kernel `matmul`, grid point (0, 1, 0)",
        "  rows.py:14   acc_ref[...] += x_ref[...]",
    ]
    assert "rows.py:12" in text
