"""What jax and libtpu say today is recognised: kernels that they refuse, and what comes of them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels.broken import BROKEN, BrokenKernel, Engine, Outcome, broken

from pallas_debug import explain
from pallas_debug.bridge import trace
from pallas_debug.explain import fit, memory
from pallas_debug.model import Failure, Kernel
from pallas_debug.session import Options, Session


def _load(path: Path) -> Any:
    """A module beside this one, which is no package."""
    spec = importlib.util.spec_from_file_location(f"explain_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


kernels = _load(Path(__file__).with_name("kernels.py"))

HERE = ".".join(jax.__version__.split(".")[:2])
RAISING = [k for k in BROKEN if any(
    k.verdict(e).outcome in (Outcome.RAISES, Outcome.ABORTS)
    for e in (Engine.TRACE, Engine.LOWER, Engine.COMPILE))]  # fmt: skip


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    options = Options(
        dumps=tmp_path_factory.mktemp("provoked") / "dumps",
        targets=("v5e", "v4"),
        interpret="off",
        jobs=1,
    )
    with Session(options) as session:
        yield session


def refused(
    session: Session, call: Any, args: Any, target: str, *, x64: bool = False
) -> tuple[Failure | None, Kernel | None]:
    """Why a call is refused, if it is, by whoever does so first."""
    targets = [t for t in session.targets if t.name == target]
    try:
        with jax.enable_x64(x64), session.collecting() as captures:
            trace.lower_for_kernels(call, args, {}, targets[0])
    except Exception as error:  # noqa: BLE001 - whatever jax raises
        words = f"{error}\n(in jax/_src/pallas)"
        return Failure(stage="lowering", type=type(error).__name__, message=words), None
    (captured,) = captures
    session.request(captures, targets)
    session.wait()
    (dump,) = (d for d in session.dumps if d.kernel.digest == captured.kernel.digest)
    return dump.compilation(target).failure, dump.kernel


@pytest.mark.parametrize("case", kernels.REFUSED, ids=lambda case: case.entry)
def test_a_kernel_that_is_refused(session: Session, case: Any) -> None:
    failure, kernel = refused(session, case.call, case.args, case.target, x64=case.x64)
    if case.only and case.only != HERE:
        assert failure is None
        return
    assert failure is not None
    found = explain.of_failure(failure, kernel)
    assert found is not None, failure.message
    assert found.entry.id == case.entry


KINDS_ELSEWHERE = {
    "mask_as_column": ("UnsupportedShapeCast", "CompilerAbort"),  # 0.0.42 refuses it, 0.0.50 dies
}


@pytest.mark.parametrize("broken_kernel", RAISING, ids=lambda kernel: kernel.name)
def test_a_broken_kernel_is_explained_as_its_fault(
    session: Session, broken_kernel: BrokenKernel
) -> None:
    failure, kernel = refused(
        session, broken_kernel.function, broken_kernel.args, "v5e", x64=broken_kernel.x64
    )
    assert failure is not None
    found = explain.of_failure(failure, kernel)
    assert found is not None, failure.message
    assert found.kind in KINDS_ELSEWHERE.get(broken_kernel.name, (broken_kernel.fault,))


INTERPRETED = {
    "read_past_the_end": "out-of-bounds",
    "block_past_the_array": "block-out-of-bounds",
    "element_offset_as_block_index": "block-out-of-bounds",
    "output_revisited": "output-revisited",
    "direct_hbm_access": "direct-hbm-access",
    "check_without_debug": "check-not-supported",
}


@pytest.mark.parametrize("name", INTERPRETED)
def test_what_jaxs_own_interpreter_raises(name: str) -> None:
    kernel = broken(name)
    try:
        with (
            pltpu.force_tpu_interpret_mode(pltpu.InterpretParams()),
            pytest.raises(Exception) as error,
        ):
            jax.block_until_ready(jax.jit(kernel.function)(*kernel.make_args()))
    finally:
        pltpu.reset_tpu_interpret_mode_state()
    found = explain.explain(str(error.value))
    assert found is not None
    assert found.entry.id == INTERPRETED[name]


def test_names_that_are_gone_and_a_cpu() -> None:
    with pytest.raises(AttributeError) as gone:
        _ = pltpu.TPUCompilerParams
    with pytest.raises(ValueError) as cpu:
        pl.pallas_call(kernels.copy, out_shape=kernels.X)(jax.numpy.ones((16, 128)))
    ids = []
    for error in (gone, cpu):
        found = explain.explain(str(error.value))
        assert found is not None
        ids.append(found.entry.id)
    assert ids == ["removed-name", "only-interpret"]


def test_the_table_of_an_overflow_has_the_operands_and_the_blocks_that_it_suggests_fit(
    session: Session,
) -> None:
    (case,) = (case for case in kernels.REFUSED if case.entry == "vmem-capacity")
    failure, kernel = refused(session, case.call, case.args, "v4")
    assert failure is not None
    assert kernel is not None
    overflow = memory.overflow(failure.message, kernel)
    assert overflow is not None
    assert (overflow.space, overflow.used, overflow.limit) == ("vmem", 40 << 20, 16 << 20)
    assert [(a.what, a.bytes, a.block, a.buffers) for a in overflow.allocations] == [
        ("x_ref", 16 << 20, "f32[1024,2048]", 2),
        ("o_ref", 16 << 20, "f32[1024,2048]", 2),
        ("y_ref", 8 << 20, "bf16[1024,2048]", 2),
    ]
    (suggestion,) = fit.suggestions(kernel, overflow)
    assert suggestion.blocks == dict.fromkeys(("x_ref", "y_ref", "o_ref"), (256, 2048))
    assert suggestion.how == "4 times the steps along axis 0 of the grid"

    block = pl.BlockSpec((256, 2048), lambda i: (i, 0))
    smaller = kernels.calling(
        kernels._large, kernels.array(8192, 2048), grid=(32,), in_specs=[block, block],
        out_specs=block,
    )  # fmt: skip
    assert refused(session, smaller, case.args, "v4")[0] is None


def test_an_estimate_is_the_compilers_own_figure(session: Session) -> None:
    """Where the compiler gives sums alone, the kernel's blocks make the table."""
    kernel_of = broken("blocks_over_the_limit")
    failure, kernel = refused(session, kernel_of.function, kernel_of.args, "v5e")
    assert failure is not None
    overflow = memory.overflow(failure.message, kernel)
    assert overflow is not None
    assert overflow.is_estimate
    assert sum(a.bytes for a in overflow.allocations) == overflow.used == 32 << 20
