"""Cost of a verdict on one kernel: a cold start for five targets, and one target in a warm process.

    python benchmarks/verify.py [--rounds N] [KERNEL…]
    python benchmarks/verify.py --corpus

Each round runs the installed command in a new process with empty caches: imports, trace, static
analysis, five compilations and the sanitizer. The warm process verifies the kernel for v5e again.
With `--corpus`, a process that has verified a kernel before verifies each broken kernel of the
tests once, for v5e; printed are the median and the slowest, with the functions that take their
time. Nothing is asserted; the limit is printed next to each time.
"""

from __future__ import annotations

import argparse
import cProfile
import importlib
import os
import pstats
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LIMIT, WARM_LIMIT = 8.0, 1.0
KERNELS = ("vector_add", "matmul", "flash_attention")


def seconds(kernel: str) -> float:
    """Seconds of the whole command."""
    command = Path(sys.executable).with_name("pallas-debug")
    start = time.perf_counter()
    done = subprocess.run(
        [command, "verify", "-t", "all", f"pallas_debug_kernels:{kernel}"],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    taken = time.perf_counter() - start
    if done.returncode != 0:
        raise SystemExit(f"{kernel}: {done.stdout}{done.stderr}")
    return taken


WARM = """
import sys, time
import pallas_debug, pallas_debug_kernels
operation = pallas_debug_kernels.operation(sys.argv[1])
spec = operation.tagged("small")[0]
args, kwargs = spec.make_args(), spec.kwargs
taken = []
for _ in range(3):
    start = time.perf_counter()
    assert pallas_debug.verify(operation.function, *args, targets="v5e", **kwargs).ok
    taken.append(time.perf_counter() - start)
print(min(taken))
"""


def warm_seconds(kernel: str) -> float:
    """Seconds of `verify` for one target in a process that has verified the kernel before."""
    done = subprocess.run(
        [sys.executable, "-c", WARM, kernel],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def broken_kernels() -> Any:
    """Import the broken kernels of the tests, on eight devices."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    return importlib.import_module("broken_kernels")


def verified(kernel: Any) -> float:
    import pallas_debug

    args = kernel.make_args()
    start = time.perf_counter()
    pallas_debug.verify(kernel.function, *args, targets="v5e")
    return time.perf_counter() - start


def corpus() -> None:
    """Verify each broken kernel once, and print the median, and the five slowest with a profile."""
    kernels = broken_kernels().ALL
    verified(kernels[0])
    taken = {kernel.name: verified(kernel) for kernel in kernels}
    slowest = sorted(taken, key=lambda name: -taken[name])[:5]
    median = statistics.median(taken.values())
    print(f"{len(taken)} broken kernels: median {median:.2f} s (limit {WARM_LIMIT:.0f} s)")
    for name in slowest:
        print(
            f"\n{name}: {taken[name]:.2f} s; in a process of its own, with a profile:", flush=True
        )
        subprocess.run([sys.executable, __file__, "--profile", name], check=True)


def profiled(name: str) -> None:
    """Print the functions in which the first verification of a kernel spends most of its time."""
    kernels = broken_kernels()
    verified(kernels.ALL[0])
    profile = cProfile.Profile()
    profile.runcall(verified, kernels.broken(name))
    rows = pstats.Stats(profile).stats.items()  # type: ignore[attr-defined]
    for (file, line, function), row in sorted(rows, key=lambda item: -item[1][3])[:40]:
        if "pallas_debug" in file or "compile" in function:
            where = Path(file)
            print(f"  {row[3]:>6.2f} s  {where.parent.name}/{where.name}:{line} {function}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--corpus", action="store_true", help="the broken kernels of the tests")
    parser.add_argument("--profile", metavar="NAME", help="profile one of those")
    parser.add_argument("kernel", nargs="*", choices=[[], *KERNELS], default=[])
    options = parser.parse_args()
    if options.corpus or options.profile:
        corpus() if options.corpus else profiled(options.profile)
        return
    print(f"{'':<18}{'cold':>8}{'limit':>8}{'warm':>8}{'limit':>8}")
    for kernel in options.kernel or KERNELS:
        taken = min(seconds(kernel) for _ in range(options.rounds))
        warm = warm_seconds(kernel)
        print(
            f"{kernel:<18}{taken:>6.1f} s{LIMIT:>6.0f} s{warm:>6.1f} s{WARM_LIMIT:>6.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
