"""Index maps over the whole grid: compared with jax and a plain loop; large and invalid ones."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.analysis import Analysis, analyze
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.walk import index_maps
from pallas_debug.model import Gap

F32 = jnp.float32
S = jax.ShapeDtypeStruct
Captures = Callable[..., list[Capture]]


def copy(x_ref: Any, out_ref: Any) -> None:
    out_ref[...] = x_ref[...]


def call(
    grid: tuple[int, ...], in_map: Any, out_map: Any, blocks: tuple[int, int],
    out_blocks: tuple[int, int] | None = None, parallel: tuple[str, ...] | None = None,
) -> tuple[Callable[..., Any], tuple[Any, ...]]:  # fmt: skip
    """A copy in blocks of (8, 128) of arrays of so many blocks, and its arguments."""
    spec = pl.BlockSpec((8, 128), in_map)
    rows, columns = out_blocks or blocks

    def run(x: Any) -> Any:
        return pl.pallas_call(
            copy,
            out_shape=S((8 * rows, 128 * columns), F32),
            grid=grid,
            in_specs=[spec],
            out_specs=pl.BlockSpec((8, 128), out_map),
            compiler_params=pltpu.CompilerParams(dimension_semantics=parallel),
        )(x)

    return run, (S((8 * blocks[0], 128 * blocks[1]), F32),)


def looked_at(captures: Captures, *given: Any) -> Analysis:
    function, args = call(*given)
    (captured,) = captures(function, args)
    return analyze(captured)


def arithmetic(i: Any, j: Any) -> tuple[Any, Any]:
    """All of the arithmetic of index maps, and some that are not in use."""
    a = (i - 3) // 2 + lax.div(i - 3, 2) * 5 + (i - 3) % 4 - lax.rem(i - 3, 4)
    b = jnp.where((i > j) & (j != 2), jnp.maximum(i, j), lax.clamp(1, j, 3)) << 2
    c = lax.shift_right_logical(i - 5, 28) + lax.shift_right_arithmetic(i - 5, 1)
    d = jnp.sign(i - 2) * jnp.abs(j - 3) + (~i ^ j) - (i | 4) + lax.square(-j)
    e = lax.switch(jnp.minimum(j, 2), [lambda: i, lambda: i * 2, lambda: i - j])
    f = (jnp.ceil(i / 2) + jnp.floor(j * 0.7)).astype(jnp.int32)
    return a + b + c, d + e + f


@pytest.mark.slow
def test_index_maps_are_computed_as_jax_does(captures: Captures) -> None:
    grid = (7, 6)
    function, args = call(grid, arithmetic, lambda i, j: (i, j), (8, 8))
    (captured,) = captures(function, args)
    found = index_maps.indices(captured, 0, {}, float("inf"))
    assert found.dims is not None
    i, j = np.meshgrid(np.arange(7, dtype=np.int32), np.arange(6, dtype=np.int32), indexing="ij")
    expected = jax.jit(jax.vmap(jax.vmap(arithmetic)))(i, j)
    for ours, theirs in zip(found.dims, expected, strict=True):
        np.testing.assert_array_equal(np.broadcast_to(ours, grid), theirs)


MAPS = {
    "rows": lambda i, j: (i, 0),
    "both": lambda i, j: (i, j),
    "swapped": lambda i, j: (j, i),
    "folded": lambda i, j: ((i * 4 + j) // 8, (i * 4 + j) % 2),
    "modulo": lambda i, j: (i % 2, j),
    "next": lambda i, j: (i + 1, j),
    "every other": lambda i, j: (i * 2 % 8, j),
}
SEMANTICS = (None, ("parallel", "arbitrary"), ("arbitrary", "parallel"), ("parallel", "parallel"))


def expected_kinds(out_map: Any, parallel: tuple[str, ...] | None) -> set[str]:
    """What is wrong with the visits of 4 x 4 blocks on a 4 x 4 grid, by going through them."""
    points = list(itertools.product(range(4), range(4)))
    visited = [tuple(int(n) for n in out_map(i, j)) for i, j in points]
    if any(not (0 <= a < 4 and 0 <= b < 4) for a, b in visited):
        return {"BlockOutOfBounds"}
    kinds = set()
    if len(set(visited)) < 16:
        kinds.add("OutputNotWritten")
    is_parallel = [semantics == "parallel" for semantics in parallel or ("", "")]
    for (one, there), (other, again) in itertools.combinations(
        zip(points, visited, strict=True), 2
    ):
        differs = any(p and a != b for p, a, b in zip(is_parallel, one, other, strict=True))
        if there == again and differs:
            kinds.add("DataRace")
    if "DataRace" in kinds:
        return kinds
    for k in range(2, 16):
        if visited[k] in visited[: k - 1] and visited[k] != visited[k - 1]:
            kinds.add("OutputRevisited")
    return kinds


@pytest.mark.parametrize("parallel", SEMANTICS, ids=str)
@pytest.mark.parametrize("name", MAPS)
def test_visits_are_those_of_a_plain_loop(
    captures: Captures, name: str, parallel: tuple[str, ...] | None
) -> None:
    function, args = call((4, 4), lambda i, j: (i, j), MAPS[name], (4, 4), (4, 4), parallel)
    (captured,) = captures(function, args)
    kinds = {finding.kind for finding in analyze(captured).findings}
    assert kinds == expected_kinds(MAPS[name], parallel)


MILLION = {
    "separable": ((1024, 1024, 1024), lambda i, j, k: (i, j), (1024, 1024)),
    "folded": ((1_000_000,), lambda i: (i // 1000, i % 1000), (1000, 1000)),
}


@pytest.mark.parametrize("name", MILLION)
def test_a_million_grid_points_take_less_than_five_seconds(captures: Captures, name: str) -> None:
    grid, index_map, blocks = MILLION[name]
    function, args = call(grid, index_map, index_map, blocks)
    (captured,) = captures(function, args)
    start = time.process_time()
    analysis = analyze(captured)
    assert time.process_time() - start < 5
    assert (analysis.findings, analysis.gaps) == ((), ())


NOT_JUDGED = {
    "a loop": (
        lambda i: (lax.while_loop(lambda n: n >= 0, lambda n: (n + 1) % 7, i), 0),
        "the index map of x_ref: it uses values that are not computed here, among while",
    ),
    "what is not computed": (
        lambda i: (lax.clz(i), 0),
        "the index map of x_ref: it uses values that are not computed here, among clz",
    ),
}


@pytest.mark.parametrize("name", NOT_JUDGED)
def test_an_index_map_that_cannot_be_evaluated_is_said(captures: Captures, name: str) -> None:
    index_map, sentence = NOT_JUDGED[name]
    analysis = looked_at(captures, (4,), index_map, lambda i: (i, 0), (4, 1))
    assert analysis.findings == ()
    assert tuple(gap.reason for gap in analysis.gaps) == (sentence,)


def test_what_takes_longer_than_the_limit_is_said(captures: Captures) -> None:
    function, args = call((4,), lambda i: (i * 1, 0), lambda i: (i, 0), (4, 1))
    (captured,) = captures(function, args)
    analysis = analyze(captured, time_limit=0)
    assert analysis.findings == ()
    assert tuple(gap.reason for gap in analysis.gaps) == (
        "the index map of x_ref: it takes longer than the time limit",
        "the whole kernel: it takes longer than the time limit",
    )


def halved(x: Any) -> Any:
    rows, columns = x.shape
    steps = rows // 8
    return pl.pallas_call(
        copy,
        out_shape=x,
        grid=(
            columns // 128,
            steps,
        ),
        in_specs=[pl.BlockSpec((8, 128), lambda j, i: (i, j))],
        out_specs=pl.BlockSpec((8, 128), lambda j, i: (i, j)),
    )(x)


@pytest.mark.parametrize(
    "shape, line",
    [((20, 256), "steps = rows // 8"), ((16, 300), "columns // 128,")],
)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_a_size_that_is_rounded_down_is_named_where_it_is_divided(
    captures: Captures, shape: tuple[int, ...], line: str, batch: tuple[int, ...]
) -> None:
    (captured,) = captures(jax.vmap(halved) if batch else halved, (S((*batch, *shape), F32),))
    (finding,) = analyze(captured).findings
    assert (finding.kind, finding.cause) == (
        "OutputNotWritten",
        "the grid has too few steps for the array: a size was rounded down",
    )
    assert finding.source is not None
    assert finding.source.text == line


def gathered(table: Any, x: Any) -> Any:
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(4,),
        in_specs=[pl.BlockSpec((8, 128), lambda i, table: (table[i + 1], 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i, table: (i, 0)),
    )

    def kernel(table_ref: Any, x_ref: Any, out_ref: Any) -> None:
        copy(x_ref, out_ref)

    return pl.pallas_call(kernel, out_shape=S((32, 128), F32), grid_spec=spec)(table, x)


GATHER = (S((5,), jnp.int32), S((32, 128), F32))


def test_a_table_that_an_index_map_reads_past_its_end(captures: Captures) -> None:
    (captured,) = captures(gathered, (S((4,), jnp.int32), GATHER[1]))
    (finding,) = analyze(captured, prefetch=[np.zeros(4, np.int32)]).findings
    assert finding.kind == "OutOfBoundsRead"
    assert finding.grid_point == (3,)
    assert finding.message == (
        "the index map of x_ref reads table_ref at index 4 of dimension 0, which has size 4"
    )
    assert finding.cause == "the index map does not keep the index within the table"
    assert finding.advice == "keep the index between 0 and 3"


def test_prefetch_of_the_wrong_shape_is_an_error(captures: Captures) -> None:
    (captured,) = captures(gathered, GATHER)
    with pytest.raises(ValueError) as error:
        analyze(captured, prefetch=[np.zeros(3, np.int32)])
    assert str(error.value) == (
        "kernel `kernel` takes scalar prefetch of shapes [(5,)], but prefetch= has shapes [(3,)]. "
        "Pass one array for each, in the same order, and None for unknown ones."
    )


def sized(block: tuple[int, int], *, first: int = 0) -> Any:
    def run(n: Any, x: Any) -> Any:
        rows = pl.BlockSpec(block, lambda i: (i, 0))
        out = pl.BlockSpec(block, lambda i: (i + first, 0))
        return pl.pallas_call(copy, out_shape=x, grid=(n,), in_specs=[rows], out_specs=out)(x)

    return run


SIZED = (S((), jnp.int32), S((32, 128), F32))


def test_a_grid_whose_size_is_known_only_at_run_time(captures: Captures) -> None:
    """What does not depend on its size is judged."""
    reason = (
        "index maps and accesses: its grid has a dimension whose size is known only at run time, "
        "and it was not given"
    )
    gap = Gap(kernel="copy", engine="static", reason=reason, is_limit=True, is_partial=True)
    for block, kinds in (((8, 128), []), ((7, 100), ["BlockShapeTiling"] * 2)):
        (captured,) = captures(sized(block), SIZED)
        found = analyze(captured)
        assert [finding.kind for finding in found.findings] == kinds
        assert found.gaps == analyze(captured, bounds=[None]).gaps == (gap,)


def test_a_grid_whose_size_the_call_passes(captures: Captures) -> None:
    (captured,) = captures(sized((8, 128), first=1), SIZED)
    unwritten = ["OutputNotWritten"]
    for size, kinds in ((2, unwritten), (4, ["BlockOutOfBounds"]), (0, unwritten)):
        found = analyze(captured, bounds=[np.int32(size)])
        assert [finding.kind for finding in found.findings] == kinds
        reasons = ["index maps and accesses: its grid has no points"]
        assert [gap.reason for gap in found.gaps] == ([] if size else reasons)


def test_the_dimensions_that_vmap_adds_are_part_of_the_grid(captures: Captures) -> None:
    function, _ = call((2,), lambda i: (i + 1, 0), lambda i: (i, 0), (2, 1))
    (captured,) = captures(jax.vmap(function), (S((3, 16, 128), F32),))
    (finding,) = analyze(captured).findings
    assert finding.kind == "BlockOutOfBounds"
    assert finding.grid_point == (0, 1)
    assert finding.count == 3
    assert finding.message == (
        "the index map of x_ref returns block 2 along dimension 1 of float32[3, 16, 128], which "
        "has 2 blocks (at 3 of 6 grid points)"
    )


def test_under_vmap_the_parallel_dimension_is_the_authors(captures: Captures) -> None:
    function, _ = call(
        (2, 2),
        lambda i, j: (i, j),
        lambda i, j: (i, 0),
        (2, 2),
        (2, 1),
        ("arbitrary", "parallel"),
    )
    (captured,) = captures(jax.vmap(function), (S((3, 16, 256), F32),))
    (race,) = analyze(captured).findings
    assert (race.kind, race.grid_point) == ("DataRace", (0, 0, 1))
    assert (race.cause or "").startswith("grid dimension 1 is parallel")


def test_an_empty_grid_and_an_empty_operand(captures: Captures) -> None:
    function, args = call((0,), lambda i: (i, 0), lambda i: (i, 0), (1, 1))
    (captured,) = captures(function, args)
    (finding,) = analyze(captured).findings
    assert finding.message == "nothing writes out_ref[0:8, 0:128]"
    assert str(finding.cause).startswith("no grid point visits it")

    def empty(x: Any, y: Any) -> Any:
        def kernel(x_ref: Any, y_ref: Any, out_ref: Any) -> None:
            out_ref[...] = x_ref[...]

        return pl.pallas_call(kernel, out_shape=S((8, 128), F32))(x, y)

    (captured,) = captures(empty, (S((8, 128), F32), S((0,), jnp.int32)))
    (finding,) = analyze(captured).findings
    assert finding.kind == "ZeroSizeOperand"
    assert finding.message == "y_ref is int32[0], which is empty"
    assert finding.advice is not None
    assert finding.advice.startswith("if an operand is empty, return jnp.zeros(shape)")
