"""Time of a step in the debugger, in either direction, on flash attention at 2,048.

    python benchmarks/step.py [--steps N]

Each command is run from places all over the run, and the slowest one counts. Nothing is asserted:
the limit is 100 ms for a step; the others are for comparison.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
from pallas_debug_kernels import flash_attention

from pallas_debug import stepper
from pallas_debug.machine.debugger.live import LiveRun
from pallas_debug.stepping.session import StepSession

LIMIT_MS = 100.0


def timed(move: Callable[[], object]) -> float:
    """Milliseconds that a movement takes."""
    start = time.perf_counter()
    move()
    return (time.perf_counter() - start) * 1e3


def slowest_of(
    session: StepSession, move: Callable[[StepSession, bool], object], back: bool, times: int
) -> float:
    return max(timed(lambda: move(session, back)) for _ in range(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40, help="steps from each place")
    steps = parser.parse_args().steps
    q, k, v = (
        jax.random.normal(jax.random.key(i), (1, 2, 2048, 64), jnp.float32) for i in range(3)
    )
    start = time.perf_counter()
    session = stepper.capture(lambda: flash_attention(q, k, v)).session
    print(f"opened in {time.perf_counter() - start:.1f} s")
    print(f"to the end: {timed(session.run):.0f} ms")
    moves: dict[str, Callable[[StepSession, bool], object]] = {
        "step": StepSession.step,
        "over": StepSession.over,
        "point": StepSession.next_point,
    }
    grid = session.place.grid
    middle = tuple(n // 2 for n in grid)
    print(f"{'':8}{'forward':>12}{'back':>12}   slowest of each, in ms")
    for name, move in moves.items():
        slowest = {False: 0.0, True: 0.0}
        for place in (tuple(0 for _ in grid), middle, tuple(n - 1 for n in grid)):
            session.to_point(place)
            for back in (False, True):
                times = steps if name != "point" else 4
                slowest[back] = max(slowest[back], slowest_of(session, move, back, times))
        print(f"{name:8}{slowest[False]:12.1f}{slowest[True]:12.1f}")
    track = session.track
    assert isinstance(track, LiveRun)
    print(f"{len(track.snapshots)} snapshots, {track.snapshots.nbytes / 2**20:.0f} MiB")
    print(f"limit of a step: {LIMIT_MS:.0f} ms")


if __name__ == "__main__":
    main()
