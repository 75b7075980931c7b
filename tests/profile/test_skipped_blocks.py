"""Promises of larger blocks where tables say which blocks are skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import pallas_debug
from pallas_debug.profile.advice.collect import subject_of
from pallas_debug.profile.advice.pipelines import enlarged, idle_bundles
from pallas_debug.profile.advice.rules.copying.small_blocks import _latency
from pallas_debug.profile.advice.skips import has_skips, stepped
from pallas_debug.profile.stats import Profile
from pallas_debug.store import open_dumps
from pallas_debug.store.profiles import read_profile

LENGTHS = np.array([[500], [2048], [1000], [1]], np.int32)


def decoded(lengths: Any, q: jax.Array, k: jax.Array, *, rows: int) -> jax.Array:
    """Sum over the first keys of each sequence; steps behind the last block do nothing."""

    def index(b: Any, h: Any, i: Any, lengths: Any) -> tuple[Any, ...]:
        return b, h, jnp.minimum(i, last_block(lengths[b, 0])), 0

    def last_block(length: Any) -> Any:
        return (length - 1) // rows

    def kernel(lengths_ref: Any, q_ref: Any, k_ref: Any, out_ref: Any) -> None:
        b, i = pl.program_id(0), pl.program_id(2)

        @pl.when(i == 0)
        def _start() -> None:
            out_ref[...] = jnp.zeros_like(out_ref)

        @pl.when(i * rows < lengths_ref[b, 0])
        def _add() -> None:
            scores = jnp.dot(q_ref[0, 0], k_ref[0, 0].T, preferred_element_type=jnp.float32)
            out = jnp.dot(scores.astype(k.dtype), k_ref[0, 0], preferred_element_type=jnp.float32)
            out_ref[0, 0] += out

    batch, heads, keys, width = k.shape
    of_queries = pl.BlockSpec((1, 1, 8, width), lambda b, h, i, _: (b, h, 0, 0))
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((batch, heads, 8, width), jnp.float32),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(batch, heads, keys // rows),
            in_specs=[of_queries, pl.BlockSpec((1, 1, rows, width), index)],
            out_specs=of_queries,
        ),
    )(lengths, q, k)


def profiled(rows: int, to: Path) -> Profile:
    q, k = (jax.ShapeDtypeStruct((4, 8, n, 128), jnp.bfloat16) for n in (8, 2048))
    (dump,) = pallas_debug.dump(
        decoded, LENGTHS, q, k, rows=rows, targets="v5e", to=to, stages="bundles"
    )
    stored = open_dumps(to).find(dump.name)
    found = read_profile(stored, stored.target("v5e"))
    assert found is not None
    return found.profile


@pytest.mark.slow
def test_steps_that_skip_blocks_do_not_hide_the_copies_of_others(tmp_path: Path) -> None:
    small, large = (profiled(rows, tmp_path) for rows in (512, 1024))
    subject = subject_of(small)
    assert subject is not None
    assert subject.blocks is not None
    assert has_skips(subject.blocks)
    idle = idle_bundles(subject, subject.core_points)
    latency = _latency(subject, idle)
    assert latency is not None
    found = []
    for factor in (1, 2):
        cost = enlarged(subject, subject.blocks, {2: factor}, 0.0)
        assert cost is not None
        found.append(stepped(subject, subject.blocks, cost, idle, latency.cycles))
    for cost, profile in zip(found, (small, large), strict=True):
        assert cost is not None
        assert cost.cycles == pytest.approx(profile.cycles.total.value, rel=0.05)
    # Of two sequences, half of the larger block is fetched for nothing.
    assert found[0] is not None
    assert found[1] is not None
    assert found[1].moved > 1.2 * found[0].moved
    assert "small-blocks" not in [advice.kind for advice in small.stats.advice]


def grouped(groups: Any, x: jax.Array, w: jax.Array) -> jax.Array:
    """Products of blocks of rows by the weights of their group, which a table lists."""

    def kernel(groups_ref: Any, x_ref: Any, w_ref: Any, out_ref: Any) -> None:
        weights = w_ref[groups_ref[pl.program_id(0)]]
        out_ref[...] = jnp.dot(x_ref[...], weights, preferred_element_type=jnp.float32)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((x.shape[0], w.shape[2]), jnp.float32),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(x.shape[0] // 128,),
            in_specs=[
                pl.BlockSpec((128, x.shape[1]), lambda i, _: (i, 0)),
                pl.BlockSpec(w.shape, lambda i, _: (0, 0, 0)),
            ],
            out_specs=pl.BlockSpec((128, w.shape[2]), lambda i, _: (i, 0)),
        ),
    )(groups, x, w)


@pytest.mark.slow
def test_blocks_of_groups_that_a_table_lists_are_not_enlarged() -> None:
    groups = np.arange(16, dtype=np.int32) // 2
    x, w = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((2048, 256), (8, 256, 256)))
    stats = pallas_debug.stats(grouped, groups, x, w, target="v5e", estimate=False)
    assert stats.traffic.bound in ("memory", "latency")
    assert stats.advice == ()
