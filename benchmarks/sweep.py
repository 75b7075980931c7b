"""Time a sweep of 64 settings of flash attention with one worker process and with two.

    python benchmarks/sweep.py [--settings 64] [--jobs 1,2]

Each number of processes starts from an empty dump directory. Both runs are one after the other in
the same minutes, as only their ratio matters; it means little on a machine that is busy otherwise,
so the load and the CPU time of the workers are printed too. libtpu compiles a kernel in several
threads for about a quarter of a run with one process: on two cores, those of a second process wait.

Last, two programs that know nothing of each other sweep half of the settings each, with one process
each. They share nothing but the machine, so their speed-up is what this machine's cores allow.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
from pallas_debug_kernels import flash_attention

import pallas_debug

WANTED = 1.7
"""The speed-up that two processes must have."""

OVER = {
    "block_q": [32, 64, 128, 256],
    "block_k": [128, 256, 512, 1024],
    "causal": [False, True],
    "sm_scale": [0.125, 1.0],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=int, default=64, help="at most 64")
    parser.add_argument("--jobs", default="1,2")
    parser.add_argument("--half", type=int, choices=(0, 1), help=argparse.SUPPRESS)
    given = parser.parse_args()
    over = dict(OVER)
    for name in ("sm_scale", "causal", "block_k"):
        if count(over) > given.settings:
            over[name] = over[name][:1]
    if given.half is not None:
        over["block_q"] = over["block_q"][given.half :: 2]
    array = jax.ShapeDtypeStruct((1, 2, 1024, 64), "bfloat16")
    seconds: dict[int, float] = {}
    for jobs in map(int, given.jobs.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            load = os.getloadavg()[0]
            before, began = os.times(), time.perf_counter()
            found = pallas_debug.sweep(
                flash_attention,
                over=over,
                args=(array, array, array),
                to=Path(folder) / "dumps",
                jobs=jobs,
            )
            seconds[jobs] = time.perf_counter() - began
            used = sum(os.times()[:4]) - sum(before[:4])
        compiled = sum(result.ok for result in found.results)
        plural = "es" * (jobs > 1)
        print(
            f"{jobs} process{plural}: {compiled} of {len(found.results)} settings compiled "
            f"in {seconds[jobs]:.1f} s ({used:.1f} s of CPU without compilers); "
            f"load before {load:.1f} on {os.cpu_count()} cores",
            flush=True,
        )
    for one, many in itertools.pairwise(seconds):
        ratio = seconds[one] / seconds[many]
        print(f"{many} processes are {ratio:.2f} times as fast as {one} (target: {WANTED})")
    if given.half is None and 1 in seconds:
        ratio = seconds[1] / apart(given.settings)
        print(f"two programs with one process each are {ratio:.2f} times as fast as one")


def apart(settings: int) -> float:
    """Return the seconds that two programs take, each for half of the settings."""
    command = [sys.executable, __file__, "--jobs", "1", "--settings", str(settings), "--half"]
    began = time.perf_counter()
    halves = [subprocess.Popen([*command, half], stdout=subprocess.DEVNULL) for half in "01"]
    codes = [half.wait() for half in halves]
    if any(codes):
        raise RuntimeError("a program that swept half of the settings failed")
    return time.perf_counter() - began


def count(over: dict[str, list[object]]) -> int:
    total = 1
    for values in over.values():
        total *= len(values)
    return total


if __name__ == "__main__":
    main()
