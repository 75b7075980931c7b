"""Where a kernel seeds the generator of random bits, and with what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from called import called
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from machine_runs import passed

import pallas_debug
from pallas_debug.machine import run
from pallas_debug.machine.sanitizer import areas
from pallas_debug.model import Finding, Hint

ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))
X = np.ones((32, 128), np.float32)


def drop(x_ref: Any, out_ref: Any) -> None:
    bits = pltpu.prng_random_bits(x_ref.shape)  # DRAWN
    out_ref[...] = jnp.where(bits > 0, 2 * x_ref[...], 0.0)


def unseeded(x_ref: Any, out_ref: Any) -> None:
    drop(x_ref, out_ref)


def seeded_once(x_ref: Any, out_ref: Any) -> None:
    @pl.when(pl.program_id(0) == 0)
    def _() -> None:
        pltpu.prng_seed(7)  # SEEDED

    drop(x_ref, out_ref)


def seeded_alike(x_ref: Any, out_ref: Any) -> None:
    pltpu.prng_seed(7)
    drop(x_ref, out_ref)


def seeded_by_point(x_ref: Any, out_ref: Any) -> None:
    pltpu.prng_seed(7, pl.program_id(0))
    drop(x_ref, out_ref)


def seeded_late(x_ref: Any, out_ref: Any) -> None:
    @pl.when(pl.program_id(0) == 2)
    def _() -> None:
        pltpu.prng_seed(7)

    drop(x_ref, out_ref)


def hints(function: Callable[..., Any]) -> list[Hint]:
    """Hints that the sanitizer gives for a kernel in which it finds no fault."""
    call, arrays = passed(function, [X])
    ran = run.run(call, arrays, observers=areas.observers(call, arrays))
    assert not ran.findings
    return list(ran.hints)


def call(kernel: Callable[..., None], *, parallel: bool = False) -> Callable[..., Any]:
    semantics = ("parallel" if parallel else "arbitrary",)
    params = pltpu.CompilerParams(dimension_semantics=semantics)
    return called(grid=(4,), block=ROWS, compiler_params=params)(kernel)


def findings(kernel: Callable[..., None], *, parallel: bool = False) -> list[Finding]:
    report, _ = pallas_debug.check(call(kernel, parallel=parallel), sanitize=True)(X)
    assert report.not_checked == ()
    return list(report.findings)


def test_bits_that_nothing_has_seeded() -> None:
    (found,) = findings(unseeded)
    assert (found.kind, found.grid_point, found.count) == ("UnseededRandomBits", (0,), 4)
    assert "# DRAWN" in (found.source.text or "")
    assert found.message == ("random bits are drawn before the generator of this core is seeded")
    assert found.counts


def test_bits_that_are_drawn_before_the_seed() -> None:
    (found,) = findings(seeded_late)
    assert (found.kind, found.count) == ("UnseededRandomBits", 2)
    assert "seeded at grid point (2,)" in found.message.splitlines()
    assert found.other is not None


def test_a_seed_at_the_first_point_of_a_parallel_axis() -> None:
    assert findings(seeded_once) == []  # one core runs all of it, in order
    (found,) = findings(seeded_once, parallel=True)
    assert (found.kind, found.grid_point) == ("UnseededRandomBits", (1,))
    assert "# SEEDED" in (found.other.text or "")
    assert found.message == (
        "random bits are drawn from a generator that may be another core's\n"
        "seeded at grid point (0,)"
    )
    assert found.cause == (
        "grid dimension 0 is parallel: two cores may share it, each with a generator"
    )
    assert found.advice == (
        "seed at each grid point: pltpu.prng_seed(seed, pl.program_id(0)); or make grid "
        'dimension 0 "arbitrary"'
    )


@pytest.mark.parametrize("parallel", [False, True])
def test_a_seed_for_all_points(parallel: bool) -> None:
    assert hints(call(seeded_by_point, parallel=parallel)) == []
    (hint,) = hints(call(seeded_alike, parallel=parallel))
    assert (hint.kind, hint.grid_point) == ("same random bits", (0,))
    assert hint.message == ("all 4 draws return the same bits: the seed is 7 each time")
    assert "# DRAWN" in (hint.source.text or "")


def test_the_axes_of_vmap_share_a_seed() -> None:
    alike = called(block=pl.BlockSpec((8, 128), lambda: (0, 0)))(seeded_alike)
    assert hints(lambda x: jax.vmap(alike)(x.reshape(4, 8, 128))) == []


def test_a_seed_for_all_iterations() -> None:
    @called()
    def kernel(x_ref: Any, out_ref: Any) -> None:
        def body(i: Any, _: None) -> None:
            pltpu.prng_seed(7)
            rows = pl.ds(i * 8, 8)
            drop(x_ref.at[rows], out_ref.at[rows])

        lax.fori_loop(0, 4, body, None)

    (hint,) = hints(kernel)
    assert hint.message.endswith("the seed is 7 each time")
