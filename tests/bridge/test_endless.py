"""Loops that do not end are stopped in every interpreter; those that end are left as they are."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AxisType, PartitionSpec

import pallas_debug
from pallas_debug.bridge.interpret import endless
from pallas_debug.errors import KernelFault
from pallas_debug.model import Finding
from pallas_debug.session import Options, Session

N = jnp.full((8, 128), 5, jnp.int32)
MODES = ["hlo", "tpu", "tpu,num_cores_or_threads=2"]


def call(kernel: Callable[..., None], **options: Any) -> Callable[..., jax.Array]:
    return jax.jit(pl.pallas_call(kernel, out_shape=N, name="loops", **options))


def stopped(function: Callable[..., Any], mode: str, hang_after: float = 1.0) -> Finding:
    """The finding of a function, which has to raise it."""
    with Session(Options(interpret=mode, hang_after=hang_after)) as session:
        with pytest.raises(Exception, match="EndlessLoop in kernel `loops`"):
            jax.block_until_ready(function(N))
        session.reset()
    (finding,) = session.observer.findings
    return finding


def waits_for_itself(n_ref: Any, o_ref: Any) -> None:
    def body(state: Any) -> Any:
        i, total = state
        return i, total + 1

    start = (jnp.int32(0), jnp.int32(0))
    _, total = lax.while_loop(lambda s: s[0] < n_ref[0, 0], body, start)  # here
    o_ref[...] = jnp.full_like(o_ref, total)


COMES_BACK = "the body restores the values that the condition depends on, or never changes them"


def line_of(kernel: Callable[..., None], text: str = "# here") -> int:
    lines, start = inspect.getsourcelines(kernel)
    return next(start + i for i, line in enumerate(lines) if text in line)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_loop_in_which_nothing_changes(mode: str) -> None:
    finding = stopped(call(waits_for_itself), mode)
    assert finding.source is not None
    assert finding.source.file == __file__
    assert finding.source.line == line_of(waits_for_itself)
    assert finding.engines == ("checks" if mode == "hlo" else "tpu interpret",)
    assert finding.message.startswith(
        "the loop never ends: its condition sees the same values in iteration "
    )
    assert finding.message.endswith(" as in iteration 64, with s[0] = 0")
    assert finding.witness.values == {"s[0]": "0"}
    assert finding.cause == COMES_BACK
    assert finding.advice == "change s[0] in the body so that the condition becomes false"


def test_a_loop_whose_values_alternate() -> None:
    """Its values change in every iteration, so the cause does not say that nothing does."""

    def alternates(n_ref: Any, o_ref: Any) -> None:
        i = lax.while_loop(lambda i: i >= 0, lambda i: 9 - i, n_ref[0, 0])
        o_ref[...] = jnp.full_like(o_ref, i)

    assert stopped(call(alternates), "hlo").cause == COMES_BACK


@pytest.mark.parametrize("mode", ["hlo", "auto"])
def test_a_loop_whose_result_xla_knows(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing signals the semaphore, so XLA knows the count, and would remove the loop."""

    def waits(_: Any, o_ref: Any, semaphore: Any) -> None:
        count = lax.while_loop(
            lambda count: count == 0, lambda _: pl.semaphore_read(semaphore), jnp.int32(0)
        )
        o_ref[...] = jnp.full_like(o_ref, count)

    monkeypatch.setattr(endless, "MANY", dict.fromkeys(endless.MANY, 2048))
    function = call(waits, scratch_shapes=[pltpu.SemaphoreType.REGULAR])
    finding = stopped(function, mode, hang_after=0.2)
    assert ", with count = 0" in finding.message


@pytest.mark.parametrize("mode", ["hlo", "tpu"])
def test_a_loop_that_steps_past_its_end(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def steps_past(n_ref: Any, o_ref: Any) -> None:
        n = n_ref[0, 0]
        i, _ = lax.while_loop(lambda c: c[0] != c[1], lambda c: (c[0] + 2, c[1]), (jnp.int32(0), n))
        o_ref[...] = jnp.full_like(o_ref, i)

    monkeypatch.setattr(endless, "MANY", dict.fromkeys(endless.MANY, 2048))
    finding = stopped(call(steps_past), mode, hang_after=0.2)
    assert "the loop has not ended after " in finding.message
    assert ", with c[0] = " in finding.message
    assert ", c[1] = " in finding.message
    assert finding.message.endswith("; its body never changes c[1]")
    assert finding.cause is not None
    assert "never becomes false" in finding.cause
    assert finding.advice is not None
    assert "--pallas-hang under pytest, hang_after in code" in finding.advice


def test_a_loop_that_polls_memory_in_a_branch() -> None:
    def polls(n_ref: Any, o_ref: Any) -> None:
        @pl.when(n_ref[0, 0] == 5)
        def _() -> None:
            def body(i: Any) -> Any:
                o_ref[0, 0] = i
                return i + 1

            lax.while_loop(lambda i: n_ref[0, 1] == 5, body, jnp.int32(0))

    finding = stopped(call(polls), "hlo")
    assert finding.message.endswith(" as in iteration 64")
    assert finding.advice == (
        "change the values it reads in the body so that the condition becomes false"
    )


def test_a_loop_that_changes_what_it_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    def polls(n_ref: Any, o_ref: Any) -> None:
        o_ref[...] = n_ref[...]

        def body(i: Any) -> Any:
            o_ref[0, 0] = n_ref[0, 0]
            return i + 1

        lax.while_loop(lambda i: o_ref[0, 0] == 5, body, jnp.int32(0))

    monkeypatch.setattr(endless, "MANY", dict.fromkeys(endless.MANY, 2048))
    assert "the loop has not ended" in stopped(call(polls), "hlo", hang_after=0.2).message


def test_a_check_ends_too() -> None:
    with pytest.raises(KernelFault) as raised:
        pallas_debug.check(call(waits_for_itself))(N)
    assert raised.value.finding.kind == "EndlessLoop"


def finite(n_ref: Any, o_ref: Any) -> None:
    """Loops in loops, branches and scopes, of 0 to some 300 iterations."""

    def inner(length: Any, start: Any) -> Any:
        def body(state: Any) -> Any:
            j, total = state
            return j + 1, total + j % 7

        return lax.while_loop(lambda s: s[0] < length, body, (jnp.int32(0), start))[1]

    def outer(i: Any, total: Any) -> Any:
        return lax.cond(i % 2 == 0, lambda: inner(i * 40, total), lambda: inner(i, total))

    total = lax.fori_loop(0, n_ref[0, 0] + 3, outer, jnp.int32(0))
    total += lax.scan(lambda c, k: (inner(k, c), None), total, jnp.arange(3, dtype=jnp.int32))[0]

    def scoped(ref: Any) -> None:
        ref[...] = jnp.full_like(ref, lax.while_loop(lambda t: t % 100 > 3, lambda t: t + 1, total))
        o_ref[...] = ref[...]

    pl.run_scoped(scoped, pltpu.VMEM((8, 128), jnp.int32))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["hlo", "tpu"])
def test_loops_that_end_give_the_same_results(mode: str) -> None:
    plain = pl.pallas_call(finite, out_shape=N, interpret=True)
    functions = {
        "plain": lambda f: f(N),
        "vmap": lambda f: jax.vmap(f)(jnp.stack([N, N + 1])),
    }
    for transformed in functions.values():
        wanted = transformed(plain)
        with pallas_debug.interpret(mode):
            found = transformed(pl.pallas_call(finite, out_shape=N))
            np.testing.assert_array_equal(found, wanted)
    checked, found = pallas_debug.check(plain, interpret=mode)(N)
    assert checked.findings == ()
    np.testing.assert_array_equal(found, plain(N))


@pytest.mark.slow
def test_under_shard_map_and_x64() -> None:
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("x")
    with pallas_debug.interpret("hlo"):
        kernel = pl.pallas_call(finite, out_shape=N)
        sharded = jax.shard_map(
            lambda n: kernel(n), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
        )
        found = jax.jit(sharded)(N)
        with jax.enable_x64(True):
            np.testing.assert_array_equal(kernel(N), found)


@pytest.mark.parametrize("mode", ["hlo", "tpu", "machine"])
def test_a_loop_in_an_index_map(mode: str) -> None:
    def kernel(n_ref: Any, o_ref: Any) -> None:
        o_ref[...] = n_ref[...]

    def block_of(i: Any) -> Any:
        return lax.while_loop(lambda c: c >= 0, lambda c: (c + 1) & 63, i), 0  # here

    finding = stopped(
        call(
            kernel,
            grid=(2,),
            in_specs=[pl.BlockSpec((4, 128), block_of)],
            out_specs=pl.BlockSpec((4, 128), lambda i: (i, 0)),
        ),
        mode,
        hang_after=0.2,
    )
    assert finding.source is not None
    assert finding.source.line == line_of(block_of)


@pytest.mark.slow
def test_index_maps_with_loops_that_end() -> None:
    def kernel(n_ref: Any, o_ref: Any) -> None:
        o_ref[...] = n_ref[...]

    def block_of(i: Any) -> Any:
        return lax.while_loop(lambda c: c < 1 - i, lambda c: c + 1, jnp.int32(0)), 0

    n = jnp.arange(8 * 128, dtype=jnp.int32).reshape(8, 128)
    spec = pl.BlockSpec((4, 128), block_of)
    block = pl.BlockSpec((4, 128), lambda i: (i, 0))
    function = call(kernel, grid=(2,), in_specs=[spec], out_specs=block)
    for mode in ("hlo", "tpu", "machine"):
        with Session(Options(interpret=mode)):
            np.testing.assert_array_equal(function(n), jnp.concatenate([n[4:], n[:4]]))
