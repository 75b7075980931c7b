"""Races with a copy in flight, noticed in TPU interpret mode without race detection."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from tpu_interpreted import DMA, EAGER, HBM, PLAIN, RACES, Seen, X, launch

from pallas_debug.render import finding_text

TWO = (DMA((2,)), pltpu.VMEM((16, 128), jnp.float32))

Body = Callable[..., None]


def run(body: Body, params: pltpu.InterpretParams = PLAIN) -> Seen:
    kernel = launch(
        body,
        in_specs=[HBM],
        out_specs=HBM,
        scratch_shapes=TWO,
    )
    return Seen(lambda: kernel(X), params)


def rows(ref: Any, half: int) -> Any:
    return ref.at[pl.ds(half * 8, 8)]


def read_early(x_ref: Any, out_ref: Any, sems: Any, buf: Any) -> None:
    copy = pltpu.make_async_copy(x_ref, buf, sems.at[0])
    copy.start()
    buf[0:8] = buf[8:16] + 1
    copy.wait()
    pltpu.sync_copy(buf, out_ref)


def filled_early(x_ref: Any, out_ref: Any, sems: Any, buf: Any) -> None:
    pltpu.sync_copy(rows(x_ref, 0), rows(buf, 0))
    store = pltpu.make_async_copy(rows(buf, 0), rows(out_ref, 0), sems.at[0])
    store.start()
    load = pltpu.make_async_copy(rows(x_ref, 1), rows(buf, 0), sems.at[1])
    load.start()
    load.wait()
    store.wait()
    pltpu.sync_copy(rows(buf, 0), rows(out_ref, 1))


def test_a_core_and_a_copy() -> None:
    seen = run(read_early)
    assert not seen.findings
    assert seen.error is None
    assert seen.copying == [("read_early", "tpu")]
    (read,) = seen.races
    assert read.kind == "DataRace"
    assert read.witness.other is not None
    assert read.witness.other.line == line(read_early, 2)
    assert re.sub(r"\S*/(\w+\.py):\d+ ", r"\1 ", finding_text(read)).splitlines() == [
        "DataRace in kernel `read_early`",
        "  test_tpu_flights.py   buf[0:8] = buf[8:16] + 1",
        "  buf[8:16, 0:128], float32[16, 128] in VMEM, is read here, and written by the copy of "
        "x_ref to buf (semaphore sems[0]) on the other side; nothing orders the two",
        "  other side: test_tpu_flights.py   copy.start()",
        "  cause: copied data is there only after the wait",
        "  try: wait for the copy before this line",
    ]


def test_two_copies() -> None:
    (found,) = run(filled_early).races
    assert found.source is not None
    assert found.witness.other is not None
    assert (found.source.line, found.witness.other.line) == (
        line(filled_early, 5),
        line(filled_early, 3),
    )
    assert "cause: two copies are in flight at once" in finding_text(found)


def line(body: Body, at: int) -> int:
    """Number of the line of this file that is that many below the first of a function."""
    return body.__code__.co_firstlineno + at


def in_order(x_ref: Any, out_ref: Any, sems: Any, buf: Any) -> None:
    copies = [pltpu.make_async_copy(rows(x_ref, i), rows(buf, i), sems.at[i]) for i in range(2)]
    for copy in copies:
        copy.start()
    for i, copy in enumerate(copies):
        copy.wait()
        rows(buf, i)[...] += 1  # the other half is still on its way
    pltpu.sync_copy(buf, out_ref)


def several_on_one_semaphore(x_ref: Any, out_ref: Any, sems: Any, buf: Any) -> None:
    copies = [pltpu.make_async_copy(rows(x_ref, i), rows(buf, i), sems.at[0]) for i in range(2)]
    for copy in copies:
        copy.start()
    pltpu.make_async_copy(x_ref, buf, sems.at[0]).wait()  # for the bytes of both
    buf[...] += 1
    pltpu.sync_copy(buf, out_ref)


def two_readers(x_ref: Any, out_ref: Any, sems: Any, buf: Any) -> None:
    copies = [pltpu.make_async_copy(x_ref, out_ref, sems.at[0])]
    copies += [pltpu.make_async_copy(x_ref, buf, sems.at[1])]
    for copy in copies:
        copy.start()
    for copy in copies:
        copy.wait()


@pytest.mark.parametrize("body", [in_order, several_on_one_semaphore, two_readers])
def test_kernels_that_wait(body: Body) -> None:
    seen = run(body)
    assert (seen.findings, seen.races, seen.error) == ([], [], None)


def strided(x_ref: Any, out_ref: Any, sems: Any, buf: Any) -> None:
    pltpu.sync_copy(x_ref, buf)
    copy = pltpu.make_async_copy(buf.at[0], out_ref.at[0], sems.at[0])
    copy.start()
    buf[pl.ds(1, 7, stride=2)] = jnp.zeros((7, 128))
    copy.wait()


def masked(x_ref: Any, out_ref: Any, sems: Any, buf: Any) -> None:
    pltpu.sync_copy(x_ref, buf)
    copy = pltpu.make_async_copy(rows(buf, 0), rows(out_ref, 0), sems.at[0])
    copy.start()
    mask = lax.broadcasted_iota(jnp.int32, (16, 128), 0) >= 8
    pltpu.store(buf, jnp.zeros((16, 128)), mask=mask)
    copy.wait()


def polled(x_ref: Any, out_ref: Any, sems: Any, buf: Any) -> None:
    copy = pltpu.make_async_copy(x_ref, buf, sems.at[0])
    copy.start()
    lax.while_loop(lambda _: pltpu.semaphore_read(sems.at[0]) == 0, lambda _: _, 0)
    buf[...] += 1
    copy.wait()
    pltpu.sync_copy(buf, out_ref)


@pytest.mark.parametrize("body", [strided, masked, polled])
def test_what_is_not_compared(body: Body) -> None:
    assert not run(body).races


def test_copies_made_at_once_are_never_in_flight() -> None:
    seen = run(read_early, EAGER)
    assert not seen.races
    np.testing.assert_array_equal(seen.result[0:8], X[8:16] + 1)


def test_nothing_is_compared_twice() -> None:
    seen = run(two_readers, RACES)
    assert (seen.races, seen.copying) == ([], [])


def test_each_race_once() -> None:
    def again(*refs: Any) -> None:
        lax.fori_loop(0, 3, lambda i, _: read_early(*refs), None)

    (found,) = run(again).races
    assert found.count == 1
