"""The user's line in exceptions that jax raises while tracing an invalid call."""

from __future__ import annotations

import jax
import pytest
from broken_kernels import BROKEN, BrokenKernel, JaxEngine, Reaction
from jax.experimental import pallas as pl

from pallas_debug.bridge.lowering import raised

TRACED = [k for k in BROKEN if k.expectation(JaxEngine.TRACE).reaction is Reaction.RAISES]


@pytest.mark.parametrize("kernel", TRACED, ids=lambda kernel: kernel.name)
def test_the_line_at_fault_is_named(kernel: BrokenKernel) -> None:
    with raised.with_all_frames(), pytest.raises(Exception) as error:  # of several classes
        jax.jit(kernel.function).trace(*kernel.args)
    assert jax.config.jax_traceback_filtering != "off"
    failure = raised.failure(error.value)
    assert failure.source is not None
    assert (failure.source.file, failure.source.line) == (kernel.file, kernel.line)
    assert failure.source.text is not None
    assert failure.source.text.endswith("# FAULT")
    assert failure.message == str(error.value)


def test_the_innermost_line_of_the_user_where_jax_was_at_no_equation() -> None:
    def helper() -> None:
        raise ValueError("of the user's own")

    with pytest.raises(ValueError) as error:
        helper()
    failure = raised.failure(error.value)
    assert failure.source is not None
    assert failure.source.function == "helper"
    assert failure.source.text == 'raise ValueError("of the user\'s own")'
    assert failure.type == "ValueError"


def test_a_block_that_the_caller_holds_is_not_blamed_for_what_is_wrong_in_the_kernel() -> None:
    def call(x: jax.Array) -> jax.Array:
        block = pl.BlockSpec((8, 128), lambda i: (i, 0))

        def body(x_ref: jax.Ref, o_ref: jax.Ref) -> None:
            o_ref[...] = x_ref[...].reshape(7)

        return pl.pallas_call(body, out_shape=x, grid=(2,), in_specs=[block], out_specs=block)(x)

    with raised.with_all_frames(), pytest.raises(TypeError) as error:
        jax.jit(call).trace(jax.ShapeDtypeStruct((16, 128), "float32"))
    failure = raised.failure(error.value)
    assert failure.source is not None
    assert failure.source.text == "o_ref[...] = x_ref[...].reshape(7)"
