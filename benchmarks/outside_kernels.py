"""Kernels of other projects, with arguments of usual sizes, for `benchmarks/costs.py`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

TARGETS = ("v5e", "v6e")


@dataclass(frozen=True)
class Entry:
    """A function that calls kernels.

    Attributes:
      source: project and module.
      make: returns the function, for the module and values of its blocks.
      args: arrays, or their shapes and types.
      blocks: parameters of the function that are blocks: a value, and a larger one.
      axes: parameters that follow each axis of the grid, by part of the name of a kernel.
    """

    name: str
    source: str
    make: Callable[..., Callable[..., Any]]
    args: Sequence[Any]
    blocks: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    axes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    targets: Sequence[str] = TARGETS

    @property
    def sizes(self) -> dict[str, int]:
        return {name: size for name, (size, _) in self.blocks.items()}

    @property
    def larger(self) -> dict[str, int]:
        return {name: size for name, (_, size) in self.blocks.items()}


_TYPES = {
    "bf16": jnp.bfloat16,
    "f32": jnp.float32,
    "i32": jnp.int32,
    "i8": jnp.int8,
    "u32": jnp.uint32,
}


def _shapes(text: str) -> list[jax.ShapeDtypeStruct]:
    """Parse shapes such as `bf16[8,128] i32[8]`."""
    parts = (part.rstrip("]").partition("[") for part in text.split())
    return [
        jax.ShapeDtypeStruct(tuple(map(int, shape.split(","))), _TYPES[kind])
        for kind, _, shape in parts
    ]


def _ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def _all(names: Iterable[str], size: int, larger: int) -> dict[str, tuple[int, int]]:
    return dict.fromkeys(names, (size, larger))


def _grad(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make the gradient with respect to q, k and v."""
    return jax.grad(lambda q, k, v: function(q, k, v).astype(jnp.float32).sum(), (0, 1, 2))


def _causal(module: Any) -> tuple[Any, Any]:
    """Return the module of a splash attention's masks, and a mask."""
    masks = importlib.import_module(module.__name__.replace("_kernel", "_mask"))
    return masks, masks.CausalMask((2048, 2048))


def _splash(module: Any, **blocks: int) -> Callable[..., Any]:
    masks, mask = _causal(module)
    sizes = module.BlockSizes(**blocks)
    heads = masks.MultiHeadMask([mask] * 8)
    return _grad(module.make_splash_mha(heads, head_shards=1, q_seq_shards=1, block_sizes=sizes))


def _tokamax_splash(module: Any, **blocks: int) -> Callable[..., Any]:
    _, mask = _causal(module)
    config = module.SplashConfig(**blocks)
    return _grad(module.make_splash_mha_single_device(mask, config=config))


_JAX = "jax:jax.experimental.pallas.ops.tpu"
_NEW = "tpu-inference:tpu_inference.kernels"
_DEEPSEEK = f"{_NEW}.experimental.deepseek_v4"
_RAGGED = "maxtext:maxtext.kernels.attention.ragged_attention"
_TOKAMAX = "tokamax:tokamax._src.ops"
_BENCH = "jaxbench:pallas_eval.generated"
_SGL = "sglang-jax:sgl_jax.srt.kernels"

_MNK = ("bm", "bn", "bk")
_MKN = ("bm", "bk", "bn")
_FLASH = ("block_q", "block_k_major", "block_k")
_FLASH_DKV = ("block_q_major_dkv", "block_q_dkv", "block_k_major_dkv", "block_k_dkv")
_FLASH_DQ = ("block_q_dq", "block_k_major_dq", "block_k_dq")
_FLASH_AXES = {
    "dkv": ("", "", "block_k_major_dkv block_k_dkv", "block_q_major_dkv block_q_dkv"),
    "dq": ("", "", "block_q_dq", "block_k_major_dq block_k_dq"),
    "": ("", "", "block_q", "block_k_major block_k"),
}
_SPLASH = ("block_q", "block_kv", "block_kv_compute")
_SPLASH_DKV = ("block_q_dkv", "block_kv_dkv", "block_kv_dkv_compute")
_SPLASH_AXES = {
    "dkv": ("block_kv_dkv block_kv_dkv_compute", "", "block_q_dkv"),
    "dq": ("", "block_q_dq", "block_kv_dq"),
    "": ("", "block_q", "block_kv block_kv_compute"),
}
_QKV = _shapes(" ".join(["bf16[1,8,2048,128]"] * 3))
_HEADS = _shapes(" ".join(["bf16[8,2048,128]"] * 3))
_LENGTHS = _ints(2000, 512, 1024, 300, 1900, 64, 1500, 777)
_PAGES = np.arange(1024, dtype=np.int32).reshape(8, 128)
_GROUPS = _ints(300, 212, 256, 100, 412, 256, 0, 512)
_ROPE = _shapes("bf16[1024,64,512] i32[1024] f32[4096,64]")

ENTRIES: tuple[Entry, ...] = (
    Entry(
        "jax matmul",
        f"{_JAX}.matmul",
        lambda m, bm, bn, bk: partial(m.matmul, block_shape=(bm, bn), block_k=bk),
        _shapes("bf16[2048,4096] bf16[4096,2048]"),
        {"bm": (256, 512), "bn": (256, 1024), "bk": (256, 512)},
        {"": _MNK},
    ),
    Entry(
        "jax flash attention",
        f"{_JAX}.flash_attention",
        lambda m, **b: _grad(
            partial(m.flash_attention, causal=True, block_sizes=m.BlockSizes(block_b=1, **b))
        ),
        _QKV,
        _all((*_FLASH, *_FLASH_DKV, *_FLASH_DQ), 128, 512),
        _FLASH_AXES,
    ),
    Entry(
        "jax splash attention",
        f"{_JAX}.splash_attention.splash_attention_kernel",
        _splash,
        _HEADS,
        _all((*_SPLASH, *_SPLASH_DKV, "block_q_dq", "block_kv_dq"), 256, 512),
        _SPLASH_AXES,
    ),
    Entry(
        "jax gmm",
        f"{_JAX}.megablox.gmm",
        lambda m, **b: lambda *a: m.gmm(*a, tiling=tuple(b.values())),
        (*_shapes("bf16[2048,1024] bf16[8,1024,2048]"), _GROUPS),
        _all(_MKN, 128, 512),
        {"": ("bn", "", "bk")},
    ),
    Entry(
        "jax tgmm",
        f"{_JAX}.megablox.gmm",
        lambda m, **b: lambda *a: m.tgmm(*a, tiling=tuple(b.values())),
        (*_shapes("bf16[1024,2048] bf16[2048,2048]"), _GROUPS),
        _all(_MKN, 128, 512),
        {"": ("bn", "bk", "")},
    ),
    Entry(
        "jax paged attention",
        f"{_JAX}.paged_attention.paged_attention_kernel",
        lambda m, pages: partial(m.paged_attention, pages_per_compute_block=pages),
        (
            *_shapes("bf16[8,32,128] bf16[8,1024,16,128] bf16[8,1024,16,128]"),
            *(_LENGTHS, _PAGES),
        ),
        {"pages": (8, 32)},
    ),
    Entry(
        "jax ragged paged attention",
        f"{_JAX}.ragged_paged_attention.kernel",
        lambda m, pages, queries: partial(
            m.ragged_paged_attention, num_kv_pages_per_block=pages, num_queries_per_block=queries
        ),
        (
            *_shapes("bf16[512,16,128] bf16[1024,16,16,128]"),
            *(_LENGTHS, _PAGES, _ints(0, 1, 2, 130, 131, 259, 260, 261, 512), _ints(8)),
        ),
        {"pages": (8, 32), "queries": (32, 128)},
    ),
    Entry(
        "jax threefry",
        f"{_JAX}.random.threefry",
        lambda m, rows, columns: (
            lambda key: m.threefry_2x32_count(key, (4096, 2048), (4096, 2048), (rows, columns))
        ),
        _shapes("u32[2]"),
        _all(("rows", "columns"), 256, 512),
        {"": ("rows", "columns")},
    ),
    Entry(
        "tpu-inference flash attention",
        f"{_NEW}.flash_attention.kernel",
        lambda m, **b: partial(
            m.flash_attention, causal=True, block_sizes=m.BlockSizes(block_b=1, **b)
        ),
        _QKV,
        _all(_FLASH, 256, 1024),
        _FLASH_AXES,
    ),
    Entry(
        "tpu-inference w8a8 matmul",
        f"{_NEW}.quantized_matmul.kernel",
        lambda m, bm, bn, bk: (
            lambda *a: m.quantized_matmul_kernel(
                *a, x_q_dtype=jnp.int8, tuned_value=m.TunedValue(bm, bn, bk)
            )
        ),
        _shapes("bf16[512,4096] i8[4096,4096] f32[4096]"),
        {"bm": (256, 512), "bn": (256, 1024), "bk": (256, 1024)},
        {"": _MNK},
    ),
    Entry("tpu-inference rope", f"{_DEEPSEEK}.rope", lambda m: m.rope, _ROPE),
    Entry("tpu-inference qnorm rope", f"{_DEEPSEEK}.rope", lambda m: m.qnorm_rope, _ROPE),
    Entry(
        "tpu-inference mhc pre",
        f"{_DEEPSEEK}.mhc.pre_kernel",
        lambda m, tokens: (
            lambda *a: m.mhc_pre_mixes_collapse(*a, 1e-6, 1e-6, token_block_size=tokens)
        ),
        _shapes("bf16[2048,16384] f32[24,16384] f32[3] f32[24]"),
        {"tokens": (16, 64)},
        {"": ("tokens",)},
    ),
    Entry(
        "tpu-inference mhc post",
        f"{_DEEPSEEK}.mhc.post_kernel",
        lambda m, tokens: partial(m.mhc_post_2d, token_block_size=tokens),
        _shapes("bf16[2048,4096] bf16[2048,16384] f32[2048,4,1] f32[2048,4,4]"),
        {"tokens": (16, 64)},
        {"": ("tokens",)},
    ),
    Entry(
        "maxtext ragged mqa",
        _RAGGED,
        lambda m, block_size: partial(m.ragged_mqa, block_size=block_size),
        (*_shapes("bf16[8,8,128] bf16[8,2048,128] bf16[8,2048,128]"), _LENGTHS),
        {"block_size": (256, 1024)},
        {"": ("", "block_size")},
    ),
    Entry(
        "maxtext ragged gqa",
        _RAGGED,
        lambda m, block_size: partial(m.ragged_gqa, block_size=block_size),
        (*_shapes("bf16[8,1,32,128] bf16[8,2048,8,128] bf16[8,2048,8,128]"), _LENGTHS),
        {"block_size": (256, 2048)},
        {"": ("", "", "block_size")},
    ),
    Entry(
        "maxtext ragged gqa, full",
        _RAGGED,
        lambda m, block_size: partial(m.ragged_gqa, block_size=block_size),
        (*_shapes("bf16[8,1,32,128] bf16[8,2048,8,128] bf16[8,2048,8,128]"), _ints(*[2048] * 8)),
        {"block_size": (256, 2048)},
        {"": ("", "", "block_size")},
    ),
    Entry(
        "tokamax gmm",
        f"{_TOKAMAX}.ragged_dot.pallas_mosaic_tpu_kernel",
        lambda m, **b: (
            lambda *a: m.gmm(*a, precision=None, out_dtype=jnp.bfloat16, tiling=tuple(b.values()))
        ),
        (*_shapes("bf16[2048,1024] bf16[8,1024,2048]"), _GROUPS),
        _all(_MKN, 128, 512),
        {"": ("bn", "", "bk")},
    ),
    Entry(
        "tokamax cross-entropy",
        f"{_TOKAMAX}.linear_softmax_cross_entropy_loss.pallas_mosaic_tpu_kernel",
        lambda m, **b: partial(m.linear_softmax_cross_entropy_loss_fwd_pallas_mosaic_tpu, **b),
        _shapes("bf16[2048,1024] i32[2048] bf16[1024,8192]"),
        {"b_block_size": (1024, 1024), "h_block_size": (256, 512), "v_block_size": (512, 1024)},
        {"": ("b_block_size", "v_block_size", "h_block_size")},
    ),
    Entry(
        "tokamax splash attention",
        f"{_TOKAMAX}.experimental.tpu.splash_attention.splash_attention_kernel",
        _tokamax_splash,
        _HEADS,
        _all((*_SPLASH, *_SPLASH_DKV), 256, 512),
        _SPLASH_AXES,
    ),
    Entry(
        "jaxbench matmul 128",
        f"{_BENCH}.gpt53.jaxkernelbench_level1.1_Square_matrix_multiplication_",
        lambda m: m.Model().forward,
        _shapes("f32[4096,4096] f32[4096,4096]"),
    ),
    Entry(
        "jaxbench matmul 256",
        f"{_BENCH}.gemini3.jaxkernelbench_level1.1_Square_matrix_multiplication_",
        lambda m: m.Model().forward,
        _shapes("f32[4096,4096] f32[4096,4096]"),
        targets=("v6e",),  # too large for the VMEM of a v5e
    ),
    Entry(
        "jaxbench mse loss",
        f"{_BENCH}.gpt53.jaxkernelbench_level1.94_MSELoss",
        lambda m: m.Model().forward,
        _shapes("f32[4096,8192] f32[4096,8192]"),
    ),
    Entry(
        "jaxbench gelu",
        f"{_BENCH}.gpt53.jaxkernelbench_level1.26_GELU_",
        lambda m: m.Model().forward,
        _shapes("f32[4096,8192]"),
    ),
    Entry(
        "jaxbench sum",
        f"{_BENCH}.gpt53.jaxkernelbench_level1.47_Sum_reduction_over_a_dimension",
        lambda m: m.Model(1).forward,
        _shapes("f32[128,1024,1024]"),
    ),
    Entry(
        "recurrentgemma scan",
        "recurrentgemma:recurrentgemma.jax.pallas",
        lambda m, rows: lambda x, a: m.lru_pallas_scan(x, a, max_seq_block_size=rows)[0],
        _shapes("f32[2,2048,2560] f32[2,2048,2560]"),
        {"rows": (64, 256)},
        {"": ("", "", "rows")},
    ),
    Entry(
        "sglang-jax gla output",
        f"{_SGL}.simple_gla.simple_gla",
        lambda m: m.chunk_fwd_o,
        _shapes(" ".join(["bf16[1,2048,16,128]"] * 3) + " bf16[1,32,16,128,128]"),
    ),
    Entry(
        "sglang-jax grouped top-k",
        f"{_SGL}.grouped_topk.v1.kernel",
        lambda m, tokens: (
            lambda *a: m.grouped_topk_pallas(
                *a, num_expert_group=8, topk_group=4, topk=8, block_tokens=tokens, interpret=False
            )
        ),
        _shapes("f32[4096,256] f32[256]"),
        {"tokens": (128, 512)},
        {"": ("tokens",)},
    ),
    Entry(
        "tpu-inference newton-schulz",
        f"{_NEW}.gdn.triangle_solver",
        lambda m, block_size: partial(m.newton_schulz_inverse_pallas, block_size=block_size),
        _shapes("f32[1024,64,64]"),
        {"block_size": (4, 8)},
        {"": ("block_size",)},
    ),
    Entry(
        "tpu-inference triangular inverse",
        f"{_NEW}.gdn.triangle_solver",
        lambda m, n: partial(m.decompose_triangular_matrix_inverse_pallas, n_block_size=n),
        _shapes("f32[1024,64,64]"),
        {"n": (8, 16)},
        {"": ("n",)},
    ),
)
