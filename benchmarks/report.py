"""Time and size of the report over 50 kernels with their schedules.

    python benchmarks/report.py [DIRECTORY]

DIRECTORY keeps the dumps for the next run; it is filled with bundled kernels at all of their specs.
Nothing is asserted, as shared machines are noisy.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COUNT = 50
TARGET = "v5e"
SECONDS, MEGABYTES = 10, 20


def dump_all(root: Path) -> None:
    """Dump bundled kernels, the largest first, until there are enough of them."""
    from pallas_debug_kernels import operations

    import pallas_debug
    from pallas_debug.store import open_dumps

    root.mkdir(parents=True, exist_ok=True)
    for operation in reversed(operations()):
        for spec in operation.specs:
            if len(open_dumps(root).names()) >= COUNT:
                return
            try:
                pallas_debug.dump(
                    operation.function,
                    *spec.args,
                    **spec.kwargs,
                    targets=TARGET,
                    stages="bundles",
                    to=root,
                )
            except pallas_debug.errors.PallasDebugError as error:
                print(f"{operation.name} {spec.name}: {error}", file=sys.stderr)


def main(root: Path) -> None:
    from pallas_debug.store import open_dumps

    dump_all(root)
    kernels = open_dumps(root).names()[:COUNT]
    path = root.parent / "report.html"
    command = [sys.executable, "-m", "pallas_debug", "report", root, "-o", path]
    start, before = time.perf_counter(), os.times()
    subprocess.run(command, check=True)
    seconds, after = time.perf_counter() - start, os.times()
    used = sum(after[2:4]) - sum(before[2:4])
    print(f"{len(kernels)} kernels: {seconds:.1f} s ({used:.1f} s of CPU; target {SECONDS} s)")
    print(f"{path.stat().st_size / 1e6:.1f} MB (target {MEGABYTES} MB)")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder) / "dumps")
