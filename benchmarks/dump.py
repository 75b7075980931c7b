"""Cost of dumping and capturing, as ratios within one run.

    python benchmarks/dump.py [dump] [loop] [verify] [capture] [start] [flash]

Every part runs in its own processes and prints a table with the target figures next to the ratios.
Nothing is asserted, as shared machines are noisy.
"""

from __future__ import annotations

import compileall
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

PROGRAMS = """
import time
import jax, jax.numpy as jnp
from pallas_debug_kernels import flash_attention

def programs():
    '''20 flash attentions, no two of them alike.'''
    for i in range(20):
        q = jax.ShapeDtypeStruct((1 + i % 4, 2, 512 + 128 * (i // 4), 128), jnp.bfloat16)
        kwargs = dict(causal=bool(i % 2), block_q=128, block_k=128)
        yield (lambda q, k, v, kwargs=kwargs: flash_attention(q, k, v, **kwargs)), q
"""

BARE = (
    """
import os, sys
os.environ.update(
    JAX_PLATFORMS="cpu", TPU_SKIP_MDS_QUERY="1", TPU_LOG_DIR="disabled",
    LIBTPU_INIT_ARGS=f"--xla_mosaic_dump_to={sys.argv[1]} --xla_mosaic_enable_dump_debug_info=true",
)
"""
    + PROGRAMS
    + """
from jax.experimental import topologies
start = time.perf_counter()
device = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices[0]
sharding = jax.sharding.SingleDeviceSharding(device)
for function, q in programs():
    q = jax.ShapeDtypeStruct(q.shape, q.dtype, sharding=sharding)
    jax.jit(function).lower(q, q, q).compile()
print(time.perf_counter() - start)
"""
)

OURS = (
    PROGRAMS
    + """
import sys
from pathlib import Path
from pallas_debug.bridge.lowering import hook
from pallas_debug.session import Options, Session
start = time.perf_counter()
with Session(Options(dumps=Path(sys.argv[1]), targets=("v5e",), jobs=int(sys.argv[2]))) as session:
    for function, q in programs():
        with hook.stubbed():
            jax.jit(function).trace(q, q, q).lower(lowering_platforms=("tpu",))
assert len(session.dumps) == 20 and all(d.ok for d in session.dumps), session.problems
print(time.perf_counter() - start)
"""
)

LOOP = """
import sys, time
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl
import pallas_debug

def scaled(by):
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] * by
    return lambda x: pl.pallas_call(kernel, out_shape=x, name=f"scaled_{by}")(x)

functions = [scaled(by) for by in range(2, 12)]
x = jax.ShapeDtypeStruct((8, 128), jnp.float32)
start = time.perf_counter()
if sys.argv[2] == "calls":
    dumps = [d for f in functions for d in pallas_debug.dump(f, x, targets="v5e", to=sys.argv[1])]
else:
    def at_once(x):
        for function in functions:
            x = function(x)
        return x
    dumps = pallas_debug.dump(at_once, x, targets="v5e", to=sys.argv[1])
assert len(dumps) == 10 and all(d.ok and not d.compilations[0].cached for d in dumps)
print(time.perf_counter() - start)
"""

TRACED = (
    PROGRAMS
    + """
from pallas_debug.bridge.lowering import hook

class Unmoved:
    def lowered(self, *_): pass
    def ran(self, *_): pass
    def failed(self, *_): pass
    def report(self, problem): raise problem

start = time.perf_counter()
with hook.watching(Unmoved()), hook.stubbed():
    for function, q in programs():
        jax.jit(function).trace(q, q, q).lower(lowering_platforms=("tpu",))
print(time.perf_counter() - start)
"""
)

CAPTURE = """
import contextlib, sys, time
import jax, jax.numpy as jnp
from pallas_debug.bridge.interpret import interpret
from pallas_debug.session import Options, Session
from pallas_debug_kernels import flash_attention

q = jnp.ones((1, 2, 512, 128), jnp.float32)
function = jax.jit(lambda q: flash_attention(q, q, q, causal=True, block_q=128, block_k=128))
watched = sys.argv[1] == "watched"
with Session(Options()) if watched else interpret.interpreting("hlo"):
    function(q).block_until_ready()
    times = []
    for _ in range(300):
        start = time.perf_counter()
        function(q).block_until_ready()
        times.append(time.perf_counter() - start)
print(sorted(times)[len(times) // 2])
"""

PLUGIN = """
import sys, time
import pytest
start = time.perf_counter()
import pallas_debug_pytest
print(time.perf_counter() - start)
"""

FLASH = """
import sys, time
start = time.perf_counter()
import jax, jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention
import pallas_debug
q = jax.ShapeDtypeStruct((1, 2, 512, 128), jnp.bfloat16)
loss = lambda q, k, v: (flash_attention(q, k, v, causal=True).astype(jnp.float32) ** 2).sum()
dumps = pallas_debug.dump(jax.grad(loss, argnums=(0, 1, 2)), q, q, q, targets="all", to=sys.argv[1])
assert len(dumps) == 3 and all(d.ok for d in dumps)
assert sum(len(d.compilations) for d in dumps) == 15
print(time.perf_counter() - start)
"""


def timed(code: str, *arguments: str) -> float:
    """Seconds that `code` prints as its last line, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stderr)
    return float(done.stdout.split()[-1])


def best(measure: Callable[[], float], times: int = 3) -> float:
    return min(measure() for _ in range(times))


def fresh(code: str, *arguments: str) -> float:
    with tempfile.TemporaryDirectory() as scratch:
        return timed(code, scratch, *arguments)


def dump() -> None:
    """Twenty kernels for one target, against a bare loop that compiles the same modules."""
    bare = best(lambda: fresh(BARE))
    one = best(lambda: fresh(OURS, "1"))
    ours = best(lambda: fresh(OURS, "0"))
    traced = best(lambda: timed(TRACED))
    with tempfile.TemporaryDirectory() as scratch:
        timed(OURS, scratch, "0")
        cached = best(lambda: timed(OURS, scratch, "0"))
    rows = [
        ("bare loop", bare, None),
        ("dump, default processes", ours, 0.85),
        ("dump, one process", one, None),
        ("dump, all cached", cached, None),
        ("  of which tracing the programs", traced, None),
        ("  of which pallas-debug", max(0.0, cached - traced), 0.05),
    ]
    table("20 kernels for v5e", rows, bare)


def loop() -> None:
    """Ten calls of `pallas_debug.dump` with a kernel each, against one call with all ten."""
    calls, once = [], []
    for _ in range(5):  # in turn, so that a noisy moment meets both
        calls.append(fresh(LOOP, "calls"))
        once.append(fresh(LOOP, "once"))
    rows = [("one call", min(once), None), ("ten calls", min(calls), 1.3)]
    table("10 small kernels for v5e, without importing jax", rows, min(once))


def verify() -> None:
    """The command on flash attention, for five targets, from nothing."""
    script = str(Path(sys.executable).with_name("pallas-debug"))

    def cold() -> float:
        with tempfile.TemporaryDirectory() as scratch:
            wanted = ["pallas_debug_kernels:flash_attention", "--to", scratch, "--target", "all"]
            return wall([script, "verify", *wanted])

    print(f"verify of flash attention, five targets: {best(cold):.1f} s (under 5 s)\n")


def capture() -> None:
    """A program that runs under capture, against the same without it, after compilation."""
    bare, watched = [], []
    for _ in range(3):  # in turn, so that a noisy moment meets both
        bare.append(timed(CAPTURE, "bare"))
        watched.append(timed(CAPTURE, "watched"))
    rows = [("without", min(bare), None), ("under capture", min(watched), 1.02)]
    table("one call of a compiled flash attention", rows, min(bare))


def start() -> None:
    """Starting the command, and loading the plugin."""
    script = str(Path(sys.executable).with_name("pallas-debug"))
    nothing = best(lambda: wall([sys.executable, "-c", "pass"]), 15)
    helped = best(lambda: wall([script, "--help"]), 15)
    table(
        "starting", [("python -c pass", nothing, None), ("pallas-debug --help", helped, None)], 1.0
    )
    print(f"  --help over (2 x `pass` + 60 ms): {helped / (2 * nothing + 0.06):.2f} (at most 1)\n")
    spec = importlib.util.find_spec("pallas_debug_pytest")
    assert spec is not None
    assert spec.submodule_search_locations
    for folder in spec.submodule_search_locations:  # pip compiles what it installs
        compileall.compile_dir(folder, quiet=1)
    loaded = statistics.median(timed(PLUGIN) for _ in range(9))
    print(f"  loading the plugin: {loaded * 1000:.2f} ms (under 3 ms)\n")


def wall(command: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin


def flash() -> None:
    """jax's own flash attention, forward and backward, for all targets, from nothing."""
    seconds = fresh(FLASH)
    print(f"jax's flash attention, three kernels for five targets: {seconds:.1f} s (under 20 s)\n")


def table(title: str, rows: list[tuple[str, float, float | None]], unit: float) -> None:
    print(title)
    for name, seconds, limit in rows:
        allowed = f"  (at most {limit:g})" if limit is not None else ""
        print(f"  {name:38} {seconds * 1000:9.2f} ms  {seconds / unit:6.3f}{allowed}")
    print()


PARTS = {part.__name__: part for part in (dump, loop, verify, capture, start, flash)}

if __name__ == "__main__":
    print(json.dumps({"python": sys.version.split()[0]}))
    for name in sys.argv[1:] or PARTS:
        PARTS[name]()
