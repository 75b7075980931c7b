"""Names of what `emit_pipeline` allocates."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.bridge.jaxcompat import opened
from pallas_debug.bridge.jaxprs.nested import equations
from pallas_debug.bridge.lowering import hook
from pallas_debug.session import Options, Session

ANY = pl.BlockSpec(memory_space=pl.ANY)
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))
X = jax.ShapeDtypeStruct((32, 128), jnp.float32)


def names(kernel: Any, inputs: int, scratch: list[Any] | None = None) -> list[str]:
    """Names of all buffers that `run_scoped` makes in a kernel."""
    session = Session(Options(chip="v5e", interpret="off"))
    call = pl.pallas_call(
        kernel, in_specs=[ANY] * inputs, out_specs=ANY, out_shape=X, scratch_shapes=scratch or []
    )
    with session, session.collecting() as captures, hook.stubbed():
        jax.jit(call).lower(*[X] * inputs)
    (captured,) = captures
    scopes = (e for e in equations(captured.params["jaxpr"]) if e.primitive.name == "run_scoped")
    return [n for e in scopes for n in opened(e.params["jaxpr"])[0].debug_info.arg_names]


def windows(kernel: Any, inputs: int, scratch: list[Any] | None = None) -> list[str]:
    return [name for name in names(kernel, inputs, scratch) if name.endswith(".window_ref")]


@pytest.mark.parametrize("in_a_loop", [False, True])
def test_windows_have_the_names_of_their_arrays(in_a_loop: bool) -> None:
    def double(a_ref: Any, b_ref: Any) -> None:
        b_ref[...] = a_ref[...] * 2

    def kernel(x_hbm: Any, o_hbm: Any) -> None:
        pipeline = pltpu.emit_pipeline(double, grid=(4,), in_specs=[ROWS], out_specs=[ROWS])
        if in_a_loop:
            jax.lax.fori_loop(0, 2, lambda _, state: pipeline(x_hbm, o_hbm) or state, 0)
        else:
            pipeline(x_hbm, o_hbm)

    assert windows(kernel, 1) == ["x_hbm.window_ref", "o_hbm.window_ref"]
    others = {name.split(".")[0] for name in names(kernel, 1)}
    assert others == {"x_hbm", "o_hbm"}


def test_what_the_body_copies_names_no_window() -> None:
    """The window of `o_hbm` is filled by a copy from `y_hbm`, which is no array of the pipeline."""

    def kernel(x_hbm: Any, y_hbm: Any, o_hbm: Any, sem: Any) -> None:
        def fill(a_ref: Any, b_ref: Any) -> None:
            copy = pltpu.make_async_copy(y_hbm.at[pl.ds(0, 8)], b_ref, sem)
            copy.start()
            copy.wait()
            b_ref[...] += a_ref[...]

        pltpu.emit_pipeline(fill, grid=(4,), in_specs=[ROWS], out_specs=[ROWS])(x_hbm, o_hbm)

    found = windows(kernel, 2, [pltpu.SemaphoreType.DMA])
    assert found == ["x_hbm.window_ref", "o_hbm.window_ref"]
