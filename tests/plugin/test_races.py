"""`--pallas-races` in real child runs."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable

import pytest
from pallas_debug_pytest.options import RACES
from tiers import with_and_without_xdist

Child = Callable[..., pytest.RunResult]
Sessions = Callable[..., list[pytest.RunResult]]

TESTS = """
def test_raced():
    raced(X)

def test_good():
    assert rows(8)[0, 0] == 1
"""


@pytest.mark.slow
@with_and_without_xdist
def test_a_race_fails_its_test(child: Child, workers: list[str]) -> None:
    result = child(TESTS, "--pallas-races", "--tb=short", *workers)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "pallas-debug *: kernels run in TPU interpret mode "
            "(detect_races,num_cores_or_threads=2); data races fail the test",
            "*DataRace in kernel `raced`, *grid point *",
            "  kernels.py:40   out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)),",
            "1 finding in 1 test: 1 DataRace",
        ]
    )


SLOW = """
def mode(*names):
    given = [pytest.param(name, marks=pytest.mark.pallas(interpret=name)) for name in names]
    return pytest.mark.parametrize("mode", given)

@mode("auto", "tpu", "machine")
def test_slow(mode):
    def doubles(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2
    rows = pl.BlockSpec((8, 128), lambda i: (i, 0))
    call(doubles, X, out_shape=X, grid=(2,), in_specs=[rows], out_specs=rows)

@mode("hlo", "machine")
def test_loop(mode):
    def counts(n_ref, o_ref):
        o_ref[...] = jax.lax.fori_loop(0, n_ref[0], lambda i, x: x + i, jnp.zeros(OUT.shape))
    call(counts, jnp.array([300]))

@mode("hlo")
def test_without_a_loop(mode):
    log(GOOD)

@mode("hlo")
def test_of_fixed_length(mode):
    def adds(x_ref, o_ref):
        o_ref[...] = jax.lax.fori_loop(0, 300, lambda i, x: x + i, jnp.zeros(OUT.shape))
    call(adds, X)
"""
COPIES = """
HBM = pl.BlockSpec(memory_space=pl.ANY)
SCRATCH = [pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA]

@jax.jit
def early(x):
    def early(x_ref, o_ref, buf, sem):
        copy = pltpu.make_async_copy(x_ref.at[0:8], buf, sem)
        copy.start()
        o_ref[...] = buf[...]
        copy.wait()
    return call(early, x, in_specs=[HBM], scratch_shapes=SCRATCH)

@jax.jit
def waits(x):
    def waits(x_ref, o_ref, buf, sem):
        pltpu.make_async_copy(x_ref.at[0:8], buf, sem).start()
        pltpu.make_async_copy(x_ref.at[0:8], buf, sem).wait()
        o_ref[...] = buf[...]
    return call(waits, x, in_specs=[HBM], scratch_shapes=SCRATCH)

def test_early_passes():
    early(X)

def test_early():
    assert early(X)[0, 0] == 1

def test_waits():
    assert waits(X)[0, 0] == 2

@pytest.mark.pallas(interpret="machine")
def test_machine():
    assert waits(X)[0, 0] == 2

def test_no_copies():
    assert rows(8)[0, 0] == 2
"""


@pytest.mark.slow
def test_a_failure_names_the_race_behind_it(child: Child) -> None:
    result = child(COPIES, "--pallas-interpret=tpu", "--tb=line", "-rN")
    result.assert_outcomes(passed=1, failed=4)
    text = result.stdout.str()
    sections = text.split("- pallas-debug: races -")[1:]
    assert len(sections) == 3
    early, waits, machine = ("\n".join(part.splitlines()[1:]) for part in sections)
    assert early.startswith("DataRace in kernel `early`\n")
    for line in (
        "o_ref[...] = buf[...]",
        "  buf[0:8, 0:128], float32[8, 128] in VMEM, is read here and written by the copy of x_ref "
        "to buf (semaphore sem) on the other side; nothing orders the two",
        "copy.start()",
        "TPU interpret mode makes a copy when the kernel waits for it, and a TPU at any time until "
        "then, so what the two sides see may differ. Only accesses to copies in flight were "
        "compared; --pallas-races compares all of them, and fails each test in which two race.",
    ):
        assert line in early
    assert waits.startswith(
        "kernel `waits` ran in TPU interpret mode: no access to a copy in flight was noticed, and "
        "no others were compared; --pallas-races compares all of them, of cores and devices too\n"
    )
    assert machine.startswith(
        "kernel `waits` ran on the kernel machine, which compared no accesses with copies in "
        "flight; --pallas-sanitize judges races and memory there\n"
    )


@pytest.mark.slow
def test_a_kernel_that_takes_too_long_is_named(child: Child) -> None:
    """In every mode; in HLO interpret mode at a grid point or in a loop."""
    result = child(SLOW, "--pallas-interpret", "--pallas-stop-after=1e-6", "--tb=short")
    result.assert_outcomes(failed=6, passed=1)
    text = result.stdout.str()
    for mode, where in (
        ("auto", "in HLO interpret mode, at grid point 1 of 2\n"),
        ("tpu", "in TPU interpret mode"),
        ("machine", "on the kernel machine, at grid point 1 of 2"),
    ):
        of_test = text.partition(f" test_slow[{mode}] ")[2].partition("\n____")[0]
        assert "InterpretError in kernel `doubles`" in of_test
        assert re.search(rf"stopped after 0 s {re.escape(where)}", of_test), of_test
    for number, cause in (
        (
            3,
            "the kernel runs as an ordinary jax program on the CPU, one grid point after the other",
        ),
        (2, "the machine executes each load, store, copy and wait of the kernel in Python"),
    ):
        advice = f"E     cause: {cause}\nE     try: use smaller arguments, or raise"
        assert text.count(advice) == number
    for mode, where in (("hlo", "in HLO interpret mode\n"), ("machine", "on the kernel machine")):
        of_test = text.partition(f" test_loop[{mode}] ")[2].partition("\n____")[0]
        assert "InterpretError in kernel `counts`" in of_test
        assert re.search(rf"stopped after 0 s {re.escape(where)}", of_test), of_test
    of_test = text.partition(" test_of_fixed_length[hlo] ")[2].partition("\n____")[0]
    assert "InterpretError in kernel `adds`" in of_test
    assert re.search(r"HLO interpret mode, at iteration \d+ of 300", of_test), of_test


def test_in_three_spellings(sessions: Sessions, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_nothing(): pass")
    ini = pytester.path / "races.ini"
    ini.write_text("[pytest]\npallas_races = true\npallas_interpret = auto\n")
    mode = "tpu,num_cores=3,uninitialized_memory=zero"
    environment, from_ini = sessions(
        ([], {"PALLAS_RACES": "1", "PALLAS_INTERPRET": mode}),
        ([f"--config-file={ini}"], {}),
    )
    for result, params in [
        (environment, "num_cores=3,uninitialized_memory=zero,detect_races"),
        (from_ini, RACES.removeprefix("tpu,")),
    ]:
        result.stdout.fnmatch_lines(
            [f"pallas-debug *: kernels run in TPU interpret mode ({params}); *"]
        )


@pytest.mark.slow
def test_modes_in_which_no_race_is_seen_are_refused(sessions: Sessions) -> None:
    modes = ["hlo", "off", "tpu,detect_races=false"]
    if importlib.util.find_spec("jax._src.pallas.mosaic_gpu.interpret") is not None:
        modes.append("gpu")
    results = sessions(*((["--pallas-races", f"--pallas-interpret={mode}"], {}) for mode in modes))
    for result, mode in zip(results, modes, strict=True):
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert f"--pallas-races contradicts --pallas-interpret={mode}" in result.stderr.str()
