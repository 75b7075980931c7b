"""A kernel's use of on-chip memory: its parts and the verdicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from broken_kernels import BROKEN
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.analysis import MemoryPart, analyze
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.compiler.targets import BUILTIN, resolve
from pallas_debug.model import Target

F32 = jnp.float32
S = jax.ShapeDtypeStruct
Captures = Callable[..., list[Capture]]
KIB, MIB = 1 << 10, 1 << 20


def kernel(table_ref: Any, x_ref: Any, y_ref: Any, out_ref: Any, *scratch: Any) -> None:
    out_ref[...] = x_ref[...]


def everything(table: Any, x: Any, y: Any) -> Any:
    rows = pl.BlockSpec((8, 256), lambda i, table: (i, 0))
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(4,),
        in_specs=[
            pl.BlockSpec((8, 256), lambda i, table: (i, 0), pipeline_mode=pl.Buffered(1)),
            pl.BlockSpec((8, 100), lambda i, table: (0, 0)),
        ],
        out_specs=rows,
        scratch_shapes=[
            pltpu.VMEM((3, 4, 100), F32),
            pltpu.SMEM((16,), jnp.int32),
            pltpu.SemaphoreType.DMA,
        ],
    )
    return pl.pallas_call(kernel, out_shape=S((32, 256), F32), grid_spec=spec)(table, x, y)


def test_the_parts(captures: Captures) -> None:
    args = (S((128,), jnp.int32), S((32, 256), F32), S((16, 100), F32))
    (captured,) = captures(everything, args)
    (use,) = analyze(captured, [resolve("v5e")]).memory
    assert [(p.operand, p.buffers, p.bytes) for p in use.parts] == [
        ("out_ref", 2, 2 * 8 * 256 * 4),
        ("x_ref", 1, 8 * 256 * 4),  # as it asked for
        ("scratch[0]", 1, 3 * 4 * 128 * 4),  # 100 lanes fill 128
        ("y_ref", 1, 8 * 128 * 4),  # its block stays the same
        ("table_ref", 1, 512),
        ("scratch[1]", 1, 64),
    ]
    assert use.parts[0] == MemoryPart(
        operand="out_ref",
        kind="output",
        space="vmem",
        shape="float32[8, 256]",
        buffers=2,
        bytes=16 * KIB,
    )
    assert (use.target, use.vmem, use.smem) == ("v5e", 34 * KIB, 576)
    assert (use.vmem_limit, use.vmem_capacity, use.smem_capacity) == (16 * MIB, 128 * MIB, MIB)


def test_an_unknown_chip_is_said(captures: Captures) -> None:
    (broken,) = [b for b in BROKEN if b.name == "whole_arrays"]
    (captured,) = captures(broken.function, broken.args)
    new = Target(name="v9", topology="v9:2x2", device_kind="TPU v9")
    analysis = analyze(captured, [new])
    assert analysis.memory == ()
    assert tuple(gap.reason for gap in analysis.gaps) == (
        "memory on v9: the amount that TPU v9 has is unknown",
    )


@pytest.mark.parametrize("target", BUILTIN, ids=lambda target: target.name)
@pytest.mark.parametrize("name", [b.name for b in BROKEN if b.topic == "memory"])
def test_the_verdict_on_each_chip_is_the_compilers(
    captures: Captures, name: str, target: Target
) -> None:
    (broken,) = [b for b in BROKEN if b.name == name]
    refusal = broken.refusal(target.name)
    if refusal is None and target.name not in broken.targets:
        pytest.skip("what the compiler says on it was not recorded")
    (captured,) = captures(broken.function, broken.args)
    assert bool(analyze(captured, [target]).findings) == (refusal is not None)


def limited(shape: tuple[int, ...], block: tuple[int, ...], limit: int | None = None) -> Any:
    def copy(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...]

    def run(x: Any) -> Any:
        rows = pl.BlockSpec(block, lambda i: (i, *[0] * (len(block) - 1)))
        return pl.pallas_call(
            copy, out_shape=x, grid=(shape[0] // block[0],), in_specs=[rows], out_specs=rows,
            compiler_params=pltpu.CompilerParams(vmem_limit_bytes=limit),
        )(x)  # fmt: skip

    return run, (S(shape, F32),)


def test_a_limit_that_the_kernel_asks_for_counts(captures: Captures) -> None:
    (more,) = captures(*limited((2048, 4096), (512, 4096), 40 * MIB))
    assert analyze(more, [resolve("v5e")]).findings == ()
    (less,) = captures(*limited((2048, 4096), (64, 4096), MIB))
    (finding,) = analyze(less, [resolve("v5e")]).findings
    assert finding.message == "the kernel needs at least 4 MiB of VMEM, the limit is 1 MiB on v5e"
    assert finding.cause == (
        "x_ref 2 x float32[64, 4096] (2 MiB) and out_ref 2 x float32[64, 4096] (2 MiB)"
    )
    assert "raise the limit" in (finding.advice or "")


def test_a_chip_that_has_too_little(captures: Captures) -> None:
    (captured,) = captures(*limited((16, 5_000_001), (8, 5_000_001)))
    (finding,) = analyze(captured, [resolve("v5e")]).findings
    assert finding.kind == "VmemOverflow"
    assert (finding.advice or "").startswith("tile the largest operands further")
