"""Cost of checks in HLO interpret mode, as ratios within one run.

    python benchmarks/checks.py [--rounds N] [--checks NAMES] [flash] [splash] [matmul]

Each program runs alternately without and with the checks. Run time is that of a compiled program;
compile time covers tracing, lowering and compiling it from scratch. The ratio is that of the
fastest rounds, as other load on a shared machine can only slow a round down. Each ratio of
wall-clock times is followed by that of the process's CPU time over all threads, which other
processes disturb less. Nothing is asserted; the limits for flash are printed next to its ratios,
and apply to both.

Nothing fails in these programs. On a failure, HLO interpret mode compiles and runs the kernel a
second time to locate it, which is not measured here.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from pallas_debug_kernels import flash_attention, make_splash_attention, matmul
from pallas_debug_kernels.ops import splash_attention as splash_module

from pallas_debug import defaults
from pallas_debug.bridge.interpret import interpret
from pallas_debug.checks import names
from pallas_debug.session import Options, Session

RUN_LIMIT, COMPILE_LIMIT = 2.0, 2.5
RUNS = 3
"""Runs within a round, of which the fastest counts."""


def programs() -> dict[str, tuple[str, Callable[..., Any], tuple[jax.Array, ...]]]:
    """Cases by name: a description, a function, and its arguments."""
    key = jax.random.key(0)
    q = jax.random.normal(key, (1, 2, 2048, 128), jnp.float32)
    few = jax.random.normal(key, (2, 1024, 128), jnp.float32)
    square = jax.random.normal(key, (1024, 1024), jnp.float32)
    mask = splash_module.MultiHeadMask([splash_module.CausalMask((1024, 1024))] * 2)
    splash = make_splash_attention(mask)
    return {
        "flash": ("flash forward, 2 x 2048 x 128", lambda q: flash_attention(q, q, q), (q,)),
        "splash": ("splash forward, 2 x 1024 x 128", lambda q: splash(q, q, q), (few,)),
        "matmul": ("matmul, 1024 x 1024", lambda x: matmul(x, x), (square,)),
    }


@contextlib.contextmanager
def mode(checks: tuple[str, ...]) -> Iterator[None]:
    """HLO interpret mode, with checks or without."""
    with (
        Session(Options(interpret="hlo", checks=checks), runs=True)
        if checks
        else interpret.interpreting("hlo")
    ) as session:
        yield
        if checks and (session.problems or session.observer.findings):
            raise SystemExit(f"not as it should be: {session.problems} {session.observer.findings}")


Seconds = tuple[float, float]
"""Seconds of wall time, and of CPU time."""


def now() -> Seconds:
    return time.perf_counter(), time.process_time()


def since(start: Seconds) -> Seconds:
    clock, cpu = now()
    return clock - start[0], cpu - start[1]


def fastest(times: Iterable[Seconds]) -> Seconds:
    """Each of the two by itself."""
    clock, cpu = zip(*times, strict=True)
    return min(clock), min(cpu)


def compile_seconds(function: Callable[..., Any], args: Any, checks: tuple[str, ...]) -> Seconds:
    """Time to trace, lower and compile, with nothing in jax's caches."""
    jax.clear_caches()
    with mode(checks):
        start = now()
        jax.jit(lambda *a: function(*a)).trace(*args).lower().compile()
        return since(start)


def run_seconds(function: Callable[..., Any], args: Any, checks: tuple[str, ...]) -> Seconds:
    """The fastest of a few runs after the first."""
    with mode(checks):
        run = jax.jit(lambda *a: function(*a))
        jax.block_until_ready(run(*args))
        times = []
        for _ in range(RUNS):
            start = now()
            jax.block_until_ready(run(*args))
            times.append(since(start))
    return fastest(times)


def measure(
    function: Callable[..., Any], args: Any, checks: tuple[str, ...], rounds: int
) -> dict[str, tuple[Seconds, Seconds]]:
    """Times of compiling and running, without and with checks."""
    measured = {}
    for what, seconds in {"compile": compile_seconds, "run": run_seconds}.items():
        pairs = [
            (seconds(function, args, ()), seconds(function, args, checks)) for _ in range(rounds)
        ]
        measured[what] = fastest(p for p, _ in pairs), fastest(c for _, c in pairs)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--checks", default=",".join(defaults.DEFAULT_CHECKS))
    parser.add_argument("program", nargs="*", choices=[[], *programs()], default=[])
    options = parser.parse_args()
    checks = names.parse(options.checks)
    print(f"jax {jax.__version__}, checks: {','.join(checks)}")
    titles = f"{'checked':>10}{'ratio':>7}{'CPU':>6}"
    print(f"{'':<32}{'compile':>10}{titles}{'run':>10}{titles}")
    for name, (text, function, args) in programs().items():
        if options.program and name not in options.program:
            continue
        found = measure(function, args, checks, options.rounds)
        limits = f"   limits {COMPILE_LIMIT}, {RUN_LIMIT}" if name == "flash" else ""
        print(f"{text:<32}{row(*found['compile'])}{row(*found['run'])}{limits}", flush=True)


def row(plain: Seconds, checked: Seconds) -> str:
    """Milliseconds by the clock, and both ratios."""
    times = f"{plain[0] * 1e3:>7.0f} ms{checked[0] * 1e3:>7.0f} ms"
    return f"{times}{checked[0] / plain[0]:>7.2f}{checked[1] / plain[1]:>6.2f}"


if __name__ == "__main__":
    main()
