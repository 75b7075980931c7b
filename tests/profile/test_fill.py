"""Share of a register that holds data, for shapes that fill it and for others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

import pallas_debug
from pallas_debug.ir.bundles import Instruction
from pallas_debug.profile.costs import FILLED
from pallas_debug.profile.fill import RegisterFill
from pallas_debug.profile.stats import Profile
from pallas_debug.store import open_dumps
from pallas_debug.store.profiles import read_profile

F32, BF16 = jnp.float32, jnp.bfloat16


def compiled(kernel: Any, shape: tuple[int, ...], dtype: Any, to: Path) -> Profile:
    x = jax.ShapeDtypeStruct(shape, dtype)
    called = pl.pallas_call(kernel, out_shape=x)
    (dump,) = pallas_debug.dump(called, x, targets="v6e", to=to)
    found = read_profile(stored := open_dumps(to).find(dump.name), stored.target("v6e"))
    assert found is not None
    return found.profile


@pytest.mark.parametrize(
    "shape, dtype, fill",
    [
        ((64, 128), F32, 1.0),
        ((64, 32), F32, 0.25),
        ((5, 256), F32, 5 / 8),
        ((3, 8, 64), F32, 0.5),
        ((64, 1), F32, 1 / 128),
        ((16, 64), BF16, 0.25),  # two tiles of 8 rows to a register, side by side
        ((32, 256), BF16, 1.0),
    ],
)
def test_element_wise_work(shape: tuple[int, ...], dtype: Any, fill: float, tmp_path: Path) -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        x = x_ref[...]
        o_ref[...] = x * x + x

    profile = compiled(kernel, shape, dtype, tmp_path)
    fills = {cell.fill for cell in profile.costs.cells if cell.kind in FILLED and cell.source}
    assert fills == {fill}
    assert round(profile.costs.total) == profile.cycles.total.value


def test_reductions_and_broadcasts_are_not_judged(tmp_path: Path) -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.broadcast_to(jnp.sum(x_ref[...], axis=1, keepdims=True), (64, 128))

    profile = compiled(kernel, (64, 128), F32, tmp_path)
    assert {c.fill for c in profile.costs.cells if c.kind not in ("load", "store")} == {None}


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        '  %1 = arith.addf %0, %0 {in_layout = [#tpu.vpad<"32,{0,0},(8,128)">]} : vector<?x8xf32>',
        '  %1 = arith.addf %0, %0 {in_layout = [#tpu.vpad<"0,{0,0},(0,0)">]} : vector<8x8xf32>',
        '  %1 = arith.addf %0, %0 {in_layout = [#tpu.vpad<"',
    ],
)
def test_a_text_that_says_nothing(text: str | None) -> None:
    location = 'loc("k.py":1:2 to :3)'
    instruction = Instruction(
        opcode="vadd.f32",
        results=("%v1",),
        operands=(),
        text="",
        locations=('"k.py":1:2 to :3',),
        remarks=(),
    )
    fill = RegisterFill(text=f"{text} {location}" if text else text)
    assert fill.of(instruction) is None
