"""Bundled attention kernels compared with jax's own by their schedules, without a TPU.

    python benchmarks/schedules.py [--target v5e,v6e] [--estimate] [case ...]

Prints a line per kernel, setting and target: bundles in total and in the loop over the grid,
estimated cycles, and spills, of ours, of jax's, and the ratio. `--estimate` adds libtpu's own
estimate of cycles, which takes time for each grid step. Cases are selected by a part of their name;
by default all run. Nothing is asserted.

Each kernel is compiled by itself, as the tool does. Within a program, XLA may keep small operands
in VMEM, which saves the bundles that fetch them.

Both sides have the same shapes, masks and blocks. float32 is multiplied at full precision: ours
always is, jax's only under `jax.default_matmul_precision("highest")`.
"""

from __future__ import annotations

import argparse
import importlib
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pallas_debug
from pallas_debug.profile.stats import Stats
from pallas_debug.store import open_dumps
from pallas_debug.store.profiles import read_profile

SIDES = ("ours", "jax")
DTYPES = {"bf16": jnp.bfloat16, "f32": jnp.float32}
HEADS = 2


@dataclass(frozen=True, kw_only=True)
class Case:
    """One program, written with our kernels and with jax's, and which of its kernels to measure.

    `kernels` maps a name to a pattern for the kernel's name on either side.
    """

    program: str
    dtype: str
    mask: str
    block: int
    passes: str

    @property
    def name(self) -> str:
        return f"{self.program} {self.dtype} {self.mask} {self.block} {self.passes}"

    @property
    def kernels(self) -> dict[str, str]:
        if self.passes == "backward":
            return {"dkv": r"_dkv", "dq": r"_dq"}
        return {"forward": r"^(?!.*(_dkv|_dq))"}

    @property
    def seq(self) -> int:
        """Several blocks: jax's forward kernel is another one where a block has all keys."""
        return 4 * self.block


def cases() -> Iterator[Case]:
    """Every dtype, block and pass with all keys visible and causal; other masks at 512."""
    for program in ("flash", "splash"):
        for dtype in DTYPES:
            for passes in ("forward", "backward"):
                for block in (128, 256, 512):
                    for mask in ("full", "causal"):
                        yield Case(
                            program=program, dtype=dtype, mask=mask, block=block, passes=passes
                        )
                for mask in ("local", "numpy") if program == "splash" else ():
                    yield Case(program=program, dtype=dtype, mask=mask, block=512, passes=passes)


def flash(side: str, case: Case) -> Callable[..., Any]:
    """Flash attention; the scale is one that both sides have to apply."""
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
    blocks = module.BlockSizes(block_b=1, **dict.fromkeys(names, case.block))

    def forward(q: Any, k: Any, v: Any) -> Any:
        x = (a[None] for a in (q, k, v))
        causal = case.mask == "causal"
        return module.flash_attention(*x, causal=causal, sm_scale=128**-0.5, block_sizes=blocks)[0]

    return forward


def splash(side: str, case: Case) -> Callable[..., Any]:
    """Splash attention, scores unscaled; the mask `numpy` is a random causal one."""
    if side == "ours":
        module = importlib.import_module("pallas_debug_kernels.ops.splash_attention")
        masks, make = module, module.make_splash_attention
        blocks = module.BlockSizes.same(case.block, case.block)
    else:
        home = "jax.experimental.pallas.ops.tpu.splash_attention"
        masks = importlib.import_module(f"{home}.splash_attention_mask")
        module = importlib.import_module(f"{home}.splash_attention_kernel")
        make = module.make_splash_mha
        names = ("block_q", "block_kv", "block_kv_compute", "block_q_dkv", "block_kv_dkv")
        names += ("block_kv_dkv_compute", "block_q_dq", "block_kv_dq")
        blocks = module.BlockSizes(**dict.fromkeys(names, case.block))
    shape = (case.seq, case.seq)
    one = {
        "full": lambda: masks.FullMask(shape),
        "causal": lambda: masks.CausalMask(shape),
        "local": lambda: masks.LocalMask(shape, (case.seq // 2, 0), 0),
        "numpy": lambda: masks.NumpyMask(np.tril(np.random.default_rng(0).random(shape) < 0.5)),
    }[case.mask]()
    heads = masks.MultiHeadMask([one] * HEADS)
    shards = {} if side == "ours" else {"head_shards": 1, "q_seq_shards": 1}

    def forward(q: Any, k: Any, v: Any) -> Any:
        return make(heads, block_sizes=blocks, **shards)(q, k, v)

    return forward


PROGRAMS: dict[str, Callable[[str, Case], Callable[..., Any]]] = {"flash": flash, "splash": splash}


def measure(side: str, case: Case, targets: str, stage: str) -> dict[tuple[str, str], Stats]:
    """Compile a case, and return the stats of its kernels, by kernel and target."""
    forward = PROGRAMS[case.program](side, case)

    def backward(q: Any, k: Any, v: Any, do: Any) -> Any:
        return jax.vjp(forward, q, k, v)[1](do)

    x = jax.ShapeDtypeStruct((HEADS, case.seq, 128), DTYPES[case.dtype])
    function, arrays = (backward, [x] * 4) if case.passes == "backward" else (forward, [x] * 3)
    full = case.dtype == "f32"
    precision = jax.default_matmul_precision("highest") if full else nullcontext()
    found: dict[tuple[str, str], Stats] = {}
    with tempfile.TemporaryDirectory() as folder, precision:
        pallas_debug.dump(function, *arrays, targets=targets, to=Path(folder), stages=stage)
        for stored in open_dumps(Path(folder)).kernels():
            for name, pattern in case.kernels.items():
                if not re.search(pattern, stored.kernel.name):
                    continue
                for target in targets.split(","):
                    profile = read_profile(stored, stored.target(target))
                    if profile is not None:
                        found[name, target] = profile.profile.stats
    return found


def figures(stats: Stats) -> dict[str, float | None]:
    """Return what is compared; None for what the compiler did not give."""
    outermost = min((loop.depth for loop in stats.loops), default=0)
    grid = [loop.bundles.value or 0 for loop in stats.loops if loop.depth == outermost]
    longest = max(grid, default=None)
    return {
        "bundles": stats.bundles.value,
        "in loop": longest,
        "cycles": stats.cycles.total.value,
        "libtpu's": stats.cycles.compiler.value,
        "spills": stats.spills.value,
    }


def compared(ours: float | None, jaxs: float | None) -> str:
    ratio = f"{ours / jaxs:.2f}" if ours and jaxs else "-"
    shown = ["-" if x is None else f"{x:.0f}" for x in (ours, jaxs)]
    return f"{shown[0]:>9} {shown[1]:>9} {ratio:>5}"


def main() -> None:
    """Print a line per case, kernel and target."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="v5e,v6e")
    parser.add_argument("--estimate", action="store_true", help="also get libtpu's cycles")
    parser.add_argument("case", nargs="*", help="parts of names of cases")
    options = parser.parse_args()
    stage = "estimate" if options.estimate else "bundles"
    columns = (
        "bundles",
        "in loop",
        "cycles",
        *(["libtpu's"] if options.estimate else []),
        "spills",
    )
    print(f"{'':42}", *(f"{c:>9} {'jax':>9} ratio" for c in columns))
    for case in cases():
        if options.case and not any(part in case.name for part in options.case):
            continue
        sides = [measure(side, case, options.target, stage) for side in SIDES]
        for kernel, target in sides[0]:
            ours, jaxs = (figures(side[kernel, target]) for side in sides)
            print(
                f"{case.name + ' ' * (kernel != 'forward') + kernel.replace('forward', ''):36} "
                f"{target:5}",
                *(compared(ours[c], jaxs[c]) for c in columns),
                flush=True,
            )


if __name__ == "__main__":
    main()
