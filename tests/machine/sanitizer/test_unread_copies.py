"""Data that copies bring to scratch and that are replaced before anything reads them, and twins."""

from __future__ import annotations

from collections.abc import Callable
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
S = jax.ShapeDtypeStruct
HBM = pl.BlockSpec(memory_space=pl.ANY)
X = np.random.default_rng(0).standard_normal((200, 128)).astype(np.float32)


def call(kernel: Callable[..., None], *, steps: int = 1, slots: int = 1) -> Callable[..., Any]:
    """A kernel with two slots of scratch, whose output has a block for each grid point."""
    return pl.pallas_call(
        kernel,
        grid=(steps,),
        in_specs=[HBM],
        out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
        out_shape=S((8 * steps, 128), F32),
        scratch_shapes=[pltpu.VMEM((slots, 8, 128), F32), pltpu.SemaphoreType.DMA((slots,))],
    )


def copied(x_hbm: Any, row: Any, buf: Any, sem: Any, slot: Any = 0) -> None:
    copy = pltpu.make_async_copy(x_hbm.at[pl.ds(row, 8)], buf.at[slot], sem.at[slot])
    copy.start()
    copy.wait()


def total(how: str) -> Callable[..., Any]:
    """A sum of eight blocks of rows."""

    def kernel(x_hbm: Any, o_ref: Any, buf: Any, sem: Any) -> None:
        o_ref[...] = jnp.zeros_like(o_ref)

        @pl.loop(0, 8)
        def _block(i: Any) -> None:
            slot = i % 2 if how == "slot" else 0
            copied(x_hbm, i * 8, buf, sem, slot)
            if how != "after":
                o_ref[...] += buf[0]

        if how == "after":
            o_ref[...] += buf[0]

    return call(kernel, slots=2)


@pytest.mark.parametrize(
    "how, row, slot, times, lost", [("after", 0, 0, (0, 1), 7), ("slot", 8, 1, (1, 3), 3)]
)
def test_copies_that_the_next_ones_replace(
    how: str, row: int, slot: int, times: tuple[int, int], lost: int
) -> None:
    (finding,) = found(total(how), X)
    assert (finding.kind, finding.operand, finding.loop) == ("LostWrite", "buf", (times[1],))
    assert finding.count == lost
    before, now = (X[8 * i, 0] for i in times)
    assert finding.message == (
        f"what the copy of x_hbm[{row}:{row + 8}, 0:128] to buf[{slot}, 0:8, 0:128] brought at "
        f"grid point (0,), loop iteration ({times[0]},) is replaced at grid point (0,), loop "
        f"iteration ({times[1]},) before anything reads it: buf[{slot}, 0, 0] was {before:g} and "
        f"is now {now:g}"
    )
    assert finding.cause == (
        f"{lost} of the 8 copies by that line are replaced unread, and no copy that is read brings "
        "the same data"
    )
    assert finding.advice == (
        "read buf before the next copy to it, or give each copy its own part of it"
        if how == "after"
        else "read all of buf that the copies fill, or copy less"
    )
    assert finding.source == finding.witness.other
    assert finding.source is not None
    assert finding.source.text == "copy.start()"


def test_each_block_of_two_copies() -> None:
    def kernel(x_hbm: Any, o_ref: Any, buf: Any, sem: Any) -> None:
        for j in range(2):
            copied(x_hbm, pl.program_id(0) * 16 + j * 8, buf, sem)
        o_ref[...] = buf[0]

    (finding,) = found(call(kernel, steps=4), X)
    assert (finding.kind, finding.count, finding.grid_point) == ("LostWrite", 4, (0,))


def pairs(*, second: int) -> Callable[..., Any]:
    """Sums of pairs of blocks that each step copies to two slots."""

    def kernel(x_hbm: Any, o_ref: Any, buf: Any, sem: Any) -> None:
        for j in range(2):
            copied(x_hbm, pl.program_id(0) * 16 + j * 8, buf, sem, j)
        o_ref[...] = buf[0] + buf[second]

    return call(kernel, steps=4, slots=2)


def test_a_slot_that_is_filled_and_never_read() -> None:
    (finding,) = found(pairs(second=0), X)
    assert (finding.kind, finding.count, finding.grid_point) == ("LostWrite", 3, (1,))
    assert finding.message.startswith("what the copy of x_hbm[8:16, 0:128] to buf[1, 0:8, 0:128]")
    assert (finding.cause or "").startswith("3 of the 8 copies by that line are replaced unread")
    assert finding.advice == "read all of buf that the copies fill, or copy less"
    assert not found(pairs(second=1), X)


def test_a_store_that_replaces_what_was_copied() -> None:
    def kernel(x_hbm: Any, o_ref: Any, buf: Any, sem: Any, *, resets: bool = True) -> None:
        copied(x_hbm, 8, buf, sem)
        if resets:
            buf[...] = jnp.zeros_like(buf)
        buf[...] += 1.0
        o_ref[...] = buf[0]

    (finding,) = found(call(kernel), X)
    assert (finding.kind, finding.operand) == ("LostWrite", "buf")
    assert finding.source is not None
    assert finding.source.text == "buf[...] = jnp.zeros_like(buf)"
    assert (
        finding.cause
        == "that copy is replaced unread, and no copy that is read brings the same data"
    )
    assert not found(call(lambda *refs: kernel(*refs, resets=False)), X)


def prefetching(blocks: int, *, clamps: bool) -> Callable[..., Any]:
    """A double-buffered sum of blocks for each row of them, with a prefetch too many at its end."""

    def kernel(x_hbm: Any, o_ref: Any, buf: Any, sem: Any) -> None:
        def get(j: Any) -> Any:
            block = jnp.minimum(j, blocks - 1) if clamps else j
            row = (pl.program_id(0) * blocks + block) * 8
            source = x_hbm.at[pl.ds(row, 8)]
            return pltpu.make_async_copy(source, buf.at[j % 2], sem.at[j % 2])

        get(0).start()
        o_ref[...] = jnp.zeros_like(o_ref)

        @pl.loop(0, blocks)
        def _block(j: Any) -> None:
            get(j + 1).start()
            get(j).wait()
            o_ref[...] += buf[j % 2]

        get(blocks).wait()

    return call(kernel, steps=3, slots=2)


def flagged(x: Any) -> Any:
    """Blocks that a flag leaves out are fetched all the same."""

    def kernel(flags_ref: Any, x_hbm: Any, o_ref: Any, buf: Any, sem: Any) -> None:
        o_ref[...] = jnp.zeros_like(o_ref)

        @pl.loop(0, 8)
        def _block(i: Any) -> None:
            copied(x_hbm, i * 8, buf, sem)

            @pl.when(flags_ref[i] > 0)
            def _add() -> None:
                o_ref[...] += buf[0]

    return pl.pallas_call(
        kernel,
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), HBM],
        out_shape=S((8, 128), F32),
        scratch_shapes=[pltpu.VMEM((1, 8, 128), F32), pltpu.SemaphoreType.DMA((1,))],
    )(jnp.arange(8, dtype=jnp.int32) // 7, x)


def until(how: str) -> Callable[..., Any]:
    """A search in each row of blocks that ends early, and has fetched the next block by then."""

    def kernel(x_hbm: Any, o_ref: Any, buf: Any, sem: Any) -> None:
        def get(j: Any) -> Any:
            source = x_hbm.at[pl.ds((pl.program_id(0) * 4 + j) * 8, 8)]
            return pltpu.make_async_copy(source, buf.at[j % 2], sem.at[j % 2])

        get(0).start()
        o_ref[...] = jnp.zeros_like(o_ref)

        def block(state: Any) -> Any:
            j, _ = state
            get(j + 1).start()
            get(j).wait()
            o_ref[...] += buf[j % 2]
            return j + 1, o_ref[0, 0] > -100.0

        if how == "found":
            last, _ = lax.while_loop(lambda state: ~state[1], block, (0, False))
        else:
            length = (o_ref[0, 0] + 1).astype(jnp.int32)
            last = lax.fori_loop(0, length, lambda j, _: block((j, False))[0], 0)
        get(last).wait()

    return call(kernel, steps=4, slots=2)


def causal(x_hbm: Any, o_ref: Any, buf: Any, sem: Any) -> None:
    """Blocks above the diagonal are fetched, and not used."""
    o_ref[...] = jnp.zeros_like(o_ref)

    @pl.loop(0, 4)
    def _block(j: Any) -> None:
        copied(x_hbm, j * 8, buf, sem)

        @pl.when(j <= pl.program_id(0))
        def _add() -> None:
            o_ref[...] += buf[0]


def padded(x_hbm: Any, o_ref: Any, buf: Any, sem: Any) -> None:
    """Rows past the length are fetched, and zeros are put in their place."""
    i = pl.program_id(0)
    copied(x_hbm, i * 8, buf, sem)

    @pl.when(i >= 1)
    def _clear() -> None:
        buf[...] = jnp.zeros_like(buf)

    o_ref[...] = buf[0]


def repeated(x_hbm: Any, o_ref: Any, buf: Any, sem: Any) -> None:
    """The same data twice: a fetch that is not needed."""
    copied(x_hbm, 0, buf, sem)
    copied(x_hbm, 0, buf, sem)
    o_ref[...] = buf[0]


MEANT: dict[str, Callable[..., Any]] = {
    "each is read": total("read"),
    "one prefetch too many": prefetching(1, clamps=True),
    "a prefetch of the next row": prefetching(1, clamps=False),
    "prefetches of several blocks": prefetching(4, clamps=True),
    "blocks that a flag leaves out": flagged,
    "a search that ends early": until("found"),
    "a length": until("length"),
    "blocks above a diagonal": call(causal, steps=1),
    "rows past a length": call(padded, steps=4),
    "the same data": call(repeated),
}


@pytest.mark.parametrize("name", MEANT)
def test_copies_that_are_read_or_harmless(name: str) -> None:
    assert found(MEANT[name], X) == ()
