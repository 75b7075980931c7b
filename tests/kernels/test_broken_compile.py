"""Refusals of each broken kernel by jax and the TPU compiler, and compilation of its repaired twin."""

from __future__ import annotations

import jax
import pytest
from broken_kernels import BROKEN, BrokenKernel, Refusal
from marks import mark_all_but_first

from pallas_debug.bridge.lowering import trace
from pallas_debug.model import Failure
from pallas_debug.session import Options, Session

each = pytest.mark.parametrize("kernel", BROKEN, ids=lambda kernel: kernel.name)


def compiled(kernel: BrokenKernel, *, repaired: bool = False) -> dict[str, Failure | None]:
    """Failures by target, after jax has traced the kernel.

    Raises:
      TypeError, ValueError: jax refuses to trace it.
    """
    function = kernel.repaired if repaired else kernel.function
    # A session for each kernel: all of them share the compiler of this process, and one that stayed
    # open would capture and compile the kernels of every later test.
    options = Options(dumps=None, targets=kernel.targets, interpret="off", jobs=1)
    with Session(options) as session:
        with jax.enable_x64(kernel.x64), session.collecting() as captures:
            trace.lower_for_kernels(function, kernel.args, {}, session.targets[0])
        session.queue.request(captures, session.targets)
    assert session.problems == []
    (captured,) = captures
    (dump,) = (d for d in session.dumps if d.kernel.digest == captured.kernel.digest)
    return {c.target: c.failure for c in dump.compilations}


@pytest.mark.parametrize(
    "kernel",
    mark_all_but_first(
        [pytest.param(kernel, id=kernel.name) for kernel in BROKEN], lambda kernel: kernel.topic
    ),
)
def test_broken(kernel: BrokenKernel) -> None:
    if not kernel.is_traced:
        (refusal,) = kernel.refused
        with pytest.raises((TypeError, ValueError)) as error:
            compiled(kernel)
        assert refusal.message in str(error.value)
        return
    failures = compiled(kernel)
    assert set(failures) == set(kernel.targets)
    for target, failure in failures.items():
        check(kernel.refusal(target), failure)
        if failure is not None:
            check_line(kernel, failure)


def check(refusal: Refusal | None, failure: Failure | None) -> None:
    assert (failure is None) == (refusal is None), failure
    if failure is not None and refusal is not None:
        assert failure.stage == ("crash" if refusal.aborts else refusal.stage)
        assert refusal.message in failure.message


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
def test_repaired(kernel: BrokenKernel) -> None:
    assert compiled(kernel, repaired=True) == dict.fromkeys(kernel.targets)
