"""Kernels that use each primitive that a TPU kernel may use, by what they do."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import on_machine
from jax import lax
from jax._src import ad_util
from jax._src import core as jax_core
from jax._src.lax import lax as lax_internal
from jax._src.pallas import einshape
from jax._src.pallas.mosaic import core as mosaic_core
from jax._src.pallas.mosaic import lowering
from jax._src.state import primitives as state_primitives
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.session import Options, Session

F32, I32, BF16, U32 = jnp.float32, jnp.int32, jnp.bfloat16, jnp.uint32
X = np.linspace(-2, 2, 8 * 128, dtype=np.float32).reshape(8, 128)
TILE = pltpu.VMEM((8, 128), F32)
DMA, REGULAR = pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.REGULAR
RECIPROCAL = pltpu.reciprocal if hasattr(pltpu, "reciprocal") else pl.reciprocal
ANY, SMEM, VMEM = (pl.BlockSpec(memory_space=s) for s in (pl.ANY, pltpu.SMEM, pltpu.VMEM))
TWO = jax.ShapeDtypeStruct((16, 128), F32)
ANY_ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))

RULES = {p.name: p for p in lowering.lowering_rules[mosaic_core.CoreType.TC]}
"""Primitives with a lowering rule for the tensor core, by name."""


class Case:
    """A kernel with its operands.

    Attributes:
      kernel: takes references to the operands, the output and the scratch.
    """

    def __init__(
        self,
        kernel: Callable[..., None],
        *args: Any,
        out: Any = X,
        call: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        self.kernel, self.args = kernel, args or (X,)
        aval = functools.partial(jax.tree.map, lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype))
        self.call = call or pl.pallas_call(kernel, out_shape=aval(out), **options)

    def run(self, mode: str) -> list[np.ndarray]:
        with Session(Options(interpret=mode, chip="v5e")):
            return [np.asarray(x) for x in jax.tree.leaves(jax.jit(self.call)(*self.args))]

    def run_on_machine(self) -> list[np.ndarray]:
        args = jax.tree.leaves(self.args)
        return [np.asarray(x) for x in on_machine.evaluate(self.traced.jaxpr, (), args)]

    @functools.cached_property
    def traced(self) -> Any:
        return jax.make_jaxpr(self.call)(*self.args)

    @functools.cached_property
    def equation(self) -> Any:
        return next(
            eqn for eqn in equations(self.traced.jaxpr) if eqn.primitive.name == "pallas_call"
        )

    @property
    def primitives(self) -> set[str]:
        return {eqn.primitive.name for eqn in equations(self.equation.params["jaxpr"])}


def equations(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jax_core.jaxprs_in_params(eqn.params):
            yield from equations(inner)


CASES: dict[str, Callable[[], Case]] = {}


def case(**options: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: a kernel that is a case, with `args` and the options of `Case`."""

    def add(kernel: Callable[..., None]) -> Callable[..., None]:
        args = options.pop("args", ())
        CASES[kernel.__name__] = functools.partial(Case, kernel, *args, **options)
        return kernel

    return add


def table(name: str, *operands: Any, **operations: Callable[..., Any]) -> None:
    """Cases for many operations on the same operands; each fills a part of the output."""
    used = [of for of in operations.values() if of is not None]
    for first in range(0, len(used), MOST):
        some = used[first : first + MOST]
        out = jax.ShapeDtypeStruct((len(some), 8, 128), F32)
        suffix = f"_{first // MOST}" if first else ""
        CASES[name + suffix] = functools.partial(Case, _evaluating(some), *operands, out=out)


MOST = 32
"""Operations of a table in one case."""


def _evaluating(operations: list[Callable[..., Any]]) -> Callable[..., None]:
    def kernel(*refs: Any) -> None:
        *inputs, out = refs
        values = [ref[...] for ref in inputs]
        for number, operation in enumerate(operations):
            out[number] = operation(*values).astype(F32)

    return kernel


# Values.


def _of_lax(names: str, count: int, *, shift: float = 0) -> dict[str, Callable[..., Any]]:
    """Functions of lax, by name, of the first operands, of which the first is shifted."""

    def applied(name: str) -> Callable[..., Any]:
        return lambda x, y: getattr(lax, name)(*(x + shift, y)[:count])

    return {name: applied(name) for name in names.split()}


table(
    "floats",
    X,
    np.flip(X).copy(),
    **_of_lax(
        "abs ceil cos erf exp exp2 floor is_finite logistic neg round sign sin square "
        "stop_gradient tan tanh",
        1,
    ),
    **_of_lax("log log1p rsqrt sqrt", 1, shift=3),
    **_of_lax("add atan2 eq ge gt le lt max min mul ne nextafter sub", 2),
    **_of_lax("pow", 2, shift=3),
    add_any=lambda x, y: ad_util.add_any_p.bind(x, y),
    clamp=lambda x, y: lax.clamp(-1.0, x, 1.0),
    div=lambda x, y: x / (y + 3),
    erf_inv=lambda x, y: lax.erf_inv(x / 4),
    integer_pow=lambda x, y: x**3,
    log2=lambda x, y: jnp.log2(x + 3),
    reciprocal=lambda x, y: RECIPROCAL(x + 3),
    reduce_precision=lambda x, y: lax.reduce_precision(x, 8, 7),
    rem=lambda x, y: lax.rem(x, y + 3),
    round_even=lambda x, y: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    select_n=lambda x, y: jnp.where(x > y, x, y),
    one_minus_square=getattr(lax_internal, "one_minus_square_p", None)
    and (lambda x, y: lax_internal.one_minus_square_p.bind(x)),
    multiple_of=lambda x, y: x * pl.multiple_of(jnp.int32(8), 8).astype(F32),
    jit=lambda x, y: jax.jit(lambda z: z * 2)(x),
    custom_jvp_call=lambda x, y: jax.nn.relu(x),
    custom_vjp_call=lambda x, y: _with_vjp(x),
    reduce_precision_bf16=lambda x, y: x.astype(BF16),
)


@jax.custom_vjp
def _with_vjp(x: Any) -> Any:
    return x * 3


_with_vjp.defvjp(lambda x: (x * 3, None), lambda _, g: (g * 3,))

N = (np.arange(8 * 128, dtype=np.int32) * 37 % 1001 - 500).reshape(8, 128)
table(
    "integers",
    N,
    np.flip(N).copy() | 1,
    **_of_lax("abs clz population_count sign", 1),
    **_of_lax("bitwise_and bitwise_or bitwise_xor div rem", 2),
    mulhi=lax.mulhi if "mulhi" in RULES else None,
    not_bool=lambda x, y: ~(x > y),
    and_bool=lambda x, y: (x > 0) & (y > 0),
    bitcast_convert_type=lambda x, y: lax.bitcast_convert_type(x & 0xFFFF, F32),
    floor_divide=lambda x, y: x // y,
    invert=lambda x, y: ~x,
    shift_left=lambda x, y: x << 3,
    shift_right_arithmetic=lambda x, y: x >> 3,
    shift_right_logical=lambda x, y: lax.shift_right_logical(x, 3),
)


@case(out=jax.ShapeDtypeStruct((18, 8, 128), F32))
def shapes(x_ref: Any, o_ref: Any) -> None:
    x = x_ref[...]
    i = lax.broadcasted_iota(I32, (8, 128), 1)
    results = [
        jnp.broadcast_to(x[0:1], (8, 128)),
        jnp.concatenate([x[4:], x[:4]]),
        x.reshape(1024).reshape(8, 128),
        x.T.reshape(8, 128),
        lax.pad(x[:4], jnp.float32(0), ((4, 0, 0), (0, 0, 0))),
        pltpu.roll(x, 3, 1),
        jnp.tile(x[:, :64], (1, 2)),
        jnp.squeeze(x[None], 0),
        jnp.stack([x[0], x[1]] * 4),
        jnp.take_along_axis(x, (i * 7) % 128, axis=1),
        sum(lax.split(x, (4, 4))[0:1]).repeat(2, 0),
        lax.expand_dims(x, (0,))[0],
        pltpu.bitcast(x, I32).astype(F32),
        lax.slice(x, (0, 0), (8, 64), (1, 1)).repeat(2, 1),
        lax.iota(I32, 1024).reshape(8, 128).astype(F32),
        state_primitives.broadcast_to(x[0], (8, 128)),
        jnp.stack(lax_internal.unstack(x)),
        einshape.einshape_lo("(ab)n->(ba)n", x, False, a=2),
    ]
    for n, result in enumerate(results):
        o_ref[n] = result


@case(out=jax.ShapeDtypeStruct((9, 8, 128), F32))
def reductions(x_ref: Any, o_ref: Any) -> None:
    x = x_ref[...]
    results = [
        jnp.sum(x, 0, keepdims=True),
        jnp.max(x, 1, keepdims=True),
        jnp.min(x, 1, keepdims=True),
        jnp.argmax(x, 1)[:, None],
        jnp.argmin(x, 0)[None],
        jnp.any(x > 1, 1, keepdims=True),
        jnp.all(x > -3, 1, keepdims=True),
        lax.dot_general(x, x, (((1,), (1,)), ((), ())), preferred_element_type=F32)[:, :1],
        jnp.sum(x),
    ]
    for n, result in enumerate(results):
        o_ref[n] = jnp.broadcast_to(result.astype(F32), (8, 128))


# References.


@case(out=jax.ShapeDtypeStruct((4, 8, 128), F32), scratch_shapes=[TILE])
def references(x_ref: Any, o_ref: Any, tile: Any) -> None:
    tile[...] = x_ref[...]
    o_ref[0] = x_ref.at[2:6].at[1:3].get().repeat(4, 0)
    o_ref[1] = x_ref.reshape(4, 2, 128)[:, 1].repeat(2, 0)
    o_ref[2] = x_ref.bitcast(I32)[...].astype(F32)
    tile[pl.ds(0, 4, 2)] = x_ref[pl.ds(1, 4, 2)]
    state_primitives.ref_addupdate(tile, (slice(2, 4),), jnp.ones((2, 128)))
    rows = lax.broadcasted_iota(I32, (8, 128), 0)
    pltpu.store(tile, -x_ref[...], mask=rows > 5)
    o_ref[3] = jnp.where(rows < 4, pltpu.load(tile, mask=rows < 4), tile[...])
    tile[0, :] = o_ref[3, 7]


@case(args=(np.array([2, 5], np.int32), X), in_specs=[SMEM, VMEM])
def scalars_and_dynamic_slices(n_ref: Any, x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...]
    o_ref[pl.ds(n_ref[0], 2)] = x_ref[pl.ds(n_ref[1], 2)]
    o_ref[n_ref[0]] = x_ref[n_ref[1] + 1]


# Control flow.


@case(out=jax.ShapeDtypeStruct((4, 8, 128), F32), scratch_shapes=[pltpu.SMEM((2,), I32)])
def control_flow(x_ref: Any, o_ref: Any, count: Any) -> None:
    count[0] = 0
    o_ref[...] = jnp.zeros_like(o_ref)

    def body(i: Any, total: Any) -> Any:
        @pl.when(i % 2 == 1)
        def _() -> None:
            o_ref[0, pl.ds(i, 1)] = x_ref[pl.ds(i, 1)]

        count[0] = count[0] + i
        return total + x_ref[pl.ds(i, 1)]

    o_ref[1] = lax.fori_loop(0, 8, body, jnp.zeros((1, 128))).repeat(8, 0)
    steps = lax.while_loop(lambda n: n * n < count[0], lambda n: n + 1, jnp.int32(0))
    o_ref[2] = jnp.full((8, 128), steps.astype(F32))
    which = lax.switch(steps % 3, [lambda: 1.0, lambda: 2.0, lambda: 3.0])
    o_ref[3] = x_ref[...] * which


@case(
    grid=(2, 2),
    out=jax.ShapeDtypeStruct((32, 128), F32),
    in_specs=[pl.BlockSpec((4, 128), lambda i, j: (j, 0))],
    out_specs=pl.BlockSpec((8, 128), lambda i, j: (2 * i + j, 0)),
    scratch_shapes=[TILE],
)
def grids(x_ref: Any, o_ref: Any, total: Any) -> None:
    i, size = pl.program_id(0), pl.num_programs(1)
    is_first = (i == 0) & (pl.program_id(1) == 0)
    total[...] = jnp.where(is_first, 0.0, total[...]) + i.astype(F32) + size
    o_ref[...] = x_ref[...].repeat(2, 0) + total[...]


@case(grid=(2,))
def program_id_in_a_branch(x_ref: Any, o_ref: Any) -> None:
    @pl.when(x_ref[0, 0] < 0)
    def _() -> None:
        o_ref[...] = x_ref[...] + pl.program_id(0).astype(F32)


@case()
def scopes(x_ref: Any, o_ref: Any) -> None:
    def body(tile: Any, number: Any, sem: Any) -> None:
        number[0] = 3
        pltpu.async_copy(x_ref, tile, sem).wait()
        o_ref[...] = tile[...] * number[0].astype(F32)

    pl.run_scoped(body, TILE, pltpu.SMEM((1,), I32), DMA)


@case(input_output_aliases={0: 0}, grid=(2,), in_specs=[pl.BlockSpec((4, 128), lambda i: (i, 0))],
      out_specs=pl.BlockSpec((4, 128), lambda i: (i, 0)))  # fmt: skip
def aliases(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] + 1


# Copies and semaphores.


@case(scratch_shapes=[TILE, DMA((2,)), REGULAR], in_specs=[ANY], out_specs=ANY)
def copies(x_hbm: Any, o_hbm: Any, tile: Any, sems: Any, count: Any) -> None:
    into = pltpu.make_async_copy(x_hbm.at[4:8], tile.at[0:4], sems.at[0])
    also = pltpu.make_async_copy(x_hbm.reshape(2, 4, 128).at[0], tile.at[4:8], sems.at[1])
    into.start()
    also.start()
    into.wait()
    also.wait()
    pl.semaphore_signal(count, 3)
    pl.semaphore_wait(count, 1, decrement=False)
    tile[...] = tile[...] + pl.semaphore_read(count).astype(F32)
    pl.semaphore_wait(count, 3)
    pltpu.sync_copy(tile, o_hbm)


@case(scratch_shapes=[REGULAR])
def signals_to_a_core(x_ref: Any, o_ref: Any, sem: Any) -> None:
    pl.semaphore_signal(sem, 1, core_index=0)
    pl.semaphore_wait(sem, 1)
    o_ref[...] = x_ref[...]


@case(in_specs=[ANY], out_specs=ANY)
def pipelines(x_hbm: Any, o_hbm: Any) -> None:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2

    block = pl.BlockSpec((4, 128), lambda i: (i, 0))
    pltpu.emit_pipeline(body, grid=(2,), in_specs=[block], out_specs=[block])(x_hbm, o_hbm)


@case()
def effects(x_ref: Any, o_ref: Any) -> None:
    pl.debug_print("printed")
    pl.debug_check(x_ref[0, 0] < 5, "checked")
    pl.delay(3)
    jax.debug.callback(lambda: None)
    o_ref[...] = x_ref[...]


@case()
def random_bits(x_ref: Any, o_ref: Any) -> None:
    pltpu.prng_seed(3)
    o_ref[...] = x_ref[...] + pltpu.prng_random_bits((8, 128)).astype(F32)


@case(out=jax.ShapeDtypeStruct((7, 8, 128), F32), scratch_shapes=[TILE, DMA])
def beyond_the_interpreters(x_ref: Any, o_ref: Any, tile: Any, sem: Any) -> None:
    """What neither of jax's interpreters runs correctly in every supported version."""
    x, bits = x_ref[...], lax.broadcasted_iota(U32, (8, 128), 1) * np.uint32(0x1010101)
    tile.reshape(4, 2, 128)[:, 1] = x_ref.reshape(4, 2, 128)[:, 0]
    tile.bitcast(I32)[0:2] = x_ref.bitcast(I32)[4:6]
    pltpu.async_copy(x_ref, tile, sem, add=True).wait()
    pltpu.trace_value("number", jnp.int32(3))
    packed = pltpu.pack_elementwise([x, x + 1], packed_dtype=BF16)
    results = [
        tile[...],
        x_ref.transpose((1, 0))[...].T,
        x_ref[pl.ds(3, 8, 0)],
        pltpu.unpack_elementwise(packed, index=0, packed_dtype=BF16, unpacked_dtype=F32),
        pltpu.unpack_elementwise(packed, index=1, packed_dtype=BF16, unpacked_dtype=F32),
        pltpu.stochastic_round(x, bits, target_dtype=BF16).astype(F32),
        lax.platform_dependent(x, cpu=lambda x: -x, default=lambda x: x),
    ]
    for n, result in enumerate(results):
        o_ref[n] = result
    pltpu.touch(o_ref)


@case(grid=(("g", 2),), out_specs=ANY_ROWS, out=TWO)
def axis_indices(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] + lax.axis_index("g").astype(F32)


@case(compiler_params=pltpu.CompilerParams(collective_id=0))
def barriers(x_ref: Any, o_ref: Any) -> None:
    barrier = pltpu.get_barrier_semaphore()
    pl.semaphore_signal(barrier, 1)
    pl.semaphore_wait(barrier, 1)
    o_ref[...] = x_ref[...]


def num_programs() -> Case:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * pl.num_programs(0).astype(F32)

    def call(n: Any, x: Any) -> Any:
        return pl.pallas_call(kernel, out_shape=jax.typeof(x), grid=(n,))(x)

    return Case(kernel, jnp.int32(2), X, call=call)


CASES["num_programs"] = num_programs


@case(args=(np.array([3, 4], np.uint32), X), in_specs=[SMEM, VMEM])
def keys(k_ref: Any, x_ref: Any, o_ref: Any) -> None:
    pair = jnp.stack([k_ref[0], k_ref[1]])
    key = jax.random.fold_in(jax.random.wrap_key_data(pair), 5)
    bits = jax.random.bits(key, (8, 128)) ^ jax.random.key_data(jax.random.key(7))[1]
    high, low = RULES["iota_2x32_shape"].bind(shape=(8, 128))
    first, second = RULES["threefry2x32"].bind(k_ref[0], k_ref[1], high, low)
    o_ref[...] = (bits ^ first ^ second).astype(I32).astype(F32)


if "top_k" in RULES:

    @case(out=jax.ShapeDtypeStruct((2, 8, 8), F32))
    def largest(x_ref: Any, o_ref: Any) -> None:
        o_ref[0] = lax.top_k(x_ref[...], 8)[0]
        o_ref[1] = lax.approx_max_k(x_ref[...], 8)[0]


if "conv_general_dilated" in RULES:

    @case(out=jax.ShapeDtypeStruct((1, 1, 6, 126), F32))
    def convolutions(x_ref: Any, o_ref: Any) -> None:
        x, kernel = x_ref[...][None, None], jnp.ones((1, 1, 3, 3), F32)
        o_ref[...] = lax.conv_general_dilated(x, kernel, (1, 1), "VALID")


if "has_memory_space" in RULES:

    @case(in_specs=[ANY], scratch_shapes=[DMA])
    def memory_spaces(x_hbm: Any, o_ref: Any, sem: Any) -> None:
        pltpu.async_copy(x_hbm, o_ref, sem).wait()
        is_hbm = pltpu.has_memory_space(x_hbm, pltpu.HBM)
        o_ref[...] = jnp.where(is_hbm, o_ref[...], 0)
