"""What a finding of the checks says: values, elements, regions, the cause at its own site."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import pallas_debug
from pallas_debug import defaults
from pallas_debug.bridge.instrument.instrument import instrument
from pallas_debug.bridge.instrument.sites import part_of
from pallas_debug.model import Finding

F32, I32 = jnp.float32, jnp.int32
X = jnp.arange(8 * 128, dtype=F32).reshape(8, 128)
SMEM, VMEM = (pl.BlockSpec(memory_space=space) for space in (pltpu.SMEM, pltpu.VMEM))


def found(kernel: Callable[..., None], *args: Any, **kwargs: Any) -> tuple[Finding, ...]:
    kwargs.setdefault("out_shape", jax.ShapeDtypeStruct((8, 128), F32))
    report, _ = pallas_debug.check(pl.pallas_call(kernel, **kwargs), interpret="hlo")(*args)
    assert report.not_checked == ()
    return report.findings


def one(kernel: Callable[..., None], *args: Any, **kwargs: Any) -> Finding:
    (finding,) = found(kernel, *args, **kwargs)
    return finding


# NaN, division and checks: the element, and the operands there.


@pytest.mark.slow
def test_a_nan_names_its_element_and_the_operands_there() -> None:
    def softmax(x_ref: Any, o_ref: Any) -> None:
        x = jnp.where(lax.broadcasted_iota(I32, (8, 128), 0) == 3, -jnp.inf, x_ref[...])
        o_ref[...] = jnp.exp(x - jnp.max(x, axis=1, keepdims=True))

    finding = one(softmax, X)
    assert finding.message == "`sub` produced a NaN from -inf and -inf at [3, 0] of float32[8, 128]"
    assert finding.values == {"element": "[3, 0]", "operands": "-inf, -inf"}


@pytest.mark.slow
def test_a_quotient_says_which_of_its_two_ways_to_nan_it_took() -> None:
    def quotient(x_ref: Any, o_ref: Any) -> None:
        x = x_ref[...]
        o_ref[...] = x / x

    zero, infinite = one(quotient, X), one(quotient, jnp.full_like(X, jnp.inf))
    assert zero.message == "`div` produced a NaN from 0 and 0 at [0, 0] of float32[8, 128]"
    assert zero.cause is not None
    assert zero.cause.startswith("0 / 0: ")
    assert infinite.cause is not None
    assert infinite.cause.startswith("infinity divided by infinity: ")


def quotients(rows: int) -> Callable[..., None]:
    def unrolled(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        for row in range(rows):
            o_ref[row, :] = x_ref[row, :] / y_ref[row, :]

    return unrolled


@pytest.mark.slow
def test_an_unrolled_line_is_one_finding_with_the_example_of_its_first_failure() -> None:
    y = jnp.full_like(X, 2).at[3, 4].set(jnp.inf).at[5, 9].set(jnp.inf).at[5, 8].set(jnp.nan)
    x = X.at[3, 4].set(jnp.inf).at[5, 9].set(-jnp.inf)
    finding = one(quotients(8), x, y)
    assert finding.message == "`div` produced a NaN from inf and inf at [4] of float32[128]"
    assert finding.values == {"element": "[4]", "operands": "inf, inf"}


def test_unrolling_a_line_does_not_add_code_that_looks_for_its_example() -> None:
    def searches(rows: int) -> int:
        called = pl.pallas_call(quotients(rows), out_shape=X, interpret=True)
        (equation,) = jax.make_jaxpr(called)(X, X).eqns
        made = instrument(equation.params, defaults.DEFAULT_CHECKS)
        assert made is not None
        assert made.layout is not None
        assert sorted(made.layout.order()) == list(range(len(made.layout.sites)))
        return str(made.params["jaxpr"]).count("argmax")

    assert searches(8) == searches(2) > 0


@pytest.mark.slow
def test_a_product_of_matrices_gives_the_range_of_each() -> None:
    def product(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.dot(x_ref[...], y_ref[...], preferred_element_type=F32)

    x = jnp.ones((8, 128), F32).at[2, 7].set(jnp.inf)
    y = jnp.full((128, 128), 2.0).at[7, 3].set(0)
    finding = one(product, x, y)
    assert finding.message == (
        "`dot_general` produced a NaN at [2, 3] of float32[8, 128], from operands float32[8, 128] "
        "of 1 to inf and float32[128, 128] of 0 to 2, which contain none"
    )
    assert finding.values == {"element": "[2, 3]", "operand 0": "1 to inf", "operand 1": "0 to 2"}


@pytest.mark.slow
def test_a_division_names_its_element_and_dividend() -> None:
    def divide(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        o_ref[...] = lax.div(x_ref[...], y_ref[...])

    x = X.astype(I32)
    y = jnp.ones_like(x).at[2, 5].set(0)
    finding = one(divide, x, y, out_shape=x)
    assert finding.message == "integer division of 261 by zero at [2, 5]; divisor int32[8, 128]"
    assert finding.values == {"element": "[2, 5]", "operands": "261"}


@pytest.mark.slow
def test_a_check_shows_the_comparison_that_is_false() -> None:
    def checks(n_ref: Any, x_ref: Any, o_ref: Any) -> None:
        n, x = n_ref[0], x_ref[...]
        pl.debug_check(n > 3, "n is too small")
        pl.debug_check(jnp.all(x < 700), "too large")
        pl.debug_check(~jnp.any(x == 3), "three")
        pl.debug_check((n == 2) & (n > 0), "both")
        o_ref[...] = x * n

    findings = found(checks, jnp.array([2], I32), X, in_specs=[SMEM, VMEM])
    assert [(f.message, f.cause, f.values.get("element")) for f in findings] == [
        ("n is too small", "2 > 3 is false", None),
        ("too large", "700 < 700 is false at [5, 60]", "[5, 60]"),
        (
            "three",
            "its condition is false, but is not a single comparison, so its values are unknown",
            None,
        ),
    ]
    assert findings[0].values == {"condition": "2 > 3"}


@pytest.mark.slow
def test_an_index_names_the_entry_that_it_comes_from() -> None:
    def gather(table_ref: Any, x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        row = x_ref[pl.ds(table_ref[pl.program_id(0)] * 2 + 1, 1), :]
        o_ref[...] = y_ref[...] + row

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(2,),
        in_specs=[
            pl.BlockSpec((8, 128), lambda i, table: (0, 0)),
            pl.BlockSpec((8, 128), lambda i, table: (table[i], 0)),
        ],
        out_specs=pl.BlockSpec((8, 128), lambda i, table: (i, 0)),
    )
    table = jnp.array([0, 4], I32)
    block, row = found(
        gather, table, X, X, grid_spec=spec, out_shape=jax.ShapeDtypeStruct((16, 128), F32)
    )
    cause = "the index comes from table_ref[1], which is 4, and nothing keeps it within bounds"
    assert (block.kind, block.cause) == ("BlockOutOfBounds", cause)
    assert (row.kind, row.index, row.cause) == ("OutOfBoundsRead", "x_ref[9:10, 0:128]", cause)


# NaNs that change no result.


@pytest.mark.slow
def test_a_nan_that_reaches_no_output_is_no_finding() -> None:
    def masked(x_ref: Any, o_ref: Any) -> None:
        x = x_ref[...] - 9
        o_ref[...] = jnp.where(x > 0, jnp.log(x) * 2, 0.0)

    def rows(x_ref: Any, o_ref: Any) -> None:
        # Only the padding of the output is NaN: its rows are masked as a whole.
        row = pl.program_id(0) * 8 + lax.broadcasted_iota(I32, (8, 128), 0)
        x = jnp.where(row < 12, x_ref[...], -jnp.inf)
        o_ref[...] = jnp.exp(x - jnp.max(x, axis=1, keepdims=True))

    assert found(masked, X) == ()
    blocks = pl.BlockSpec((8, 128), lambda i: (i, 0))
    x = jnp.ones((12, 128), F32)
    assert found(rows, x, grid=(2,), in_specs=[blocks], out_specs=blocks, out_shape=x) == ()


@pytest.mark.slow
def test_scratch_that_is_masked_where_it_is_first_read_is_no_finding() -> None:
    def kernel(x_ref: Any, o_ref: Any, m_ref: Any, l_ref: Any) -> None:
        def earlier(ref: Any, start: float) -> Any:
            return jnp.where(pl.program_id(0) == 0, jnp.full_like(ref, start), ref[...])

        before = earlier(m_ref, -jnp.inf)
        m_ref[...] = now = jnp.maximum(before, x_ref[...])
        l_ref[...] = earlier(l_ref, 0.0) * jnp.exp(before - now) + jnp.exp(x_ref[...] - now)
        # The last rows are padding, and NaN by now.
        row = lax.broadcasted_iota(I32, (8, 128), 0)
        o_ref[...] = jnp.where(row < 4, l_ref[...], 0.0)

    assert not found(
        kernel,
        jnp.ones((4, 256), F32),
        grid=(2,),
        in_specs=[pl.BlockSpec((8, 128), lambda i: (0, i))],
        out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)),
        scratch_shapes=[pltpu.VMEM((8, 128), F32)] * 2,
    )


@pytest.mark.slow
def test_a_nan_that_is_masked_in_one_output_and_kept_in_another_is_one() -> None:
    def both(x_ref: Any, o_ref: Any, kept_ref: Any) -> None:
        y = jnp.log(x_ref[...] - 9)
        o_ref[...] = jnp.where(x_ref[...] > 9, y, 0.0)
        kept_ref[...] = y

    assert one(both, X, out_shape=(X, X)).kind == "NanProduced"


@pytest.mark.slow
def test_a_nan_that_becomes_an_integer_is_one() -> None:
    def largest(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = (jnp.log(x_ref[...] - 9) > 1).astype(I32)

    assert one(largest, X, out_shape=X.astype(I32)).kind == "NanProduced"


# Memory that was never written.


@pytest.mark.parametrize("dtype", [F32, I32, jnp.int16, jnp.bool_])
def test_every_region_that_is_not_written_is_listed(dtype: Any) -> None:
    def some(x_ref: Any, o_ref: Any) -> None:
        o_ref[0:1, :] = x_ref[0:1, :]
        o_ref[5:6, :] = x_ref[5:6, :]

    finding = one(some, X.astype(dtype), out_shape=X.astype(dtype))
    assert (finding.kind, finding.message) == (
        "OutputNotWritten",
        "o_ref[1:5, 0:128] and o_ref[6:8, 0:128] are never written, and hold whatever was in "
        "memory before: 768 of 1,024 elements",
    )
    assert finding.cause == "the stores to o_ref do not reach it"
    assert finding.advice == (
        "write all of o_ref, or alias an input to it with input_output_aliases; if only the rest "
        "is used, slice o_ref in the jitted function that calls the kernel"
    )
    assert finding.values == {"elements": "768 of 1024", "why": "stores"}


@pytest.mark.parametrize("dtype", [jnp.int16, jnp.bool_])
def test_zeros_that_a_kernel_writes_and_reads_are_no_finding(dtype: Any) -> None:
    """HLO interpret mode fills memory of these types with zeros."""

    def copies(x_ref: Any, o_ref: Any, scratch_ref: Any) -> None:
        scratch_ref[...] = x_ref[...]
        o_ref[...] = scratch_ref[...]

    def twice(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]
        o_ref[...] = ~o_ref[...]

    zeros = jnp.zeros_like(X).astype(dtype)
    scratch = pltpu.VMEM(X.shape, dtype)
    assert found(copies, zeros, out_shape=zeros, scratch_shapes=[scratch]) == ()
    assert found(twice, ~zeros, out_shape=zeros) == ()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.int16, jnp.bool_])
@pytest.mark.parametrize(
    "memory",
    ["scratch", *(pytest.param(name, marks=pytest.mark.slow) for name in ("output", "scope"))],
)
def test_zeros_that_nothing_wrote_are_one_finding(dtype: Any, memory: str) -> None:
    """They change a float result; a scratch buffer of the same type is written."""

    def kernel(x_ref: Any, o_ref: Any, kept_ref: Any, full_ref: Any, part_ref: Any) -> None:
        def reads(scoped_ref: Any) -> None:
            full_ref[...] = (x_ref[...] > 0).astype(dtype)
            read_ref = {"scratch": part_ref, "output": kept_ref, "scope": scoped_ref}[memory]
            read_ref[0:4] = full_ref[0:4]
            o_ref[...] = jnp.where(read_ref[...] > 0, x_ref[...], -1.0)  # the read
            kept_ref[...] = full_ref[...]

        pl.run_scoped(reads, scoped_ref=pltpu.VMEM(X.shape, dtype))

    scratch = pltpu.VMEM(X.shape, dtype)
    finding = one(kernel, X, out_shape=(X, X.astype(dtype)), scratch_shapes=[scratch, scratch])
    name = {"scratch": "part_ref", "output": "kept_ref", "scope": "scoped_ref"}[memory]
    assert (finding.kind, finding.operand) == ("UninitializedRead", name)
    assert "is read before it is written, and the value reaches an output" in finding.message
    assert finding.cause == "the stores to it before this line do not reach all of it"
    assert finding.source is not None
    assert finding.source.text.endswith("# the read")


@pytest.mark.parametrize("dtype", [F32, I32])
def test_a_condition_is_the_cause_only_if_every_store_has_one(dtype: Any) -> None:
    def conditional(x_ref: Any, o_ref: Any) -> None:
        @pl.when(x_ref[0, 0] > 0)
        def _() -> None:
            o_ref[...] = x_ref[...]

    finding = one(conditional, X.astype(dtype), out_shape=X.astype(dtype))
    assert finding.index == "o_ref[0:8, 0:128]"
    assert finding.cause == (
        "every store to o_ref is conditional, and its condition was false where it would have "
        "written this part"
    )


@pytest.mark.parametrize("dtype", [F32, jnp.bool_])
def test_a_condition_of_one_store_is_named_beside_the_others(dtype: Any) -> None:
    def some(x_ref: Any, o_ref: Any) -> None:
        o_ref[0:4, :] = x_ref[0:4, :]

        @pl.when(pl.program_id(0) == 1)
        def _() -> None:
            o_ref[4:8, :] = x_ref[4:8, :]  # conditional

    finding = one(some, X.astype(dtype), grid=(1,), out_shape=X.astype(dtype))
    assert finding.cause == (
        "the stores to o_ref that ran did not reach it; the one in this line is conditional"
    )
    assert finding.source is not None
    assert "# conditional" in Path(__file__).read_text().splitlines()[finding.source.line - 1]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [F32, I32])
def test_scratch_that_is_only_partly_written(dtype: Any) -> None:
    def accumulate(x_ref: Any, o_ref: Any, acc_ref: Any) -> None:
        acc_ref[0:4, :] = jnp.zeros((4, 128), dtype)
        acc_ref[...] += x_ref[...]
        o_ref[...] = acc_ref[...]

    def conditionally(x_ref: Any, o_ref: Any, acc_ref: Any) -> None:
        @pl.when(x_ref[0, 0] > 0)
        def _() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += x_ref[...]
        o_ref[...] = acc_ref[...]

    scratch = [pltpu.VMEM((8, 128), dtype)]
    x = X.astype(dtype)
    partly = one(accumulate, x, out_shape=x, scratch_shapes=scratch)
    assert (partly.kind, partly.operand) == ("UninitializedRead", "acc_ref")
    assert partly.values == {"element": "[4, 0]"}
    assert partly.cause == "the stores to it before this line do not reach all of it"
    assert partly.advice == "write all of it before this line"
    under = one(conditionally, x, out_shape=x, scratch_shapes=scratch)
    assert under.cause == (
        "each store to it before this line is conditional, and none had written it yet"
    )


@pytest.mark.slow
def test_integers_that_equal_the_fill_value_are_no_finding() -> None:
    lowest = jnp.iinfo(I32).min

    def minimum(x_ref: Any, o_ref: Any, acc_ref: Any) -> None:
        acc_ref[...] = jnp.full_like(acc_ref, lowest)
        unwritten = jnp.where(x_ref[...] < 0, o_ref[...], 0)
        o_ref[...] = jnp.maximum(acc_ref[...], x_ref[...]) + unwritten

    x = jnp.full((8, 128), lowest)
    assert found(minimum, x + 0, out_shape=x, scratch_shapes=[pltpu.VMEM((8, 128), I32)]) != ()
    positive = jnp.ones((8, 128), I32)
    assert (
        found(minimum, positive, out_shape=positive, scratch_shapes=[pltpu.VMEM((8, 128), I32)])
        == ()
    )


# Regions of a mask.


@pytest.mark.parametrize(
    "rows, columns, text, elements",
    [
        ([3], [0, 1], "a[3:4, 0:2]", 2),
        ([0, 1, 4], [2], "a[0:2, 2:3] and a[4:5, 2:3]", 3),
        ([1, 3, 5], [0], "a[1:6:2, 0:1]", 3),
        ([0, 2, 3, 5, 7], [0], "a[0:1, 0:1], a[2:4, 0:1], a[5:6, 0:1] and a[7:8, 0:1]", 5),
        ([0, 2], [0, 3, 4], "a[0:1, 0:1], a[0:1, 3:5], a[2:3, 0:1] and a[2:3, 3:5]", 6),
    ],
)
def test_regions(rows: list[int], columns: list[int], text: str, elements: int) -> None:
    mask = np.zeros((8, 6), bool)
    mask[np.ix_(rows, columns)] = True
    part = part_of("a", mask)
    assert part is not None
    assert (part.text, part.elements, part.of) == (text, elements, 48)


def test_regions_of_other_shapes() -> None:
    assert part_of("a", np.zeros((4, 4), bool)) is None
    scalar, steps = part_of("a", np.ones((), bool)), part_of("a", np.tri(4, dtype=bool))
    assert scalar is not None
    assert (scalar.text, scalar.elements) == ("a[]", 1)
    assert steps is not None
    assert steps.text == "a[0:1, 0:1], a[1:2, 0:2], a[2:3, 0:3] and a[3:4, 0:4]"
    many = part_of("a", np.eye(8, dtype=bool))
    assert many is not None
    assert many.text == "a[0:1, 0:1], a[1:2, 1:2], a[2:3, 2:3], a[3:4, 3:4] and 4 more regions"


def test_a_squeezed_dimension_has_blocks_of_one_element() -> None:
    rows = pl.BlockSpec((None, 8, 128), lambda i: (i, 0, 0))

    def double(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2

    finding = one(double, X[None], grid=(2,), in_specs=[rows], out_specs=rows, out_shape=X[None])
    assert finding.message == (
        "the index map of x_ref returns block 1 along dimension 0 of float32[1, 8, 128], which "
        "has 1 block; likewise o_ref"
    )
    assert finding.grid_point == (1,)


def test_padding_on_both_sides_of_an_array() -> None:
    """A read of a block shows neither which part of it reaches a result nor where that is."""
    window = pl.BlockSpec((pl.Element(24, (8, 8)), pl.Element(128)), lambda i: (i * 8, 0))

    def above(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[7:15]

    rows = pl.BlockSpec((8, 128), lambda i: (i, 0))
    finding = one(above, X, grid=(1,), in_specs=[window], out_specs=rows)
    assert finding.cause == "blocks begin before the array or reach past its end"
    assert finding.advice == (
        "mask the elements outside the array with jnp.where, or pad the array to whole blocks"
    )
