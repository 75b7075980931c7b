"""`--pallas-races` in real child runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Child = Callable[..., pytest.RunResult]

TESTS = """
def test_raced():
    raced(X.at[8:].set(2))  # both write the block, not the same values

def test_bad():
    log(BAD)

def test_good():
    assert rows(8)[0, 0] == 1

HBM = pl.BlockSpec(memory_space=pl.ANY)
SCRATCH = [pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA]

def test_early():
    def early(x_ref, o_ref, buf, sem):
        copy = pltpu.make_async_copy(x_ref.at[0:8], buf, sem)
        copy.start()
        o_ref[...] = buf[...]
        copy.wait()
    call(early, X, in_specs=[HBM], scratch_shapes=SCRATCH)
"""


@pytest.mark.slow
def test_only_faults_of_order_fail_their_tests(child: Child) -> None:
    result = child(TESTS, "--pallas-races", "--tb=short")
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(
        [
            "pallas-debug *: *kernel machine*; faults that fail the test: races",
            "*DataRace in kernel `raced`, *grid point *",
            "  kernels.py:40   out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)),",
            "2 findings in 2 tests: 2 DataRace",
        ]
    )


@pytest.mark.slow
def test_the_kinds_of_checks_are_added(child: Child) -> None:
    result = child(TESTS, "--pallas-races", "--pallas-check=nan")
    result.assert_outcomes(passed=1, failed=3)
    result.stdout.fnmatch_lines(["3 findings in 3 tests: 2 DataRace, 1 NanProduced"])


@pytest.mark.slow
def test_modes_of_jax_are_refused(child: Child) -> None:
    for option in ("races", "check"):
        result = child(TESTS, f"--pallas-{option}", "--pallas-interpret=hlo")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        message = f"--pallas-{option} contradicts --pallas-interpret=hlo: only the kernel machine"
        assert message in result.stderr.str()


SLOW = """
@pytest.mark.parametrize("steps", [1, 300])
def test_slow(steps):
    def doubles(x_ref, o_ref):
        o_ref[...] = jax.lax.fori_loop(0, steps, lambda i, x: x + i, x_ref[...])
    rows = pl.BlockSpec((8, 128), lambda i: (i, 0))
    call(doubles, X, out_shape=X, grid=(2,), in_specs=[rows], out_specs=rows)
"""


@pytest.mark.slow
def test_a_kernel_that_takes_too_long_is_named(child: Child) -> None:
    result = child(SLOW, "--pallas-interpret", "--pallas-stop-after=1e-6", "--tb=short")
    result.assert_outcomes(failed=2)
    text = result.stdout.str()
    assert text.count("E   Failed: InterpretError in kernel `doubles`") == 2
    assert text.count("stopped after 0 s on the kernel machine, at grid point 1 of 2") == 2
    assert text.count("E     try: use smaller arguments with the same blocks, or allow") == 2
