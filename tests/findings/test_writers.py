"""Sentences about who wrote what: stale and overwritten reads, lost and conflicting writes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pallas_debug.findings.sighting import Sighting
from pallas_debug.findings.wording import contents, writers
from pallas_debug.findings.wording.facts import Reset, WrittenElement
from pallas_debug.findings.wording.order import Access
from pallas_debug.model import Finding, SourceLine, Witness

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


@pytest.mark.parametrize(
    "write, cause",
    [
        (
            Reset(line=12, points=((0, 1, 1),)),
            "it is written only at grid point (0, 1, 1), in line 12",
        ),
        (
            Reset(line=16, points=((0, 1, 0),)),
            "it is written at this grid point in line 16, but not all of it before this line",
        ),
    ],
    ids=["elsewhere", "below"],
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
    assert early.cause == "it is written in line 16, but not all of it before this line"
