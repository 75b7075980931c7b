"""What the arguments of a function decide in its kernels, line by line, without running anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton
from meshes import tensorcore_mesh

from pallas_debug.bridge.lowering import trace
from pallas_debug.bridge.walk import dependence
from pallas_debug.compiler.targets import resolve_all
from pallas_debug.session import Options, Session

LENGTHS = jax.ShapeDtypeStruct((2,), "int32")
X = jax.ShapeDtypeStruct((8, 128), "float32")
(V5E,) = resolve_all("v5e")


def call(body: Callable[..., None], *args: Any, prefetch: int = 1, **kwargs: Any) -> Any:
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=prefetch,
        grid=(2,),
        in_specs=[pl.BlockSpec((8, 128), kwargs.pop("index", lambda i, *_: (0, 0)))],
        out_specs=pl.BlockSpec((8, 128), lambda i, *_: (0, 0)),
        scratch_shapes=kwargs.pop("scratch", ()),
    )
    return pl.pallas_call(body, grid_spec=spec, out_shape=X, **kwargs)(*args)


def decided(function: Callable[..., Any]) -> tuple[str, str]:
    """What decides the values, and the accesses, of the line marked with `# here`."""
    args = (LENGTHS, X)
    found = dependence.dependences(function, args, {}, {0: "n", 1: "x"}, V5E)
    with Session(Options(interpret="off")) as session, session.collecting() as captures:
        trace.lower_for_kernels(function, args, {}, V5E)
    assert set(found) == {captured.kernel.digest for captured in captures}
    (kernel,) = found.values()
    start = function.__code__.co_firstlineno
    lines = Path(__file__).read_text().splitlines()[start - 1 :]
    number = start + next(i for i, line in enumerate(lines) if line.endswith("# here"))
    at = (__file__, number)
    assert kernel.of_values(None) == kernel.of_values((__file__, 1))  # unknown: of all lines
    return "".join(sorted(kernel.of_values(at))), "".join(sorted(kernel.of_accesses(at)))


def a_value(n: Any, x: Any) -> Any:
    def body(n_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[0, :] = x_ref[pl.ds(n_ref[0], 1), :][0]
        o_ref[...] = jnp.log(x_ref[...])  # here

    return call(body, n, x)


def an_index(n: Any, x: Any) -> Any:
    def body(n_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[0, :] = x_ref[pl.ds(n_ref[0] * 2, 1), :][0]  # here

    return call(body, n + 1, x)


def an_index_that_a_copy_brings(n: Any, x: Any) -> Any:
    """Its semaphore serves a copy of other values before."""

    def body(n_ref: Any, x_ref: Any, o_ref: Any, n_smem: Any, sem: Any) -> None:
        pltpu.async_copy(x_ref, o_ref, sem).wait()
        pltpu.async_copy(n_ref, n_smem, sem).wait()
        o_ref[0, :] = x_ref[pl.ds(n_smem[0], 1), :][0]  # here

    return call(body, n, x, scratch=[pltpu.SMEM((2,), jnp.int32), pltpu.SemaphoreType.DMA])


def triton_call(body: Callable[..., None], n: Any, x: Any) -> Any:
    return pl.pallas_call(body, out_shape=X, input_output_aliases={1: 0})(n, x)


def a_masked_store(n: Any, x: Any) -> Any:
    def body(n_ref: Any, x_ref: Any, o_ref: Any) -> None:
        value = triton.load(x_ref.at[0], mask=jnp.arange(128) < 100, other=0.0)
        triton.store(o_ref.at[0], value, mask=jnp.arange(128) < n_ref[0])  # here

    return triton_call(body, n, x)


def an_index_map(n: Any, x: Any) -> Any:
    def body(n_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]

    return call(body, n, x, index=lambda i, n_ref: (n_ref[i], 0))  # here


def a_predicate(n: Any, x: Any) -> Any:
    def body(n_ref: Any, x_ref: Any, o_ref: Any) -> None:
        @pl.when(n_ref[0] > 0)
        def _() -> None:
            o_ref[...] = jnp.ones((8, 128))  # here

    return call(body, n, x)


def a_loop(n: Any, x: Any) -> Any:
    def body(n_ref: Any, x_ref: Any, o_ref: Any) -> None:
        def step(i: Any, total: Any) -> Any:
            return total + x_ref[i, :]  # here

        o_ref[0, :] = lax.fori_loop(0, n_ref[1], step, jnp.zeros(128))

    return call(body, n, x)


def a_copy(n: Any, x: Any) -> Any:
    def body(n_ref: Any, x_ref: Any, o_ref: Any, s_ref: Any, sem: Any) -> None:
        copy = pltpu.make_async_copy(x_ref.at[pl.ds(n_ref[0], 1)], s_ref.at[pl.ds(0, 1)], sem)
        copy.start()
        copy.wait()
        o_ref[...] = jnp.log(s_ref[...])  # here

    scratch = [pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA]
    return call(body, n, x, scratch=scratch)


def what_another_grid_point_wrote(n: Any, x: Any) -> Any:
    def body(n_ref: Any, x_ref: Any, o_ref: Any, s_ref: Any) -> None:
        o_ref[...] = jnp.log(s_ref[...])  # here
        s_ref[...] = x_ref[...]

    return call(body, n, x, scratch=[pltpu.VMEM((8, 128), jnp.float32)])


def another_argument_alone(n: Any, x: Any) -> Any:
    def body(n_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] / x_ref[...]  # here

    return call(body, jnp.zeros(2, jnp.int32), jnp.zeros_like(x) + n[0])


def a_branch_of_the_program(n: Any, x: Any) -> Any:
    def body(n_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.ones((8, 128))  # here

    return lax.cond(n[0] > 0, lambda: call(body, jnp.zeros(2, jnp.int32), x), lambda: x)


def a_scan_of_the_program(n: Any, x: Any) -> Any:
    def body(n_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[0, :] = x_ref[pl.ds(n_ref[0], 1), :][0]  # here

    def step(carry: Any, _: Any) -> Any:
        i, y = carry
        return (i + 1, call(body, jnp.stack([i, i]), y)), None

    return lax.scan(step, (0, x), None, length=2)[0][1]


def a_loop_of_the_program(n: Any, x: Any) -> Any:
    def body(n_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[0, :] = x_ref[pl.ds(n_ref[0], 1), :][0]  # here

    return lax.fori_loop(0, n[0], lambda i, y: call(body, jnp.stack([i, i]), y), x)


def a_pipeline(n: Any, x: Any) -> Any:
    """Of blocks that exceed their array; the pipeline closes over values."""

    def body(n_ref: Any, x_ref: Any, o_ref: Any) -> None:
        first = x_ref[0, :]

        def add(block_ref: Any, out_ref: Any) -> None:
            out_ref[...] = block_ref[...] + first[None]

        rows = pl.BlockSpec((16, 128), lambda i: (i, 0))
        pltpu.emit_pipeline(add, grid=(1,), in_specs=[rows], out_specs=[rows])(x_ref, o_ref)  # here

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    smem = pl.BlockSpec(memory_space=pltpu.SMEM)
    return pl.pallas_call(body, in_specs=[smem, anywhere], out_specs=anywhere, out_shape=X)(n, x)


@pytest.mark.parametrize(
    "function, values, accesses",
    [
        (a_value, "x", ""),
        (an_index, "nx", "n"),
        (an_index_that_a_copy_brings, "nx", "n"),
        (an_index_map, "n", "n"),
        (a_masked_store, "nx", "n"),
        (a_predicate, "n", "n"),
        (a_loop, "nx", "n"),
        (a_copy, "nx", ""),
        (what_another_grid_point_wrote, "x", ""),
        (another_argument_alone, "n", ""),
        (a_branch_of_the_program, "n", "n"),
        (a_scan_of_the_program, "x", ""),
        (a_loop_of_the_program, "nx", "n"),
        (a_pipeline, "x", ""),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_decides(function: Callable[..., Any], values: str, accesses: str) -> None:
    assert decided(function) == (values, accesses)


def test_over_a_mesh_everything_may() -> None:
    def copies(n: Any, x: Any) -> Any:
        def body(x_ref: Any, o_ref: Any) -> None:
            pltpu.sync_copy(x_ref, o_ref)

        kernel: Any = pl.kernel
        out = jax.ShapeDtypeStruct((8, 128), jnp.float32)
        return kernel(body, out, mesh=tensorcore_mesh())(x * n[0])

    (found,) = dependence.dependences(copies, (LENGTHS, X), {}, {0: "n", 1: "x"}, V5E).values()
    assert found.of_values(None) == {"n", "x"}
