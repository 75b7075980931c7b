"""States in scratch that nothing updates, values subtracted from themselves, and their twins."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.analysis import analyze
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.model import Finding

Captures = Callable[..., list[Capture]]
F32 = jnp.float32
S = jax.ShapeDtypeStruct
X = S((16, 384), F32)
TILE = pltpu.VMEM((8, 128), F32)


def called(kernel: Callable[..., None], x: Any, *scratch: Any) -> Any:
    """A call over two rows of three blocks, with an output block for each row."""
    return pl.pallas_call(
        kernel,
        out_shape=S((16, 128), F32),
        grid=(2, 3),
        in_specs=[pl.BlockSpec((8, 128), lambda i, k: (i, k))],
        out_specs=pl.BlockSpec((8, 128), lambda i, k: (i, 0)),
        scratch_shapes=scratch or (TILE,),
    )(x)


def found(captures: Captures, function: Callable[..., Any], *args: Any) -> tuple[Finding, ...]:
    (captured,) = captures(function, args or (X,))
    return analyze(captured).findings


def _if_positive(ref: Any, new: Any, x_ref: Any) -> None:
    @pl.when(x_ref[0, 0] > 0)
    def _update() -> None:
        ref[...] = new


UPDATES: dict[str, Callable[..., None]] = {
    "updated": lambda ref, new, *_: ref.__setitem__(..., new),
    "added": lambda ref, new, x_ref: ref.__setitem__(..., ref[...] + x_ref[...]),
    "in part": lambda ref, new, *_: ref.__setitem__(slice(0, 1), new[0:1, :]),
    "for some data": _if_positive,
    "in a loop": lambda ref, new, *_: lax.fori_loop(
        0, 2, lambda i, _: ref.__setitem__(..., new), None
    ),
    "by a copy": lambda ref, new, x_ref, copied: pltpu.sync_copy(copied, ref),
}


def state(x: Any, *, how: str, begin: float = 0.0) -> Any:
    """A running sum or maximum that is reset at each row, and updated in some way or in none."""

    def kernel(x_ref, out_ref, state_ref, *more):
        k = pl.program_id(1)

        @pl.when(k == 0 if how != "each step" else k >= 0)
        def _start() -> None:
            state_ref[...] = jnp.full_like(state_ref, begin)

        before = state_ref[...]
        new = jnp.maximum(before, x_ref[...]) if begin else before + x_ref[...]
        if how in ("product", "total"):
            is_product = how == "product"
            new = x_ref[:, :8] @ state_ref[...] if is_product else x_ref[...] * jnp.sum(before)
        elif how == "filler":
            new = jnp.where(x_ref[...] > 0, x_ref[...], before)
        elif how == "copied out":
            new = x_ref[...]
        out_ref[...] = before if how == "stored as it is" else new
        if how in UPDATES:
            UPDATES[how](state_ref, new, x_ref, *more)

    return called(kernel, x, TILE, *([TILE] if how == "by a copy" else []))


@pytest.mark.parametrize(
    "how, begin",
    [("never", 0.0), ("never", -jnp.inf), ("never", -1e30), ("product", 0.0), ("total", 0.0)],
)
def test_a_state_that_nothing_updates(captures: Captures, how: str, begin: float) -> None:
    (finding,) = found(captures, functools.partial(state, how=how, begin=begin))
    assert (finding.kind, finding.operand) == ("NoEffect", "state_ref")
    assert finding.source is not None
    assert finding.other is not None
    assert finding.other.text == "state_ref[...] = jnp.full_like(state_ref, begin)"
    assert finding.message == (
        f"state_ref is always {begin:g}: line {finding.other.line} sets it to that, and nothing "
        "else stores to it"
    )
    assert finding.cause == (
        "a state in state_ref is begun but never updated, so that it has no effect here"
    )
    assert finding.advice == (
        "store the new value to state_ref after the previous one was used, at each step"
    )


@pytest.mark.parametrize(
    "how",
    [
        *("updated", "added", "in part", "for some data", "in a loop", "by a copy"),
        *("each step", "filler", "stored as it is", "copied out"),
    ],
)
def test_states_that_are_updated_and_constants(captures: Captures, how: str) -> None:
    kinds = [f.kind for f in found(captures, functools.partial(state, how=how))]
    assert "NoEffect" not in kinds


def test_a_constant_other_than_the_begin_of_a_state(captures: Captures) -> None:
    assert not found(captures, functools.partial(state, how="never", begin=1.0))


def add(sum_ref: Any, value: Any, *, is_counted: bool) -> None:
    if is_counted:
        sum_ref[...] += value


@pytest.mark.parametrize("how", ["here", "by a function", "one of several", "never"])
def test_a_state_that_a_parameter_turns_off(captures: Captures, how: str) -> None:
    """Its update is in the kernel's source, but is not traced."""

    def begin(*refs: Any) -> None:
        @pl.when(pl.program_id(1) == 0)
        def _start() -> None:
            for ref in refs:
                ref[...] = jnp.zeros_like(ref)

    def here(x_ref, out_ref, sum_ref, squares_ref, *, is_counted=False):
        begin(sum_ref, squares_ref)
        sum_ref[...] += x_ref[...]
        if is_counted:
            squares_ref[...] += x_ref[...] * x_ref[...]
        out_ref[...] = sum_ref[...] + 0.1 * squares_ref[...]

    def by_a_function(x_ref, out_ref, sum_ref, squares_ref):
        begin(sum_ref, squares_ref)
        add(sum_ref, x_ref[...], is_counted=True)
        add(squares_ref, x_ref[...] * x_ref[...], is_counted=False)
        out_ref[...] = sum_ref[...] + 0.1 * squares_ref[...]

    def one_of_several(x_ref, out_ref, *sums, is_counted=False):
        begin(*sums)
        sums[0][...] += x_ref[...]
        if is_counted:
            sums[1][...] += x_ref[...] * x_ref[...]
        out_ref[...] = sums[0][...] + 0.1 * sums[1][...]

    def never(x_ref, out_ref, sum_ref, squares_ref):
        begin(sum_ref, squares_ref)
        add(sum_ref, x_ref[...], is_counted=True)
        out_ref[...] = sum_ref[...] + 0.1 * squares_ref[...]

    kernels = {
        "here": functools.partial(here, is_counted=False),
        "by a function": by_a_function,
        "one of several": one_of_several,
        "never": never,
    }
    findings = found(captures, lambda x: called(kernels[how], x, TILE, TILE))
    assert [(f.kind, f.operand) for f in findings] == [("NoEffect", "squares_ref")] * (
        how == "never"
    )


@pytest.mark.parametrize("how", ["never", "once", "updated", "each iteration"])
def test_a_state_of_a_loop_that_nothing_updates(captures: Captures, how: str) -> None:
    """Unless the loop runs once, or begins the state itself."""

    def kernel(x_ref, out_ref, top_ref):
        def begin() -> None:
            top_ref[...] = jnp.full_like(top_ref, -jnp.inf)

        def body(i: Any, total: Any) -> Any:
            if how == "each iteration":
                begin()
            x = x_ref[pl.ds(i, 1), :]
            new = jnp.maximum(top_ref[...], x)
            total = total * jnp.exp(top_ref[...] - new) + jnp.exp(x - new)
            if how in UPDATES:
                UPDATES[how](top_ref, new, x_ref)
            return total

        begin()
        zeros = jnp.zeros((1, 128), F32)
        total = lax.fori_loop(0, 1 if how == "once" else 8, body, zeros)
        out_ref[...] = jnp.broadcast_to(total, out_ref.shape)

    call = functools.partial(called, kernel)
    findings = found(captures, lambda x: call(x, pltpu.VMEM((1, 128), F32)))
    assert [f.kind for f in findings] == ["NoEffect"] * (how == "never")


def difference(x: Any, *, how: str) -> Any:
    """Values that are stored, loaded again, and subtracted from some value."""

    def kernel(x_ref, out_ref, state_ref, narrow_ref):
        @pl.when(pl.program_id(1) == 0)
        def _start() -> None:
            state_ref[...] = jnp.zeros_like(state_ref)

        before = state_ref[...]
        new = jnp.maximum(before, x_ref[...])
        if how != "after":
            state_ref[...] = new
        if how == "itself":
            out_ref[...] = jnp.exp(new - state_ref[...])
        elif how == "ratio":
            out_ref[...] = new / state_ref[...]
        elif how == "row":
            row = jnp.max(x_ref[...], axis=1, keepdims=True)
            state_ref[...] = jnp.broadcast_to(row, state_ref.shape)
            out_ref[...] = x_ref[...] * (state_ref[...] - row)
        elif how == "kept":
            out_ref[...] = jnp.exp(before - new)
        elif how == "finite":
            again = state_ref[...]
            out_ref[...] = jnp.where(again - again == 0, again, 0.0)
        elif how == "after":
            out_ref[...] = jnp.exp(state_ref[...] - new)
            state_ref[...] = new
        elif how == "rounded":  # what bfloat16 loses
            narrow_ref[...] = new.astype(jnp.bfloat16)
            out_ref[...] = new - narrow_ref[...].astype(F32)
        elif how == "group":  # of a single row: it has no previous value
            row = x_ref[...].astype(jnp.bfloat16)
            narrow_ref[...] = row
            out_ref[...] = jnp.exp((row - narrow_ref[...]).astype(F32))
        elif how == "shifted":
            out_ref[...] = jnp.zeros_like(out_ref)
            out_ref[1:8, :] = state_ref[1:8, :] - state_ref[0:7, :]
        elif how == "pairs":
            row = new[0, 0:8]
            narrow_ref[0:8, 0:8] = (row[:, None] - row[None, :]).astype(jnp.bfloat16)
            out_ref[...] = new
        elif how == "changed":
            state_ref[0:1, :] = x_ref[0:1, :]
            out_ref[...] = new - state_ref[...]
        elif how == "maybe changed":

            @pl.when(x_ref[0, 0] > 0)
            def _change() -> None:
                state_ref[...] = x_ref[...]

            out_ref[...] = new - state_ref[...]
        elif how == "changed in a loop":

            def body(i: Any, last: Any) -> Any:
                out_ref[...] = state_ref[...] - last
                state_ref[...] = last * 2
                return state_ref[...]

            lax.fori_loop(0, 2, body, new)

    return called(kernel, x, TILE, pltpu.VMEM((8, 128), jnp.bfloat16))


@pytest.mark.parametrize("how", ["itself", "ratio", "row"])
def test_a_value_that_is_subtracted_from_itself(captures: Captures, how: str) -> None:
    (finding,) = found(captures, functools.partial(difference, how=how))
    assert (finding.kind, finding.operand) == ("NoEffect", "state_ref")
    assert finding.source is not None
    assert finding.source.text is not None
    assert finding.source.text.startswith("out_ref[...] = ")
    assert finding.other is not None
    line = finding.other.line
    what, verb = (
        ("ratio is always 1", "divided by")
        if how == "ratio"
        else ("difference is always 0", "subtracted from")
    )
    assert finding.message == (
        f"the {what}: what is loaded from state_ref is {verb} itself, because line {line} has just "
        "stored the same value there"
    )
    assert finding.cause == (
        "state_ref is loaded after it was updated, and no longer holds the previous value"
    )
    assert finding.advice == (
        f"load state_ref before line {line} updates it, or update it after this line"
    )


@pytest.mark.parametrize(
    "how",
    [
        *("kept", "finite", "after", "rounded", "shifted", "pairs"),
        *("group", "changed", "maybe changed", "changed in a loop"),
    ],
)
def test_differences_of_values_that_may_differ(captures: Captures, how: str) -> None:
    assert "NoEffect" not in [
        f.kind for f in found(captures, functools.partial(difference, how=how))
    ]


@pytest.mark.parametrize("is_updated", [True, False])
def test_the_first_iteration_of_an_unrolled_loop(captures: Captures, is_updated: bool) -> None:
    """It begins the state, which differs from the later blocks only if it is not set again."""

    def kernel(x_ref, out_ref, top_ref):
        total = jnp.zeros((2, 128), F32)
        for j in range(4):
            x = x_ref[2 * j : 2 * j + 2, :]
            if j and is_updated:
                before = top_ref[...]
                top_ref[...] = jnp.maximum(before, x)
                total *= jnp.exp(before - top_ref[...])
            else:
                top_ref[...] = x
            total += jnp.exp(x - top_ref[...])
        out_ref[...] = jnp.tile(total, (4, 1))

    findings = found(captures, lambda x: called(kernel, x, pltpu.VMEM((2, 128), F32)))
    assert {f.kind for f in findings} == (set() if is_updated else {"NoEffect"})


def test_scratch_of_a_scope(captures: Captures) -> None:
    """Only the kernel's own is examined; what a scope closes over is followed into it."""

    def kernel(x_ref, out_ref, state_ref):
        @pl.when(pl.program_id(1) == 0)
        def _start() -> None:
            state_ref[...] = jnp.zeros_like(state_ref)

        def scope(inner_ref: Any) -> None:
            inner_ref[...] = state_ref[...] + x_ref[...]
            state_ref[...] = inner_ref[...]

        pl.run_scoped(scope, TILE)
        out_ref[...] = state_ref[...]

    assert not found(captures, functools.partial(called, kernel))


def _print(more_ref: Any, *_: Any) -> None:
    pl.debug_print("{}", more_ref[0, 0])


def _index(more_ref: Any, sum_ref: Any, out_ref: Any) -> None:
    out_ref[pl.ds(more_ref[0, 0].astype(jnp.int32), 1), :] = sum_ref[0:1, :]


def _decide(more_ref: Any, _: Any, out_ref: Any) -> None:
    @pl.when(more_ref[0, 0] > 0)
    def _clear() -> None:
        out_ref[...] = jnp.zeros_like(out_ref)


USES: dict[str, Callable[..., None]] = {
    "nothing": lambda *_: None,
    "itself": lambda more_ref, *_: more_ref.__setitem__(..., more_ref[...] * 2),
    "a sum": lambda more_ref, sum_ref, _: sum_ref.__setitem__(..., sum_ref[...] + more_ref[...]),
    "a print": _print,
    "an index": _index,
    "a condition": _decide,
    "an output": lambda more_ref, _, out_ref: out_ref.__setitem__(..., jnp.sqrt(more_ref[...])),
}


def beside(x: Any, *, used: str, how: str) -> Any:
    """A second buffer beside a sum, which is filled in some way, and used in some way or in none."""
    is_remote = how == "received"

    def kernel(x_ref, x_hbm, out_ref, also_ref, sum_ref, more_ref, sems):
        @pl.when(pl.program_id(1) == 0)
        def _start() -> None:
            for ref in (sum_ref, more_ref):
                ref[...] = jnp.zeros_like(ref)

        sum_ref[...] += x_ref[...]
        if is_remote:
            copy = pltpu.make_async_remote_copy(
                x_hbm.at[0:8, 0:128], more_ref, sems.at[0], sems.at[1], device_id={"x": 0}
            )
            copy.start()
            copy.wait()
        elif how == "copied":
            pltpu.sync_copy(x_hbm.at[0:8, 0:128], more_ref)
        elif how == "stored":
            more_ref[...] = x_ref[...] * 2
        else:
            more_ref[...] += x_ref[...] * x_ref[...]
        out_ref[...] = sum_ref[...]
        also_ref[...] = (sum_ref[...] * 2)[:, : also_ref.shape[1]]
        USES[used](more_ref, sum_ref, out_ref)

    def with_squares(x_ref, x_hbm, out_ref, also_ref, sum_ref, more_ref, sems, *, are_wanted=False):
        kernel(x_ref, x_hbm, out_ref, also_ref, sum_ref, more_ref, sems)
        if are_wanted:
            out_ref[...] += more_ref[...]

    columns = 1 if how == "for no output" else 128
    call = pl.pallas_call(
        with_squares if how == "turned off" else kernel,
        out_shape=[S((16, 128), F32), S((16, columns), F32)],
        grid=(2, 3),
        in_specs=[pl.BlockSpec((8, 128), lambda i, k: (i, k)), pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=[
            pl.BlockSpec((8, 128), lambda i, k: (i, 0)),
            pl.BlockSpec((8, columns), lambda i, k: (i, 0)),
        ],
        scratch_shapes=[TILE, TILE, pltpu.SemaphoreType.DMA((2,))],
    )
    if not is_remote:
        return call(x, x)
    mesh = jax.make_mesh((1,), ("x",))
    spec = jax.sharding.PartitionSpec()
    function = lambda x: call(x, x)  # noqa: E731
    return jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(x)


@pytest.mark.parametrize("how", ["added", "received"])
@pytest.mark.parametrize("used", ["nothing", "itself"])
def test_scratch_that_nothing_uses(captures: Captures, used: str, how: str) -> None:
    (finding,) = found(captures, functools.partial(beside, used=used, how=how))
    assert (finding.kind, finding.operand) == ("NoEffect", "more_ref")
    assert finding.source is not None
    reach = "but what it holds reaches no output, index or condition"
    if how == "received":
        assert finding.source.text == "copy.start()"
        assert finding.message == (
            f"more_ref is filled by a copy in line {finding.source.line}, {reach}"
        )
    else:
        assert finding.message.startswith("more_ref is updated in lines ")
        assert finding.message.endswith(
            f"{reach}; what is loaded from it is only stored back to it"
        )
    assert finding.cause == (
        "no line reads more_ref for a result: another buffer may be read in its place"
    )
    assert finding.advice == "read more_ref where its values are needed, or remove it"


@pytest.mark.parametrize("how", ["added", "received"])
@pytest.mark.parametrize("used", ["a sum", "a print", "an index", "a condition", "an output"])
def test_scratch_that_something_uses(captures: Captures, used: str, how: str) -> None:
    assert not found(captures, functools.partial(beside, used=used, how=how))


@pytest.mark.parametrize("how", ["turned off", "stored", "copied", "for no output"])
def test_scratch_that_may_be_meant_to_be_unused(captures: Captures, how: str) -> None:
    """A parameter turns its use off, or a kernel computes or copies more than it needs."""
    assert not found(captures, functools.partial(beside, used="nothing", how=how))


def test_a_position_that_nothing_updates_and_a_loop_uses(captures: Captures) -> None:
    def kernel(x_ref, out_ref, start_ref):
        @pl.when(pl.program_id(1) == 0)
        def _start() -> None:
            start_ref[0] = 0

        start = start_ref[0]

        def row(i: Any, _: Any) -> None:
            out_ref[pl.ds(start + i, 1), :] = x_ref[pl.ds(i, 1), :]

        lax.fori_loop(0, 8, row, None)

    call = functools.partial(called, kernel)
    (finding,) = found(captures, lambda x: call(x, pltpu.SMEM((1,), jnp.int32)))
    assert (finding.kind, finding.operand) == ("NoEffect", "start_ref")
    assert finding.source is not None
    assert finding.source.text == "out_ref[pl.ds(start + i, 1), :] = x_ref[pl.ds(i, 1), :]"
