"""Cost of static analysis: the bundled kernels, and grids of a million points.

    python benchmarks/analysis.py [--rounds N] [NAME…]

A kernel is captured once and analysed in rounds; the fastest counts, as other load on a shared
machine can only slow a round down. The table has wall-clock time and the process's CPU time.
Nothing is asserted: the limits are 0.3 s for a bundled kernel, and 5 s for a million grid points.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from pallas_debug_kernels import operations

from pallas_debug.analysis import analyze
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.lowering import hook
from pallas_debug.compiler.targets import BUILTIN
from pallas_debug.model import Target
from pallas_debug.session import Options, Session

KERNEL_LIMIT, GRID_LIMIT = 0.3, 5.0

S = jax.ShapeDtypeStruct


def captured(function: Callable[..., Any], args: Iterable[Any]) -> list[Capture]:
    """The kernels of a call; they are neither lowered nor run."""
    session = Session(Options(chip="v5e", interpret="off"))
    with session, session.collecting() as kernels, hook.stubbed():
        jax.jit(function).lower(*args)
    return kernels


Row = tuple[str, list[Capture], list[Target], float]


def bundled() -> Iterator[Row]:
    """Every operation at the sizes of real work: its kernels, their targets, the limit for one."""
    for op in operations():
        for spec in op.tagged("bench"):
            kernels = captured(lambda *a, s=spec, f=op.function: f(*a, **s.kwargs), spec.args)
            targets = [target for target in BUILTIN if target.name not in spec.not_on]
            yield f"{op.name} {spec.name}", kernels, targets, KERNEL_LIMIT


GRIDS: dict[str, tuple[tuple[int, ...], Any, Any, tuple[int, int], tuple[int, int]]] = {
    "1,000,000 points, (i, 0)": (
        (1_000_000,), lambda i: (i, 0), lambda i: (i, 0), (1_000_000, 1), (1_000_000, 1),
    ),
    "1,000,000 points, (i // 1000, i % 1000)": (
        (1_000_000,), lambda i: (i // 1000, i % 1000), lambda i: (i // 1000, i % 1000),
        (1000, 1000), (1000, 1000),
    ),
    "1,000,000 points, blocks revisited": (
        (1_000_000,), lambda i: (i // 1000, i % 1000), lambda i: (i % 1000, 0),
        (1000, 1000), (1000, 1),
    ),
    "1,048,576 points, (i, j)": (
        (1024, 1024), lambda i, j: (i, j), lambda i, j: (i, j), (1024, 1024), (1024, 1024),
    ),
    "1,073,741,824 points, (i, j)": (
        (1024, 1024, 1024), lambda i, j, k: (i, j), lambda i, j, k: (i, j), (1024, 1024),
        (1024, 1024),
    ),
}  # fmt: skip
"""Grid, index maps of input and output, and how many blocks each has."""


def grids() -> Iterator[Row]:
    """A copy in blocks of (8, 128) over large grids."""

    def copy(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...]

    for name, (grid, in_map, out_map, blocks, out_blocks) in GRIDS.items():
        call = pl.pallas_call(
            copy,
            out_shape=S((8 * out_blocks[0], 128 * out_blocks[1]), jnp.float32),
            grid=grid,
            in_specs=[pl.BlockSpec((8, 128), in_map)],
            out_specs=pl.BlockSpec((8, 128), out_map),
        )
        x = S((8 * blocks[0], 128 * blocks[1]), jnp.float32)
        yield name, captured(call, (x,)), list(BUILTIN), GRID_LIMIT


def measure(kernel: Capture, targets: list[Target], rounds: int) -> tuple[float, float, int]:
    """Seconds by the clock and of CPU time, and how many findings there are."""
    clock, cpu, found = [], [], 0
    for _ in range(rounds):
        start, used = time.perf_counter(), time.process_time()
        found = len(analyze(kernel, targets).findings)
        clock.append(time.perf_counter() - start)
        cpu.append(time.process_time() - used)
    return min(clock), min(cpu), found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("name", nargs="*", help="measure only rows that contain one of these words")
    options = parser.parse_args()
    print(f"jax {jax.__version__}")
    print(f"{'':<46}{'clock':>10}{'CPU':>10}{'limit':>9}{'findings':>10}")
    for make in (bundled, grids):
        for name, kernels, targets, limit in make():
            if options.name and not any(word in name for word in options.name):
                continue
            for kernel in kernels:
                clock, cpu, found = measure(kernel, targets, options.rounds)
                times = f"{clock * 1e3:>7.1f} ms{cpu * 1e3:>7.1f} ms{limit:>7} s"
                print(f"{name:<46}{times}{found:>10}", flush=True)


if __name__ == "__main__":
    main()
