"""Races with a copy in flight, noticed in TPU interpret mode without race detection."""

from __future__ import annotations

import functools
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
        "  buf[8:16, 0:128], float32[16, 128] in VMEM, is read here and written by the copy of "
        "x_ref to buf (semaphore sems[0]) on the other side; nothing orders the two",
        "  other side: test_tpu_flights.py   copy.start()",
        "  cause: copied data is available only after the wait",
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
    assert (
        "cause: the copy on sems[0] may still be reading the data that this one overwrites"
        in finding_text(found)
    )


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


def storing(store: Callable[[Any], None]) -> Body:
    """A kernel that stores to its scratch while rows 0 to 7 of it are copied from there."""

    def body(x_ref: Any, out_ref: Any, sems: Any, buf: Any) -> None:
        pltpu.sync_copy(x_ref, buf)
        copy = pltpu.make_async_copy(rows(buf, 0), rows(out_ref, 0), sems.at[0])
        copy.start()
        store(buf)
        copy.wait()

    return body


def strided(buf: Any, first: int) -> None:
    buf[pl.ds(first, 3, stride=3)] = jnp.zeros((3, 128))


def masked(buf: Any, first: int) -> None:
    mask = lax.broadcasted_iota(jnp.int32, (16, 128), 0) >= first
    pltpu.store(buf, jnp.zeros((16, 128)), mask=mask)


def reshaped(buf: Any, first: int) -> None:
    buf.reshape(8, 2, 128)[first // 2] = jnp.zeros((2, 128))


def bitcast(buf: Any, first: int) -> None:
    view = buf.bitcast(jnp.int32).reshape(4, 4, 128)
    view[first // 4 : first // 4 + 1, 1:4] = jnp.zeros((1, 3, 128), jnp.int32)


@pytest.mark.parametrize(
    "store, first, shared",
    [
        (strided, 7, "buf[7:8, 0:128]"),
        (masked, 6, "buf[6:8, 0:128]"),
        (reshaped, 6, "buf[6:8, 0:128]"),
        (bitcast, 4, "buf[5:8, 0:128]"),
    ],
)
def test_single_elements(store: Callable[[Any, int], None], first: int, shared: str) -> None:
    (found,) = run(storing(lambda buf: store(buf, first))).races
    assert f"{shared}, float32[16, 128] in VMEM, is written here" in finding_text(found)
    assert not run(storing(lambda buf: store(buf, 8))).races


def test_a_copy_of_strided_rows() -> None:
    def body(x_ref: Any, out_ref: Any, sems: Any, buf: Any, *, row: int) -> None:
        pltpu.sync_copy(x_ref, buf)
        halves = pl.ds(1, 8, stride=2)
        copy = pltpu.make_async_copy(buf.at[halves], rows(out_ref, 0), sems.at[0])
        copy.start()
        buf[row] = jnp.zeros(128)
        copy.wait()

    (found,) = run(functools.partial(body, row=3)).races
    assert "buf[3:4, 0:128], float32[16, 128] in VMEM, is written here" in finding_text(found)
    assert not run(functools.partial(body, row=4)).races


def polled(x_ref: Any, out_ref: Any, sems: Any, buf: Any) -> None:
    copy = pltpu.make_async_copy(x_ref, buf, sems.at[0])
    copy.start()
    lax.while_loop(lambda _: pltpu.semaphore_read(sems.at[0]) == 0, lambda _: _, 0)
    buf[...] += 1
    copy.wait()
    pltpu.sync_copy(buf, out_ref)


def test_a_copy_that_is_polled_is_not_compared() -> None:
    assert not run(polled).races


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
