"""Table of jax's primitives: what each computes, and how, one row per primitive.

Rows are keyed by name, so that a primitive which the installed jax does not have is an unused row.
`doctor` prints the primitives that jax lowers for a TPU or with Triton and that have no row.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pallas_debug.bridge import normal_forms as forms
from pallas_debug.bridge import primitive_rules as rules
from pallas_debug.bridge.jaxcompat import (
    lowering,
    sc_primitives,
    triton_lowering,
    triton_primitives,
)

Kind = Literal[
    "elementwise",  # each element of the result depends on the elements at its index
    "comparison",  # elementwise, gives bools
    "selection",  # elementwise, gives elements of its operands
    "form",  # the elements of an operand, in another place, shape or dtype
    "reduction",  # an element of the result depends on elements along an axis
    "contraction",  # sums of products
    "position",  # a position: in the grid, on a core, in a result
    "access",  # loads from or stores to a ref
    "copy",  # a DMA
    "semaphore",
    "control",  # holds jaxprs
    "effect",  # prints, checks, hints, delays
    "random",
    "matrix",  # registers of the matrix units
    "subcore",  # cooperation of the subcores of a SparseCore
]

Role = Literal["mixes", "selects", "packs", "carries", "keeps", "recasts"]
"""Effect on integers used as bit patterns; see `programs/arithmetic/wrapping.py`."""


@dataclass(frozen=True, kw_only=True)
class Primitive:
    """A row of the table.

    Attributes:
      sign: Python's operator for it.
      is_plain: whether a function of `lax` of that name takes only the operands.
      arrays: on numpy arrays of any shape, as XLA computes it; takes the parameters first.
      scalar: on numpy's integer and boolean scalars.
      integer: exact result from wider integers.
      interval: bounds of an exact result from those of the operands; takes the equation first.
      is_monotone: whether `interval` takes one bound of each operand, and gives that of the result.
      makes: a NaN, or an infinity, that may arise from numbers.
      roles: what it does to bits.
      unpack: its normal form, from the equation and values of its operands.
    """

    name: str
    kind: Kind
    sign: str = ""
    is_plain: bool = False
    arrays: Callable[..., Any] | None = None
    scalar: Callable[..., Any] | None = None
    integer: Callable[..., Any] | None = None
    interval: Callable[..., Any] | None = None
    is_monotone: bool = False
    makes: frozenset[str] = frozenset()
    roles: frozenset[str] = frozenset()
    unpack: Callable[[Any, Sequence[Any]], forms.Form] | None = None

    @property
    def is_by_element(self) -> bool:
        """True if each element of the result depends on the elements at its index."""
        return self.kind in ("elementwise", "comparison", "selection") or self.name in _CASTS


_CASTS = ("convert_element_type", "reduce_precision", "optimization_barrier")


def _row(name: str, kind: Kind, words: str = "", **columns: Any) -> Primitive:
    """Row with flags as words: `plain`, `nan`, `infinity`, and roles of bits."""
    given = frozenset(words.split())
    return Primitive(
        name=name,
        kind=kind,
        is_plain="plain" in given,
        makes=given & {"nan", "infinity"},
        roles=given - {"plain", "nan", "infinity"},
        **columns,
    )


def _of_kind(kind: Kind, words: str, names: str, **columns: Any) -> Iterator[Primitive]:
    return (_row(name, kind, words, **columns) for name in names.split())


def _same(_: Any, value: Any, *__: Any) -> Any:
    return value


def _on(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _, *values: function(*values)


def _rows() -> Iterator[Primitive]:
    numbers = "plain nan infinity carries keeps"
    yield _row(
        "add",
        "elementwise",
        numbers,
        sign="+",
        arrays=_on(np.add),
        scalar=operator.add,
        integer=operator.add,
        interval=rules.sum_bounds,
    )
    yield _row(
        "add_any", "elementwise", "nan infinity", integer=operator.add, interval=rules.sum_bounds
    )
    yield _row(
        "sub",
        "elementwise",
        numbers,
        sign="-",
        arrays=_on(np.subtract),
        scalar=operator.sub,
        integer=operator.sub,
        interval=rules.difference_bounds,
    )
    yield _row(
        "mul",
        "elementwise",
        numbers,
        sign="*",
        arrays=_on(np.multiply),
        scalar=operator.mul,
        integer=operator.mul,
        interval=rules.product_bounds,
    )
    yield _row(
        "neg",
        "elementwise",
        "plain carries keeps",
        sign="-",
        arrays=_on(np.negative),
        scalar=operator.neg,
        integer=operator.neg,
        interval=rules.negative_bounds,
    )
    yield _row(
        "div",
        "elementwise",
        "plain nan infinity",
        sign="/",
        arrays=_on(rules.divided),
        scalar=rules.divided_scalar,
        integer=rules.divided_exactly,
    )
    yield _row(
        "rem",
        "elementwise",
        "plain nan carries",
        arrays=_on(rules.remainder),
        scalar=rules.remainder_scalar,
    )
    yield _row(
        "max",
        "elementwise",
        "plain",
        arrays=_on(np.maximum),
        scalar=rules.larger_scalar,
        interval=rules.greatest,
        is_monotone=True,
    )
    yield _row(
        "min",
        "elementwise",
        "plain",
        arrays=_on(np.minimum),
        scalar=rules.smaller_scalar,
        interval=rules.least,
        is_monotone=True,
    )
    yield _row(
        "abs",
        "elementwise",
        "plain",
        arrays=_on(np.abs),
        scalar=operator.abs,
        integer=np.abs,
        interval=rules.magnitude_bounds,
    )
    yield _row("sign", "elementwise", "plain", arrays=_on(np.sign), scalar=np.sign)
    yield _row("floor", "elementwise", "plain", arrays=_on(np.floor))
    yield _row("ceil", "elementwise", "plain", arrays=_on(np.ceil))
    yield _row("round", "elementwise")
    yield _row(
        "square",
        "elementwise",
        "plain nan infinity",
        arrays=rules.squared,
        interval=rules.square_bounds,
    )
    yield _row(
        "integer_pow",
        "elementwise",
        "nan infinity",
        arrays=rules.powered,
        interval=rules.square_bounds,
    )
    yield _row(
        "clamp",
        "elementwise",
        "plain",
        arrays=rules.clamped,
        scalar=rules.clamped_scalar,
        interval=rules.clamped_bounds,
        is_monotone=True,
    )
    for name, sign, function in (
        ("eq", "==", np.equal),
        ("ne", "!=", np.not_equal),
        ("lt", "<", np.less),
        ("le", "<=", np.less_equal),
        ("gt", ">", np.greater),
        ("ge", ">=", np.greater_equal),
    ):
        yield _row(
            name,
            "comparison",
            "plain",
            sign=sign,
            arrays=_on(function),
            scalar=getattr(operator, name),
        )
    for name, sign in (("eq_to", "=="), ("le_to", "<="), ("lt_to", "<")):
        yield _row(name, "comparison", sign=sign)
    yield _row("is_finite", "elementwise", "plain")
    yield _row(
        "select_n",
        "selection",
        "plain carries keeps",
        arrays=rules.selected,
        scalar=rules.selected_scalar,
    )
    # Bits
    yield _row(
        "and",
        "elementwise",
        "mixes selects packs",
        sign="&",
        arrays=_on(np.bitwise_and),
        scalar=operator.and_,
    )
    yield _row(
        "or",
        "elementwise",
        "selects packs keeps",
        sign="|",
        arrays=_on(np.bitwise_or),
        scalar=operator.or_,
    )
    yield _row(
        "xor",
        "elementwise",
        "mixes selects packs keeps",
        sign="^",
        arrays=_on(np.bitwise_xor),
        scalar=operator.xor,
    )
    yield _row(
        "not",
        "elementwise",
        "mixes selects packs keeps",
        sign="~",
        arrays=_on(rules.inverted),
        scalar=operator.invert,
    )
    yield _row(
        "shift_left",
        "elementwise",
        "plain carries keeps",
        arrays=_on(np.left_shift),
        scalar=operator.lshift,
    )
    yield _row(
        "shift_right_arithmetic",
        "elementwise",
        "plain packs",
        arrays=_on(np.right_shift),
        scalar=rules.shifted_right,
    )
    yield _row(
        "shift_right_logical",
        "elementwise",
        "plain mixes selects packs keeps",
        arrays=_on(rules.logically_shifted),
        scalar=rules.logically_shifted_scalar,
    )
    yield from _of_kind("elementwise", "plain mixes packs", "population_count clz")
    yield _row("mulhi", "elementwise")
    # Functions of floats
    yield from _of_kind("elementwise", "plain nan infinity", "log log1p pow rsqrt tan")
    yield from _of_kind("elementwise", "nan infinity", "reciprocal log2")
    yield from _of_kind("elementwise", "plain infinity", "exp exp2 expm1 cosh sinh")
    yield from _of_kind(
        "elementwise", "plain nan", "sqrt cbrt sin cos asin acos acosh atanh erf_inv logistic atan2"
    )
    yield from _of_kind("elementwise", "nan", "lgamma digamma")
    yield from _of_kind("elementwise", "plain", "asinh atan erf erfc tanh nextafter conj imag real")
    yield from _of_kind(
        "elementwise",
        "",
        """
        bessel_i0e bessel_i1e complex igamma igammac igamma_grad_a one_minus_square polygamma
        polynomial random_gamma_grad regularized_incomplete_beta stochastic_round
        unpack_elementwise pack_elementwise zeta pvary
        """,
    )
    # Forms
    kept: dict[str, Any] = {"arrays": _same, "interval": rules.same_bounds}
    moved = "carries keeps"
    yield from _of_kind("form", moved, "broadcast_in_dim reshape squeeze", **kept)
    yield _row("transpose", "form", moved, interval=rules.same_bounds)
    yield _row("slice", "form", moved, interval=rules.same_bounds)
    yield _row("concatenate", "form", moved)
    yield _row("expand_dims", "form", **kept)
    yield _row("copy", "form", **kept)
    yield _row("rev", "form", interval=rules.same_bounds)
    yield _row("dynamic_slice", "form", interval=rules.same_bounds)
    yield _row("convert_element_type", "form", "infinity carries keeps", arrays=_same)
    yield _row("stop_gradient", "form", arrays=_same, scalar=rules.itself)
    yield _row("add_dependency", "form", arrays=_same)
    yield from _of_kind("form", "", "pad split gather dynamic_update_slice sort top_k")
    yield from _of_kind("form", "nan mixes packs keeps recasts", "bitcast_convert_type bitcast")
    yield from _of_kind(
        "form",
        "",
        """
        broadcast_to optimization_barrier reduce_precision roll tile stack unstack reshard
        einshape_lo scatter tie with_memory_space_constraint approx_top_k name device_put dce_sink
        to_edtype from_edtype sharding_constraint layout_constraint
        """,
    )
    # Sums, and other results of many elements
    yield from _of_kind(
        "reduction", "nan infinity", "reduce_sum cumsum", interval=rules.bounds_of_sum
    )
    yield from _of_kind("reduction", "nan", "reduce_prod cumprod")
    yield from _of_kind("reduction", "", "reduce_max reduce_min", interval=rules.same_bounds)
    yield from _of_kind("reduction", "", "argmax argmin")
    yield from _of_kind(
        "reduction",
        "",
        """
        reduce_and reduce_or reduce_xor cummax cummin cumlogsumexp reduce_window_sum
        reduce_window_max reduce_window_min scatter_add scatter_mul scatter_min scatter_max
        scatter-add scatter-mul scatter-min scatter-max scatter-sub reduce reduce_window
        select_and_scatter select_and_scatter_add select_and_gather_add
        """,
    )
    yield _row("dot_general", "contraction", "nan infinity", interval=rules.contraction_bounds)
    yield _row("conv_general_dilated", "contraction", "nan")
    yield from _of_kind("contraction", "", "conv ragged_dot_general scaled_dot fft")
    yield from _of_kind(
        "contraction",
        "",
        "cholesky lu lu_pivots_to_permutation qr eigh svd triangular_solve tridiagonal_solve",
    )
    # Positions
    yield from _of_kind(
        "position",
        "",
        """
        program_id num_programs axis_index iota iota_2x32_shape dim_as_value platform_index
        has_memory_space
        """,
    )
    # Memory
    yield _row("get", "access", unpack=forms.get)
    yield _row("swap", "access", unpack=forms.swap)
    yield _row("addupdate", "access", unpack=forms.addupdate)
    yield _row("masked_load", "access", unpack=forms.masked_load)
    yield _row("masked_swap", "access", unpack=forms.masked_swap)
    yield _row("load", "access", unpack=forms.subcore_load)
    yield _row("atomic_rmw", "access", unpack=forms.atomic_rmw)
    yield _row("atomic_cas", "access", unpack=forms.atomic_cas)
    yield from _of_kind("access", "", "empty empty2 empty_ref free_ref get_global")
    yield from _of_kind("copy", "", "dma_start dma_wait", unpack=forms.dma)
    yield _row("semaphore_signal", "semaphore", unpack=forms.semaphore_signal)
    yield _row("semaphore_wait", "semaphore", unpack=forms.semaphore_wait)
    yield _row("semaphore_read", "semaphore", unpack=forms.semaphore_read)
    yield _row("get_barrier_semaphore", "semaphore")
    yield from _of_kind(
        "matrix",
        "",
        """
        matmul_push_rhs matmul_acc_lhs matmul_pop matmul_lhs_fifo matmul_pop_fifo
        """,
    )
    yield from _of_kind(
        "subcore",
        "",
        """
        barrier pack unpack masked_sort masked_cumsum masked_cummax masked_cummin all_reduce_ffs
        all_reduce_population_count scan_count unique sc_fetch_and_add parallel_loop
        """,
    )
    # Control flow, effects, random numbers
    yield _row("cond", "control", unpack=forms.cond)
    yield _row("scan", "control", unpack=forms.scan)
    yield _row("while", "control", unpack=forms.while_loop)
    yield _row("run_scoped", "control", unpack=forms.run_scoped)
    yield from _of_kind("control", "", "jit remat2", unpack=forms.call)
    yield from _of_kind("control", "", "custom_jvp_call custom_vjp_call", unpack=forms.custom_call)
    yield from _of_kind(
        "control",
        "",
        """
        closed_call eval_jaxpr custom_fusion core_map emit_pipeline pipeline_body stage pallas_call
        mpmd_map shard_map call core_call composite linear_call custom_vmap_call
        custom_linear_solve
        """,
    )
    yield _row("multiple_of", "effect", arrays=_same)
    yield from _of_kind(
        "effect",
        "",
        """
        check debug_print debug_callback pure_callback io_callback delay trace_value touch
        debug_barrier debug_barrier_p max_contiguous elementwise_inline_asm elementwise_inline_asm_p
        """,
    )
    yield from _of_kind(
        "random",
        "",
        """
        prng_seed prng_random_bits prng_split prng_join random_bits random_fold_in random_seed
        random_wrap random_unwrap threefry2x32 join_key split_key random_split random_clone
        random_gamma rng_bit_generator rng_uniform threefry4x32 philox2x32 philox4x32
        """,
    )


TABLE: Mapping[str, Primitive] = {row.name: row for row in _rows()}


def form(eqn: Any, values: Sequence[Any] | None = None) -> Any:
    """Return the normal form of an equation, a `normal_forms.Form`; None if its row has none.

    Args:
      values: in place of the equation's operands.
    """
    row = TABLE.get(eqn.primitive.name)
    if row is None or row.unpack is None:
        return None
    return row.unpack(eqn, eqn.invars if values is None else values)


def named(test: Callable[[Primitive], Any]) -> frozenset[str]:
    """Names of the primitives whose row passes a test."""
    return frozenset(name for name, row in TABLE.items() if test(row))


COMPARISONS = {
    name: row.sign for name, row in TABLE.items() if row.kind == "comparison" and row.sign
}
"""Comparison primitives, with their Python operators."""

OPPOSITES = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}
"""The comparison that is true where another is false."""

ACCESSES = frozenset(("get", "swap", "addupdate", "masked_load", "masked_swap"))
"""Loads and stores of a TensorCore."""

FORMS = frozenset(
    ("convert_element_type", "broadcast_in_dim", "reshape", "squeeze", "expand_dims", "copy")
)
"""Primitives whose result is their only operand in another form, element by element."""

MOVES = FORMS - {"convert_element_type"} | {"transpose", "slice", "rev", "concatenate", "pad"}
"""Primitives that move elements, by rules that depend on no value, without changing them."""

FIRST_INDEX = {
    "get": 1,
    "swap": 2,
    "addupdate": 2,
    "dynamic_slice": 1,
    "dynamic_update_slice": 2,
    "gather": 1,
}
"""Position of the first index among the inputs of a primitive."""

SUMS = frozenset(("reduce_sum", "cumsum", "dot_general"))
"""Primitives that compute each element as a sum."""


def unknown() -> list[str]:
    """Names of the primitives that jax lowers for a TPU or with Triton and that have no row."""
    _ = sc_primitives.gather_p, triton_primitives.atomic_rmw_p  # which adds their rules
    lowered = {p.name for rules in lowering.lowering_rules.values() for p in rules}
    of_triton = triton_lowering.triton_lowering_rules
    lowered |= {p.name for p in (of_triton if isinstance(of_triton, Mapping) else ())}
    ours = {name for name in lowered if name.startswith("pallas_debug")}
    return sorted(lowered - TABLE.keys() - ours)
