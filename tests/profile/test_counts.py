"""Counts known only at run time: formulas, and numbers with values that the caller assumes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from called import called
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import pallas_debug
from pallas_debug.errors import UsageError
from pallas_debug.profile.counts import parse_counts
from pallas_debug.profile.stats import Profile
from pallas_debug.profile.text import lines_of

Compiled = Callable[..., Profile]
SIZE = jax.ShapeDtypeStruct((), jnp.int32)
COUNTS = jax.ShapeDtypeStruct((3,), jnp.int32)
ROWS = jax.ShapeDtypeStruct((64, 512), jnp.float32)
SMEM = pl.BlockSpec(memory_space=pltpu.SMEM)


BLOCK = pl.BlockSpec((8, 128), lambda i: (i, 0))


@called(grid=(4,), in_specs=[SMEM, BLOCK], out_specs=BLOCK)
def nested(counts_ref: Any, x_ref: Any, o_ref: Any) -> None:
    def inner(_: Any, carry: Any) -> Any:
        o_ref[...] += jnp.exp(x_ref[...])
        return carry

    def outer(_: Any, carry: Any) -> Any:
        jax.lax.fori_loop(0, counts_ref[1], inner, 0)
        o_ref[...] += 1.0
        return carry

    def last(_: Any, carry: Any) -> Any:
        o_ref[...] *= x_ref[...]
        return carry

    o_ref[...] = jnp.zeros_like(o_ref)
    jax.lax.fori_loop(0, counts_ref[0], outer, 0)
    jax.lax.fori_loop(0, counts_ref[2], last, 0)


def dynamic(n: jax.Array, m: jax.Array, counts: jax.Array, x: jax.Array) -> jax.Array:
    def kernel(counts_ref: Any, x_ref: Any, o_ref: Any) -> None:
        @pl.when(pl.program_id(0) == pl.num_programs(0) - 1)
        def _() -> None:
            o_ref[...] = jax.lax.fori_loop(0, counts_ref[0], lambda _, x: x * 2.0, x_ref[...])

    block = pl.BlockSpec((8, 128), lambda i, j, k: (i, k))
    return pl.pallas_call(
        kernel, grid=(n, 2, m), in_specs=[SMEM, block], out_specs=block, out_shape=x
    )(counts, x)


@pytest.fixture(scope="module")
def of_loops(compiled: Compiled) -> Profile:
    return compiled(nested, COUNTS, ROWS, stages="estimate")


@pytest.fixture(scope="module")
def of_grid(compiled: Compiled) -> Profile:
    return compiled(dynamic, SIZE, SIZE, COUNTS, ROWS, stages="estimate")


def total(profile: Profile, assume: Mapping[str, object]) -> int:
    assumed = replace(profile, assume=assume)
    cycles = assumed.cycles
    assert (cycles.total.origin, cycles.assumed) == ("assumed", dict(assume))
    assert round(assumed.costs.total) == cycles.total.value
    return cycles.total.value


def formula_at(formula: str, counts: Mapping[str, int]) -> int:
    value = 0
    for term in formula.replace(",", "").split(" + "):
        size, *names = re.split(" |·", term)
        value += int(size) * math.prod(counts[name] for name in names)
    return value


@pytest.mark.slow
def test_loops_within_loops_are_products(of_loops: Profile) -> None:
    formula = of_loops.cycles.total.formula
    assert formula is not None
    assert re.fullmatch(r"[\d,]+ \+ \d+ n1 \+ \d+ n1·n2 \+ \d+ n3", formula)
    assert re.fullmatch(
        r"known only at run time: n1, iterations of the loop at bundle 0x\w+ \(test_counts.py:\d+\)"
        r"; n2, .*; n3, .*",
        of_loops.cycles.total.note,
    )


@pytest.mark.parametrize("counts", [(6, 6, 6), (20, 30, 40), (900, 700, 0)])
def test_assumed_counts_give_what_the_formula_gives(
    of_loops: Profile, counts: tuple[int, int, int]
) -> None:
    values = dict(zip(("n1", "n2", "n3"), counts, strict=True))
    formula = of_loops.cycles.total.formula
    assert formula is not None
    assert total(of_loops, values) == pytest.approx(formula_at(formula, values), rel=0.02)


def test_loops_without_iterations_are_skipped(of_loops: Profile) -> None:
    assert total(of_loops, {"n1": 0, "n2": 7, "n3": 0}) == of_loops.cycles.least.value


def test_the_rest_stays_a_formula(of_loops: Profile) -> None:
    cycles = replace(of_loops, assume={"n2": 10}).cycles
    assert cycles.total.formula is not None
    assert re.fullmatch(r"[\d,]+ \+ [\d,]+ n1 \+ \d+ n3", cycles.total.formula)
    assert "n2" not in cycles.total.note
    assert cycles.assumptions[0].startswith("n2 is 10 (iterations of the loop at bundle ")


@pytest.mark.slow
def test_a_dynamic_grid_of_42_costs_what_libtpu_says(of_grid: Profile) -> None:
    """Which takes every size for 42."""
    counts = {"grid[0]": 42, "grid[1]": 42, "n2": 42}
    compiler = of_grid.cycles.compiler.value
    assert compiler is not None
    assert total(of_grid, counts) == pytest.approx(compiler, rel=0.05)
    stats = replace(of_grid, assume=counts).stats
    assert stats.cycles.steps.value == 2 * 42 * 42
    assert stats.traffic.bound is not None
    shown = [line.strip() for line in lines_of(stats)]
    assert "with grid[0] = 42, grid[1] = 42, n2 = 42" in shown
    assert "assumed: grid[1] is 42 (size of axis 2 of the grid)" in shown


@pytest.mark.slow
def test_names_are_the_same_with_and_without_values(of_grid: Profile) -> None:
    assert of_grid.cycles.steps.formula == "2 × grid[0] × grid[1]"
    assert replace(of_grid, assume={"grid[0]": 3}).cycles.steps.formula == "6 × grid[1]"
    assert "grid[1], size of axis 2 of the grid" in of_grid.cycles.total.note
    with pytest.raises(UsageError, match="n1 follows from the other values: iterations of the"):
        _ = replace(of_grid, assume={"grid[0]": 3, "grid[1]": 3, "n1": 18}).cycles


@pytest.mark.parametrize(
    "counts, message",
    [
        ({"n4": 1}, r"this kernel has no unknown count 'n4'\. Known only at run time: n1: iter.*"),
        ({"n1": -1}, r"n1 cannot be -1: it is a whole number from 0 to 2,147,483,647\. Known .*"),
        ({"n1": 1.5}, "n1 cannot be 1.5: .*"),
        ({"n1": "many"}, "n1 cannot be 'many': .*"),
        ({"n1": 1 << 31}, "n1 cannot be 2147483648: .*"),
        ({"grid[0]": 1}, r"this kernel has no unknown count 'grid\[0\]'\. .*"),
    ],
)
def test_values_that_cannot_be(
    of_loops: Profile, counts: Mapping[str, object], message: str
) -> None:
    with pytest.raises(UsageError) as raised:
        _ = replace(of_loops, assume=counts).cycles
    assert re.fullmatch(message, str(raised.value))


def test_a_kernel_without_unknown_counts_takes_none() -> None:
    @called()
    def doubled(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2.0

    with pytest.raises(UsageError, match=r"'n'\. Nothing is left to assume\."):
        pallas_debug.stats(doubled, ROWS, target="v6e", estimate=False, assume={"n": 1})


def test_a_damaged_listing_takes_none(of_loops: Profile) -> None:
    damaged = replace(of_loops, texts=replace(of_loops.texts, bundles=""), assume={"n1": 1})
    with pytest.raises(UsageError, match="because there is no listing of bundles"):
        _ = damaged.cycles


@pytest.mark.parametrize(
    "texts, counts",
    [
        (["n1=12", "grid[0]=3"], {"n1": 12, "grid[0]": 3}),
        (["n1= 12", "n1=12"], {"n1": 12}),
        (["n=-3"], {"n": "-3"}),
        (["n=²"], {"n": "²"}),
    ],
)
def test_counts_on_the_command_line(texts: list[str], counts: Mapping[str, object]) -> None:
    assert parse_counts(texts) == counts


@pytest.mark.parametrize("texts", [["n1"], ["n1="], ["=3"], ["n1=1", "n1=2"]])
def test_counts_that_do_not_parse(texts: list[str]) -> None:
    with pytest.raises(UsageError, match=r"NAME=COUNT|cannot be both"):
        parse_counts(texts)
