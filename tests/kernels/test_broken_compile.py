"""Reactions of jax and the TPU compiler to each broken kernel and its repaired twin."""

import pytest
from broken_kernels import BROKEN, BrokenKernel, Expectation, JaxEngine, Reaction
from evidence import Evidence
from tiers import mark_all_but_first

from pallas_debug.model import Failure

each = pytest.mark.parametrize("kernel", BROKEN, ids=lambda kernel: kernel.name)


@pytest.mark.parametrize(
    "kernel",
    mark_all_but_first(
        [pytest.param(kernel, id=kernel.name) for kernel in BROKEN], lambda kernel: kernel.topic
    ),
)
def test_broken(evidence: Evidence, kernel: BrokenKernel) -> None:
    compiled = evidence.compiled(kernel)
    traced = kernel.expectation(JaxEngine.TRACE)
    if traced.reaction is Reaction.RAISES:
        assert compiled.error is not None
        assert traced.message in compiled.error
        return
    assert set(compiled.failures) == set(kernel.targets)
    for target, failure in compiled.failures.items():
        for engine in (JaxEngine.LOWER, JaxEngine.COMPILE):
            expected = kernel.expectation(engine, target=target)
            if expected.reaction is not Reaction.NOT_APPLICABLE:
                check(engine, expected, failure)
        if failure is not None:
            check_line(kernel, failure)


STAGES = {
    "lowering": JaxEngine.LOWER,
    "compile": JaxEngine.COMPILE,
    "crash": JaxEngine.COMPILE,
}


def check(engine: JaxEngine, expected: Expectation, failure: Failure | None) -> None:
    """The failure, if it is that of `engine`, is the expected one."""
    if failure is not None and STAGES[failure.stage] is not engine:
        assert engine is JaxEngine.LOWER, failure
        failure = None
    if expected.reaction is Reaction.PASSES:
        assert failure is None
        return
    assert failure is not None
    assert expected.message in failure.message
    assert (failure.stage == "crash") == (expected.reaction is Reaction.ABORTS)


def check_line(kernel: BrokenKernel, failure: Failure) -> None:
    """Where the failure names a line of the kernel, it is the faulty line.

    For an index map that returns an int64 the compiler names the kernel's first line alone, and for
    a block shape jax names the kernel function.
    """
    source = failure.source
    if source is None or source.file != kernel.file or kernel.x64:
        return
    if "block shape" in failure.message:
        assert source.text is not None
        assert source.text.startswith("def ")
    else:
        assert source.line == kernel.line


@pytest.mark.slow
@each
def test_repaired(evidence: Evidence, kernel: BrokenKernel) -> None:
    compiled = evidence.compiled(kernel, repaired=True)
    assert compiled.failures == dict.fromkeys(kernel.targets)
