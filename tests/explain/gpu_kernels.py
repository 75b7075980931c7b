"""Small kernels for GPUs that jax, Triton, Mosaic GPU or ptxas refuses."""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,no-any-return"

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as plt

F32, F16, BF16, I32, FP8 = jnp.float32, jnp.float16, jnp.bfloat16, jnp.int32, jnp.float8_e4m3fn


def array(*shape, dtype=F32):
    return jax.ShapeDtypeStruct(shape, dtype)


X = array(16, 128)
TILE = array(64, 64, dtype=F16)


@dataclass(frozen=True)
class Refused:
    """A call that is refused or that the compiler warns of, and the entry that says why."""

    entry: str
    call: Callable[..., object]
    args: tuple[jax.ShapeDtypeStruct, ...] = (X,)
    target: str = "h100"
    only: str = ""  # the jax that refuses it: 0.10 or 0.12


# Triton


def triton(kernel, out=None, num_warps=4, **kwargs):
    def call(*arrays):
        params = plt.CompilerParams(num_warps=num_warps)
        shape = arrays[0] if out is None else out
        return pl.pallas_call(kernel, out_shape=shape, compiler_params=params, **kwargs)(*arrays)

    return call


def elementwise(function, out=None):
    def kernel(*refs):
        refs[-1][...] = function(*(ref[...] for ref in refs[:-1]))

    return triton(kernel, out)


def copy(x_ref, o_ref):
    o_ref[...] = x_ref[...]


def copy_with(x_ref, o_ref, **options):
    o_ref[...] = plt.load(x_ref, **options)


def dot(dtype_x, dtype_y, k=16, preferred_element_type=F32, **kwargs):
    def product(x, y):
        return lax.dot(x, y, preferred_element_type=preferred_element_type, **kwargs)

    args = array(64, k, dtype=dtype_x), array(k, 16, dtype=dtype_y)
    return elementwise(product, array(64, 16, dtype=preferred_element_type)), args


PREFETCH = pltpu.PrefetchScalarGridSpec(
    num_scalar_prefetch=1,
    grid=(2,),
    in_specs=[pl.BlockSpec((8, 128), lambda i, rows: (rows[i], 0))],
    out_specs=pl.BlockSpec((8, 128), lambda i, rows: (i, 0)),
)

# fmt: off
TRITON = (
    Refused("triton-power-of-2", elementwise(lambda x: x * 2), (array(15, 100),)),
    Refused("triton-primitive", elementwise(lambda x: jnp.sort(x, axis=1))),
    Refused("triton-scratch", triton(
        lambda x, o, s: copy(x, o), scratch_shapes=[pltpu.VMEM((16, 128), F32)])),
    Refused("triton-scalar-prefetch", triton(
        lambda rows, x, o: copy(x, o), X, grid_spec=PREFETCH), (array(2, dtype=I32), X)),
    Refused("triton-dynamic-grid", lambda n, x: triton(copy, x, grid=(n,))(x),
            (array(dtype=I32), X)),
    Refused("triton-block-spec", triton(copy, array(8, 128), grid=(2,), in_specs=[pl.BlockSpec(
        (8, 128), lambda i: (i, 0), pipeline_mode=pl.Buffered(2))])),
    Refused("triton-print", triton(lambda x, o: pl.debug_print("{}", x[0, 0]))),
    Refused("triton-concatenate", elementwise(
        lambda x: jnp.concatenate([x, x], 1), array(16, 256))),
    Refused("triton-product-types", *dot(F16, BF16)),
    Refused("unsigned-matmul", *dot(jnp.uint8, jnp.uint8, preferred_element_type=I32)),
    Refused("triton-product-algorithm", *dot(
        F32, F32, precision=lax.DotAlgorithmPreset.F64_F64_F64)),
    Refused("gpu-fp8", elementwise(lambda x: x.astype(FP8), array(16, 128, dtype=FP8)),
            target="a100"),
    Refused("triton-cast", elementwise(lambda x: jnp.abs(x.astype(jnp.complex64)))),
    Refused("triton-cumsum", elementwise(lambda x: lax.cumsum(x, axis=1, reverse=True))),
    Refused("triton-shared-memory", *dot(F32, F32, k=1024)),
    Refused("triton-warps", triton(copy, num_warps=3)),
    Refused("triton-block-size", elementwise(lambda x: x * 2), (array(2048, 1024),)),
    Refused("triton-load-other", triton(lambda x, o: copy_with(x, o, other=0.0))),
    Refused("triton-load-option", triton(lambda x, o: copy_with(x, o, cache_modifier=".zz"))),
    Refused("triton-load-option", triton(lambda x, o: copy_with(x, o, eviction_policy="often"))),
    Refused("triton-nested-slices", triton(
        lambda x, o: copy(x.at[pl.ds(0, 8)].at[pl.ds(0, 4)], o), array(4, 128))),
)
# fmt: on

# Mosaic GPU

TILED = plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128)
NARROW = plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(64)
FOR_F32 = plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128)


def mosaic(body, out=TILE, scratch=(), **kwargs):
    return lambda *arrays: plgpu.kernel(body, out_type=out, scratch_types=scratch, **kwargs)(
        *arrays
    )


def assigned(function, out=None, arg=TILE):
    """A kernel that stores a function of its operand, and the operand."""
    body = lambda x, o: o.__setitem__(..., function(x[...]))  # noqa: E731
    return mosaic(body, arg if out is None else out), (arg,)


def copied(shape, dtype=F16, buffer=None, transforms=(), buffer_dtype=None):
    """A copy to shared memory and back."""

    def body(x, o, s, barrier):
        plgpu.copy_gmem_to_smem(x, s, barrier)
        plgpu.barrier_wait(barrier)
        plgpu.copy_smem_to_gmem(s, o)
        plgpu.wait_smem_to_gmem(0)

    out = array(*shape, dtype=dtype)
    smem = plgpu.SMEM(buffer or shape, buffer_dtype or dtype, transforms=transforms)
    return mosaic(body, out, [smem, plgpu.Barrier()]), (out,)


def product(
    m=64, n=64, dtype=F16, dtype_b=None, acc=F32, lhs=TILED, rhs=TILED, k_b=64, registers=None
):  # fmt: skip
    """A product of two tiles by the tensor cores of a warpgroup."""

    def body(a, b, o, a_smem, b_smem, barriers):
        if registers is not None:
            plgpu.set_max_registers(registers, action="decrease")
        for i, (source, target) in enumerate(((a, a_smem), (b, b_smem))):
            plgpu.copy_gmem_to_smem(source, target, barriers.at[i])
            plgpu.barrier_wait(barriers.at[i])

        def multiply(acc_ref):
            plgpu.wgmma(acc_ref, a_smem, b_smem)
            plgpu.wgmma_wait(0)
            return acc_ref[...]

        o[...] = pl.run_scoped(multiply, plgpu.ACC((m, n), acc))

    dtype_b = dtype_b or dtype
    scratch = [
        plgpu.SMEM((m, 64), dtype, transforms=lhs),
        plgpu.SMEM((k_b, n), dtype_b, transforms=rhs),
        plgpu.Barrier(num_barriers=2),
    ]
    args = (array(m, 64, dtype=dtype), array(k_b, n, dtype=dtype_b))
    return mosaic(body, array(m, n, dtype=acc), scratch), args


def scoped(memory, **kwargs):
    def body(x, o):
        o[...] = pl.run_scoped(lambda ref: ref[...], memory, **kwargs)

    return mosaic(body, array(64, 64), num_threads=2, thread_name="wg"), (TILE,)


def pipelined(threads=1, registers=40):
    """A pipeline with a warpgroup that copies, and some that compute."""

    def body(x, o):
        spec = plgpu.BlockSpec((64, 64), lambda i, j: (i, j))
        plgpu.emit_pipeline_warp_specialized(
            lambda _, x, o: copy(x, o), grid=(2, 2), in_specs=[spec], out_specs=[spec],
            memory_registers=registers, wg_axis="wg", num_compute_wgs=threads,
            max_concurrent_steps=2,
        )(x, o)  # fmt: skip

    out = array(128, 128, dtype=F16)
    return mosaic(body, out, num_threads=threads + 1, thread_name="wg"), (out,)


def mixes_layouts(x):
    strided = plgpu.Layout.WG_STRIDED((64, 64), vec_size=1)
    return plgpu.layout_cast(x, plgpu.Layout.WGMMA) + plgpu.layout_cast(x, strided)


def changes_layout(x):
    return lax.fori_loop(0, 4, lambda _, c: plgpu.layout_cast(c, plgpu.Layout.WGMMA), x)


def stores_to_tmem(x, o, tmem):
    zeros = plgpu.layout_cast(jnp.zeros((128, 64), F32), plgpu.Layout.TCGEN05)
    plgpu.async_store_tmem(tmem, zeros)


def blackwell_product(x, y):
    def multiply(x, y, o, a, b, acc, barrier):
        plgpu.tcgen05_mma(acc, a, b, barrier, accumulate=False)

    scratch = [
        plgpu.SMEM((128, 64), F16, transforms=TILED),
        plgpu.SMEM((64, 128), F16, transforms=TILED),
        plgpu.TMEM((128, 128), F32),
        plgpu.Barrier(),
    ]
    return mosaic(multiply, array(128, 128), scratch)(x, y)


def allocated(*make, body=lambda *_: None, out=TILE):
    """A kernel whose scratch is made when it is called."""
    return lambda x: mosaic(body, out, [each() for each in make])(x)


def tmem(*shape, dtype=F32):
    return lambda: plgpu.TMEM(shape, dtype)


# fmt: off
MOSAIC = (
    Refused("mosaic-gpu-primitive", *assigned(jnp.sort)),
    Refused("mosaic-gpu-elements", *assigned(lambda x: x * 2, arg=array(100)), only="0.10"),
    Refused("mosaic-gpu-iota", *assigned(lambda x: x + lax.iota(F32, 128), arg=array(128)),
            only="0.10"),
    Refused("mosaic-gpu-layout", *assigned(mixes_layouts)),
    Refused("mosaic-gpu-layout", *assigned(changes_layout), only="0.10"),
    Refused("gpu-sectors", *assigned(changes_layout), only="0.12"),
    Refused("mosaic-gpu-layout-shape", *assigned(
        lambda x: plgpu.layout_cast(x, plgpu.Layout.WGMMA), arg=array(32, 64, dtype=F16))),
    Refused("mosaic-gpu-cast", *assigned(
        lambda x: x.astype(jnp.float8_e4m3fnuz), array(64, 64, dtype=jnp.float8_e4m3fnuz))),
    Refused("mosaic-gpu-cast", *assigned(
        lambda x: x.astype(jnp.int4), array(128, dtype=jnp.int4), array(128))),
    Refused("mosaic-gpu-shared-memory", *copied((512, 512), F32)),
    Refused("tma-stride", *copied((64, 33))),
    Refused("tma-swizzle", *copied((64, 64), transforms=(TILED[1], NARROW[0])[::-1])),
    Refused("tma-swizzle", allocated(lambda: plgpu.SwizzleTransform(100)), (TILE,)),
    Refused("tma-rank", *copied((2, 2, 2, 2, 2, 64))),
    Refused("gpu-copy-shapes", *copied((64, 64), buffer=(32, 64))),
    Refused("gpu-copy-dtypes", *copied((64, 64), buffer_dtype=BF16)),
    Refused("tma-barrier", mosaic(
        lambda x, o, s: plgpu.copy_gmem_to_smem(x, s, None), TILE, [plgpu.SMEM((64, 64), F16)]),
        (TILE,), only="0.12"),
    Refused("wgmma-shape", *product(m=32)),
    Refused("wgmma-shape", *product(n=512)),
    Refused("wgmma-transforms", *product(lhs=(), rhs=()), only="0.10"),
    Refused("wgmma-transforms", *product(lhs=NARROW), only="0.10"),
    Refused("mosaic-gpu-layout", *product(lhs=NARROW), only="0.12"),
    Refused("wgmma-float32", *product(dtype=F32, lhs=FOR_F32, rhs=FOR_F32)),
    Refused("wgmma-accumulator", *product(dtype=BF16, acc=F16)),
    Refused("wgmma-operands", *product(dtype_b=BF16)),
    Refused("wgmma-operands", *product(k_b=128)),
    Refused("wgmma-registers", *product(m=128, n=256)),
    Refused("register-ignored", *product(registers=24)),
    Refused("accumulator-scope", *scoped(plgpu.ACC((64, 64)), collective_axes="wg")),
    Refused("allocation-scope", *scoped(plgpu.SMEM((64, 64), F32))),
    Refused("gpu-mesh", mosaic(copy, num_threads=2), (TILE,)),
    Refused("gpu-mesh", mosaic(copy, grid=(2,)), (TILE,)),
    Refused("gpu-mesh", mosaic(copy, cluster=(1, 1, 1, 2), cluster_names=(*"abcd",)), (TILE,)),
    Refused("mosaic-gpu-print", mosaic(
        lambda x, o: pl.debug_print("{} {}", x[...], x[...])), (TILE,)),
    Refused("barrier-index", mosaic(lambda x, o, b: plgpu.barrier_wait(b), TILE, [
        plgpu.Barrier(num_barriers=2)]), (TILE,)),
    Refused("barrier-arrivals", allocated(lambda: plgpu.Barrier(num_arrivals=0)), (TILE,)),
    Refused("warp-vector", mosaic(lambda x, o: plgpu.warp_map(lambda _: copy(x, o))), (TILE,)),
    Refused("pipeline-outputs", *pipelined(threads=2)),
    Refused("register-count", *pipelined(registers=41)),
    Refused("register-count", *pipelined(registers=8)),
    Refused("tmem-shape", allocated(tmem(128, 1024)), (TILE,), target="b200"),
    Refused("tmem-shape", allocated(tmem(32, 128)), (TILE,), target="b200"),
    Refused("tmem-packing", allocated(tmem(128, 64, dtype=F16)), (TILE,), target="b200"),
    Refused("tmem-load", allocated(tmem(128, 64), body=lambda x, o, t: copy(t, o), out=array(
        128, 64)), (TILE,), target="b200"),
    Refused("tensor-core-barrier", blackwell_product, (TILE, TILE), target="b200"),
    Refused("gpu-instruction", allocated(tmem(128, 64), body=stores_to_tmem), (TILE,)),
    Refused("gpu-instruction", *product(), target="a100"),
    Refused("gpu-instruction", *product(), target="b200"),
)
# fmt: on

REFUSED = TRITON + MOSAIC
