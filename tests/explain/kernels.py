"""Small kernels that jax or libtpu rejects, in addition to the bundled broken ones."""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,no-any-return"

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from called import called
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc
from jax.sharding import PartitionSpec

F32, BF16, I8, I32 = jnp.float32, jnp.bfloat16, jnp.int8, jnp.int32


def array(*shape, dtype=F32):
    return jax.ShapeDtypeStruct(shape, dtype)


X = array(16, 128)
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))
ANY = pl.BlockSpec(memory_space=pl.ANY)
SMEM = pl.BlockSpec(memory_space=pltpu.SMEM)


@dataclass(frozen=True)
class Refused:
    """A call that is refused, and the entry that says why."""

    entry: str
    call: Callable[..., jax.Array]
    args: tuple[jax.ShapeDtypeStruct, ...] = (X,)
    target: str = "v5e"
    x64: bool = False
    only: str = ""  # the jax that refuses it: 0.10 or 0.12
    before: tuple[int, ...] = ()  # the libtpu that compiles it


def calling(kernel, out=None, **kwargs):
    return called(out, like=0, **kwargs)(kernel)


def elementwise(function, out=None, **kwargs):
    def kernel(*refs):
        refs[-1][...] = function(*(ref[...] for ref in refs[:-1]))

    return calling(kernel, out, **kwargs)


def copy(x_ref, o_ref):
    o_ref[...] = x_ref[...]


def _debug_check(x_ref, o_ref):
    pl.debug_print("{} {}", x_ref[...], x_ref[...])
    o_ref[...] = x_ref[...]


def _carries_booleans(x_ref, o_ref):
    def step(carry):
        return carry[0] + 1, carry[1] | (x_ref[...] > 0)

    mask = lax.while_loop(lambda carry: carry[0] < 3, step, (0, x_ref[...] > 1))[1]
    o_ref[...] = mask.astype(F32)


def _copies_rows(x_ref, o_ref, sem):
    pltpu.make_async_copy(x_ref.at[pl.ds(3, 3)], o_ref.at[pl.ds(0, 3)], sem).start()


def _signals_the_barrier(x_ref, o_ref):
    pl.semaphore_signal(pltpu.get_barrier_semaphore(), 1)
    copy(x_ref, o_ref)


def _large(x_ref, y_ref, o_ref):
    o_ref[...] = x_ref[...] + y_ref[...].astype(F32)


def _seeds_with_three_numbers(x_ref, o_ref):
    pltpu.prng_seed(3, pl.program_id(0), 5)
    o_ref[...] = pltpu.prng_random_bits(o_ref.shape).astype(F32)


def _half_of_program_id(x_ref, o_ref):
    o_ref[...] = x_ref[pl.ds(pl.program_id(0) / 2, 8)]


def _sharded_copy(x):
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = PartitionSpec("x")
    copies = calling(copy, array(4, 128))
    return jax.shard_map(copies, mesh=mesh, in_specs=rows, out_specs=rows)(x)


def _scratch_over_the_tile(x):
    """Of the memory of a SparseCore, a subcore is given less than its scratch takes."""
    rows = 4096

    def kernel(x_ref, o_ref, buffer):
        pltpu.sync_copy(x_ref.at[pl.ds(0, rows)], buffer)

    mesh = plsc.VectorSubcoreMesh(core_axis_name="core", subcore_axis_name="subcore")
    scratch = [pltpu.VMEM((rows, 128), F32)]
    return pl.kernel(kernel, out_type=jax.typeof(x), mesh=mesh, scratch_types=scratch)(x)


LARGE = pl.BlockSpec((1024, 2048), lambda i: (i, 0))


def conditional(x_ref, o_ref):
    if x_ref[0, 0] > 0:
        o_ref[...] = x_ref[...]


def repeated(x_ref, o_ref):
    for _ in range(pl.program_id(0)):
        o_ref[...] = x_ref[...]


def assigns_to_a_value(x_ref, o_ref):
    x = x_ref[...]
    x[0, 0] = 0.0
    o_ref[...] = x


def copies_other_rows(x_ref, o_ref, buffer, semaphore):
    pltpu.make_async_copy(x_ref.at[pl.ds(0, 8)], buffer, semaphore).start()
    pltpu.make_async_copy(x_ref.at[pl.ds(0, 8)], buffer, semaphore).wait()
    o_ref[...] = buffer[...]


def copies_with(semaphore, out=F32):
    def kernel(x_ref, o_ref, sem):
        pltpu.make_async_copy(x_ref, o_ref, sem).start()
        pltpu.make_async_copy(x_ref, o_ref, sem).wait()

    return calling(kernel, array(16, 128, dtype=out), in_specs=[ANY], scratch_shapes=[semaphore])


REFUSED = (
    Refused("copy-dtypes", copies_with(pltpu.SemaphoreType.DMA, out=BF16)),
    Refused("semaphore-type", copies_with(pltpu.SemaphoreType.REGULAR)),
    Refused("semaphore-array", copies_with(pltpu.SemaphoreType.DMA((2,)))),
    Refused("reference-as-value", calling(lambda x, o: o.__setitem__(..., x.T), array(128, 16))),
    Refused("float-as-index", elementwise(lambda x: sum(x for _ in range(x[0, 0])))),
    Refused("boolean-index", elementwise(lambda x: x[x > 0].sum() + x)),
    Refused("vector-product", elementwise(lambda x: jnp.dot(x[0], x[1]) + x)),
    Refused("bitcast-width", elementwise(
        lambda x: lax.bitcast_convert_type(x, BF16), array(16, 128, 2, dtype=BF16))),
    Refused("index-map-arguments", calling(copy, grid=(2,), out_specs=ROWS, in_specs=[
        pl.BlockSpec((8, 128), lambda i, j: (i, 0))])),
    Refused("dimension-semantics-name", calling(
        copy, grid=(2,), in_specs=[ROWS], out_specs=ROWS,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("sequential",)))),
    Refused("zero-size", elementwise(lambda x: lax.associative_scan(jnp.add, x, axis=1))),
    Refused("grid-size", calling(copy, grid=(-1,), in_specs=[ROWS], out_specs=ROWS)),
    Refused("grid-size", calling(
        copy, grid=(65536, 65536), in_specs=[pl.BlockSpec((8, 128), lambda i, j: (0, 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i, j: (0, 0)))),
    Refused("copy-shapes", calling(copies_other_rows, in_specs=[ANY], scratch_shapes=[
        pltpu.VMEM((16, 128), F32), pltpu.SemaphoreType.DMA])),
    Refused("traced-condition", calling(conditional)),
    Refused("array-assignment", calling(assigns_to_a_value)),
    Refused("traced-number", calling(repeated, grid=(2,))),
    Refused("traced-shape", elementwise(lambda x: x + jnp.zeros((pl.program_id(0), 1)).sum()
            , grid=(2,))),
    Refused("numpy-function", elementwise(np.exp)),
    Refused("traced-format", calling(lambda x, o: f"{x[0, 0]:.3f}")),
    Refused("iteration", calling(lambda x, o: list(x))),
    Refused("slice-out-of-bounds", calling(lambda x, o: o.__setitem__(..., x[pl.ds(12, 16)]))),
    Refused("loop-carry", elementwise(lambda x: lax.fori_loop(
        0, 4, lambda i, c: c.astype(BF16), x))),
    Refused("loop-condition", elementwise(lambda x: lax.while_loop(
        lambda c: c < 10, lambda c: c + 1, x))),
    Refused("branch-results", calling(
        lambda x, o: pl.when(pl.program_id(0) == 0)(lambda: x[...]), grid=(2,))),
    Refused("seed-numbers", calling(_seeds_with_three_numbers, grid=(2,))),
    Refused("roll-shift", elementwise(lambda x: pltpu.roll(x, -1, 0))),
    Refused("element-padding", calling(
        lambda x, o: o.__setitem__(..., x[:8]), grid=(2,), out_specs=ROWS, in_specs=[
            pl.BlockSpec((pl.Element(16, (8, 8)), pl.Element(128)), lambda i: (i * 8, 0))])),
    Refused("element-index", calling(
        copy, grid=(2,), out_specs=ROWS, in_specs=[
            pl.BlockSpec((pl.Element(8), pl.Element(128)), lambda i: (i, 0))])),
    Refused("grid-type", calling(copy, grid=(16 / 8,))),
    Refused("scratch-type", calling(lambda x, o, s: copy(x, o), scratch_shapes=[(8, 128)])),
    Refused("out-shape-type", calling(copy, out=(16, 128))),
    Refused("slice-size", calling(lambda x, o: o.__setitem__(
        ..., x[pl.ds(0, pl.program_id(0)), :]), grid=(2,))),
    Refused("specs-mismatch", calling(copy, in_specs=[pl.BlockSpec(), pl.BlockSpec()])),
    Refused("any-window", calling(copy, grid=(2,), out_specs=ROWS, in_specs=[
        pl.BlockSpec((8, 128), lambda i: (i, 0), memory_space=pl.ANY)])),
    Refused("scalar-block", calling(copy), (array(),)),
    Refused("window-without-grid", calling(copy, array(8, 128), in_specs=[
        pl.BlockSpec((8, 128), lambda: (0, 0))])),
    Refused("buffer-count", calling(copy, grid=(2,), out_specs=ROWS, in_specs=[
        pl.BlockSpec((8, 128), lambda i: (i, 0), pipeline_mode=pl.Buffered(3))])),
    Refused("zero-size", calling(copy), (array(0, 128),)),
    Refused("scalar-dtype", elementwise(lambda x: jnp.full((8, 128), x[0, 0].astype(F32)),
            array(8, 128)), (array(16, 128, dtype=BF16),)),
    Refused("strided-rows", calling(
        lambda x, o: o.__setitem__(..., x[pl.ds(0, 8, stride=2), :]), array(8, 512)),
        (array(16, 512),)),
    Refused("strided-value", elementwise(lambda x: (x * 2)[::2], array(8, 128))),
    Refused("strided-load", calling(
        lambda x, o: o.__setitem__(..., x[pl.ds(0, 8, stride=2), :]), array(8, 128, dtype=BF16)),
        (array(16, 128, dtype=BF16),), only="0.10"),
    Refused("x64-values", elementwise(lambda x: (x.astype(jnp.float64) * 2).astype(F32)), x64=True),
    Refused("x64-operand", calling(copy), (array(16, 128, dtype=jnp.int64),), x64=True),
    Refused("integer-reduction", elementwise(lambda x: jnp.sum(x, axis=0, keepdims=True),
            array(1, 128, dtype=jnp.uint32)), (array(16, 128, dtype=jnp.uint32),)),
    Refused("reference-transform", calling(
        lambda x, o: o.__setitem__(..., x.reshape(8, 128)[...]), array(8, 128)), (array(1024),)),
    Refused("dma-bool", calling(
        lambda x, o, sem: pltpu.make_async_copy(x, o, sem).start(), in_specs=[ANY], out_specs=ANY,
        scratch_shapes=[pltpu.SemaphoreType.DMA]), (array(16, 128, dtype=jnp.bool_),), only="0.10"),
    Refused("gather", elementwise(lambda x, i: jnp.take_along_axis(x, i, axis=0)),
            (array(2, 16, 128), array(2, 16, 128, dtype=I32))),
    Refused("complex-values", elementwise(lambda x: jnp.abs(x.astype(jnp.complex64)))),
    Refused("vector-from-smem", calling(copy, in_specs=[SMEM])),
    Refused("matmul-accumulator", elementwise(
        lambda x, y: jnp.dot(x, y, preferred_element_type=BF16)),
        (array(128, 128, dtype=BF16), array(128, 128, dtype=BF16))),
    Refused("matmul-type", elementwise(
        lambda x, y: jnp.dot(x, y, preferred_element_type=I32)),
        (array(128, 128, dtype=I32), array(128, 128, dtype=I32))),
    Refused("missing-operation", elementwise(lax.div),
            (array(16, 128, dtype=jnp.int16), array(16, 128, dtype=jnp.int16))),
    Refused("false-constant-hint", calling(
        lambda x, o: o.__setitem__(..., x[pl.ds(pl.multiple_of(4, 8), 8), :]), array(8, 128))),
    Refused("scalar-operation", calling(
        lambda x, s, o: o.__setitem__(..., x[...] * jnp.power(0.9, s[0])),
        in_specs=[pl.BlockSpec(), SMEM]), (X, array(1))),
    Refused("boolean-carry", calling(_carries_booleans)),
    Refused("relayout", elementwise(
        lambda x: jnp.where(x > 0, jnp.ones((32, 128), F32), jnp.zeros((32, 128), F32)),
        array(32, 128)), (array(32, 128, dtype=I8),), only="0.10"),
    Refused("sublane-gather", elementwise(
        lambda x: jnp.broadcast_to(jnp.sum(x, axis=1), (16, 16)).T[:, :1] * x), target="v4"),
    Refused("strided-roll", elementwise(
        lambda x: pltpu.roll(x, 0, 1, stride=1, stride_axis=0)), target="v4"),
    Refused("dma-alignment", calling(
        _copies_rows, array(16, 128, dtype=BF16), in_specs=[ANY],
        scratch_shapes=[pltpu.SemaphoreType.DMA]), (array(64, 128, dtype=BF16),)),
    Refused("operation-layout", elementwise(
        lambda x, i: jnp.take_along_axis(x.reshape(-1)[:128], i[0, :], axis=0), array(128)),
        (X, array(16, 128, dtype=I32)), before=(0, 0, 52)),
    Refused("vmem-capacity", calling(_large, array(8192, 2048), grid=(8,), in_specs=[LARGE, LARGE],
            out_specs=LARGE), (array(8192, 2048), array(8192, 2048, dtype=BF16)), target="v4"),
    Refused("float-index", calling(_half_of_program_id, array(8, 128), grid=(2,))),
    Refused("verification-error", elementwise(lambda x: pltpu.roll(x, jnp.float32(3), 1))),
    Refused("boundary-layout", calling(
        lambda x, empty, o: copy(x, o), in_specs=[pl.BlockSpec(memory_space=pltpu.VMEM), SMEM]),
        (X, array(0, dtype=I32))),
    Refused("sparsecore-allocation", _scratch_over_the_tile, (array(8192, 128),), target="v6e"),
    Refused("varying-axes", _sharded_copy),
    Refused("print-arguments", calling(_debug_check)),
    Refused("index-map-type", calling(copy, grid=(2,), out_specs=ROWS, in_specs=[
        pl.BlockSpec((8, 128), lambda i: (i * 1.0, 0))])),
    Refused("program-id-without-grid", elementwise(lambda x: x * pl.program_id(0))),
    Refused("dimension-semantics-length", calling(
        copy, grid=(2,), in_specs=[ROWS], out_specs=ROWS,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")))),
    Refused("collective-id-missing", calling(_signals_the_barrier)),
    Refused("collective-id-unused", calling(
        copy, compiler_params=pltpu.CompilerParams(collective_id=0))),
    Refused("compiler-params-type", calling(
        copy, compiler_params=pltpu.CompilerParams(vmem_limit_bytes=1.5))),
    Refused("alias-range", calling(copy, input_output_aliases={1: 0})),
    Refused("reverse-mode", lambda x: jax.grad(
        lambda x: calling(copy, input_output_aliases={0: 0})(x).sum())(x)),
)  # fmt: skip
