"""Bundled kernels compared with jax's own, by the TPU compiler's figures, without a TPU.

    python benchmarks/kernels.py [--target v5e,v6e] [--cycles] [case ...]

Prints one line per case, kernel and target: the scheduled bundles of the kernel (an instruction
word each) and its spill stores, ours and jax's, and the ratio of ours to jax's. `--cycles` adds the
compiler's estimate of cycles for all grid steps together, which takes a while for small blocks.
Cases are selected by a part of their name; by default all run. Nothing is asserted.

Every target and every implementation compiles in its own process, since libtpu reads its flags once
and can abort the process.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SIDES = ("ours", "jax")
TOPOLOGIES = {
    "v4": "v4:2x2x1",
    "v5e": "v5e:2x2",
    "v5p": "v5p:2x2x1",
    "v6e": "v6e:2x2",
    "tpu7x": "tpu7x:2x2x1",
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One program, written with our kernels and with jax's.

    `PROGRAMS[program](side, **settings)` gives a function and its avals. `kernels` says which
    kernels of it are measured: a name, and a pattern for the compiler's name of it.
    """

    name: str
    program: str
    settings: dict[str, Any] = field(default_factory=dict)
    kernels: dict[str, str]


def flash_cases() -> list[Case]:
    """Flash attention, forward alone and the two backward kernels, at jax's blocks and at 512."""
    return [
        Case(
            name=f"flash {passes} {seq} block {block}{' causal' * causal}",
            program="flash",
            settings={"seq": seq, "block": block, "causal": causal, "passes": passes},
            kernels=kernels,
        )
        for passes, kernels in {
            "forward": {"forward": "flash_attention"},
            "backward": {"dkv": "dkv", "dq": "dq"},
        }.items()
        for seq in (1024, 4096)
        for block in (128, 512)
        for causal in (False, True)
    ]


def flash(
    side: str, *, seq: int, block: int, causal: bool, passes: str
) -> tuple[Callable[..., Any], list[Any]]:
    """Batch 1, two heads, head_dim 128, bfloat16; the scale is one that both have to apply."""
    import jax
    import jax.numpy as jnp

    home = {
        "ours": "pallas_debug_kernels.ops.flash_attention",
        "jax": "jax.experimental.pallas.ops.tpu.flash_attention",
    }[side]
    module = importlib.import_module(home)
    names = (
        *("block_q", "block_k_major", "block_k"),
        *("block_q_major_dkv", "block_k_major_dkv", "block_k_dkv", "block_q_dkv"),
        *("block_k_major_dq", "block_k_dq", "block_q_dq"),
    )
    blocks = module.BlockSizes(block_b=1, **dict.fromkeys(names, block))

    def forward(q: Any, k: Any, v: Any) -> Any:
        return module.flash_attention(
            q, k, v, causal=causal, sm_scale=128**-0.5, block_sizes=blocks
        )

    def backward(q: Any, k: Any, v: Any, do: Any) -> Any:
        return jax.vjp(forward, q, k, v)[1](do)

    x = jax.ShapeDtypeStruct((1, 2, seq, 128), jnp.bfloat16)
    return (forward, [x] * 3) if passes == "forward" else (backward, [x] * 4)


def splash_cases() -> list[Case]:
    """Splash attention at blocks of 512, with a mask of each kind."""
    return [
        Case(
            name=f"splash {passes} {seq} {mask}",
            program="splash",
            settings={"seq": seq, "mask": mask, "passes": passes},
            kernels=kernels,
        )
        for passes, kernels in {
            "forward": {"forward": "splash_(attention|mha_fwd)"},
            "backward": {"dkv": "splash_(attention|mha)_dkv", "dq": "splash_(attention|mha)_dq"},
        }.items()
        for seq in (4096,)
        for mask in ("causal", "local", "numpy")
    ]


def splash(side: str, *, seq: int, mask: str, passes: str) -> tuple[Callable[..., Any], list[Any]]:
    """Eight heads, head_dim 128, bfloat16, scores unscaled; `numpy` is a random causal mask."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    if side == "ours":
        module = importlib.import_module("pallas_debug_kernels.ops.splash_attention")
        masks, make = module, module.make_splash_attention
        blocks = module.BlockSizes.same(512, 512)
    else:
        home = "jax.experimental.pallas.ops.tpu.splash_attention"
        masks = importlib.import_module(f"{home}.splash_attention_mask")
        module = importlib.import_module(f"{home}.splash_attention_kernel")
        make = module.make_splash_mha
        names = ("block_q", "block_kv", "block_kv_compute", "block_q_dkv", "block_kv_dkv")
        names += ("block_kv_dkv_compute", "block_q_dq", "block_kv_dq")
        blocks = module.BlockSizes(**dict.fromkeys(names, 512))
    shape = (seq, seq)
    dense = np.tril(np.random.default_rng(0).random(shape) < 0.5)
    one = {
        "causal": lambda: masks.CausalMask(shape),
        "local": lambda: masks.LocalMask(shape, (1024, 0), 0),
        "numpy": lambda: masks.NumpyMask(dense),
    }[mask]()
    heads = masks.MultiHeadMask([one] * 8)
    shards = {} if side == "ours" else {"head_shards": 1, "q_seq_shards": 1}

    def forward(q: Any, k: Any, v: Any) -> Any:
        return make(heads, block_sizes=blocks, **shards)(q, k, v)

    def backward(q: Any, k: Any, v: Any, do: Any) -> Any:
        return jax.vjp(forward, q, k, v)[1](do)

    x = jax.ShapeDtypeStruct((8, seq, 128), jnp.bfloat16)
    return (forward, [x] * 3) if passes == "forward" else (backward, [x] * 4)


CASES = [*flash_cases(), *splash_cases()]
PROGRAMS: dict[str, Callable[..., tuple[Callable[..., Any], list[Any]]]] = {
    "flash": flash,
    "splash": splash,
}


def measure_here(target: str, side: str, names: list[str], dumps: Path) -> dict[str, Any]:
    """In a child process: compile the cases, and read what libtpu writes about each."""
    import jax
    from jax.experimental import topologies

    topology = topologies.get_topology_desc(platform="tpu", topology_name=TOPOLOGIES[target])
    sharding = jax.sharding.SingleDeviceSharding(topology.devices[0])
    figures: dict[str, Any] = {}
    for case in CASES:
        if case.name not in names:
            continue
        function, avals = PROGRAMS[case.program](side, **case.settings)
        avals = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding) for x in avals]
        for stale in (file for file in dumps.rglob("*") if file.is_file()):
            stale.unlink()
        jax.jit(function).lower(*avals).compile()
        for kernel, pattern in case.kernels.items():
            figures[f"{case.name} {kernel}"] = figures_of(pattern, dumps)
    return figures


def figures_of(pattern: str, dumps: Path) -> dict[str, int | None]:
    """Bundles, spill stores and estimated cycles of the one kernel whose name has `pattern`."""
    found = [
        file
        for file in dumps.glob("*-final_bundles.txt")
        if re.search(pattern, file.name) and "schedule-analysis" not in file.name
    ]
    if len(found) != 1:
        raise SystemExit(f"{pattern}: {len(found)} kernels, not one: {[f.name for f in found]}")
    lines = [
        line
        for line in found[0].read_text().splitlines()
        if re.match(r"\s*(0x[0-9a-f]+|0)\s", line)
    ]
    cycles = [
        int(re.findall(r"estimated_cycles: (\d+)", file.read_text())[0])
        for file in dumps.rglob("*_static_llo_profile.textproto")
        if re.search(pattern, file.name)
    ]
    return {
        "bundles": len(lines),
        "spills": sum(len(re.findall(r"\bvst\b[^;]*_spill\]", line)) for line in lines),
        "cycles": cycles[0] if len(cycles) == 1 else None,
    }


def measure(target: str, side: str, names: list[str], *, cycles: bool) -> dict[str, Any]:
    """The figures of the cases, from a process of its own."""
    with tempfile.TemporaryDirectory() as directory:
        flags = [
            f"--xla_jf_dump_to={directory}",
            "--xla_jf_dump_llo_text=true",
            "--xla_jf_dump_llo_pass_label_regex=.*final_bundles.*",
        ]
        if cycles:
            flags.append(f"--xla_jf_dump_static_llo_profile_to={directory}/profile")
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_LOG_DIR": "disabled",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
            "LIBTPU_INIT_ARGS": " ".join(flags),
        }
        done = subprocess.run(
            [sys.executable, __file__, "--child", target, side, directory, *names],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"{side} on {target} failed:\n{done.stderr[-3000:]}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def print_table(target: str, figures: dict[str, dict[str, Any]], *, cycles: bool) -> None:
    """One line per case and kernel."""
    columns = ("bundles", "cycles") if cycles else ("bundles",)
    width = max(len(name) for name in figures["ours"])
    print(f"\n{target:{width}}", *(f"{c:>10} {'jax':>9} {'ratio':>6}" for c in columns), "  spills")
    for name, ours in figures["ours"].items():
        jaxs = figures["jax"][name]
        print(f"{name:{width}}", *(_compared(ours[c], jaxs[c]) for c in columns), end="")
        print(f"  {ours['spills']} / {jaxs['spills']}")


def _compared(ours: int | None, jaxs: int | None) -> str:
    ratio = f"{ours / jaxs:.2f}" if ours and jaxs else "-"
    return f"{ours or '-':>10} {jaxs or '-':>9} {ratio:>6}"


def main() -> None:
    """Print one table per target."""
    if sys.argv[1:2] == ["--child"]:
        target, side, directory, *names = sys.argv[2:]
        print(json.dumps(measure_here(target, side, names, Path(directory))))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="v5e,v6e", help="of: " + ", ".join(TOPOLOGIES))
    parser.add_argument("--cycles", action="store_true")
    parser.add_argument("case", nargs="*")
    options = parser.parse_args()
    names = [
        case.name
        for case in CASES
        if not options.case or any(part in case.name for part in options.case)
    ]
    for target in options.target.split(","):
        figures = {side: measure(target, side, names, cycles=options.cycles) for side in SIDES}
        print_table(target, figures, cycles=options.cycles)


if __name__ == "__main__":
    main()
