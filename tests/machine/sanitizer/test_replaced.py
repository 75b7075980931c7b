"""Parts of sums that the next part replaces, running totals that each step resets, and twins."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from machine_runs import found

F32 = jnp.float32
TILE = pltpu.VMEM((8, 128), F32)
S = jax.ShapeDtypeStruct
X = np.random.default_rng(0).standard_normal((16, 384)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((384, 128)).astype(np.float32)


def product(x: Any, w: Any, *, how: str) -> Any:
    """A matmul that adds the product of each step to a sum, or forgets to."""

    def kernel(x_ref, w_ref, out_ref, acc_ref):
        k = pl.program_id(1)
        part = jnp.dot(x_ref[...], w_ref[...], preferred_element_type=F32)
        if how == "added":
            acc_ref[...] = jnp.where(k == 0, 0.0, acc_ref[...]) + part
        elif how == "moved":  # the last block alone is what is asked for
            acc_ref[...] = x_ref[...]
        elif how == "read":  # by the step after it
            out_ref[...] = jnp.where(k == 0, 0.0, acc_ref[...])
            acc_ref[...] = part
            return
        elif how == "scale of a block":
            acc_ref[...] = part * x_ref[:, 0:1]
        elif how == "norm":  # of a block, and no part of a sum
            acc_ref[...] = x_ref[...] * jnp.sum(x_ref[...], axis=1, keepdims=True)
        elif how == "carried":
            acc_ref[...] = part + jnp.where(k == 0, 0.0, acc_ref[...])
        else:
            acc_ref[...] = part if how == "replaced" else part * 2.0

        wanted = k == pl.num_programs(1) - 1
        if how == "data":
            wanted = wanted | (x_ref[0, 0] > 100.0)

        @pl.when(wanted)
        def _finish() -> None:
            out_ref[...] = acc_ref[...]

    return pl.pallas_call(
        kernel,
        grid=(2, x.shape[1] // 128),
        in_specs=[
            pl.BlockSpec((8, 128), lambda i, k: (i, k)),
            pl.BlockSpec((128, 128), lambda i, k: (k, 0)),
        ],
        out_specs=pl.BlockSpec((8, 128), lambda i, k: (i, 0)),
        out_shape=S((16, 128), F32),
        scratch_shapes=[TILE],
    )(x, w)


@pytest.mark.parametrize("how", ["replaced", "scaled"])
def test_a_product_that_replaces_the_one_before(how: str) -> None:
    (finding,) = found(lambda x, w: product(x, w, how=how), X, W)
    assert (finding.kind, finding.operand, finding.grid_point) == ("LostWrite", "acc_ref", (0, 1))
    assert finding.source is not None
    assert finding.source.text is not None
    assert finding.source.text.startswith("acc_ref[...] = part")
    assert finding.witness.other == finding.source
    message, _, values = finding.message.partition(" acc_ref[0, 0] was ")
    assert message == (
        "what grid point (0, 0) stored to acc_ref is lost: it is replaced at grid point (0, 1) "
        "before anything reads it:"
    )
    first, second = (float(value) for value in values.split(" and is now "))
    factor = 1 if how == "replaced" else 2
    assert first == pytest.approx((X[0, :128] @ W[:128, 0]) * factor, rel=1e-4)
    assert second == pytest.approx((X[0, 128:256] @ W[128:256, 0]) * factor, rel=1e-4)
    assert finding.cause == (
        "each grid point of block (0, 0) of out_ref stores its part here, replacing the one before"
    )
    assert finding.advice == (
        "combine it with the previous value (`+=`, jnp.maximum) after a reset before the first "
        "part: @pl.when(pl.program_id(1) == 0)"
    )


def test_a_product_with_a_scale_that_replaces_the_one_before() -> None:
    (finding,) = found(lambda x, w: product(x, w, how="scale of a block"), X, W)
    assert (finding.kind, finding.operand, finding.grid_point) == ("LostWrite", "acc_ref", (0, 1))


@pytest.mark.parametrize("how", ["added", "moved", "norm", "read", "carried", "data"])
def test_values_that_are_used_or_wanted_once(how: str) -> None:
    assert not found(lambda x, w: product(x, w, how=how), X, W)


def sums_of_groups(groups: Any, x: Any, w: Any, *, how: str) -> Any:
    """A product per group of tiles, as a table has them: that decides when the sum is stored."""

    def kernel(group_ref, x_ref, w_ref, out_ref, acc_ref):
        i = pl.program_id(0)
        last = pl.num_programs(0) - 1
        part = jnp.dot(x_ref[...], w_ref[...], preferred_element_type=F32)
        is_first = (i == 0) | (group_ref[i] != group_ref[jnp.maximum(i - 1, 0)])

        if how != "last":

            @pl.when(is_first)
            def _start() -> None:
                acc_ref[...] = jnp.zeros_like(acc_ref)

        if how == "unless":  # zero is what is wanted of the first tile

            @pl.when(i != 1)
            def _product() -> None:
                acc_ref[...] = part
        else:
            acc_ref[...] = part + (acc_ref[...] if how == "added" else 0)

        @pl.when((i == last) | (group_ref[i] != group_ref[jnp.minimum(i + 1, last)]))
        def _finish() -> None:
            out_ref[...] = acc_ref[...]

    rows = pl.BlockSpec((8, 128), lambda i, group: (group[i], 0))
    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(3,),
            in_specs=[
                pl.BlockSpec((8, 128), lambda i, group: (0, i)),
                pl.BlockSpec((128, 128), lambda i, group: (i, 0)),
            ],
            out_specs=rows,
            scratch_shapes=[TILE],
        ),
        out_shape=S((16, 128), F32),
    )(groups, x, w)


@pytest.mark.parametrize("how", ["added", "replaced", "last", "unless"])
def test_a_reset_that_is_replaced_shows_that_a_sum_was_meant(how: str) -> None:
    """Where data decide when it is read: without a reset, the last part may be what is asked for."""
    groups = np.array([0, 1, 1], np.int32)
    findings = found(functools.partial(sums_of_groups, how=how), groups, X[:8], W)
    assert [(f.kind, f.grid_point) for f in findings] == [("LostWrite", (2,))] * (how == "replaced")


def test_one_part_for_each_block() -> None:
    assert not found(lambda x, w: product(x, w, how="replaced"), X[:, :128], W[:128])


def gradient_of_scale(x: Any, *, how: str) -> Any:
    """A sum over rows in an output that all grid points share, beside one that moves on."""

    def kernel(x_ref, out_ref, total_ref):
        i = pl.program_id(0)
        part = jnp.sum(x_ref[...], axis=0, keepdims=True)
        if how == "always":
            total_ref[...] = jnp.zeros_like(total_ref)
            total_ref[...] += part
        elif how == "replaced":
            total_ref[...] = part
        elif how == "last row":
            total_ref[...] = x_ref[7:8, :]
        else:
            total_ref[...] = jnp.where(i == 0, 0.0, total_ref[...]) + part
        out_ref[...] = x_ref[...] * 2.0

    return pl.pallas_call(
        kernel,
        grid=(2,),
        in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
        out_specs=[
            pl.BlockSpec((8, 128), lambda i: (i, 0)),
            pl.BlockSpec((1, 128), lambda i: (0, 0)),
        ],
        out_shape=[S((16, 128), F32), S((1, 128), F32)],
    )(x)


@pytest.mark.parametrize("how", ["always", "replaced", "last row", "added"])
def test_a_sum_in_an_output_beside_one_that_moves_on(how: str) -> None:
    findings = found(lambda x: gradient_of_scale(x, how=how), X[:, :128])
    if how in ("last row", "added"):
        assert not findings
        return
    (finding,) = findings
    assert (finding.kind, finding.operand, finding.grid_point) == ("LostWrite", "total_ref", (1,))


def test_a_sum_that_a_loop_carries_and_stores_as_it_goes() -> None:
    def kernel(x_ref, w_ref, out_ref, acc_ref):
        def product(k: Any) -> Any:
            at = pl.ds(pl.multiple_of(k * 128, 128), 128)
            return jnp.dot(x_ref[0:8, at], w_ref[at, :], preferred_element_type=F32)

        def body(k: Any, total: Any) -> Any:
            total = total + product(k)
            acc_ref[...] = total
            return total

        lax.fori_loop(1, 3, body, product(0))
        out_ref[...] = acc_ref[...]

    call = pl.pallas_call(kernel, out_shape=S((8, 128), F32), scratch_shapes=[TILE])
    assert not found(call, X, W)


def test_what_is_made_of_a_running_state() -> None:
    def kernel(x_ref, w_ref, out_ref, state_ref):
        @pl.when(pl.program_id(0) == 0)
        def _start() -> None:
            state_ref[...] = jnp.zeros_like(state_ref)

        state_ref[...] = state_ref[...] * 0.5 + x_ref[...]
        out_ref[...] = jnp.dot(state_ref[...], w_ref[...], preferred_element_type=F32)

    call = pl.pallas_call(
        kernel,
        grid=(3,),
        in_specs=[
            pl.BlockSpec((8, 128), lambda k: (0, k)),
            pl.BlockSpec((128, 128), lambda k: (0, 0)),
        ],
        out_specs=pl.BlockSpec((8, 128), lambda k: (0, 0)),
        out_shape=S((8, 128), F32),
        scratch_shapes=[TILE],
    )
    assert not found(call, X[:8], W[:128])


def windows(x: Any, w: Any, *, how: str) -> Any:
    """Sums of the products of three windows of a padded block, in a loop that Python unrolls."""

    def kernel(x_ref, w_ref, out_ref, padded_ref, acc_ref):
        if how == "running":
            padded_ref[0:8] = padded_ref[1:9]
        else:
            padded_ref[...] = jnp.zeros_like(padded_ref)
        padded_ref[8:16] = x_ref[...]
        acc_ref[...] = jnp.zeros_like(acc_ref)
        for i in range(3):
            window = padded_ref[i + 6 : i + 14]
            part = jnp.dot(window, w_ref[i], preferred_element_type=F32)
            acc_ref[...] = acc_ref[...] + part if how == "added" else part
        out_ref[...] = acc_ref[...]

    return pl.pallas_call(
        kernel,
        grid=(2,),
        in_specs=[
            pl.BlockSpec((8, 128), lambda i: (i, 0)),
            pl.BlockSpec((3, 128, 128), lambda i: (0, 0, 0)),
        ],
        out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
        out_shape=S((16, 128), F32),
        scratch_shapes=[pltpu.VMEM((16, 128), F32), TILE],
    )(x, w)


@pytest.mark.parametrize("how", ["added", "replaced", "running"])
def test_windows_of_a_block_that_the_kernel_pads(how: str) -> None:
    findings = found(lambda x, w: windows(x, w, how=how), X[:, :128], W.reshape(3, 128, 128))
    lost = [finding for finding in findings if finding.kind == "LostWrite"]
    if how != "replaced":  # a running state, which is also read before it is written
        assert not lost
        return
    (finding,) = lost
    assert (finding.operand, finding.grid_point) == ("acc_ref", (0,))
    assert finding.cause == "each iteration stores its part here, replacing the one before"
    assert finding.source == finding.witness.other


@pytest.mark.parametrize("adds", [False, True])
def test_a_loop_within_a_grid_point(adds: bool) -> None:
    def kernel(x_ref, w_ref, out_ref, acc_ref):
        acc_ref[...] = jnp.zeros_like(acc_ref)

        def body(k: Any, _: Any) -> None:
            at = pl.ds(pl.multiple_of(k * 128, 128), 128)
            part = jnp.dot(x_ref[0:8, at], w_ref[at, :], preferred_element_type=F32)
            acc_ref[...] = part + acc_ref[...] if adds else part

        lax.fori_loop(0, 3, body, None)
        out_ref[...] = acc_ref[...]

    call = pl.pallas_call(kernel, out_shape=S((8, 128), F32), scratch_shapes=[TILE])
    findings = found(call, X, W)
    if adds:
        assert not findings
        return
    (finding,) = findings
    assert (finding.kind, finding.operand) == ("LostWrite", "acc_ref")
    assert "loop iteration (0,) stored to acc_ref is lost" in finding.message
    assert finding.cause == "each iteration stores its part here, replacing the one before"
    assert finding.advice == (
        "combine it with the previous value (`+=`, jnp.maximum) after a reset before the loop"
    )


def running_total(x: Any, *, reset: str, form: str = "alone") -> Any:
    """A cumulative sum over blocks, with what came before in scratch.

    Args:
      form: whether the carry is the value that is stored, is one of several, is also stored at the
        end of each row, or is added to in a loop within each grid point.
    """
    rows, columns = x.shape[0] // 8, x.shape[1] // 128

    def kernel(x_ref, out_ref, last_ref, carry_ref):
        i, k = pl.program_id(0), pl.program_id(1)
        at = k if form == "several" else 0

        def start() -> None:
            carry_ref[at] = jnp.zeros((8, 128), F32)

        if reset == "always":
            start()
        else:
            pl.when({"first": k, "first row": i, "first of all": i + k}[reset] == 0)(start)
        if form == "loop":

            def add(_: Any, none: Any) -> None:
                total = carry_ref[at] + x_ref[...]
                out_ref[...] = total
                carry_ref[at] = total

            lax.fori_loop(0, 1, add, None)
        elif form in ("stored", "several"):
            total = carry_ref[at] + x_ref[...]
            out_ref[...] = total
            carry_ref[at] = total
        else:
            out_ref[...] = x_ref[...] + carry_ref[at]
            carry_ref[at] = carry_ref[at] + x_ref[...]
        last_ref[...] = x_ref[...]
        if form == "at the end":

            @pl.when(k == columns - 1)
            def _finish() -> None:
                last_ref[...] = carry_ref[at]

    spec = pl.BlockSpec((8, 128), lambda i, k: (i, k))
    return pl.pallas_call(
        kernel,
        grid=(rows, columns),
        in_specs=[spec],
        out_specs=[spec, pl.BlockSpec((8, 128), lambda i, k: (i, 0))],
        out_shape=[S(x.shape, F32), S((x.shape[0], 128), F32)],
        scratch_shapes=[pltpu.VMEM((columns, 8, 128), F32)],
    )(x)


UNCONDITIONAL = "this line is unconditional, so each grid point resets "


@pytest.mark.parametrize(
    "form, point, did, what",
    [
        ("alone", (0, 1), "added to", "the sum"),
        ("at the end", (0, 1), "added to", "the sum"),
        ("stored", (0, 1), "stored to", "what earlier ones left"),
        ("several", (1, 0), "stored to", "what earlier ones left"),
    ],
)
def test_a_running_total_that_each_grid_point_resets(
    form: str, point: tuple[int, int], did: str, what: str
) -> None:
    (finding,) = found(lambda x: running_total(x, reset="always", form=form), X)
    assert (finding.kind, finding.operand, finding.grid_point) == ("LostWrite", "carry_ref", point)
    assert finding.message.startswith(
        f"what grid point (0, 0) {did} carry_ref is lost: it is reset"
    )
    assert finding.cause == UNCONDITIONAL + what
    assert finding.advice == (
        "put it under a condition that holds where a sum begins, such as "
        "@pl.when(pl.program_id(axis) == 0)"
    )


@pytest.mark.parametrize(
    "form, reset, columns",
    [
        ("at the end", "first", 384),
        ("stored", "first", 384),
        ("stored", "first", 128),
        ("several", "first row", 384),
        ("loop", "always", 384),
    ],
)
def test_a_running_total_that_is_reset_in_time(form: str, reset: str, columns: int) -> None:
    assert not found(lambda x: running_total(x, reset=reset, form=form), X[:, :columns])


@pytest.mark.parametrize("columns", [384, 128])
def test_a_running_total_of_each_row_of_blocks(columns: int) -> None:
    assert not found(lambda x: running_total(x, reset="first"), X[:, :columns])


def counts(x: Any, *, bins: int) -> jax.Array:
    """Counts numbers in SMEM, of which so many bins are set to zero at first."""

    def kernel(x_ref, out_ref):
        @pl.when(pl.program_id(0) == 0)
        def _start() -> None:
            @pl.loop(0, bins)
            def _bin(i) -> None:
                out_ref[i] = 0

        @pl.loop(0, 16)
        def _count(i) -> None:
            out_ref[x_ref[pl.program_id(0) * 16 + i]] += 1

    smem = pl.BlockSpec(memory_space=pltpu.SMEM)
    out = S((8,), jnp.int32)
    return pl.pallas_call(kernel, grid=(2,), in_specs=[smem], out_specs=smem, out_shape=out)(x)


def test_a_number_that_is_stored_in_a_loop_under_a_condition() -> None:
    x = np.arange(32, dtype=np.int32) % 8
    assert not found(functools.partial(counts, bins=8), x)
    (read,) = found(functools.partial(counts, bins=7), x)
    assert read.message.endswith(": out_ref[7]")
    assert read.cause == "the stores to it before this line do not reach all of it"
    assert read.advice == "write all of it before this line"


def rows_of_sums(x: Any, *, how: str) -> Any:
    """Sums of the columns of shifted blocks: each has its own row of scratch."""

    def kernel(x_ref, out_ref, acc_ref):
        k = pl.program_id(1)

        if how == "added":

            @pl.when(k == 0)
            def _start() -> None:
                acc_ref[...] = jnp.zeros_like(acc_ref)

        for row in range(1 if how == "ring" else 4):
            at = pl.ds(row if how != "ring" else lax.rem(k, 2), 1)
            part = jnp.sum(x_ref[row : row + 5, :], axis=0, keepdims=True)
            acc_ref[at, :] = acc_ref[at, :] + part if how == "added" else part

        @pl.when((k == pl.num_programs(1) - 1) | (how == "read"))
        def _finish() -> None:
            out_ref[0:2, :] = acc_ref[0:2, :]
            out_ref[2:4, :] = acc_ref[0:2, :] if how == "ring" else acc_ref[2:4, :]
            out_ref[4:8, :] = jnp.zeros((4, 128), F32)

    columns = x.shape[1] if how == "read" else 128
    return pl.pallas_call(
        kernel,
        grid=(2, x.shape[1] // 128),
        in_specs=[pl.BlockSpec((8, 128), lambda i, k: (i, 0 if how == "same" else k))],
        out_specs=pl.BlockSpec((8, 128), lambda i, k: (i, k if how == "read" else 0)),
        out_shape=S((16, columns), F32),
        scratch_shapes=[TILE],
    )(x)


@pytest.mark.parametrize("how", ["replaced", "added", "read", "ring", "same"])
def test_parts_of_a_buffer_that_the_next_step_replaces(how: str) -> None:
    """Unless they are read, belong to a ring, or are computed again."""
    findings = found(lambda x: rows_of_sums(x, how=how), X)
    if how != "replaced":
        assert not findings
        return
    (finding,) = findings
    assert (finding.kind, finding.operand, finding.grid_point) == ("LostWrite", "acc_ref", (0, 1))
    assert finding.cause == (
        "each grid point of block (0, 0) of out_ref stores its part here, replacing the one before"
    )


def softmax(x: Any, w: Any, *, how: str) -> Any:
    """A product with the weights of a softmax, whose running maximum is a state."""
    stays = how == "of a state"

    def kernel(x_ref, w_ref, out_ref, acc_ref, top_ref):
        k = pl.program_id(1)

        @pl.when(k == 0)
        def _start() -> None:
            top_ref[...] = jnp.full_like(top_ref, -1e30)
            if how != "not reset":
                acc_ref[...] = jnp.zeros_like(acc_ref)

        before = top_ref[...]
        top = before + x_ref[...] if stays else jnp.maximum(before, x_ref[...])
        top_ref[...] = top
        if stays:  # the last value of the state is wanted
            acc_ref[...] = jnp.dot(top, w_ref[...], preferred_element_type=F32)
        else:
            weights = jnp.exp(x_ref[...] - top)
            part = jnp.dot(weights, w_ref[...], preferred_element_type=F32)
            scaled = acc_ref[...] * jnp.exp(before - top) if how == "scaled" else 0.0
            acc_ref[...] = scaled + part

        @pl.when(k == pl.num_programs(1) - 1)
        def _finish() -> None:
            out_ref[...] = acc_ref[...]

    return pl.pallas_call(
        kernel,
        grid=(2, x.shape[1] // 128),
        in_specs=[
            pl.BlockSpec((8, 128), lambda i, k: (i, 0 if stays else k)),
            pl.BlockSpec((128, 128), lambda i, k: (0 if stays else k, 0)),
        ],
        out_specs=pl.BlockSpec((8, 128), lambda i, k: (i, 0)),
        out_shape=S((16, 128), F32),
        scratch_shapes=[TILE, TILE],
    )(x, w)


@pytest.mark.parametrize("how", ["replaced", "scaled", "not reset", "of a state"])
def test_parts_that_depend_on_a_running_state(how: str) -> None:
    """The reset of a sum shows that all parts are wanted, if their inputs move on."""
    findings = found(lambda x, w: softmax(x, w, how=how), X, W)
    assert [f.kind for f in findings] == ["LostWrite"] * (how == "replaced")
    for finding in findings:
        assert (finding.operand, finding.grid_point) == ("acc_ref", (0, 1))
