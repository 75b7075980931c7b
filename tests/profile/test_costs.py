"""Costs by line, class and reason: they sum up to the estimate, and name where cycles go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from pallas_debug_kernels import operations
from pallas_debug_kernels.registry import BundledOperation

import pallas_debug
from pallas_debug.compiler import targets
from pallas_debug.profile.stats import Profile
from pallas_debug.store import open_dumps
from pallas_debug.store.profiles import read_profile

QUICK = ("matmul", "softmax")


def profiles(function: Any, args: Any, to: Path) -> list[Profile]:
    names = ",".join(t.name for t in targets.BUILTIN)
    pallas_debug.dump(function, *args, targets=names, to=to, stages="bundles")
    read = [read_profile(k, c) for k in open_dumps(to).kernels() for c in k.compilations]
    return [found.profile for found in read if found is not None]


@pytest.mark.parametrize(
    "operation",
    [
        pytest.param(o, id=o.name, marks=() if o.name in QUICK else pytest.mark.slow)
        for o in operations()
    ],
)
def test_cells_sum_up_to_the_estimate(operation: BundledOperation, tmp_path: Path) -> None:
    spec = operation.specs[0]
    args = [spec.values.get(i, arg) for i, arg in enumerate(spec.args)]

    def call(*args: Any) -> Any:
        return operation.function(*args, **spec.kwargs)

    found = profiles(call, args, tmp_path)
    assert found
    for profile in found:
        total = profile.cycles.total.value
        assert total is None or round(profile.costs.total) == total
        waiting = profile.cycles.waiting.value
        assert waiting is None or round(profile.costs.where(reason="copy").total) == waiting
        by_line = sum(costs.total for _, costs in profile.costs.lines())
        assert by_line <= profile.costs.total + 1e-6
        assert 1 <= len(profile.bottleneck) <= 5


def test_a_grid_of_unknown_size_has_shares_per_iteration(tmp_path: Path) -> None:
    from jax.experimental import pallas as pl

    def added(n: jax.Array, x: jax.Array) -> jax.Array:
        def kernel(x_ref: Any, o_ref: Any) -> None:
            o_ref[...] = x_ref[...] + 1.0

        block = pl.BlockSpec((8, 128), lambda i: (i, 0))
        return pl.pallas_call(kernel, grid=(n,), in_specs=[block], out_specs=block, out_shape=x)(x)

    args = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((64, 128), jnp.float32)
    for profile in profiles(added, args, tmp_path):
        assert profile.cycles.total.formula
        head, *rest = profile.bottleneck
        assert "waiting for copies, of " in head
        assert "n cycles, per iteration" in head
        assert rest


def test_a_damaged_listing_has_no_costs() -> None:
    from pallas_debug.profile.stats import ScheduleTexts

    empty = Profile(texts=ScheduleTexts(bundles=""), kernel=None, compilation=None)
    assert (empty.costs.cells, empty.bottleneck) == ((), ())
