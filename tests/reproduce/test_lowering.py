"""Lowering of scripts in a confined child: its replies, and recovery when there is none."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from pallas_debug.compiler import targets
from pallas_debug.errors import CannotRunError
from pallas_debug.model import Failure, Kernel
from pallas_debug.reproduce.recorded import Recorded
from pallas_debug.reproduce.script import script_of
from pallas_debug.reproduce.shrinking.lowering import LOST, Lowerer

PROGRAM = """\
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

ARGUMENTS = [
    jax.ShapeDtypeStruct((8, 128), jnp.float32),  # x_ref
]
AXES = {}
ENABLE_X64 = False


def double(x_ref, o_ref):
    v1 = x_ref[...]  # f32[8,128]
    v2 = lax.exp(v1)  # f32[8,128]
    pl.debug_print('a  # b')
    o_ref[...] = v2


def call(*args):
    return pl.pallas_call(
        double,
        out_shape=[
            jax.ShapeDtypeStruct((8, 128), jnp.float32),  # o_ref
        ],
    )(*args)
"""


def script(program: str = PROGRAM) -> str:
    target = targets.resolve("v5e")
    return script_of(
        Recorded(
            kernel=Kernel(name="double", digest="0" * 64, primitive="pallas_call"),
            target=target,
            topology=target.topology or "",
            num_devices=1,
            program=program,
            why_no_program="",
            stablehlo=None,
            compilation=None,
        )
    )


@pytest.fixture(scope="module")
def lowerer() -> Iterator[Lowerer]:
    with Lowerer(seconds=120) as lowerer:
        yield lowerer


def test_a_module_or_a_failure(lowerer: Lowerer) -> None:
    module = lowerer.lower(script(), seconds=60)
    assert isinstance(module, bytes)
    assert module.startswith(b"ML\xefR")  # bytecode of MLIR
    failed = lowerer.lower(
        script(PROGRAM.replace("lax.exp(v1)", "lax.cumsum(v1, axis=0)")), seconds=60
    )
    assert isinstance(failed, Failure)
    assert failed.stage == "lowering"
    assert failed.message.startswith(
        "Unimplemented primitive in Pallas TPU lowering for tc: cumsum"
    )
    with pytest.raises(CannotRunError, match="the script is not run: "):
        lowerer.lower("import os\nos.abort()\n", seconds=60)


@pytest.mark.slow
def test_a_child_that_dies_is_replaced(lowerer: Lowerer) -> None:
    assert lowerer._child is not None
    os.kill(lowerer._child.process.pid, signal.SIGKILL)
    lost = Failure(stage="lowering", type="crash", message=LOST)
    assert lowerer.lower(script(), seconds=60) == lost
    assert isinstance(lowerer.lower(script(), seconds=60), bytes)
    assert lowerer.lower(script(), seconds=0) == lost  # in no time
