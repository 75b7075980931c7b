"""Static analysis of kernels that each TensorCore of a mesh runs once: `pl.kernel`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from analysis_runs import F32, Captures, S, kinds
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from meshes import tensorcore_mesh

from pallas_debug.analysis import Analysis, analyze
from pallas_debug.compiler.targets import resolve
from pallas_debug.model import Finding

X, TOTAL = S((64, 128), F32), S((2, 8, 128), F32)
STEPS = 4


def scaled(
    *, reads: Callable[..., Any] = lambda core, i: core * STEPS + i,
    writes: Callable[..., Any] = lambda core, i: core * STEPS + i,
    totals: Callable[..., Any] = lambda core: core, scratch: int = 8,
) -> Callable[..., Any]:  # fmt: skip
    """Each of two cores doubles half of the blocks of rows, and adds them up."""

    def double(x_ref: Any, o_ref: Any, t_ref: Any, rows: Any, total: Any) -> None:
        core = jax.lax.axis_index("core")
        total[...] = jnp.zeros_like(total)

        @pl.loop(0, STEPS)
        def _step(i: Any) -> None:
            pltpu.sync_copy(x_ref.at[pl.ds(reads(core, i) * 8, 8)], rows)
            total[0:8] += rows[...]
            rows[...] *= 2
            pltpu.sync_copy(rows, o_ref.at[pl.ds(writes(core, i) * 8, 8)])

        pltpu.sync_copy(total.at[0:8], t_ref.at[totals(core)])

    def call(x: Any) -> Any:
        scratch_types = [pltpu.VMEM((8, 128), F32), pltpu.VMEM((scratch, 128), F32)]
        mesh = tensorcore_mesh(2)
        return pl.kernel(double, out_type=[X, TOTAL], mesh=mesh, scratch_types=scratch_types)(x)

    return call


def judged(captures: Captures, call: Callable[..., Any], *args: Any) -> Analysis:
    (captured,) = captures(call, args or (X,))
    return analyze(captured, [resolve("v5e")])


def only(found: Analysis) -> Finding:
    (finding,) = found.findings
    return finding


def test_a_kernel_on_two_cores(captures: Captures) -> None:
    assert judged(captures, scaled()) == Analysis(memory=judged(captures, scaled()).memory)


@pytest.mark.parametrize(
    "slip, kind, line, text",
    [
        (
            {"writes": lambda core, i: i},
            "OutputNotWritten",
            "pltpu.sync_copy(rows, o_ref.at[pl.ds(writes(core, i) * 8, 8)])",
            "nothing writes o_ref[32:64, 0:128]",
        ),
        (
            {"totals": lambda core: 0},
            "OutputNotWritten",
            "pltpu.sync_copy(total.at[0:8], t_ref.at[totals(core)])",
            "nothing writes t_ref[1:2, 0:8, 0:128]",
        ),
        (
            {"reads": lambda core, i: core + i * STEPS},
            "OutOfBoundsRead",
            "pltpu.sync_copy(x_ref.at[pl.ds(reads(core, i) * 8, 8)], rows)",
            "x_ref[64:72, 0:128] reaches 8 past the end of dimension 0",
        ),
        (
            {"scratch": 1 << 18},
            "VmemOverflow",
            "def double(x_ref: Any, o_ref: Any, t_ref: Any, rows: Any, total: Any) -> None:",
            "total float32[262144, 128]",
        ),
    ],
)  # fmt: skip
def test_slips(captures: Captures, slip: dict[str, Any], kind: str, line: str, text: str) -> None:
    found = only(judged(captures, scaled(**slip)))
    assert (found.kind, found.witness.source and found.witness.source.text) == (kind, line)
    assert text in f"{found.message}: {found.cause}"


@pytest.mark.parametrize("written", [True, False])
def test_a_reference_that_a_core_allocates(captures: Captures, written: bool) -> None:
    def copy_twice(x_ref: Any, o_ref: Any) -> None:
        core = jax.lax.axis_index("core")
        rows = jax.empty_ref(S((8, 128), F32), memory_space=pltpu.VMEM)
        pltpu.sync_copy(x_ref.at[pl.ds(core * 8, 8)], rows)
        if written:
            pltpu.sync_copy(rows, o_ref.at[pl.ds(core * 8, 8)])

    def call(x: Any) -> Any:
        return pl.kernel(copy_twice, out_type=S((16, 128), F32), mesh=tensorcore_mesh(2))(x)

    found = judged(captures, call, S((16, 128), F32))
    assert kinds(found) == ([] if written else ["OutputNotWritten"])
    assert not found.gaps
