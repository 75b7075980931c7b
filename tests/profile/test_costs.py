"""Costs by line, class and reason: they sum up to the estimate, and name where cycles go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from called import called
from jax.experimental import pallas as pl
from pallas_debug_kernels import operations
from pallas_debug_kernels.registry import BundledOperation

import pallas_debug
from pallas_debug.compiler import targets
from pallas_debug.profile.stats import Profile, ScheduleTexts
from pallas_debug.profile.text import lines_of
from pallas_debug.store import open_dumps
from pallas_debug.store.profiles import read_profile

QUICK = ("matmul", "softmax")


def profiles(function: Any, args: Any, to: Path) -> list[Profile]:
    names = ",".join(t.name for t in targets.BUILTIN)
    pallas_debug.dump(function, *args, targets=names, to=to)
    read = [read_profile(k, c) for k in open_dumps(to).kernels() for c in k.compilations]
    return [found.profile for found in read if found is not None]


@pytest.mark.slow
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
        shares = {c.source.place: c.own_share for c in profile.lines if c.own_share}
        cube = {s.place: c.total / profile.costs.total for s, c in profile.costs.lines()}
        assert shares == pytest.approx(cube)
        assert 1 <= len(profile.bottleneck) <= 4
        assert sum(part.share for part in profile.bottleneck) == pytest.approx(1)
        hottest = {line.source.place: line.share for line in profile.hottest}
        assert hottest.items() <= cube.items()


@pytest.mark.slow
@pytest.mark.parametrize("declared", [False, True])
def test_work_is_counted_where_no_cost_is_declared(declared: bool, tmp_path: Path) -> None:
    estimate = pl.CostEstimate(flops=1, transcendentals=2, bytes_accessed=3) if declared else None

    block = pl.BlockSpec((128, 128), lambda i: (i, 0))
    whole = pl.BlockSpec((128, 128), lambda i: (0, 0))

    @called(like=0, grid=(8,), in_specs=[block, whole], out_specs=block, cost_estimate=estimate)
    def product(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.exp(jnp.dot(x_ref[...], y_ref[...]))

    args = [jax.ShapeDtypeStruct((rows, 128), jnp.float32) for rows in (1024, 128)]
    for profile in profiles(product, args, tmp_path):
        counted = profile.stats.cost_estimate
        shown = "\n".join(lines_of(profile.stats))
        assert (counted is None) == declared == ("pl.CostEstimate(" not in shown)
        if counted is None:
            continue
        if profile.cycles.core_steps.value != 8:
            assert set(counted.missing) == {"flops", "transcendentals", "bytes_accessed"}
            continue
        cut = (profile.texts.bundles or "")[:-200]
        damaged = replace(profile, texts=replace(profile.texts, bundles=cut))
        assert damaged.stats.cost_estimate is None
        assert counted.transcendentals.value == 1024 * 128
        assert counted.bytes_accessed.value == (2 * 1024 + 128) * 128 * 4
        assert 2 * 1024 * 128 * 128 <= counted.flops.value < 2.2 * 1024 * 128 * 128
        numbers = ", ".join(f"{name}={f.value}" for name, f in counted.figures.items())
        assert f"\n  cost_estimate=pl.CostEstimate({numbers})" in shown


def test_a_damaged_listing_has_no_costs() -> None:
    empty = Profile(texts=ScheduleTexts(bundles=""), kernel=None, compilation=None)
    assert (empty.costs.cells, empty.bottleneck, empty.hottest) == ((), (), ())
