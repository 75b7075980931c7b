"""Rules that find a kind of advice in a kernel, one file per kind."""

from pallas_debug.profile.advice.advice import AdviceKind
from pallas_debug.profile.advice.rules import (
    invariant,
    lane_reduction,
    mask,
    one_core,
    relayout,
    rounding,
    row_loop,
    running_sum,
    short_iterations,
    spills,
    transpose,
)
from pallas_debug.profile.advice.rules.copying import (
    copy_latency,
    copy_wait,
    grid_order,
    narrow_block,
    rewritten_output,
    round_trip,
    single_buffer,
    small_blocks,
    small_copies,
    two_passes,
    whole_operand,
    wide_operand,
)
from pallas_debug.profile.advice.rules.products import (
    one_hot,
    thin_product,
    vector_product,
    wide_product,
)

KINDS: tuple[AdviceKind, ...] = (
    one_core.KIND,
    small_blocks.KIND,
    grid_order.KIND,
    rewritten_output.KIND,
    whole_operand.KIND,
    two_passes.KIND,
    single_buffer.KIND,
    round_trip.KIND,
    small_copies.KIND,
    copy_wait.KIND,
    copy_latency.KIND,
    wide_operand.KIND,
    narrow_block.KIND,
    one_hot.KIND,
    wide_product.KIND,
    thin_product.KIND,
    vector_product.KIND,
    rounding.KIND,
    transpose.KIND,
    relayout.KIND,
    lane_reduction.KIND,
    invariant.KIND,
    spills.KIND,
    mask.KIND,
    row_loop.ROW_LOOP,
    row_loop.SCALAR_LOOP,
    running_sum.KIND,
    short_iterations.KIND,
)
"""Kinds of advice: those about memory first, as they decide whether the others matter."""
