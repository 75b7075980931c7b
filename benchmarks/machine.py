"""Speed and memory of the kernel machine, against TPU interpret mode with race detection.

    python benchmarks/machine.py [--rounds N] [--length N] [jax] [ours]

Runs the forward kernel of splash attention, causal, 2 heads of 2,048 by 128, on the same arrays
alternately in TPU interpret mode and on the machine, without and with the sanitizer. The ratio is
that of the fastest rounds, as other load on a shared machine can only slow a round down. Nothing is
asserted; the limits are printed next to the ratios. Memory is the growth of the process's maximum
during the machine's runs, which come first.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as of_jax
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks_of_jax
from pallas_debug_kernels import make_splash_attention
from pallas_debug_kernels.ops import splash_attention as ours

from pallas_debug.bridge.interpret import interpret
from pallas_debug.bridge.lowering import calls, replay
from pallas_debug.bridge.programs.launch import Launch, launch
from pallas_debug.machine import run
from pallas_debug.machine.sanitizer import areas
from pallas_debug.model import Finding
from pallas_debug.session import Options, Session

HEADS, WIDTH = 2, 128
PLAIN_LIMIT, SANITIZED_LIMIT = 8, 3
MEMORY_FACTOR, MEMORY_MB = 4, 200
RACES = "tpu,detect_races"


def jax_splash(length: int) -> Callable[..., Any]:
    mask = masks_of_jax.MultiHeadMask([masks_of_jax.CausalMask((length, length))] * HEADS)
    return of_jax.make_splash_mha(mask, head_shards=1, q_seq_shards=1)


def our_splash(length: int) -> Callable[..., Any]:
    mask = ours.MultiHeadMask([ours.CausalMask((length, length))] * HEADS)
    return make_splash_attention(mask)


PROGRAMS = {"jax": jax_splash, "ours": our_splash}


def sanitize(decoded: Launch, operands: list[Any]) -> Sequence[Finding]:
    """Findings of the kernel machine's sanitizer."""
    observers = areas.observers(decoded, [operands], 0)
    return run.run(decoded, [operands], observers=observers).findings


def fastest(function: Callable[[], Any], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def grown_mb(before: int) -> float:
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("program", nargs="*", choices=[[], *PROGRAMS], default=[])
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    shape = HEADS, options.length, WIDTH
    arrays = [rng.standard_normal(shape, np.float32) * 0.1 for _ in range(3)]
    print(f"jax {jax.__version__}, {HEADS} heads of {options.length}")
    for name in options.program or PROGRAMS:
        measure(name, jax.jit(PROGRAMS[name](options.length)), arrays, options.rounds)


def measure(name: str, function: Callable[..., Any], arrays: list[Any], rounds: int) -> None:
    recorder = calls.CallRecorder()
    session = Session(Options(interpret="hlo", targets=(), chip="v5e"))
    with session, calls.recording(recorder):
        jax.block_until_ready(function(*arrays))
    (captured,) = session.captures
    ((operands,),) = recorder.calls(captured.kernel.digest)
    decoded = launch(captured)
    run.run(decoded, [operands])  # compiles
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    plain = fastest(lambda: run.run(decoded, [operands]), rounds)
    plain_mb = grown_mb(before)
    findings = sanitize(decoded, operands)
    sanitized = fastest(lambda: sanitize(decoded, operands), rounds)
    sanitized_mb = grown_mb(before)
    with interpret.interpreting(RACES):
        again = replay.replay(captured, [(operands,)])
        again()  # compiles
        interpreted = fastest(again, rounds)
    size = sum(array.nbytes for array in operands) / 2**20
    size += sum(np.prod(o.array) * o.type.dtype.itemsize for o in decoded.operands
                if o.kind == "output" and o.array is not None) / 2**20  # fmt: skip
    allowed = MEMORY_FACTOR * size + MEMORY_MB
    print(f"{name}: {captured.kernel.name}, {np.prod(captured.kernel.grid)} grid points")
    print(f"  TPU interpret mode with races   {interpreted * 1e3:>8.0f} ms")
    for what, seconds, limit, grown in (
        ("machine", plain, PLAIN_LIMIT, plain_mb),
        ("machine, with the sanitizer", sanitized, SANITIZED_LIMIT, sanitized_mb),
    ):
        ratio = f"{interpreted / seconds:>6.1f} times as fast (target: {limit})"
        memory = f"{grown:>6.0f} MB (allowed: {allowed:.0f} for arrays of {size:.0f})"
        print(f"  {what:<30}  {seconds * 1e3:>8.0f} ms {ratio} {memory}", flush=True)
    if findings:
        raise SystemExit(f"findings in a correct kernel: {[f.message for f in findings]}")


if __name__ == "__main__":
    main()
