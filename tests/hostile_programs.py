"""A program as `dump` writes one, and variations of it that no one should run."""

from __future__ import annotations

from typing import Any

from pallas_debug.compiler import targets
from pallas_debug.model import Compilation, Failure, Kernel
from pallas_debug.reproduce.recorded import Recorded

CANARY = "canary"

HEAD = """\
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
"""

BODY = """
ARGUMENTS = [
    jax.ShapeDtypeStruct((8, 128), jnp.float32),  # x_ref
]
AXES = {}
ENABLE_X64 = False


def double(x_ref, o_ref):
    v1 = x_ref[...]  # f32[8,128]
    v2 = lax.cumsum(v1, axis=0, reverse=False)  # f32[8,128]
    o_ref[...] = v2


def call(*args):
    return pl.pallas_call(
        double,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=0,
            grid=(1,),
            in_specs=[
                pl.BlockSpec((8, 128), lambda i0: (i0, 0)),  # x_ref
            ],
            out_specs=[
                pl.BlockSpec((8, 128), lambda i0: (i0, 0)),  # o_ref
            ],
            scratch_shapes=[],
        ),
        out_shape=[
            jax.ShapeDtypeStruct((8, 128), jnp.float32),  # o_ref
        ],
    )(*args)
"""

PROGRAM = HEAD + BODY
WRITE = f"open({CANARY!r}, 'w')"


def in_kernel(*lines: str) -> str:
    """The program with these lines in its kernel."""
    inner = "".join(f"    {line}\n" for line in lines)
    return PROGRAM.replace("    o_ref[...] = v2\n", inner + "    o_ref[...] = v2\n")


def at_top(*lines: str) -> str:
    return HEAD + "".join(f"{line}\n" for line in lines) + BODY


def with_option(option: str) -> str:
    return PROGRAM.replace("    )(*args)", f"        {option},\n    )(*args)")


def of(program: str | None = PROGRAM, **given: Any) -> Recorded:
    """What a hostile dump holds."""
    kernel = Kernel(name="double", digest="0" * 64, primitive="pallas_call")
    compilation = Compilation(
        kernel="double", target="v5e", status="failed", key="",
        failure=Failure(stage="lowering", type="A", message="b"), versions={"jax": "0.10.2"},
    )  # fmt: skip
    target = targets.resolve("v5e")
    return Recorded(
        **{
            "kernel": kernel,
            "target": target,
            "topology": target.topology or "",
            "num_devices": 1,
            "program": program,
            "why_no_program": "",
            "stablehlo": "module {}",
            "compilation": compilation,
            **given,
        }
    )
