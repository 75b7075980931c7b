"""Parts of outputs that no store reaches, known before the kernel runs, for every dtype."""

from __future__ import annotations

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
HBM = pl.BlockSpec(memory_space=pl.ANY)
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))


def array(*shape: int, dtype: Any = jnp.int32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def found(
    captures: Captures, kernel: Callable[..., None], shape: tuple[int, ...] = (32, 128), **more: Any
) -> tuple[Finding, ...]:
    def call(x: jax.Array) -> Any:
        return pl.pallas_call(kernel, out_shape=x, **more)(x)

    (captured,) = captures(call, (array(*shape),))
    return analyze(captured).findings


def one_of_three(x_ref: Any, o_ref: Any) -> None:
    def body(i: Any, _: None) -> None:
        o_ref[pl.ds(i * 3, 1), :] = x_ref[pl.ds(i * 3, 1), :]

    lax.fori_loop(0, 10, body, None)


def half_by_copy(x_ref: Any, o_ref: Any, sem: Any) -> None:
    copy = pltpu.make_async_copy(x_ref.at[pl.ds(0, 16)], o_ref.at[pl.ds(0, 16)], sem)
    copy.start()
    copy.wait()


def upper_rows(x_ref: Any, o_ref: Any) -> None:
    o_ref[0:6, :] = x_ref[0:6, :]


@pytest.mark.parametrize(
    "kernel, more, text, elements",
    [
        (one_of_three, {}, "o_ref[1:3, 0:128], o_ref[4:6, 0:128], o_ref[7:9, 0:128]", 2816),
        (
            half_by_copy,
            {
                "in_specs": [HBM],
                "out_specs": HBM,
                "scratch_shapes": [pltpu.SemaphoreType.DMA],
            },
            "o_ref[16:32, 0:128]",
            2048,
        ),
        (
            upper_rows,
            {"grid": (4,), "in_specs": [ROWS], "out_specs": ROWS},
            "o_ref[6:8, 0:128], o_ref[14:16, 0:128], o_ref[22:24, 0:128] and o_ref[30:32, 0:128]",
            1024,
        ),
    ],
    ids=["loop", "copy", "blocks"],
)
def test_a_part_that_no_store_reaches(
    captures: Captures, kernel: Callable[..., None], more: Any, text: str, elements: int
) -> None:
    (finding,) = found(captures, kernel, **more)
    assert finding.kind == "OutputNotWritten"
    assert finding.message.startswith(f"nothing writes {text}")
    assert finding.message.endswith(f" ({elements:,} of 4,096 elements)")
    assert finding.cause == "the stores and copies to o_ref do not reach it"
    assert finding.values == {"elements": f"{elements} of 4096"}
    assert finding.source is not None
    assert finding.source.file == __file__


def test_what_may_be_written_is_not_reported(captures: Captures) -> None:
    def at_a_value(x_ref: Any, o_ref: Any) -> None:
        o_ref[0:8, :] = x_ref[0:8, :]

        @pl.when(x_ref[0, 0] > 0)
        def _() -> None:
            o_ref[8:32, :] = x_ref[8:32, :]

    def at_an_index(x_ref: Any, o_ref: Any) -> None:
        o_ref[0:8, :] = x_ref[0:8, :]
        o_ref[pl.ds(x_ref[0, 0], 8), :] = x_ref[0:8, :]

    def in_steps(x_ref: Any, o_ref: Any) -> None:
        i = pl.program_id(0)
        o_ref[pl.ds(i * 8, 8), :] = x_ref[pl.ds(i * 8, 8), :]

    assert found(captures, at_a_value) == ()
    assert found(captures, at_an_index) == ()
    whole = pl.BlockSpec((32, 128), lambda i: (0, 0))
    assert found(captures, in_steps, grid=(4,), in_specs=[whole], out_specs=whole) == ()


def test_an_output_that_starts_with_an_input_is_whole(captures: Captures) -> None:
    assert found(captures, one_of_three, input_output_aliases={0: 0}) == ()


def test_padding_of_the_last_block_need_not_be_written(captures: Captures) -> None:
    def valid_rows(x_ref: Any, o_ref: Any) -> None:
        @pl.when(pl.program_id(0) < 2)
        def _() -> None:
            o_ref[...] = x_ref[...]

        o_ref[0:4, :] = x_ref[0:4, :]

    more = {"grid": (3,), "in_specs": [ROWS], "out_specs": ROWS}
    assert found(captures, valid_rows, (20, 128), **more) == ()
