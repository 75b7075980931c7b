"""`--pallas-interpret` in real child runs: modes, parameters, and the state after errors."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from tiers import with_and_without_xdist

KERNELS = """
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

X = jnp.ones((16, 128))

def call(body, *args, **kwargs):
    out = jax.ShapeDtypeStruct((8, 128), jnp.float32)
    return pl.pallas_call(body, out_shape=out, **kwargs)(*args)

@jax.jit
def rows(start):
    def body(start_ref, x_ref, o_ref):
        o_ref[...] = x_ref[pl.ds(start_ref[0], 8), :]
    return call(body, jnp.array([start]), X)

@jax.jit
def delayed(x):
    def body(x_ref, o_ref):
        pl.delay(1)
        o_ref[...] = x_ref[...]
    return call(body, x, name="delayed")

def asks(x):
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] * pltpu.get_tpu_info().generation
    return call(body, x)
"""

TESTS = """
import pytest
from kernels import *

def test_rows():
    assert rows(8)[0, 0] == 1

@pytest.mark.parametrize("i", range(2))
def test_delayed(i):
    assert delayed(X[:8])[0, 0] == 1

def test_asks():
    assert asks(X[:8])[0, 0] in (5, 6)
"""

AUTO = "kernels run on the kernel machine"


Run = Callable[..., pytest.RunResult]
Sessions = Callable[..., list[pytest.RunResult]]


@pytest.fixture(autouse=True)
def files(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(kernels=KERNELS, test_kernels=TESTS)


@pytest.mark.slow
@with_and_without_xdist
def test_the_bare_flag_chooses_and_the_summary_says_so(run_pytest: Run, workers: list[str]) -> None:
    result = run_pytest("--pallas-interpret", *workers)
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(
        [f"pallas-debug *: {AUTO}", "*- pallas-debug -*", "2 kernels used by 4 tests"]
    )


@pytest.mark.slow
def test_while_dumping_too(run_pytest: Run) -> None:
    result = run_pytest("--pallas-dump", "-k", "delayed")
    result.assert_outcomes(passed=2, deselected=2)
    result.stdout.fnmatch_lines(["1 kernel for v5e in dumps, used by 2 tests"])


HEADERS = {
    "hlo": "in jax's HLO interpret mode",
    "tpu": "in jax's TPU interpret mode",
    "tpu,detect_races,num_cores_per_device=2": (
        "in jax's TPU interpret mode (detect_races,num_cores_per_device=2)"
    ),
    "auto": "on the kernel machine",
    "off": "in the mode that the code selects",
}


@pytest.mark.slow
@pytest.mark.parametrize("mode", HEADERS)
def test_modes_in_three_spellings(pytester: pytest.Pytester, sessions: Sessions, mode: str) -> None:
    pytester.makepyfile(test_kernels="def test_nothing(): pass")
    ini = pytester.path / "mode.ini"
    ini.write_text(f"[pytest]\npallas_interpret = {mode}\n")
    results = sessions(
        ([f"--pallas-interpret={mode}"], {}),
        ([], {"PALLAS_INTERPRET": mode}),
        ([f"--config-file={ini}"], {}),
    )
    for result in results:
        result.assert_outcomes(passed=1)
        message = rf"pallas-debug \S+: kernels run {re.escape(HEADERS[mode])}$"
        result.stdout.re_match_lines([message])


@pytest.mark.slow
def test_parameters_reach_the_interpreter(pytester: pytest.Pytester, sessions: Sessions) -> None:
    pytester.makepyfile(
        test_kernels="""
        from kernels import *
        def test_first_rows_are_zero():
            def body(x_ref, o_ref, scratch_ref):
                o_ref[...] = scratch_ref[...]
            scratch = [pltpu.VMEM((8, 128), jnp.float32)]
            assert call(body, X, scratch_shapes=scratch)[0, 0] == 0
        """
    )
    as_it_is, zero = sessions(
        (["--pallas-interpret=tpu"], {}),
        (["--pallas-interpret=tpu,uninitialized_memory=zero"], {}),
    )
    as_it_is.assert_outcomes(failed=1)
    zero.assert_outcomes(passed=1)


@pytest.mark.slow
def test_off_leaves_it_to_the_code(run_pytest: Run) -> None:
    result = run_pytest("--pallas-interpret=off", "-k", "rows")
    result.assert_outcomes(failed=1, deselected=3)
    assert "Only interpret mode is supported on CPU backend" in result.stdout.str()


@pytest.mark.slow
def test_an_error_in_a_kernel_leaves_the_next_test_alone(
    pytester: pytest.Pytester, sessions: Sessions
) -> None:
    pytester.makepyfile(
        test_kernels="""
        import pytest
        from kernels import *
        def test_beyond():
            rows(12).block_until_ready()
        def test_within():
            assert rows(8)[0, 0] == 1
        def test_beyond_as_expected():
            with pytest.raises(Exception, match="Out-of-bounds read"):
                rows(12).block_until_ready()
        def test_within_again():
            assert rows(8)[0, 0] == 1
        def test_beyond_without_a_look():
            rows(12)
        def test_within_at_last():
            assert rows(8)[0, 0] == 1
        def test_refused_by_the_interpreter_as_expected():
            def body(o_ref):
                def copy(tile_ref):
                    o_ref[...] = tile_ref[...]
                pl.run_scoped(copy, pltpu.VMEM((8, 128), jnp.float32), collective_axes="core")
            with pytest.raises(NotImplementedError, match="collective axes"):
                call(body)
        """
    )
    modes = ("tpu", "tpu,detect_races,num_cores=2")
    for result in sessions(*(([f"--pallas-interpret={mode}"], {}) for mode in modes)):
        result.assert_outcomes(passed=5, failed=2)
        text = result.stdout.str()
        assert "INTERNALERROR" not in text
        assert text.count("\nIndexError: Out-of-bounds read of ") >= 2
        assert text.count("\nin kernel `body`, called at ") == 2


@pytest.mark.slow
def test_the_chip_is_that_of_the_target(pytester: pytest.Pytester, sessions: Sessions) -> None:
    pytester.makepyfile(
        test_kernels="""
        import os
        from kernels import *
        def test_asks():
            assert asks(X[:8])[0, 0] == int(os.environ["EXPECTED"])
        """
    )
    runs = [
        ([f"--pallas-interpret={mode}"], {"EXPECTED": generation, **target})
        for mode in ("hlo", "tpu")
        for generation, target in (("5", {}), ("6", {"PALLAS_TARGET": "v6e"}))
    ]
    for result in sessions(*runs):
        result.assert_outcomes(passed=1)


NO_SENSE = {
    "fast": "'fast' is not an interpret mode; there are: auto, hlo, tpu, gpu, machine, off",
    "hlo,detect_races": ("the interpret mode 'hlo' takes no parameters, such as detect_races"),
    "hlo,tpu": "'hlo' and 'tpu' are two interpret modes",
    "tpu,detect_race": (
        "the interpret mode 'tpu' has no parameter 'detect_race' (did you mean detect_races?)"
    ),
    "tpu,num_cores=two": "num_cores must be a whole number, not 'two'",
}


@pytest.mark.slow
@with_and_without_xdist
def test_a_value_that_makes_no_sense(sessions: Sessions, workers: list[str]) -> None:
    results = sessions(*(([f"--pallas-interpret={mode}", *workers], {}) for mode in NO_SENSE))
    for result, message in zip(results, NO_SENSE.values(), strict=True):
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert f"--pallas-interpret: {message}" in result.stderr.str().replace("\n", " ")
        assert "Traceback" not in result.stderr.str()
