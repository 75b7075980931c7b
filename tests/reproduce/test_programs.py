"""Kernels written as programs: what they lower to, and how they fail."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from broken_kernels import BROKEN, BrokenKernel
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from marks import first_of_each_fault
from pallas_debug_kernels import BundledOperation, operations

from pallas_debug.bridge import unparse
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.lowering import hook, lower, trace
from pallas_debug.compiler import targets
from pallas_debug.ir.normal import normal_form, stripped
from pallas_debug.reproduce.recorded import Recorded
from pallas_debug.reproduce.same import signature
from pallas_debug.reproduce.script import script_of
from pallas_debug.session import Options, Session

V5E = targets.resolve("v5e")


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session(Options(targets=("v5e",), interpret="off")) as session:
        yield session
    assert session.problems == []


def captures(session: Session, function: Callable[..., Any], args: Sequence[Any]) -> list[Capture]:
    with session.collecting() as captured:
        trace.lower_for_kernels(function, args, {}, V5E)
    return captured


def of_program(captured: Capture) -> str:
    """The module that the program of a kernel lowers to, or how that fails."""
    program = unparse.program_of(captured)
    script = script_of(recorded(captured, program))
    namespace: dict[str, Any] = {"__name__": "reproduced"}
    found: list[str] = []
    try:
        with lower.collecting_mosaic(found), hook.unwatched():
            exec(compile(script, "reproduce.py", "exec"), namespace)  # a script of ours
            namespace["lowered"]()
    except Exception as error:  # noqa: BLE001 - any that lowering raises
        failure = lower.failure_of(error)
        return signature(failure.stage, failure.message)
    return "\n".join(found)


def of_kernel(captured: Capture) -> str:
    try:
        return lower.lower(captured, V5E).mosaic
    except lower.LoweringFailed as error:
        return signature(error.failure.stage, error.failure.message)


def recorded(captured: Capture, program: str) -> Recorded:
    return Recorded(
        kernel=captured.kernel,
        target=V5E,
        topology=V5E.topology or "",
        num_devices=4 if captured.mesh is not None else 1,
        program=program,
        why_no_program="",
        stablehlo=None,
        compilation=None,
    )


_SAME_SHAPE = re.compile(r"vector\.shape_cast % : (?P<type>\S+) to (?P=type)$")


def normal(mosaic: str) -> list[str]:
    """Without names, places, named scopes and casts of shapes that change none.

    Constants stand in front, each once: jax makes another for each function that it inlines.
    """
    text = stripped(mosaic.split("\n"), "mlir", ("ssa", "loc")).lines
    forms = (normal_form(line, "mlir", ("ssa", "loc")) for line in text)
    lines = [form for form in forms if form]
    constants = {line.strip() for line in lines if "arith.constant" in line}
    noise = re.compile(rf"arith\.constant|tpu\.trace_st|{_SAME_SHAPE.pattern}")
    kept = [line for line in lines if not noise.search(line)]
    return [*sorted(constants), *kept]


def cases(*, differentiable: bool) -> list[Any]:
    return [
        pytest.param(op, id=op.name)
        for op in operations()
        if op.differentiable or not differentiable
    ]


def check(found: list[Capture]) -> None:
    assert found
    for captured in found:
        assert normal(of_program(captured)) == normal(of_kernel(captured)), captured.kernel.name


@pytest.mark.parametrize("op", cases(differentiable=False))
def test_bundled_operations(session: Session, op: BundledOperation) -> None:
    spec = op.tagged("small")[0]
    check(captures(session, partial(op.function, **spec.kwargs), spec.args))


@pytest.mark.slow
@pytest.mark.parametrize("op", cases(differentiable=True))
def test_their_gradients(session: Session, op: BundledOperation) -> None:
    spec = op.tagged("small")[-1]

    def loss(*args: jax.Array) -> jax.Array:
        leaves = jax.tree.leaves(op.function(*args, **spec.kwargs))
        return sum((leaf.astype(jnp.float32) ** 2).sum() for leaf in leaves)

    check(captures(session, jax.grad(loss, argnums=op.differentiable), spec.args))


TRACED = [kernel for kernel in BROKEN if kernel.is_traced and "check" not in kernel.name]
"""Those that do not fail before there is a kernel, and whose program has no check."""


@pytest.mark.parametrize("kernel", first_of_each_fault(TRACED))
def test_broken_kernels(session: Session, kernel: BrokenKernel) -> None:
    with jax.enable_x64(kernel.x64):
        (captured,) = captures(session, kernel.function, kernel.args)
    check([captured])


F32 = jnp.float32
X = jax.ShapeDtypeStruct((16, 128), F32)
N = jax.ShapeDtypeStruct((), jnp.int32)
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))


# Kernels with one unusual thing each.


@dataclass(frozen=True)
class Case:
    """A call of a kernel, and what its program must say of it."""

    function: Callable[..., Any]
    args: tuple[jax.ShapeDtypeStruct, ...]
    texts: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.function.__name__


CASES: list[Case] = []


def case(*texts: str, args: tuple[jax.ShapeDtypeStruct, ...] = (X,)) -> Callable[..., Any]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        CASES.append(Case(function, args, texts))
        return function

    return add


def whole(kernel: Callable[..., None], *args: Any, **options: Any) -> Any:
    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(X.shape, X.dtype), **options)(
        *args
    )


@case("lax.while_loop(condition, body, (np.int32(0), ")
def while_loop(x):
    def kernel(x_ref, o_ref):
        def body(c):
            i, y = c
            return i + 1, y + x_ref[pl.ds(i * 8, 8), :]

        _, y = lax.while_loop(lambda c: c[0] < 2, body, (0, jnp.zeros((8, 128), F32)))
        o_ref[:8, :] = y
        o_ref[8:, :] = y

    return whole(kernel, x)


@case("lax.switch(", "[case_0, case_1, case_2]", args=(X, jax.ShapeDtypeStruct((1,), jnp.int32)))
def switch(x, n):
    def kernel(n_ref, x_ref, o_ref):
        cases = [lambda y: y, lambda y: y + 1, lambda y: -y]
        o_ref[...] = lax.switch(n_ref[0], cases, x_ref[...])

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(2,),
        in_specs=[pl.BlockSpec((8, 128), lambda i, n: (jnp.minimum(i, n[0]), 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i, n: (i, 0)),
    )
    return whole(kernel, n, x, grid_spec=spec)


@case(
    "if_true",
    "if_false",
    "lax.cond(",
    "v7, v8 = lax.cond(v2, ",
    args=(X, jax.ShapeDtypeStruct((1,), jnp.int32)),
)
def branches_with_results(x, n):
    def kernel(n_ref, x_ref, o_ref):
        y, z = lax.cond(
            n_ref[0] > 3, lambda: (x_ref[:8, :], x_ref[8:, :]), lambda: (x_ref[8:, :], x_ref[:8, :])
        )
        o_ref[:8, :] = y
        o_ref[8:, :] = z

    spec = pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, grid=(), in_specs=[pl.BlockSpec()])
    return whole(kernel, n, x, grid_spec=spec)


@case("lax.scan(step, (np.int32(0), v1), None, length=2, unroll=2)")
def unrolled_loop(x):
    def kernel(x_ref, o_ref):
        def body(i, c):
            o_ref[pl.ds(pl.multiple_of(i * 8, 8), 8), :] = c
            return c * 2

        lax.fori_loop(0, 2, body, x_ref[:8, :], unroll=True)

    return whole(kernel, x)


@case(".bitcast(jnp.int32)[...]", ".reshape((2, 8, 128))")
def views(x):
    def kernel(x_ref, o_ref):
        bits = x_ref.bitcast(jnp.int32)[...]
        o_ref[...] = lax.bitcast_convert_type(bits, F32)
        o_ref[8:, :] = x_ref.reshape((2, 8, 128))[1]

    return whole(kernel, x)


@case("pl.debug_print('row {}'", "pltpu.roll(", "lax.rem(")
def prints_and_rolls(x):
    def kernel(x_ref, o_ref):
        i = pl.program_id(0)
        pl.debug_print("row {}", i)
        o_ref[...] = pltpu.roll(x_ref[...], lax.rem(i, pl.num_programs(0)), 1)

    return whole(kernel, x, grid=(2,), in_specs=[ROWS], out_specs=ROWS)


@case("grid=(args[0],)", ")(*args[1:])", args=(N, X))
def dynamic_grid(n, x):
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...]

    return whole(kernel, x, grid=(n,), in_specs=[ROWS], out_specs=ROWS)


@case("grid=(('rows', 2),)", "lax.axis_index('rows')")
def named_grid(x):
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] + lax.axis_index("rows").astype(F32)

    return whole(kernel, x, grid=(("rows", 2),), in_specs=[ROWS], out_specs=ROWS)


@case(
    "input_output_aliases={0: 0}", "pl.CostEstimate(", "name='both'", "vmem_limit_bytes=33554432",
    "metadata={'a': 'b'}",
)  # fmt: skip
def options(x):
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2

    return whole(
        kernel,
        x,
        name="both",
        input_output_aliases={0: 0},
        cost_estimate=pl.CostEstimate(flops=1, transcendentals=2, bytes_accessed=3),
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=32 * 2**20),
        metadata={"a": "b"},
    )


@case("pl.Element(block_size=8)", "pl.Buffered(buffer_count=1)")
def blocks(x):
    def kernel(x_ref, y_ref, o_ref):
        o_ref[...] = x_ref[...] + y_ref[...]

    element = pl.BlockSpec((pl.Element(8), pl.Element(128)), lambda i: (i * 8, 0))
    once = pl.BlockSpec((8, 128), lambda i: (0, 0), pipeline_mode=pl.Buffered(1))
    return whole(kernel, x, x, grid=(2,), in_specs=[element, once], out_specs=ROWS)


@case("pl.run_scoped(scope, pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA((2,))")
def scoped(x):
    def kernel(x_ref, o_ref):
        def copy(buffer, sems):
            coming = pltpu.make_async_copy(x_ref.at[pl.ds(0, 8)], buffer, sems.at[0])
            coming.start(priority=1)
            coming.wait()
            o_ref[:8, :] = buffer[...]
            o_ref[8:, :] = buffer[...]

        pl.run_scoped(copy, pltpu.VMEM((8, 128), F32), pltpu.SemaphoreType.DMA((2,)))

    return whole(kernel, x, in_specs=[pl.BlockSpec(memory_space=pl.ANY)])


@case("def main_2(type_2, jax_2):", "name='main'")
def names_of_the_script(x):
    def main(type, jax):
        jax[...] = type[...] + 1

    return whole(main, x, name="main")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_unusual_kernels(session: Session, case: Case) -> None:
    found = captures(session, case.function, case.args)
    program = unparse.program_of(found[0])
    for message in case.texts:
        assert message in program, program
    check(found)


def test_a_kernel_that_cannot_be_written_out(session: Session) -> None:
    def constant(x: jax.Array) -> jax.Array:
        def kernel(x_ref: Any, o_ref: Any) -> None:
            o_ref[...] = lax.reduce(x_ref[...], 0.0, lambda a, b: a * b + a, (0,))[None]

        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((1, 128), F32))(x)

    (captured,) = captures(session, constant, (X,))
    assert unparse.program_of(captured) == (
        f"{unparse.NO_PROGRAM}it has reduce, which holds a function of its own.\n"
    )

    def swap(x: jax.Array) -> jax.Array:
        def kernel(x_ref: Any, o_ref: Any) -> None:
            o_ref[...] = jax.ref.swap(x_ref, ..., x_ref[...])

        return pl.pallas_call(kernel, out_shape=x)(x)

    (swapping,) = captures(session, swap, (X,))
    assert unparse.program_of(swapping) == (
        f"{unparse.NO_PROGRAM}it has a swap, whose old values it uses.\n"
    )
    broken_params = {**captured.params, "grid_mapping": None}
    program = unparse.program_of(replace(captured, params=broken_params))
    assert program.startswith(
        f"{unparse.NO_PROGRAM}pallas-debug failed to write it (AttributeError: "
    )
    assert program.count("\n") == 1
    made_by_kernel = replace(captured, kernel=replace(captured.kernel, primitive="mpmd_map"))
    assert unparse.program_of(made_by_kernel) == (
        f"{unparse.NO_PROGRAM}it has meshes, as pl.kernel makes it, and no grid as pl.pallas_call.\n"
    )
