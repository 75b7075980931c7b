"""Speed and memory of the kernel machine, beside jax's HLO interpret mode.

    python benchmarks/machine.py [--rounds N] [KERNEL ...]

Each kernel runs in each mode in a process of its own: first with tracing and compilation, then
`--rounds` more times, of which the fastest counts, as other load on a shared machine can only slow
a round down. Ratios are to HLO mode in the same run. Nothing is asserted; the limits in seconds are
printed beside the times. Memory is the growth of the process's maximum.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas.ops.tpu import flash_attention
from pallas_debug_kernels import matmul

import pallas_debug

MODES = {"HLO mode": "hlo", "machine": "machine", "sanitizer": "machine,sanitize"}
Program = tuple[Callable[..., Any], tuple[Any, ...]]


def normal(*shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(0), shape, jnp.float32)


def of_matmul() -> Program:
    blocks = {"block_m": 128, "block_n": 128, "block_k": 128}
    return lambda x: matmul(x, x, **blocks), (normal(1024, 1024),)


def of_flash() -> Program:
    q = normal(1, 2, 1024, 128)
    return lambda q: flash_attention.flash_attention(q, q, q, causal=True), (q,)


def of_steps() -> Program:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2 + 1

    rows = pl.BlockSpec((8, 128), lambda i: (i, 0))

    def call(x: jax.Array) -> Any:
        return pl.pallas_call(kernel, out_shape=x, grid=(4096,), in_specs=[rows], out_specs=rows)(x)

    return call, (normal(4096 * 8, 128),)


def of_loop() -> Program:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        def copy_row(i: Any, _: Any) -> None:
            o_ref[pl.ds(i, 1), :] = x_ref[pl.ds(i, 1), :]

        jax.lax.fori_loop(0, 20_000, copy_row, None)

    return lambda x: pl.pallas_call(kernel, out_shape=x)(x), (normal(20_000, 128),)


def of_updates() -> Program:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        value = x_ref[...]
        for i in range(512):
            value = value.at[i, :].set(value[i, :] * 2)
        o_ref[...] = value

    return lambda x: pl.pallas_call(kernel, out_shape=x)(x), (normal(512, 1024),)


PROGRAMS = {
    "matmul, grid of 8x8x8": of_matmul,
    "flash attention of jax, 2 heads of 1,024": of_flash,
    "4,096 small steps": of_steps,
    "loop of 20,000 rows": of_loop,
    "512 unrolled updates": of_updates,
}

LIMITS = {
    "matmul, grid of 8x8x8": "machine: 0.3 first, 0.15 later",
    "flash attention of jax, 2 heads of 1,024": "machine: 0.6 first, 0.1 later",
    "4,096 small steps": "machine: 0.5 first, 0.3 later",
    "loop of 20,000 rows": "first: twice HLO mode's; later 0.1, sanitizer 0.5",
    "512 unrolled updates": "2,000 MB",
}


def measure(name: str, mode: str, rounds: int) -> None:
    """Print the measurements of one kernel in one mode as JSON."""
    function, arguments = PROGRAMS[name]()
    jax.block_until_ready(arguments)
    jax.jit(lambda x: x + 1)(1.0).block_until_ready()  # what jax itself needs
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = []
    with pallas_debug.interpret(mode):
        jitted = jax.jit(function)
        for _ in range(rounds + 1):
            start = time.perf_counter()
            jax.block_until_ready(jitted(*arguments))
            times.append(time.perf_counter() - start)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(json.dumps({"first": times[0], "later": min(times[1:]), "mb": grown}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mode", help=argparse.SUPPRESS)  # of a child
    parser.add_argument("kernel", nargs="*", choices=[[], *PROGRAMS], default=[])
    options = parser.parse_args()
    if options.mode:
        measure(options.kernel[0], options.mode, options.rounds)
        return
    print(f"jax {jax.__version__}")
    for name in options.kernel or PROGRAMS:
        print(f"{name} ({LIMITS[name]})")
        hlo: dict[str, float] = {}
        for title, mode in MODES.items():
            command = [sys.executable, __file__, name, "--mode", mode]
            command += ["--rounds", str(options.rounds)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                print(f"  {title:<10} failed: {done.stderr.strip().splitlines()[-1:]}")
                continue
            found = json.loads(done.stdout.splitlines()[-1])
            hlo = hlo or found
            ratios = " / ".join(f"{hlo[key] / found[key]:.1f}" for key in ("first", "later"))
            print(
                f"  {title:<10} first {found['first']:>6.2f} s, later {found['later']:>6.2f} s, "
                f"{found['mb']:>6.0f} MB; {ratios} times as fast as HLO mode",
                flush=True,
            )


if __name__ == "__main__":
    main()
