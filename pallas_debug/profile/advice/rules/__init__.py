"""Advice rules: each file finds one kind of advice in a kernel."""

from pallas_debug.profile.advice.advice import AdviceKind
from pallas_debug.profile.advice.rules import grid_order, one_core, single_buffer, small_blocks

KINDS: tuple[AdviceKind, ...] = (
    one_core.KIND,
    small_blocks.KIND,
    grid_order.KIND,
    single_buffer.KIND,
)
"""Kinds of advice, in the order in which they are given."""
