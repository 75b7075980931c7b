"""Kernels that HLO interpret mode would run, and get wrong; and those that no interpreter runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc

from pallas_debug.analysis import analyze
from pallas_debug.bridge.interpret import interpret, limits
from pallas_debug.bridge.lowering import lower, trace
from pallas_debug.compiler.targets import BUILTIN
from pallas_debug.errors import CannotRunError, CompiledWithOthersError, InterpretModeError
from pallas_debug.session import Options, Session
from pallas_debug.verdict import verify

F32 = jnp.float32
X = np.arange(16 * 128, dtype=np.float32).reshape(16, 128)
BLOCK = pl.BlockSpec((8, 128), lambda i, *_: (i, 0))
ANY = pl.BlockSpec(memory_space=pl.ANY)
DMA = pltpu.SemaphoreType.DMA


def writes_scalar_prefetch() -> tuple[Any, np.ndarray]:
    def kernel(n_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * n_ref[0].astype(F32)

        @pl.when(pl.program_id(0) < 5)
        def _() -> None:
            n_ref[0] = n_ref[0] + 1  # the write

    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1, grid=(2,), in_specs=[BLOCK], out_specs=BLOCK
    )
    result = pl.pallas_call(kernel, grid_spec=grid, out_shape=jax.typeof(X))(jnp.array([3]), X)
    return result, np.concatenate([X[:8] * 3, X[8:] * 4])


def writes_an_input_block() -> tuple[Any, np.ndarray]:
    """On a TPU the second visit of a block reads it again from the input."""

    def kernel(x_ref: Any, o_ref: Any) -> None:
        x_ref[...] = x_ref[...] + 1  # the write
        o_ref[...] = x_ref[...]

    result = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((32, 128), F32),
        grid=(2, 2),
        in_specs=[pl.BlockSpec((8, 128), lambda i, j: (j, 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i, j: (2 * i + j, 0)),
    )(X)
    return result, np.concatenate([X, X]) + 1


def reads_an_aliased_input() -> tuple[Any, np.ndarray]:
    def kernel(x_hbm: Any, o_hbm: Any, sem: Any) -> None:
        pltpu.async_copy(x_hbm.at[0:8], o_hbm.at[8:16], sem).wait()  # the write
        pltpu.async_copy(x_hbm.at[8:12], o_hbm.at[4:8], sem).wait()

    result = pl.pallas_call(
        kernel,
        out_shape=jax.typeof(X),
        in_specs=[ANY],
        out_specs=ANY,
        scratch_shapes=[DMA],
        input_output_aliases={0: 0},
    )(X)
    return result, np.concatenate([X[:4], X[:4], X[:8]])


def depends_on_the_platform() -> tuple[Any, np.ndarray]:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = lax.platform_dependent(x_ref[...], cpu=jnp.negative, default=jnp.square)

    return pl.pallas_call(kernel, out_shape=jax.typeof(X))(X), X**2


FORGOTTEN: dict[Callable[[], Any], str] = {
    writes_scalar_prefetch: "forgets writes to n_ref, scalar prefetch, after each grid step",
    writes_an_input_block: "copies writes to the input block x_ref back to the input",
    reads_an_aliased_input: "does not alias x_hbm and o_hbm within a grid step",
}


@pytest.mark.parametrize("kernel", FORGOTTEN, ids=lambda kernel: kernel.__name__)
def test_what_hlo_interpret_mode_forgets(kernel: Callable[[], Any]) -> None:
    chosen: list[str] = []
    with interpret.interpreting("auto", chosen=lambda choice: chosen.append(choice.why)):
        result, wanted = kernel()
    np.testing.assert_array_equal(result, wanted)
    (why,) = chosen
    assert why.startswith(f"HLO interpret mode {FORGOTTEN[kernel]} ({__file__}:")
    assert why.endswith("# the write)")
    with interpret.interpreting("hlo"), pytest.raises(InterpretModeError) as caught:
        kernel()
    assert str(caught.value) == (
        f"kernel `kernel` may return wrong results: {why}. "
        "Run it in TPU interpret mode; `auto` does"
    )


def test_hlo_interpret_mode_takes_no_branch_of_another_platform() -> None:
    with interpret.interpreting("auto"):
        result, wanted = depends_on_the_platform()
    np.testing.assert_array_equal(result, wanted)
    with interpret.interpreting("hlo"), pytest.raises(InterpretModeError) as caught:
        depends_on_the_platform()
    assert str(caught.value) == (
        "kernel `kernel` may return wrong results: HLO interpret mode has no branches for Mosaic. "
        "Run it in TPU interpret mode; `auto` does"
    )


def test_one_grid_step_forgets_nothing() -> None:
    def kernel(n_ref: Any, x_ref: Any, o_ref: Any) -> None:
        n_ref[0] = n_ref[0] + 1
        x_ref[...] = x_ref[...] * n_ref[0].astype(F32)
        o_ref[...] = x_ref[...]

    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(1,),
        in_specs=[pl.BlockSpec((16, 128), lambda i, *_: (0, 0))],
        out_specs=pl.BlockSpec((16, 128), lambda i, *_: (0, 0)),
    )
    with interpret.interpreting("hlo"):
        call = pl.pallas_call(kernel, grid_spec=grid, out_shape=jax.typeof(X))
        np.testing.assert_array_equal(call(jnp.array([1]), X), X * 2)


def dynamic_size(x_ref: Any, o_ref: Any, sem: Any) -> None:
    size = x_ref[0, 4].astype(jnp.int32)
    o_ref[...] = jnp.zeros_like(o_ref)
    pltpu.async_copy(x_ref.at[pl.ds(0, size)], o_ref.at[pl.ds(0, size)], sem).wait()


def select_ref(x_ref: Any, o_ref: Any, sem: Any) -> None:
    source = pl.select_ref(x_ref[0, 1].astype(jnp.int32), o_ref, x_ref)
    copy = pltpu.make_async_copy(source, o_ref, sem)
    copy.start()
    copy.wait()


def transposed(x_ref: Any, o_ref: Any, sem: Any) -> None:
    def body(tile: Any) -> None:
        tile[...] = x_ref[...].T
        o_ref[...] = tile.transpose((1, 0))[...]

    pl.run_scoped(body, pltpu.VMEM((128, 16), F32))


@pytest.mark.parametrize(
    "kernel,lacking,wanted",
    [
        (dynamic_size, "slices of dynamic size", np.where(np.arange(16)[:, None] < 4, X, 0)),
        (select_ref, "references chosen by select_ref", X),
        (transposed, "transposed references", X),
    ],
)
def test_references_that_hlo_interpret_mode_lacks(
    kernel: Callable[..., None], lacking: str, wanted: np.ndarray
) -> None:
    chosen: list[str] = []
    with interpret.interpreting("auto", chosen=lambda choice: chosen.append(choice.why)):
        result = pl.pallas_call(kernel, out_shape=jax.typeof(X), scratch_shapes=[DMA])(X)
    np.testing.assert_array_equal(result, wanted)
    assert chosen == [f"HLO interpret mode has no {lacking}"]
    with Session(Options(interpret="hlo")), pytest.raises(InterpretModeError) as caught:
        pl.pallas_call(kernel, out_shape=jax.typeof(X), scratch_shapes=[DMA])(X)
    assert str(caught.value) == (
        f"kernel `{kernel.__name__}` cannot be interpreted: HLO interpret mode has no {lacking}. "
        "Run it in TPU interpret mode; `auto` does"
    )


def test_the_line_is_that_of_the_write_in_loops_and_branches_too() -> None:
    def kernel(n_ref: Any, x_ref: Any, o_ref: Any) -> None:
        def body(i: Any, _: None) -> None:
            @pl.when(i > 0)
            def _() -> None:
                n_ref[0] = i  # in a branch

        lax.fori_loop(0, 2, body, None)
        o_ref[...] = x_ref[...]

    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1, grid=(2,), in_specs=[BLOCK], out_specs=BLOCK
    )
    call = pl.pallas_call(kernel, grid_spec=grid, out_shape=jax.typeof(X))
    (eqn,) = jax.make_jaxpr(call)(jnp.array([3]), X).jaxpr.eqns
    assert str(limits.forgotten(eqn.params)).endswith("# in a branch)")


# Semaphores that kernels hand on.


def hand_on(x: jax.Array) -> Any:
    def start(x_hbm: Any, o_hbm: Any, sem: Any) -> None:
        pltpu.make_async_copy(x_hbm, o_hbm, sem).start()

    def done(x_hbm: Any, y_hbm: Any, sem: Any, o_hbm: Any) -> None:
        pltpu.make_async_copy(x_hbm, y_hbm, sem).wait()

    semaphore = pl.BlockSpec(memory_space=pltpu.SEMAPHORE)
    aval = jax.ShapeDtypeStruct(x.shape, x.dtype)
    y, sem = pl.pallas_call(
        start, in_specs=[ANY], out_specs=(ANY, semaphore), out_shape=(aval, DMA(()))
    )(x)
    return pl.pallas_call(
        done,
        in_specs=[ANY, ANY, semaphore],
        out_specs=ANY,
        out_shape=aval,
        input_output_aliases={1: 0},
    )(x, y, sem)


@pytest.mark.parametrize("mode", ["auto", "hlo", "tpu"])
def test_no_interpreter_hands_semaphores_on(mode: str) -> None:
    with interpret.interpreting(mode), pytest.raises(InterpretModeError) as caught:
        hand_on(X)
    assert str(caught.value) == (
        "kernel `start` cannot be interpreted: it takes or returns the semaphores sem, but jax's "
        "interpreters free semaphores at the end of a kernel. Run it in interpret mode `machine` "
        '(--pallas-interpret=machine, pallas_debug.interpret("machine")), on a TPU, or start '
        "and wait for the copy in one kernel"
    )


def test_kernels_that_hand_semaphores_on_are_captured_but_not_compiled_alone() -> None:
    session = Session(Options(chip="v5e", interpret="off"))
    (target,) = (target for target in BUILTIN if target.name == "v5e")
    with session, session.collecting() as captures:
        trace.lower_for_kernels(hand_on, [X], {}, target)
    assert [captured.kernel.name for captured in captures] == ["start", "done"]
    for captured in captures:
        assert analyze(captured, BUILTIN).findings == ()
        with pytest.raises(CompiledWithOthersError) as caught:
            lower.lower(captured, target)
        assert str(caught.value) == (
            f"{captured.kernel.name} takes or returns the semaphores sem, which cannot be inputs "
            "or outputs of a program. It compiles only within a program whose other kernels "
            "return or take them, but here each kernel is compiled alone"
        )


def test_kernels_that_hand_semaphores_on_are_beyond_the_compiler_s_limits() -> None:
    for engines, status in ((None, "unsupported"), ("compile", "unjudged")):
        verdict = verify(jax.jit(hand_on), X, targets="v6e", engines=engines)
        found = {o.kernel: (o.status, o.reason) for o in verdict.outcomes if o.engine == "compile"}
        assert list(found) == ["start", "done"]
        for name, (given, reason) in found.items():
            assert given == status
            assert str(reason).startswith(f"{name} takes or returns the semaphores sem, which")
        assert verdict.ok == (status == "unsupported"), str(verdict)


@pytest.mark.skipif(
    not hasattr(pltpu, "emit_pipeline_with_async_prefetch"), reason="since jax 0.12"
)
def test_a_kernel_over_a_mesh_that_is_given_semaphores_is_not_compiled_alone() -> None:
    tpu: Any = pltpu  # of which older stubs lack names
    mesh = tpu.TensorCoreMesh(axis_name="core", num_cores=1)
    rows = pl.BlockSpec((8, 128), lambda i: (i, 0))

    def double(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2

    def doubled(x: Any) -> Any:
        run, prefetch = tpu.emit_pipeline_with_async_prefetch(
            double, grid=(2,), in_specs=[rows], out_specs=[rows], mesh=mesh
        )
        x_ref, o_ref = jax.new_ref(x), jax.new_ref(jnp.zeros_like(x))
        held = prefetch(x_ref)

        pl.kernel(lambda: run(x_ref, o_ref, allocations=tuple(held)), mesh=mesh)()
        return o_ref[...]

    session = Session(Options(chip="v6e", interpret="off"))
    (target,) = (target for target in BUILTIN if target.name == "v6e")
    with session, session.collecting() as captures:
        trace.lower_for_kernels(jax.jit(doubled), [jnp.ones((16, 128))], {}, target)
    with pytest.raises(CannotRunError, match=r"takes or returns the semaphores args\[\d\], which"):
        lower.lower(captures[-1], target)


def test_no_interpreter_has_keys_of_the_tpu() -> None:
    def kernel(key_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jax.random.uniform(key_ref[...], (8, 128))  # the key

    key = pltpu.to_pallas_key(jax.random.key(0))
    smem = pl.BlockSpec(memory_space=pltpu.SMEM)
    call = pl.pallas_call(
        kernel, out_shape=jax.ShapeDtypeStruct((8, 128), F32), in_specs=[smem], name="uniform"
    )
    with pytest.raises(InterpretModeError) as caught, interpret.interpreting("auto"):
        call(key)
    assert str(caught.value).startswith(
        "kernel `uniform` cannot be interpreted: jax's interpreters have no keys of the TPU ("
    )
    assert str(caught.value).endswith(
        "(8, 128))  # the key). Run it in interpret "
        'mode `machine` (--pallas-interpret=machine, pallas_debug.interpret("machine")), or on a TPU'
    )


def test_no_interpreter_has_the_operations_of_a_sparse_core() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = plsc.cumsum(x_ref[...])  # the sum

    call = pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((16,), F32))
    for mode in ("auto", "tpu"):
        with pytest.raises(InterpretModeError) as caught, interpret.interpreting(mode):
            call(jnp.ones(16))
        assert str(caught.value).startswith(
            "kernel `kernel` cannot be interpreted: jax's interpreters have no operations of a "
            f"SparseCore (`masked_cumsum`) ({__file__}:"
        )


def test_no_interpreter_simulates_cores_of_several_kinds() -> None:
    params = {"meshes": (1, 2), "jaxprs": (), "name": "mixed"}
    with pytest.raises(InterpretModeError) as caught:
        limits.require_any(params)
    assert str(caught.value) == (
        "kernel `mixed` cannot be interpreted: it runs on cores of several kinds (SparseCore and "
        "TensorCore), but jax's interpreters simulate only one. Run it in interpret mode "
        '`machine` (--pallas-interpret=machine, pallas_debug.interpret("machine")), or on a TPU'
    )
