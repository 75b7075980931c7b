"""Time and size of the report over six kernels with their schedules.

    python benchmarks/report.py [DIRECTORY]

DIRECTORY keeps the dumps for the next run; it is filled with bundled kernels at their first specs.
The best of several runs counts, and nothing is asserted, as shared machines are noisy.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NAMES = ("flash_attention", "layer_norm", "matmul", "paged_attention", "softmax", "vector_add")
TARGET = "v5e"
RUNS = 5
SECONDS, MEGABYTES = 0.5, 1.5


def dump_all(root: Path) -> None:
    """Dump bundled kernels, unless they are there already."""
    from pallas_debug_kernels import operations

    import pallas_debug

    known = {operation.name: operation for operation in operations()}
    for operation in map(known.__getitem__, NAMES):
        if not any(root.glob(f"{operation.name}-*")):
            spec = operation.specs[0]
            pallas_debug.dump(
                operation.function,
                *spec.args,
                **spec.kwargs,
                targets=TARGET,
                stages="bundles",
                to=root,
            )


def main(root: Path) -> None:
    dump_all(root)
    path = root.parent / "report.html"
    command = [sys.executable, "-m", "pallas_debug", "report", root, "-o", path]
    # Without bytecode, which a user's machine has, compiling our modules takes a third of the time.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    times = []
    for _ in range(RUNS):
        start, before = time.perf_counter(), os.times()
        subprocess.run(command, check=True, env=environment, capture_output=True)
        seconds, after = time.perf_counter() - start, os.times()
        times.append((seconds, sum(after[2:4]) - sum(before[2:4])))
    seconds, used = map(min, zip(*times, strict=True))
    print(f"{len(NAMES)} kernels: {seconds:.2f} s ({used:.2f} s of CPU; target {SECONDS} s)")
    print(f"{path.stat().st_size / 1e6:.2f} MB (target {MEGABYTES} MB)")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder) / "dumps")
