"""Scalar operands whose values a dump knows: found in schedules, and used by the estimates."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.profile.blocks import ScalarValues
from pallas_debug.profile.core.copies import CopyModel
from pallas_debug.profile.core.given import GivenScalars, given_scalars
from pallas_debug.profile.core.walk import walk
from pallas_debug.profile.cycles import AS_CALLED
from pallas_debug.profile.schedule import Schedule, schedule_of
from pallas_debug.profile.stats import Profile
from pallas_debug.profile.timeline.timeline import timeline_of

Compiled = Callable[..., Profile]
MODEL = CopyModel(latency={"hbm_to_vmem": 100}, bandwidth={"hbm_to_vmem": 1})


def loading(granules: int, *body: str, space: str = "hbm", located: str = "") -> Schedule:
    """A schedule that copies operand 1 of the call to SMEM, and gets operand 0 in a register.

    The size is in granules of 32 bytes, of which one of v4's has 16.
    """
    operand = "inlined_call_operand"
    rows = [
        f"{{ %s1_s1 = {operand}.{space} [shape: s32[4], index: 1, kind: input]"
        f"  ;;  %s2_s2 = {operand}.<no memory space> [shape: s32[], index: 0, kind: input] }}",
        "{ %s3_s3 = sshll.u32 %s1_s1, 4  ;;  %s4_s4 = smov [#allocation3] }",
        f"{{ %5 = dma.{space}_to_smem /*src=*/%s3_s3, /*size_in_granules=*/{granules // 16}, "
        f"/*smem=*/%s4_s4, /*dst_syncflagno=*/[#allocation2] {located}}}",
        *body,
        "{ %9 = sbr.rel (%p1_p0) target = $region7 }",
        "{} /* Start region 6 */",
        "{ %v3 = vmul %v1 } /* End region 6 */",
        "PF { %v5 = vmul %v4 } /* Start/End empty region 7 */",
    ]
    lines = []
    for number, row in enumerate(rows):
        mark, brace, rest = row.partition("{")
        lines.append(f"{number:#6x} {mark.strip():2}: {brace}{rest}")
    return schedule_of("\n".join(lines) + "\n", target="v4")


def table(shape: tuple[int, ...], number: int = 1) -> ScalarValues:
    size = int(np.prod(shape, dtype=int))
    return ScalarValues(number=number, name="table", shape=shape, values=tuple(range(size)))


def test_a_branch_on_a_given_word() -> None:
    schedule = loading(
        16, "{ %s6_s6 = sld [smem:[#allocation3 + $0x3]] }", "{ %p1_p0 = scmp.eq.s32 %s6_s6, 3 }"
    )
    unknown = walk(schedule, MODEL)
    assert (unknown.unknown_branches, unknown.used) == ({5}, set())
    assert unknown.executions[7] == 1
    given = given_scalars(schedule, [table((4,))])
    known = walk(schedule, MODEL, given=given)
    assert (known.unknown_branches, known.used) == (set(), {"table"})
    assert known.executions[7] == 0


def test_a_number_that_is_passed_in_a_register() -> None:
    schedule = loading(16, "{ %p1_p0 = scmp.eq.s32 %s2_s2, 3 }")
    size = ScalarValues(number=0, name="grid[0]", shape=(), values=(4,))
    found = walk(schedule, MODEL, given=given_scalars(schedule, [size]))
    assert (found.unknown_branches, found.used) == (set(), {"grid[0]"})
    assert found.executions[6] == 1
    assert walk(schedule, MODEL).unknown_branches == {4}


@pytest.mark.parametrize(
    "shape, granules, index, offset",
    [
        ((200,), 32, (150,), 150),
        ((1, 9), 16, (0, 7), 7),
        ((5, 7), 128, (4, 3), 4 * 128 + 3),
        ((20, 7), 384, (17, 2), 17 * 128 + 2),
        ((3, 4, 130), 384, (2, 3, 129), ((2 * 2 + 1) * 4 + 3) * 128 + 1),
        ((3, 12, 130), 1536, (2, 9, 129), ((2 * 4 + 1 * 2 + 1) * 8 + 1) * 128 + 1),
    ],
)
def test_tables_lie_in_tiles(
    shape: tuple[int, ...], granules: int, index: Sequence[int], offset: int
) -> None:
    """As the addresses that libtpu 0.0.42 computes for such tables, and the sizes it copies."""
    schedule = loading(granules)
    (found,) = given_scalars(schedule, [table(shape)]).copied.values()
    assert found.words[offset] == np.ravel_multi_index(tuple(index), shape)


@pytest.mark.parametrize(
    "shape, granules, index, offset, shift",
    [
        ((1, 8, 8), 32, (0, 6, 5), 128 + 5, 16),
        ((2, 4, 4), 32, (1, 3, 2), 128 + 2, 24),
        ((2, 16, 16), 128, (1, 13, 2), 4 * 128 + 3 * 128 + 2, 8),
    ],
)
def test_rows_of_bytes_share_words(
    shape: tuple[int, ...], granules: int, index: Sequence[int], offset: int, shift: int
) -> None:
    bytes_ = replace(table(shape), bits=8, values=tuple(n % 128 for n in table(shape).values))
    (found,) = given_scalars(loading(granules), [bytes_]).copied.values()
    value = np.ravel_multi_index(tuple(index), shape) % 128
    assert found.words[offset] >> shift & 255 == value


def test_bytes_in_several_columns_of_tiles_are_not_placed() -> None:
    bytes_ = replace(table((2, 64, 200)), bits=8)
    assert given_scalars(loading(1024), [bytes_]) == GivenScalars()


@pytest.mark.parametrize(
    "schedule",
    [
        loading(32),
        loading(16, located='/* loc("k.py":5:1 to :9) */ '),
        schedule_of(""),
    ],
    ids=["another-size", "of-the-kernel", "empty"],
)
def test_what_is_no_load_of_a_table_is_not_taken_for_one(schedule: Schedule) -> None:
    assert given_scalars(schedule, [table((4,))]) == GivenScalars()


def test_a_copy_of_something_else_to_smem_makes_its_words_unknown() -> None:
    schedule = loading(
        16,
        "{ %5 = dma.hbm_to_smem /*src=*/%s3_s3, /*size_in_granules=*/%s8_s8, "
        "/*smem=*/%s4_s4, /*dst_syncflagno=*/[#allocation2] }",
        "{ %s6_s6 = sld [smem:[#allocation3 + $0x3]] }",
        "{ %p1_p0 = scmp.eq.s32 %s6_s6, 3 }",
    )
    found = walk(schedule, MODEL, given=given_scalars(schedule, [table((4,))]))
    assert found.unknown_branches == {6}


# Compiled

ROWS, COLUMNS, STEPS = 64, 512, 16
PAGES = np.array([-1] * 12 + [3] * 4, np.int32)
X = np.ones((STEPS * ROWS, COLUMNS), np.float32)


def body(page: Any, x_ref: Any, o_ref: Any) -> None:
    @pl.when(page >= 0)
    def _() -> None:
        o_ref[...] = jnp.exp(x_ref[...]) * 2

    @pl.when(page < 0)
    def _() -> None:
        o_ref[...] = jnp.zeros_like(o_ref)


def gather(pages: Any, x: Any, steps: Any = STEPS) -> Any:
    def kernel(pages_ref: Any, x_ref: Any, o_ref: Any) -> None:
        body(pages_ref[pl.program_id(0)], x_ref, o_ref)

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(steps,),
        in_specs=[pl.BlockSpec((ROWS, COLUMNS), lambda i, p: (jnp.maximum(p[i], 0), 0))],
        out_specs=pl.BlockSpec((ROWS, COLUMNS), lambda i, p: (i, 0)),
    )
    out = jax.ShapeDtypeStruct(X.shape, x.dtype)
    return pl.pallas_call(kernel, grid_spec=spec, out_shape=out)(pages, x)


@pytest.mark.slow
def test_the_estimate_rests_on_the_tables_of_the_call(compiled: Compiled) -> None:
    profile = compiled(gather, PAGES, X)
    cycles = profile.cycles
    assert cycles.assumptions == (f"{AS_CALLED} (pages_ref)",)
    assert cycles.total.origin == "assumed"
    assert cycles.least == cycles.total
    block = ROWS * COLUMNS * 4
    assert 2 * block <= int(cycles.copied["hbm_to_vmem"].value or 0) < 2 * block + 1024
    timeline = timeline_of(profile, first=8, last=8)
    assert timeline.notes == cycles.assumptions
    assert timeline.lanes[0].copies.value == 2


@pytest.mark.slow
def test_a_grid_whose_size_the_call_passes(compiled: Compiled) -> None:
    def call(pages: Any, x: Any) -> Any:
        return gather(pages, x, jnp.sum(pages < 0, dtype=jnp.int32))

    profile = compiled(call, PAGES, X)
    assert profile.kernel is not None
    assert profile.kernel.grid == (None,)
    cycles = profile.cycles
    assert (cycles.steps.value, cycles.steps.origin) == (12, "assumed")
    assert cycles.assumptions == (f"{AS_CALLED} (grid[0], pages_ref)",)
    assert cycles.total.is_known
    assert [use.name for use in profile.memory.uses if use.buffers == 2] == ["x_ref", "o_ref"]


def scaled(table: Any, x: Any, *, rows: int = 8) -> Any:
    def kernel(t_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * t_ref[pl.program_id(0)].astype(jnp.float32)

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(x.shape[0] // rows,),
        in_specs=[pl.BlockSpec((rows, 512), lambda i, t: (i, 0))],
        out_specs=pl.BlockSpec((rows, 512), lambda i, t: (i, 0)),
    )
    return pl.pallas_call(kernel, grid_spec=spec, out_shape=x)(table, x)


@pytest.mark.slow
def test_small_blocks_are_advised_against_with_scalar_prefetch(compiled: Compiled) -> None:
    x = jax.ShapeDtypeStruct((4096, 512), jnp.float32)
    slow = compiled(scaled, np.arange(512, dtype=np.int32), x)
    (advice,) = slow.advice
    assert (advice.kind, advice.what_if.change) == ("small-blocks", "x_ref[0]=64")
    # Nothing but the numbers depends on the table: it need not be known.
    unknown = compiled(scaled, jax.ShapeDtypeStruct((512,), jnp.int32), x)
    (same,) = unknown.advice
    assert (same.message, same.what_if.cycles) == (advice.message, advice.what_if.cycles)
    fast = compiled(functools.partial(scaled, rows=64), np.arange(64, dtype=np.int32), x)
    assert fast.cycles.total.value == pytest.approx(advice.what_if.cycles.value, rel=0.15)
