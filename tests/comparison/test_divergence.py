"""Where the runs of two kernels diverge first."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import pallas_debug
from pallas_debug.comparison import divergence
from pallas_debug.findings.wording import diverging
from pallas_debug.model import Finding
from tests.broken_kernels import broken
from tests.comparison.test_provenance import at, line_of, matmul

F32, BF16 = jnp.float32, jnp.bfloat16
X = jnp.arange(16.0 * 128).reshape(16, 128) / 128 + 1
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))
TILE = pltpu.VMEM((8, 128), F32)


def compared(function: Any, reference: Any, *args: Any, **options: Any) -> tuple[Finding, str]:
    """The finding, and what its message says of the divergence."""
    report = pallas_debug.compare(function, reference, *args, interpret="hlo", **options)
    (finding,) = report.findings
    assert not report.notes
    lines = finding.message.splitlines()
    (line,) = [n for n in lines if "diverge" in n or "differ before" in n or n == diverging.AGREE]
    return finding, line


@pytest.mark.slow
def test_an_attention_and_its_repaired_version() -> None:
    kernel = broken("rescaled_by_the_wrong_maximum")
    args = [jax.random.normal(jax.random.key(i), a.shape, F32) for i, a in enumerate(kernel.args)]
    finding, line = compared(kernel.function, kernel.repaired, *args)
    wrong, right = kernel.function, kernel.repaired
    fault, there = line_of(wrong, "# FAULT"), line_of(right, "acc_ref[...] = acc_ref[...] * ")
    assert at(finding) == (fault, (0, 1))
    assert (finding.kernel, finding.operand, finding.index) == (
        "attend",
        "acc_ref",
        "acc_ref[0, 0]",
    )
    assert finding.other is not None
    assert finding.other.line == there
    assert line.startswith("the kernels first diverge at grid point (0, 1): acc_ref[0, 0] is -0.46")
    assert f" at line {fault}, but -0.0008" in line
    repaired = f"line {there} of `rescaled_by_the_wrong_maximum_repaired`"
    assert line.endswith(f" at {repaired}")
    assert finding.cause == f"line {fault} does not compute the same as {repaired}"
    assert finding.advice == "compare these lines and the values they load"


@pytest.mark.slow
def test_a_sum_that_is_not_reset_is_the_cause_whatever_differs_before() -> None:
    kernel = broken("denominator_of_the_query_before")
    x = jax.random.normal(jax.random.key(0), (16, 384), F32)
    finding, line = compared(kernel.function, kernel.repaired, x)
    # It begins with another maximum than the repaired kernel.
    assert "at grid point (0, 0): m_ref[0, 0] is " in line
    assert at(finding) == (line_of(kernel.function, "out_ref[...] = "), (1, 2))
    assert finding.cause is not None
    assert finding.cause.startswith("l_ref is not reset where this block begins")


def test_two_versions_of_a_matmul() -> None:
    x, y = jnp.arange(16.0 * 256).reshape(16, 256), jnp.ones((256, 256))
    wrong, right = (
        lambda x, y: matmul(x, y, is_right=False),
        lambda x, y: matmul(x, y, is_right=True),
    )
    finding, line = compared(wrong, right, x, y)
    reset = line_of(matmul, "acc_ref[...] = jnp.zeros_like")
    assert line == (
        f"the kernels first diverge at grid point (0, 1, 0): line {reset} of `<lambda>` stores to "
        "acc_ref, but this one does not: they store to it 1 and 2 times at this grid point"
    )
    assert finding.cause is not None
    assert finding.cause.startswith("acc_ref is not reset where this block begins")


# Precisions, loops, copies.


def sums(x: jax.Array, dtype: Any, at: int = -1) -> Any:
    """Running sums of rows, in a dtype; the one at a row of the second block is wrong."""

    def kernel(x_ref: Any, o_ref: Any, sum_ref: Any) -> None:
        sum_ref[...] = jnp.zeros_like(sum_ref)
        is_second = pl.program_id(0) == 1

        def add(k: Any, _: Any) -> None:
            wrong = (k == at) & is_second
            term = jnp.where(wrong, 2.0, 1.0).astype(dtype) * x_ref[pl.ds(k, 1)].astype(dtype)
            sum_ref[pl.ds(0, 1)] = sum_ref[pl.ds(0, 1)] + term.astype(sum_ref.dtype)

        lax.fori_loop(0, 8, add, None)
        o_ref[...] = jnp.broadcast_to(sum_ref[:1], o_ref.shape).astype(o_ref.dtype)

    return pl.pallas_call(
        kernel, out_shape=jax.ShapeDtypeStruct(x.shape, dtype), grid=(2,), in_specs=[ROWS],
        out_specs=ROWS, scratch_shapes=[pltpu.VMEM((8, 128), dtype)],
    )(x)  # fmt: skip


@pytest.mark.slow
def test_two_precisions() -> None:
    options = {"same_dtypes": False}
    same = pallas_debug.compare(
        lambda x: sums(x, BF16), lambda x: sums(x, F32), X, interpret="hlo", **options
    )
    assert same.ok
    finding, line = compared(lambda x: sums(x, BF16, 5), lambda x: sums(x, F32), X, **options)
    store = line_of(sums, "sum_ref[pl.ds(0, 1)] = ")
    assert line == (
        f"the kernels first diverge at grid point (1,), iteration 5: line {store} stores 83 to "
        "sum_ref[0, 0], but 69 in `<lambda>`"
    )
    assert (at(finding), finding.loop, finding.operand) == ((store, (1,)), (5,), "sum_ref")
    assert finding.cause == f"line {store} does not compute the same as in `<lambda>`"
    assert finding.advice is not None
    assert finding.advice.startswith("compare the values that the line loads in both kernels")
    strict, line = compared(
        lambda x: sums(x, BF16), lambda x: sums(x, F32), X, rtol=1e-4, atol=0.0, **options
    )
    assert strict.source is not None
    assert strict.loop == (1,)  # the first sum that needs more than 8 bits
    assert "iteration 1: line " in line


def scaled(x: jax.Array, *, by: float = 2.0, slot: int = 0, row: int = 0, steps: int = 2) -> Any:
    def kernel(x_ref: Any, o_ref: Any, tile_ref: Any, sem: Any) -> None:
        copy = pltpu.make_async_copy(x_ref.at[pl.ds(row, 8)], tile_ref.at[slot], sem)
        copy.start()
        copy.wait()
        for _ in range(steps):
            o_ref[...] = tile_ref[slot] * by

    return pl.pallas_call(
        kernel, out_shape=x, grid=(2,), in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=ROWS, scratch_shapes=[pltpu.VMEM((2, 8, 128), F32), pltpu.SemaphoreType.DMA],
    )(x)  # fmt: skip


@pytest.mark.slow
def test_copies_places_and_numbers_of_stores() -> None:
    def other(x: jax.Array) -> Any:
        return scaled(x)

    start, store = line_of(scaled, "copy.start()"), line_of(scaled, "o_ref[...] = ")
    first = "the kernels first diverge at grid point (0,): "
    _, line = compared(lambda x: scaled(x, row=8), other, X)
    assert line == f"{first}line {start} stores 9 to tile_ref[0, 0, 0], but 1 in `other`"
    finding, line = compared(lambda x: scaled(x, by=3.0, slot=1), other, X)
    assert (finding.cause, finding.advice) == (
        "an index differs",
        "compare both indices and the values they are computed from",
    )
    assert line == (
        f"{first}line {start} stores to tile_ref[1, 0:8, 0:128], but line {start} of `other` to "
        "tile_ref[0, 0:8, 0:128]"
    )
    _, line = compared(lambda x: scaled(x, by=3.0), other, X)
    assert line == f"{first}line {store} stores 3 to o_ref[0, 0], but 2 in `other`"

    def thrice(x: jax.Array) -> Any:
        return scaled(x, steps=3).at[0, 0].set(7.0)

    finding, line = compared(thrice, other, X)
    assert line == (
        f"{first}line {store} stores to o_ref, but the kernel of `other` does not: they store to it 3 "
        "and 2 times at this grid point"
    )
    assert at(finding) == (store, (0,))
    assert finding.cause == "a condition or the number of iterations differs between the kernels"
    assert finding.advice == (
        "compare the pl.when conditions and the loops around that line in both kernels"
    )


def rows(x: jax.Array, index_map: Any, *, size: int = 8, name: str = "x_ref") -> Any:
    def kernel(*refs: Any) -> None:
        refs[1][...] = refs[0][...] * 2

    def x_and_o(x_ref: Any, o_ref: Any) -> None:
        kernel(x_ref, o_ref)

    block = pl.BlockSpec((size, 128), index_map)
    out = pl.BlockSpec((size, 128), lambda i: (i, 0))
    return pl.pallas_call(
        x_and_o if name == "x_ref" else kernel, out_shape=x, grid=(16 // size,), in_specs=[block],
        out_specs=out,
    )(x)  # fmt: skip


@pytest.mark.slow
def test_blocks_names_grids_and_calls() -> None:
    def other(x: jax.Array) -> Any:
        return rows(x, lambda i: (i, 0))

    finding, line = compared(lambda x: rows(x, lambda i: (1 - i, 0)), other, X)
    blocks = "x_ref has block (1, 0), but block (0, 0) in the kernel of `other`"
    assert line == f"the kernels first diverge at grid point (0,): {blocks}"
    assert finding.operand == "x_ref"
    assert (finding.cause, finding.advice) == (
        "the index maps differ",
        "compare the index maps of x_ref",
    )
    _, line = compared(lambda x: rows(x, lambda i: (1 - i, 0), name="refs"), other, X)
    assert line.endswith(blocks.replace("x_ref", "refs[0]"))
    _, line = compared(lambda x: rows(x, lambda i: (0, 0), size=4), other, X)
    assert line == "where the kernels first diverge is unknown: their grids are (4,) and (2,)"

    def twice(x: jax.Array) -> Any:
        return other(other(x))

    _, line = compared(lambda x: other(rows(x, lambda i: (0, 0))), twice, X)
    assert line.startswith("the kernels first diverge in call 1 at grid point (")
    finding, line = compared(lambda x: other(other(x) + 1), twice, X)
    assert (finding.cause, finding.advice) == (
        "the computation before the kernel differs",
        "compare the operands of this call in both functions",
    )
    assert (
        line == "the operands of call 2 differ before it runs: x_ref[0, 0] is 3, but 2 for `twice`"
    )
    _, line = compared(lambda x: other(x + 1), other, X)
    assert (
        line
        == "the operands of the kernel differ before it runs: x_ref[0, 0] is 2, but 1 for `other`"
    )
    finding, line = compared(lambda x: other(x) + 1, other, X)
    assert line == diverging.AGREE
    assert (finding.cause, finding.advice) == (
        "the stores of the kernels agree, so the code around them differs",
        "compare what both functions do with the results of their kernels",
    )
    _, line = compared(twice, other, X)
    assert line == (
        "where the kernels first diverge is unknown: they agree as far as they do the same, but "
        "`twice` then calls another kernel"
    )


@pytest.mark.slow
def test_runs_that_cannot_be_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def order(x: jax.Array, count: int) -> Any:
        def kernel(x_ref: Any, o_ref: Any, a_ref: Any, b_ref: Any) -> None:
            def to_a(k: Any, _: Any) -> None:
                a_ref[...] = x_ref[...] + k

            def to_b(k: Any, _: Any) -> None:
                b_ref[...] = x_ref[...] * k

            for store in (to_a, to_b) if count == 8 else (to_b, to_a):
                lax.fori_loop(0, 8, store, None)
            o_ref[...] = a_ref[...] + b_ref[...] * count

        return pl.pallas_call(
            kernel, out_shape=x, grid=(2,), in_specs=[ROWS], out_specs=ROWS,
            scratch_shapes=[TILE, TILE],
        )(x)  # fmt: skip

    # In another order, each store still meets its counterpart.
    finding, line = compared(lambda x: order(x, 8), lambda x: order(x, 9), X)
    assert finding.operand == "o_ref"
    assert "line " in line
    assert " stores 72 to o_ref[0, 0], and 71" not in line
    monkeypatch.setattr(divergence, "MAX_BYTES", 1000)
    _, line = compared(lambda x: order(x, 8), lambda x: order(x, 9), X)
    assert line.endswith(
        "where the kernels first diverge is unknown: the order of their stores differs by too many of them"
    )
    monkeypatch.setattr(divergence, "SECONDS", -1.0)
    _, line = compared(lambda x: order(x, 8), lambda x: order(x, 9), X)
    assert line.endswith(
        "where the kernels first diverge is unknown: two runs on the kernel machine take more than -1 s"
    )


def test_a_reference_that_needs_the_values_of_its_arrays_calls_no_kernel_to_compare() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 3

    def reference(x: jax.Array) -> Any:
        return np.asarray(x) * 2

    def function(x: jax.Array) -> Any:
        return pl.pallas_call(kernel, out_shape=x)(x)

    report = pallas_debug.compare(function, reference, X, interpret="hlo")
    (finding,) = report.findings
    assert not report.notes
    assert "diverge" not in finding.message
