"""Rules that find a kind of advice in a kernel, one file per kind."""

from pallas_debug.profile.advice.advice import AdviceKind
from pallas_debug.profile.advice.rules import (
    invariant,
    lane_reduction,
    mask,
    relayout,
    rounding,
    row_loop,
    spills,
    thin_product,
    transpose,
    wide_product,
)
from pallas_debug.profile.advice.rules.copying import (
    copy_wait,
    grid_order,
    single_buffer,
    small_blocks,
    small_copies,
    two_passes,
)

KINDS: tuple[AdviceKind, ...] = (
    small_blocks.KIND,
    grid_order.KIND,
    two_passes.KIND,
    single_buffer.KIND,
    small_copies.KIND,
    copy_wait.KIND,
    wide_product.KIND,
    thin_product.KIND,
    rounding.KIND,
    transpose.KIND,
    relayout.KIND,
    lane_reduction.KIND,
    invariant.KIND,
    spills.KIND,
    mask.KIND,
    row_loop.ROW_LOOP,
    row_loop.SCALAR_LOOP,
)
"""Kinds of advice: those about memory first, as they decide whether the others matter."""
