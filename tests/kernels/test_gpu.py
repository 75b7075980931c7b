"""Kernels for GPUs, sound and broken: compiled for their chip, and run on a CPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from broken_kernels import FOR_GPU, BrokenKernel
from broken_kernels.texts import verified
from jax.experimental.pallas import mosaic_gpu as plgpu
from pallas_debug_kernels import BundledOperation, Spec, gpu_operations, hopper_matmul
from refused_calls import refused

import pallas_debug
from pallas_debug.session import Options, Session

pytestmark = pytest.mark.filterwarnings("ignore:The Pallas Triton backend:DeprecationWarning")

MATMUL, SOFTMAX = gpu_operations()
OVER_THE_PADDING, TOO_LARGE, NOT_AWAITED = FOR_GPU

HAS_INTERPRETER = hasattr(plgpu, "InterpretGPUParams")
"""Mosaic GPU's kernels run on a CPU since jax 0.12 only."""


def cases(*operations: BundledOperation) -> Any:
    rows = [(op, spec) for op in operations for spec in op.tagged("small", "edge")]
    return pytest.mark.parametrize(
        "op, spec", rows, ids=[f"{op.name}-{spec.name}" for op, spec in rows]
    )


def interpreted(function: Callable[..., jax.Array], *args: jax.Array) -> np.ndarray:
    """Run a kernel of Mosaic GPU in jax's interpreter, which stops at a race."""
    params = plgpu.InterpretGPUParams(detect_races=True, on_race="raise")
    with plgpu.force_gpu_interpret_mode(params):
        return np.asarray(function(*args))


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session(Options(dumps=None, targets=("h100",), interpret="off", jobs=1)) as session:
        yield session


@cases(MATMUL, SOFTMAX)
def test_compiles_for_hopper(session: Session, op: BundledOperation, spec: Spec) -> None:
    failure, kernel = refused(session, partial(op.function, **spec.kwargs), spec.args, "h100")
    assert failure is None
    assert kernel is not None
    assert kernel.name == op.name


@cases(SOFTMAX)
def test_softmax_equals_its_reference(op: BundledOperation, spec: Spec) -> None:
    verdict = pallas_debug.verify(
        op.function, *spec.make_args(), engines="machine", reference=op.reference
    )
    assert verdict.ok, str(verdict)


@cases(MATMUL)
def test_matmul_equals_its_reference(op: BundledOperation, spec: Spec) -> None:
    args = spec.make_args()
    if not HAS_INTERPRETER:  # tracing is all that can be done
        out = jax.eval_shape(partial(op.function, **spec.kwargs), *args)
        assert (out.shape, out.dtype) == (args[0].shape, args[0].dtype)
        return
    out = interpreted(partial(op.function, **spec.kwargs), *args).astype(np.float32)
    np.testing.assert_allclose(out, op.reference(*args).astype(np.float32), rtol=1e-2, atol=1e-2)


def test_a_block_that_does_not_divide() -> None:
    x = np.ones((128, 128), np.float16)
    message = "block_n is 96. It must be a multiple of 64 that divides n, which is 128."
    with pytest.raises(ValueError, match=re.escape(message)):
        hopper_matmul(x, x, block_n=96)


def test_a_masked_load_without_other_is_found() -> None:
    kernel = OVER_THE_PADDING
    (finding,) = verified(kernel, kernel.function).findings
    assert finding.kind == kernel.fault
    assert finding.source is not None
    assert (finding.source.file, finding.source.line) == (kernel.file, kernel.line)
    twin = verified(kernel, kernel.repaired, compared=True)
    assert not [finding for finding in twin.findings if finding.counts], str(twin)


@pytest.mark.parametrize("kernel", FOR_GPU, ids=lambda kernel: kernel.name)
def test_what_the_compiler_says(session: Session, kernel: BrokenKernel) -> None:
    assert refused(session, kernel.repaired, kernel.args, "h100")[0] is None
    failure, _ = refused(session, kernel.function, kernel.args, "h100")
    assert (failure is None) == (not kernel.refused)
    if failure is not None:
        (refusal,) = kernel.refused
        assert failure.stage == refusal.stage
        assert refusal.message in failure.message


@pytest.mark.skipif(not HAS_INTERPRETER, reason="jax 0.10 has no interpreter for Mosaic GPU")
def test_a_copy_that_is_not_awaited_races() -> None:
    for kernel in (TOO_LARGE, NOT_AWAITED):
        (x,) = kernel.make_args()
        np.testing.assert_array_equal(interpreted(kernel.repaired, x), kernel.reference(x))
    with pytest.raises(Exception, match="RACE DETECTED") as error:
        interpreted(NOT_AWAITED.function, x)
    assert f"{NOT_AWAITED.file}:{NOT_AWAITED.line}" in str(error.value)
