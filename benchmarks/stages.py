"""Cost of keeping the schedule, as ratios to dumps without within one run.

    python benchmarks/stages.py [TARGET]…

Dumps with `--stages mosaic` and with the schedule of splash attention, forward and backward, and of
flash attention take turns, each in a process of its own that ends with its compilers. CPU seconds
include theirs, and depend less than wall time on what else the machine does. Nothing is asserted.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROUNDS = 3
LIMIT, LIMIT_MB = 1.8, 15

PROGRAM = """
import sys
import jax, jax.numpy as jnp
import pallas_debug
from pallas_debug_kernels import flash_attention
from pallas_debug_kernels.ops import splash_attention as splash

what, target, stages, to = sys.argv[1:]
if what == "flash":
    x = jax.ShapeDtypeStruct((1, 2, 2048, 128), jnp.bfloat16)
    function = flash_attention
else:
    x = jax.ShapeDtypeStruct((2, 2048, 128), jnp.float32)
    mask = splash.MultiHeadMask([splash.CausalMask((2048, 2048))] * 2)
    attention = splash.make_splash_attention(mask, block_sizes=splash.BlockSizes.same(512, 512))
    def function(q, k, v):
        out, backward = jax.vjp(attention, q, k, v)
        return backward(out)
dumps = pallas_debug.dump(function, x, x, x, targets=target, to=to, stages=stages)
assert all(dump.ok for dump in dumps)
assert not any(c.missing for dump in dumps for c in dump.compilations)
"""


class Cost(NamedTuple):
    """Cost of one dump; sizes in bytes."""

    wall: float
    cpu: float
    schedule: int
    total: int


def dump(what: str, target: str, stages: str) -> Cost:
    with tempfile.TemporaryDirectory() as folder:
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        command = [sys.executable, "-c", PROGRAM, what, target, stages, folder]
        environment = os.environ | {"JAX_PLATFORMS": "cpu"}
        subprocess.run(command, check=True, env=environment, stderr=subprocess.DEVNULL)
        wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        sizes = {p: p.stat().st_size for p in Path(folder).rglob("*") if p.is_file()}
        return Cost(
            wall=wall,
            cpu=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            schedule=sum(size for p, size in sizes.items() if p.parent.name == "schedule"),
            total=sum(sizes.values()),
        )


def main(targets: list[str]) -> None:
    print(f"targets: ratio at most {LIMIT}; schedule of splash at most {LIMIT_MB} MB")
    head = ("kernels", "target", "stages", "wall s", "cpu s", "schedule MB", "dump MB")
    print("".join(f"{name:>13}" for name in head))
    for target in targets:
        for what in ("flash", "splash"):
            costs: dict[str, list[Cost]] = {"mosaic": [], "bundles": []}
            for _ in range(ROUNDS):
                for stages, found in costs.items():
                    found.append(dump(what, target, stages))
            middle = {
                stages: Cost(*(statistics.median(values) for values in zip(*found, strict=True)))
                for stages, found in costs.items()
            }
            for stages, cost in middle.items():
                row = (what, target, stages, f"{cost.wall:.1f}", f"{cost.cpu:.1f}")
                row += (f"{cost.schedule / 1e6:.1f}", f"{cost.total / 1e6:.1f}")
                print("".join(f"{cell:>13}" for cell in row))
            plain, kept = middle.values()
            ratios = f"wall {kept.wall / plain.wall:.2f}, cpu {kept.cpu / plain.cpu:.2f}"
            print(f"{what} for {target}: {ratios}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or ["v5e"])
