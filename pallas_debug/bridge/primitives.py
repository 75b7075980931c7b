"""Table of jax's primitives: what each computes, and how, one row per primitive.

Rows are keyed by name, so that a primitive which the installed jax does not have is an unused row.
`doctor` prints the primitives that jax lowers for a TPU or with Triton and that have no row.
"""

from __future__ import annotations

import functools
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


@dataclass(frozen=True, kw_only=True)
class Primitive:
    """A row of the table.

    Attributes:
      sign: Python's operator for it.
      is_plain: whether a function of `lax` of that name takes only the operands.
      arrays: on numpy arrays of any shape, as XLA computes it.
      scalar: on numpy's integer and boolean scalars.
      makes: a NaN, or an infinity, that may arise from numbers.
      unpack: its normal form, from the equation and values of its operands.
    """

    name: str
    kind: Kind
    sign: str = ""
    is_plain: bool = False
    arrays: Callable[..., Any] | None = None
    scalar: Callable[..., Any] | None = None
    makes: frozenset[str] = frozenset()
    unpack: Callable[[Any, Sequence[Any]], forms.Form] | None = None

    @property
    def is_by_element(self) -> bool:
        """True if each element of the result depends on the elements at its index."""
        return self.kind in ("elementwise", "comparison", "selection") or self.name in _CASTS


_CASTS = ("convert_element_type", "reduce_precision", "optimization_barrier")


def _row(name: str, kind: Kind, words: str = "", **columns: Any) -> Primitive:
    """Row with flags as words: `plain`, `nan`, `infinity`."""
    given = frozenset(words.split())
    return Primitive(
        name=name,
        kind=kind,
        is_plain="plain" in given,
        makes=given & {"nan", "infinity"},
        **columns,
    )


def _of_kind(kind: Kind, names: str, words: str = "", **columns: Any) -> Iterator[Primitive]:
    return (_row(name, kind, words, **columns) for name in names.split())


def _number(
    name: str,
    words: str,
    arrays: Callable[..., Any],
    scalar: Callable[..., Any] | None = None,
    sign: str = "",
    kind: Kind = "elementwise",
) -> Primitive:
    return _row(name, kind, words, arrays=arrays, scalar=scalar, sign=sign)


def _rows() -> Iterator[Primitive]:
    numbers = "plain nan infinity"
    yield _number("add", numbers, np.add, operator.add, "+")
    yield _number("sub", numbers, np.subtract, operator.sub, "-")
    yield _number("mul", numbers, np.multiply, operator.mul, "*")
    yield _number("neg", "plain", np.negative, operator.neg, "-")
    yield _number("div", "plain nan infinity", rules.divided, rules.divided_scalar, "/")
    yield _number("rem", "plain nan", rules.remainder, rules.remainder_scalar)
    yield _number("max", "plain", np.maximum, max)
    yield _number("min", "plain", np.minimum, min)
    yield _number("abs", "plain", np.abs, operator.abs)
    yield _number("sign", "plain", np.sign, np.sign)
    yield _number("floor", "plain", np.floor)
    yield _number("ceil", "plain", np.ceil)
    yield _number("square", "plain nan infinity", np.square)
    yield _number(
        "clamp",
        "plain",
        lambda low, x, high: np.clip(x, low, high),
        lambda low, x, high: min(max(x, low), high),
    )
    yield _row("add_any", "elementwise", "nan infinity", scalar=operator.add)
    yield from _of_kind("elementwise", "integer_pow", "nan infinity")
    yield from _of_kind("elementwise", "round mulhi")
    yield from _of_kind("elementwise", "is_finite", "plain")
    for name, sign, function in (
        ("eq", "==", np.equal),
        ("ne", "!=", np.not_equal),
        ("lt", "<", np.less),
        ("le", "<=", np.less_equal),
        ("gt", ">", np.greater),
        ("ge", ">=", np.greater_equal),
    ):
        yield _number(name, "plain", function, getattr(operator, name), sign, "comparison")
    for name, sign in (("eq_to", "=="), ("le_to", "<="), ("lt_to", "<")):
        yield _row(name, "comparison", sign=sign)
    yield _number(
        "select_n",
        "plain",
        rules.selected,
        lambda which, *cases: cases[int(which)],
        kind="selection",
    )
    # Bits
    yield _number("and", "", np.bitwise_and, operator.and_, "&")
    yield _number("or", "", np.bitwise_or, operator.or_, "|")
    yield _number("xor", "", np.bitwise_xor, operator.xor, "^")
    yield _number("not", "", np.invert, operator.invert, "~")
    yield _number("shift_left", "plain", np.left_shift, operator.lshift)
    yield _number("shift_right_arithmetic", "plain", np.right_shift, rules.shifted_right)
    logical = functools.partial(rules.shifted_right, kind="u")
    yield _number("shift_right_logical", "plain", logical, logical)
    yield from _of_kind("elementwise", "population_count clz", "plain")
    # Functions of floats
    yield from _of_kind("elementwise", "log log1p pow rsqrt tan", "plain nan infinity")
    yield from _of_kind("elementwise", "reciprocal log2", "nan infinity")
    yield from _of_kind("elementwise", "exp exp2 expm1 cosh sinh", "plain infinity")
    yield from _of_kind(
        "elementwise", "sqrt cbrt sin cos asin acos acosh atanh erf_inv logistic atan2", "plain nan"
    )
    yield from _of_kind("elementwise", "lgamma digamma", "nan")
    yield from _of_kind("elementwise", "asinh atan erf erfc tanh nextafter conj imag real", "plain")
    yield from _of_kind(
        "elementwise",
        """
        bessel_i0e bessel_i1e complex igamma igammac igamma_grad_a one_minus_square polygamma
        polynomial random_gamma_grad regularized_incomplete_beta stochastic_round
        unpack_elementwise pack_elementwise zeta pvary
        """,
    )
    # Forms
    kept: dict[str, Any] = {"arrays": rules.itself}
    yield from _of_kind(
        "form", "broadcast_in_dim reshape squeeze expand_dims copy add_dependency", **kept
    )
    yield _row("convert_element_type", "form", "infinity", **kept)
    yield _row("stop_gradient", "form", scalar=rules.itself, **kept)
    yield from _of_kind("form", "bitcast_convert_type bitcast", "nan")
    yield from _of_kind(
        "form",
        """
        transpose slice concatenate broadcast_to optimization_barrier reduce_precision roll tile
        stack unstack reshard einshape_lo scatter tie with_memory_space_constraint approx_top_k name
        device_put dce_sink
        to_edtype from_edtype sharding_constraint layout_constraint rev dynamic_slice pad split
        gather dynamic_update_slice sort top_k
        """,
    )
    # Sums, and other results of many elements
    yield from _of_kind("reduction", "reduce_sum cumsum", "nan infinity")
    yield from _of_kind("reduction", "reduce_prod cumprod", "nan")
    yield from _of_kind(
        "reduction",
        """
        reduce_max reduce_min argmax argmin reduce_and reduce_or reduce_xor cummax cummin
        cumlogsumexp reduce_window_sum reduce_window_max reduce_window_min scatter_add scatter_mul
        scatter_min scatter_max scatter-add scatter-mul scatter-min scatter-max scatter-sub reduce
        reduce_window select_and_scatter select_and_scatter_add select_and_gather_add
        """,
    )
    yield from _of_kind("contraction", "dot_general", "nan infinity")
    yield from _of_kind("contraction", "conv_general_dilated", "nan")
    yield from _of_kind(
        "contraction",
        """
        conv ragged_dot_general scaled_dot fft cholesky lu lu_pivots_to_permutation qr eigh svd
        triangular_solve tridiagonal_solve
        """,
    )
    # Positions
    yield from _of_kind(
        "position",
        """
        program_id num_programs axis_index iota iota_2x32_shape dim_as_value platform_index
        has_memory_space
        """,
    )
    # Memory
    for name, unpack in (
        ("get", forms.load),
        ("swap", forms.store),
        ("addupdate", forms.store),
        ("masked_load", forms.masked_load),
        ("masked_swap", forms.masked_swap),
        ("load", forms.load),
        ("atomic_rmw", forms.atomic_rmw),
        ("atomic_cas", forms.atomic_cas),
    ):
        yield _row(name, "access", unpack=unpack)
    yield from _of_kind("access", "empty empty2 empty_ref free_ref get_global")
    yield from _of_kind("copy", "dma_start dma_wait", unpack=forms.dma)
    yield _row("semaphore_signal", "semaphore", unpack=forms.semaphore_signal)
    yield _row("semaphore_wait", "semaphore", unpack=forms.semaphore_wait)
    yield _row("semaphore_read", "semaphore", unpack=forms.semaphore_read)
    yield _row("get_barrier_semaphore", "semaphore")
    yield from _of_kind(
        "matrix", "matmul_push_rhs matmul_acc_lhs matmul_pop matmul_lhs_fifo matmul_pop_fifo"
    )
    yield from _of_kind(
        "subcore",
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
    yield from _of_kind("control", "jit remat2", unpack=forms.call)
    yield from _of_kind("control", "custom_jvp_call custom_vjp_call", unpack=forms.custom_call)
    yield from _of_kind(
        "control",
        """
        closed_call eval_jaxpr custom_fusion core_map emit_pipeline pipeline_body stage pallas_call
        mpmd_map shard_map call core_call composite linear_call custom_vmap_call
        custom_linear_solve
        """,
    )
    yield _row("multiple_of", "effect", **kept)
    yield from _of_kind(
        "effect",
        """
        check debug_print debug_callback pure_callback io_callback delay trace_value touch
        debug_barrier debug_barrier_p max_contiguous elementwise_inline_asm elementwise_inline_asm_p
        """,
    )
    yield from _of_kind(
        "random",
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


MAKES_NAN = named(lambda row: "nan" in row.makes)
"""Primitives that can produce a NaN from operands without one."""

MAKES_INFINITY = named(lambda row: "infinity" in row.makes)
"""Primitives that can produce an infinity from finite operands."""

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
    return sorted(lowered - TABLE.keys())
