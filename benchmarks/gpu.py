"""jax's kernels for GPUs, each dumped for a chip that it is meant for, on a machine without a GPU.

    python benchmarks/gpu.py                the table: outcome, lines, time, size on disk
    python benchmarks/gpu.py hopper_matmul  only kernels whose names contain that
    python benchmarks/gpu.py --bare         jax's Hopper matmul against a script without this tool

Lines are the share of the PTX's instructions that lead to a Python line. With --bare, both are new
processes, which alternate; the least of several times counts.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import pallas_debug
from pallas_debug.ir.operations import Module
from pallas_debug.store import open_dumps
from pallas_debug.store.texts import find_text

REPEATS = 5
F16, BF16, F32, I32 = jnp.float16, jnp.bfloat16, jnp.float32, jnp.int32

Case = tuple[str, str, Callable[..., Any], list[Any]]
"""Name, chip, function, and arguments."""


def of(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def triton() -> Iterator[Case]:
    from jax.experimental.pallas.ops.gpu import (
        attention,
        decode_attention,
        layer_norm,
        paged_attention,
        rms_norm,
        softmax,
    )

    q = of(F16, 1, 384, 8, 64)
    yield "softmax", "a100", softmax.softmax, [of(F32, 1024, 1000)]
    rows = [of(F32, 8, 384, 192), of(F32, 192), of(F32, 192)]
    for name, norm in (("layer_norm", layer_norm.layer_norm), ("rms_norm", rms_norm.rms_norm)):
        yield name, "a100", norm, rows

        def loss(x: Any, w: Any, b: Any, norm: Any = norm) -> Any:
            return norm(x, w, b).sum()

        yield f"{name} backward", "a100", jax.grad(loss, argnums=(0, 1, 2)), rows
    yield "attention", "a100", lambda q, k, v: attention.mha(q, k, v, None, causal=True), [q] * 3
    yield (
        "attention backward",
        "h100",
        jax.grad(lambda q, k, v: attention.mha(q, k, v, None).sum(), argnums=(0, 1, 2)),
        [q] * 3,
    )
    yield (
        "decode mqa",
        "l4",
        decode_attention.mqa,
        [of(F16, 2, 16, 64), *[of(F16, 2, 1024, 64)] * 2],
    )
    yield (
        "decode gqa",
        "l4",
        decode_attention.gqa,
        [
            of(F16, 2, 16, 64),
            *[of(F16, 2, 1024, 4, 64)] * 2,
        ],
    )
    yield (
        "paged_attention",
        "a100",
        paged_attention.paged_attention,
        [
            of(F16, 2, 16, 64),
            *[of(F16, 4, 256, 16, 64)] * 2,
            of(I32, 2, 128),
            of(I32, 2),
        ],
    )


def hopper() -> Iterator[Case]:
    from jax.experimental.pallas.ops.gpu import attention_mgpu as attention
    from jax.experimental.pallas.ops.gpu import hopper_matmul_mgpu as matmul
    from jax.experimental.pallas.ops.gpu import hopper_mixed_type_matmul_mgpu as mixed
    from jax.experimental.pallas.ops.gpu import ragged_dot_mgpu as ragged
    from jax.experimental.pallas.ops.gpu import transposed_ragged_dot_mgpu as transposed

    a = of(F16, 4096, 4096)
    tiles = {"tile_m": 128, "tile_n": 128, "tile_k": 64, "max_concurrent_steps": 4}
    tuned = matmul.TuningConfig(**tiles)
    yield "hopper_matmul", "h100", lambda x, y: matmul.matmul(x, y, None, config=tuned), [a, a]

    def mix(x: Any, y: Any) -> Any:
        return mixed.mixed_matmul_kernel(x, y, out_dtype=F16, config=mixed.TuningConfig(**tiles))

    yield "hopper_mixed_type_matmul", "h100", mix, [of(jnp.int8, 4096, 4096), a]
    blocks = {"block_q": 64, "block_kv": 64, "max_concurrent_steps": 2}
    attend = attention.TuningConfig(**blocks, block_q_dkv=64, block_kv_dkv=64, block_q_dq=64,
                                    block_kv_dq=64)  # fmt: skip
    q = of(F16, 2, 1024, 4, 64)
    yield "attention_mgpu", "h100", lambda q, k, v: attention.attention(q, k, v, attend), [q] * 3
    yield (
        "attention_mgpu backward",
        "h200",
        jax.grad(lambda q, k, v: attention.attention(q, k, v, attend).sum(), argnums=(0, 1, 2)),
        [q] * 3,
    )
    emitted = attention.TuningConfig(**blocks)
    yield (
        "attention_with_pipeline_emitter",
        "h100",
        lambda q, k, v: attention.attention_with_pipeline_emitter(q, k, v, emitted),
        [q] * 3,
    )
    sizes = {"block_m": 64, "block_n": 64, "block_k": 64, "max_concurrent_steps": 2}

    def ragged_dot(x: Any, y: Any, g: Any) -> Any:
        return ragged.ragged_dot(x, y, group_sizes=g, grid_block_n=2, **sizes)

    yield "ragged_dot", "h100", ragged_dot, [of(F16, 1024, 512), of(F16, 4, 512, 1024), of(I32, 4)]

    def transposed_dot(x: Any, y: Any, g: Any) -> Any:
        return transposed.transposed_ragged_dot(x, y, group_sizes=g, grid_block_n=2, **sizes)

    operands = [of(F16, 1024, 512), of(F16, 1024, 512), of(I32, 4)]
    yield "transposed_ragged_dot", "h100", transposed_dot, operands


def blackwell() -> Iterator[Case]:
    from jax.experimental.pallas.ops.gpu import blackwell_matmul_mgpu as matmul
    from jax.experimental.pallas.ops.gpu import blackwell_ragged_dot_mgpu as ragged

    a = of(F16, 4096, 4096)
    tiles = {"tile_m": 128, "tile_n": 128, "tile_k": 64, "max_concurrent_steps": 4}
    one, two = (matmul.TuningConfig(**tiles, collective=both) for both in (False, True))
    yield "blackwell_matmul", "b200", lambda x, y: matmul.matmul_kernel(x, y, one), [a, a]
    yield (
        "blackwell_matmul collective",
        "b200",
        lambda x, y: matmul.matmul_kernel(x, y, two),
        [a, a],
    )
    grouped = ragged.TuningConfig(
        **tiles, collective=True, grid_tile_width=1, grid_minor_dim=matmul.MatmulDimension.N
    )

    def ragged_dot(x: Any, y: Any, g: Any) -> Any:
        return ragged.ragged_dot_kernel(x, y, g, grouped)

    yield "blackwell_ragged_dot", "b200", ragged_dot, [a, of(F16, 4, 4096, 4096), of(I32, 4)]


def collective() -> Iterator[Case]:
    from jax.experimental.pallas.ops.gpu import all_gather_mgpu, reduce_scatter_mgpu
    from jax.experimental.pallas.ops.gpu import collective_matmul_mgpu as matmul
    from jax.sharding import PartitionSpec as P

    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices()[:2], axis_types=auto)

    def sharded(function: Any, specs: Any, out: Any) -> Any:
        return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False)

    def gather(x: Any) -> Any:
        return all_gather_mgpu.all_gather(x, axis_name="x", num_blocks=4, tile_size=1024)

    def scatter(x: Any) -> Any:
        return reduce_scatter_mgpu.reduce_scatter(x, axis_name="x", num_blocks=4, tile_size=1024)

    x = [of(BF16, 1024, 1024)]
    yield "all_gather", "h100", sharded(gather, P("x", None), P(None, None)), x
    yield "reduce_scatter", "h100", sharded(scatter, P(None, None), P("x", None)), x
    tuned = matmul.hopper_matmul_mgpu.TuningConfig(
        tile_m=128, tile_n=128, tile_k=64, max_concurrent_steps=4
    )

    def multiply(x: Any, y: Any) -> Any:
        return matmul.all_gather_lhs_matmul(x, y, axis_name="x", config=tuned)

    yield (
        "collective_matmul",
        "h100",
        sharded(multiply, (P("x", None), P(None, "x")), P(None, "x")),
        [of(F16, 2048, 1024), of(F16, 1024, 2048)],
    )


def dumped(case: Case) -> None:
    """Dump the kernels of a function, and print a line for each."""
    name, chip, function, args = case
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        try:
            pallas_debug.dump(function, *args, targets=chip, to=folder)
        except Exception as error:  # noqa: BLE001 - the table shows it
            print(f"{name:34} {chip:5} {type(error).__name__}: {str(error)[:300]}", flush=True)
            return
        first = time.perf_counter() - begin
        begin = time.perf_counter()
        pallas_debug.dump(function, *args, targets=chip, to=folder)
        again = time.perf_counter() - begin
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        for kernel in open_dumps(folder).kernels():
            outcome = _outcome(kernel, chip)
            print(
                f"{name:34} {chip:5} {outcome}  {first:5.1f} s {again:5.2f} s {size / 1e6:5.2f} MB",
                flush=True,
            )


def _outcome(kernel: Any, chip: str) -> str:
    compilation = kernel.target(chip).compilation
    if compilation is None or not compilation.ok:
        failure = compilation.failure if compilation else None
        known = failure.explanation.id if failure and failure.explanation else "not explained"
        return f"{failure.stage}: {failure.headline[:140]} ({known})" if failure else "unreadable"
    shares = []
    for stage in ("ptx", "sass"):
        module = Module.of(find_text(kernel, chip, stage).text)
        named = [n for n, name in enumerate(module.names) if name is not None]
        shares.append(sum(bool(module.source(n)) for n in named) / max(len(named), 1))
    return f"ok  PTX {shares[0]:6.1%}  SASS {shares[1]:6.1%}"


BARE = """
import os, sys, tempfile
from pathlib import Path
from pallas_debug.chips import GPUS
from pallas_debug.compiler import gpu
folder = tempfile.mkdtemp()
os.environ.update(gpu.environment() | gpu.dump_variables(folder))
os.environ["XLA_FLAGS"] = " ".join(f"--{n}={v}" for n, v in gpu._options(folder).items())
import jax, jax.numpy as jnp
from jax.experimental import topologies
from jax.experimental.pallas.ops.gpu import hopper_matmul_mgpu as hm
from jax.sharding import AbstractDevice, AbstractMesh, NamedSharding, PartitionSpec
config = GPUS["h100"].target_config
topology = topologies.get_topology_desc(platform="cuda", topology="1x1x1", target_config=config)
mesh = topologies.make_mesh(topology, (1,), ("d",))
a = jax.ShapeDtypeStruct((4096, 4096), jnp.float16, sharding=NamedSharding(mesh, PartitionSpec()))
tuned = hm.TuningConfig(tile_m=128, tile_n=128, tile_k=64, max_concurrent_steps=4)
device = AbstractDevice(device_kind=GPUS["h100"].device_kind, num_cores=132, platform="gpu")
with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
    traced = jax.jit(lambda x, y: hm.matmul(x, y, None, config=tuned)).trace(a, a)
    traced.lower(lowering_platforms=("cuda",)).compile()
ptx, = (path for path in Path(folder).glob("*.ptx") if ".entry" in path.read_text())
cubin = folder + "/kernel.cubin"
gpu._run([gpu.tool("ptxas"), "-arch=sm_90a", "-lineinfo", "-v", str(ptx), "-o", cubin])
assert "HGMMA" in gpu._run([gpu.tool("nvdisasm"), "-g", "-c", cubin]).stdout
"""
"""jax's Hopper matmul to machine instructions, with the same flags and without this tool."""

IMPORTS = """
import jax, pallas_debug
from jax.experimental.pallas.ops.gpu import hopper_matmul_mgpu
"""

OURS = """
import sys, jax, jax.numpy as jnp, pallas_debug
from jax.experimental.pallas.ops.gpu import hopper_matmul_mgpu as hm
tuned = hm.TuningConfig(tile_m=128, tile_n=128, tile_k=64, max_concurrent_steps=4)
a = jax.ShapeDtypeStruct((4096, 4096), jnp.float16)
pallas_debug.dump(
    lambda x, y: hm.matmul(x, y, None, config=tuned), a, a, targets="h100", to=sys.argv[1]
)
"""


def compare() -> None:
    """Time jax's Hopper matmul from nothing to SASS, and again from the dump."""
    bare, ours, cached = [], [], []
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as folder:
            bare.append(_seconds(BARE, folder))
            ours.append(_seconds(OURS, folder))
            cached.append(_seconds(OURS, folder))
    once = _seconds(IMPORTS, "")
    print(f"bare {min(bare):.2f} s, dump {min(ours):.2f} s ({min(ours) / min(bare):.2f}), "
          f"cached {min(cached):.2f} s, of which imports {once:.2f} s")  # fmt: skip


def _seconds(script: str, folder: str) -> float:
    begin = time.perf_counter()
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", script, folder], env=environment, check=True,
                   capture_output=True)  # fmt: skip
    return time.perf_counter() - begin


def main(words: list[str]) -> None:
    warnings.simplefilter("ignore", DeprecationWarning)
    if "--bare" in words:
        compare()
        return
    jax.config.update("jax_num_cpu_devices", 2)
    print(f"jax {jax.__version__}")
    for cases in (triton, hopper, blackwell, collective):
        with contextlib.suppress(ImportError):
            for case in cases():
                if not words or any(word in case[0] for word in words):
                    dumped(case)


if __name__ == "__main__":
    main(sys.argv[1:])
