"""Blocks of operands on the machine: shapes, buffers, aliases, and what `vmap` makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import on_machine
import pytest
from called import called
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.bridge import chip
from pallas_debug.bridge.interpret import interpret
from pallas_debug.compiler.targets import BUILTIN
from pallas_debug.errors import MachineError
from pallas_debug.machine.machine import Machine

F32 = jnp.float32
X = np.arange(32 * 128, dtype=np.float32).reshape(32, 128)
S = jax.ShapeDtypeStruct
ANY, SMEM = (pl.BlockSpec(memory_space=s) for s in (pl.ANY, pltpu.SMEM))
DMA = pltpu.SemaphoreType.DMA
ROW = pl.BlockSpec((8, 128), lambda i: (i, 0))


def increment(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] + 1


def blocks(
    in_spec: Any = ROW, out_spec: Any = ROW, n: Any = 4, out: Any = X, **options: Any
) -> Callable[..., Any]:
    """Add 1 to each block."""
    shape = S(out.shape, out.dtype)
    return pl.pallas_call(
        increment, out_shape=shape, grid=(n,), in_specs=[in_spec], out_specs=out_spec, **options
    )


def buffered(n: int) -> pl.BlockSpec:
    return pl.BlockSpec((8, 128), lambda i: (i, 0), pipeline_mode=pl.Buffered(n))


def element(first: int, padding: tuple[int, int] = (0, 0)) -> pl.BlockSpec:
    sizes = pl.Element(8, padding), pl.Element(128)
    return pl.BlockSpec(sizes, lambda i: (i * 8 + first, 0))


@called(grid=(4, 3), block=pl.BlockSpec((8, 128), lambda i, _: (i, 0)), input_output_aliases={0: 0})
def revisited(x_ref: Any, o_ref: Any) -> None:
    @pl.when(pl.program_id(1) == 0)
    def _() -> None:
        o_ref[...] = x_ref[...]

    o_ref[...] = o_ref[...] + 1


IN_PLACE: Any = {"input_output_aliases": {0: 0}}
LIKE_HLO: dict[str, tuple[Callable[..., Any], Any]] = {
    "dynamic grid": (lambda x: blocks(n=jnp.int32(3) + 0 * x[0, 0].astype(int), **IN_PLACE)(x), X),
    "one buffer": (blocks(buffered(1)), X),
    "three buffers": (blocks(buffered(3), buffered(4)), X),
    "no grid point": (blocks(n=0, **IN_PLACE), X),
    "ragged": (blocks(out=X[:30, :100]), X[:30, :100]),
    "squeezed": (
        blocks(
            pl.BlockSpec((None, 8, 128), lambda i: (i, 0, 0)),
            pl.BlockSpec((pl.Squeezed(), 8, 128), lambda i: (i, 0, 0)),
            out=X.reshape(4, 8, 128),
        ),
        X.reshape(4, 8, 128),
    ),
    "elements": (blocks(element(4), n=3, out=X[:24]), X),
    "elements and padding": (blocks(element(0, (4, 4)), n=5, out=np.zeros((40, 128), "f4")), X),
    "vmap": (jax.vmap(blocks(n=2, out=X[:16])), X.reshape(2, 16, 128)),
    "in place": (blocks(**IN_PLACE), X),
    "in place and revisited": (revisited, X),
}


@pytest.mark.parametrize("name", LIKE_HLO)
def test_blocks_are_those_of_hlo_interpret_mode(name: str) -> None:
    call, x = LIKE_HLO[name]
    with interpret.interpreting("hlo"):
        want = jax.jit(call)(x)
    (got,) = on_machine.run(call, x)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


def test_operands_without_elements_and_without_dimensions() -> None:
    empty = np.zeros((0, 128), np.float32)
    (got,) = on_machine.run(pl.pallas_call(increment, out_shape=S(empty.shape, F32)), empty)
    assert got.shape == (0, 128)
    scalar = pl.pallas_call(increment, out_shape=S((), F32), in_specs=[SMEM], out_specs=SMEM)
    np.testing.assert_array_equal(on_machine.run(scalar, np.float32(3)), [4])


def _doubling(x_hbm: Any, o_hbm: Any, tile: Any, sem: Any) -> None:
    rows = pl.ds(pl.program_id(0) * 8, 8)
    pltpu.async_copy(o_hbm.at[rows], tile, sem).wait()
    tile[...] = tile[...] * 2
    pltpu.async_copy(tile, o_hbm.at[rows], sem).wait()


def test_operands_in_hbm_that_are_aliased_and_mapped() -> None:
    def call(x: Any) -> Any:
        return pl.pallas_call(
            _doubling, out_shape=S(x.shape, F32), grid=(2,), in_specs=[ANY], out_specs=ANY,
            scratch_shapes=[pltpu.VMEM((8, 128), F32), DMA], input_output_aliases={0: 0},
        )(x)  # fmt: skip

    x = X.reshape(2, 16, 128)
    np.testing.assert_array_equal(on_machine.run(call, x[0])[0], x[0] * 2)
    np.testing.assert_array_equal(on_machine.run(jax.vmap(call), x)[0], x * 2)


def test_slices_of_bounded_size() -> None:
    """In `emit_pipeline`; of a kernel's own blocks Mosaic lowers none, and the machine refuses it."""
    spec = pl.BlockSpec((pl.BoundedSlice(8), 128), lambda i: (pl.ds(i * 8, 8 - i), 0))

    def kernel(x_hbm: Any, o_hbm: Any) -> None:
        pltpu.emit_pipeline(increment, grid=(4,), in_specs=[spec], out_specs=[spec])(x_hbm, o_hbm)

    whole = pl.pallas_call(kernel, out_shape=S(X.shape, F32), in_specs=[ANY], out_specs=ANY)
    with chip.answering_everywhere(BUILTIN[0]):
        (got,) = on_machine.run(whole, X)
    is_written = np.arange(32) % 8 < 8 - np.arange(32) // 8
    np.testing.assert_array_equal(got[is_written], X[is_written] + 1)
    rest = got[~is_written]  # since jax 0.12, whole tiles are copied
    assert (np.isnan(rest) | (rest == X[~is_written] + 1)).all()
    with pytest.raises(MachineError, match="`x_ref` has a block dimension of kind BoundedSlice"):
        on_machine.run(blocks(spec, spec), X)


def test_buffers_of_scopes_that_have_ended_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    machines: list[Machine] = []
    monkeypatch.setattr(
        on_machine, "Machine", lambda *a: machines.append(Machine(*a)) or machines[0]
    )

    def kernel(x_ref: Any, o_ref: Any) -> None:
        def body(tile: Any) -> None:
            tile[...] = x_ref[...]
            o_ref[...] = tile[...]

        for _ in range(3):
            pl.run_scoped(body, pltpu.VMEM((32, 128), F32))

    (got,) = on_machine.run(pl.pallas_call(kernel, out_shape=S(X.shape, F32)), X)
    np.testing.assert_array_equal(got, X)
    (machine,) = machines
    assert machine.num_buffers - len(machine.buffers) == 3
    assert {buffer.kind for buffer in machine.buffers} == {"input", "output", "window"}
