"""Cost of looking for races in TPU interpret mode, as ratios within one run.

    python benchmarks/races.py [--rounds N]

Three ways to run a kernel take turns: without looking for races; with the comparison of accesses
with copies in flight, which every run under pytest makes; and with race detection, as with
`--pallas-races`. The first kernel copies blocks by itself, in two buffers; the second one differs
in that it loads them through a reshaped reference, whose elements are compared one by one. Times
are those of the compiled program, the fastest of the rounds. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.bridge.interpret import interpret, tpu_interpret

BLOCKS, ROWS, COLUMNS = 64, 64, 512


class Ignored:
    """Receiver of what is noticed about copies."""

    def copied(self, *_: object) -> None: ...

    def suspected(self, *_: object) -> None: ...


def copying(*, is_reshaped: bool) -> Callable[[jax.Array], jax.Array]:
    """A kernel that doubles its input, float32[BLOCKS * ROWS, COLUMNS], block by block."""

    def kernel(x_ref: Any, o_ref: Any, buffers: Any, semaphores: Any) -> None:
        def copy(block: Any, half: Any) -> Any:
            rows = x_ref.at[pl.ds(block * ROWS, ROWS)]
            return pltpu.make_async_copy(rows, buffers.at[half], semaphores.at[half])

        def step(block: Any, _: None) -> None:
            half = block % 2

            pl.when(block + 1 < BLOCKS)(lambda: copy(block + 1, 1 - half).start())
            copy(block, half).wait()
            rows = buffers.reshape(2 * ROWS, COLUMNS) if is_reshaped else buffers.at[half]
            start = half * ROWS if is_reshaped else 0
            o_ref[pl.ds(block * ROWS, ROWS)] = rows[pl.ds(start, ROWS)] * 2

        copy(0, 0).start()
        jax.lax.fori_loop(0, BLOCKS, step, None)

    return lambda x: pl.pallas_call(
        kernel,
        out_shape=x,
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        scratch_shapes=[
            pltpu.VMEM((2, ROWS, COLUMNS), jnp.float32),
            pltpu.SemaphoreType.DMA((2,)),
        ],
    )(x)


@contextlib.contextmanager
def looking(mode: str, copies: Ignored | None) -> Iterator[None]:
    with (
        tpu_interpret.reporting(lambda finding: print(finding.message), copies=copies),
        interpret.interpreting(mode),
    ):
        yield


WAYS: tuple[tuple[str, str, Ignored | None], ...] = (
    ("without looking", "tpu", None),
    ("copies in flight", "tpu", Ignored()),
    ("race detection", "tpu,detect_races", None),
)


def seconds(function: Callable[[jax.Array], jax.Array], x: jax.Array) -> float:
    compiled = jax.jit(function).lower(x).compile()
    jax.block_until_ready(compiled(x))
    start = time.perf_counter()
    jax.block_until_ready(compiled(x))
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    x = jnp.ones((BLOCKS * ROWS, COLUMNS), jnp.float32)
    for is_reshaped in (False, True):
        function = copying(is_reshaped=is_reshaped)
        times: dict[str, list[float]] = {name: [] for name, _, _ in WAYS}
        for _ in range(rounds):  # in turn, so that a noisy moment meets all of them
            for name, mode, copies in WAYS:
                with looking(mode, copies):
                    times[name].append(seconds(function, x))
        print("loads through a reshaped reference" if is_reshaped else "plain loads")
        plain = min(times["without looking"])
        for name, taken in times.items():
            print(f"  {name:18} {min(taken) * 1000:8.1f} ms  {min(taken) / plain:5.2f}")


if __name__ == "__main__":
    main()
