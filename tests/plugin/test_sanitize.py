"""`--pallas-sanitize` in real child runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from marks import with_and_without_xdist

Child = Callable[..., pytest.RunResult]

TESTS = """
def test_outside():
    rows(12)

def test_good():
    assert rows(8)[0, 0] == 1
"""

STOPPED = """
def test_stopped():
    def early(x_ref, o_ref, tile, sem, other):
        copy = pltpu.make_async_copy(x_ref, tile, sem)
        copy.start()
        o_ref[...] = tile[...]
        copy.wait()
        pl.semaphore_wait(other)
    scratch = [pltpu.VMEM(X.shape, X.dtype), pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.REGULAR]
    call(early, X, out_shape=X, in_specs=[pl.BlockSpec(memory_space=pl.ANY)], scratch_shapes=scratch)
"""


@with_and_without_xdist
def test_a_fault_fails_its_test(child: Child, workers: list[str]) -> None:
    result = child(TESTS + STOPPED, "--pallas-sanitize", "--tb=short", *workers)
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(
        [
            "pallas-debug *: kernels run in interpret mode machine,sanitize; "
            "faults of every kind fail the test",
            "*OutOfBoundsRead in kernel `rows`*",
            "*   o_ref[[]...] = x_ref[[]pl.ds(start_ref[[]0], 8), :]",
            "* x_ref[[]12:20, 0:128] reaches 4 past the end of dimension 0 of *",
            "* cause: the index comes from start_ref[[]0], which is 12, and nothing keeps it within bounds",
            "E   Failed: DataRace in kernel `early`",
            "Deadlock in kernel `early` at test_it.py:14",
            "3 findings in 2 tests: *",
            "FAILED *::test_stopped - Failed: DataRace in kernel `early`",
        ]
    )
