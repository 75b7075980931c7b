"""`--pallas-verify` in real child runs: findings of any engine fail the test they belong to."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from marks import with_and_without_xdist

Child = Callable[..., pytest.RunResult]

TESTS = """
@jax.jit
def summed(x):
    def summed(x_ref, o_ref):
        o_ref[...] = jnp.cumsum(x_ref[...], axis=0)
    return call(summed, x)

def test_good():
    log(GOOD)

def test_does_not_compile():
    summed(GOOD)

def test_does_not_compile_once_more():
    summed(GOOD)

def test_beyond():
    rows(12)
"""


@pytest.mark.slow
@with_and_without_xdist
def test_what_any_engine_finds_fails_its_tests(child: Child, workers: list[str]) -> None:
    result = child(TESTS, "--pallas-verify=v5e,v6e", *workers)
    result.assert_outcomes(passed=1, failed=3)
    text = result.stdout.str()
    result.stdout.fnmatch_lines(["pallas-debug *; kernels verified for v5e, v6e"])
    assert text.count("UnsupportedPrimitive in kernel `summed`") >= 2
    assert "OutOfBoundsRead in kernel `rows`" in text
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if "FOUND" in line}
    header = next(line.split() for line in text.splitlines() if line.startswith("kernel "))
    assert header == ["kernel", "static", "v5e", "v6e", "machine"]
    assert rows["summed"][1:] == ["FOUND", "FOUND", "ok"]
    assert rows["rows"][1:] == ["ok", "ok", "FOUND"]
    result.stdout.fnmatch_lines(["log *ok *ok *ok *ok"])
    result.stdout.fnmatch_lines(
        ["2 findings in 3 tests: 1 UnsupportedPrimitive, 1 OutOfBoundsRead"]
    )


FAILS_BY_ITSELF = (
    TESTS.partition("def test_good")[0]
    + """
def test_wrong():
    assert summed(GOOD).sum() == 7
"""
)


@pytest.mark.slow
def test_a_test_that_fails_by_itself_counts_once(child: Child) -> None:
    result = child(FAILS_BY_ITSELF, "--pallas-verify", "--tb=line")
    result.assert_outcomes(failed=1, errors=0)
    text = result.stdout.str()
    assert "kernels verified for v5e\n" in text
    below = text.partition("- pallas-debug -")[2].splitlines()[1:]
    assert below[0] == "UnsupportedPrimitive in kernel `summed`"
    assert "next: pytest test_it.py::test_wrong --pallas-dump" in below
    assert "1 finding in 1 test: 1 UnsupportedPrimitive" in below


RACES = """
def adds(broken):
    def adds(x_ref, o_ref, tile, sem):
        copy = pltpu.make_async_copy(x_ref, tile, sem)
        copy.start()
        if not broken:
            copy.wait()
        o_ref[...] = tile[...] + 1
        if broken:
            copy.wait()
    scratch = [pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA]
    hbm = pl.BlockSpec(memory_space=pl.ANY)
    return call(adds, GOOD, in_specs=[hbm], scratch_shapes=scratch)

def test_broken():
    adds(True)

def test_repaired():
    assert adds(False)[0, 0] == 2
"""


@pytest.mark.slow
def test_a_race_is_found_and_a_repaired_kernel_of_the_same_name_is_not(child: Child) -> None:
    """The machine runs what the tests run; kernels are told apart by their digests."""
    result = child(RACES, "--pallas-verify=v5e")
    result.assert_outcomes(passed=1, failed=1)
    text = result.stdout.str()
    assert "DataRace in kernel `adds`" in text
    rows = [line.split()[-1] for line in text.splitlines() if line.startswith("adds-")]
    assert sorted(rows) == ["FOUND", "ok"]


REFUSED = """
from pallas_debug.errors import MachineError

def test_refused(monkeypatch):
    def refuse(captured, **options):
        raise MachineError("the kernel machine has no rule for `magic`")
    monkeypatch.setattr("pallas_debug.machine.host.launch", refuse)
    with pytest.raises(Exception, match="magic"):
        log(GOOD)

def test_not_taken():
    def copies(x_ref, o_ref):
        o_ref[...] = x_ref[...]
    jax.jit(lambda x: jax.lax.cond(x[0, 0] > 5, lambda: call(copies, x), lambda: x))(GOOD)

def test_good():
    rows(8)
"""


@pytest.mark.slow
def test_a_kernel_that_the_machine_did_not_run_is_not_judged(child: Child) -> None:
    result = child(REFUSED, "--pallas-verify=v5e")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines_random(
        [
            "log *ok *ok *[?]",
            "copies *ok *ok *[?]",
            "rows *ok *ok *ok",
            "not judged: *machine*",
        ]
    )


LOWERED = """
def test_lowered():
    jax.jit(log).lower(GOOD)

def test_not_taken():
    jax.jit(lambda taken, x: jax.lax.cond(taken, log, jnp.negative, x))(False, GOOD)
"""


@pytest.mark.slow
def test_a_run_that_runs_no_kernel_to_its_end_is_an_error(child: Child) -> None:
    result = child(LOWERED, "--pallas-check")
    result.assert_outcomes(passed=2)
    assert result.ret == 3
    result.stdout.fnmatch_lines(
        ["NOT JUDGED: the whole run: no test ran a kernel to its end (log): they were only *"]
    )


HINTS = """
def summed(x):
    def rows(x_ref, o_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)
        o_ref[...] += x_ref[...]
    block = pl.BlockSpec((64, 128), lambda i: (i, 0))
    whole = pl.BlockSpec((64, 128), lambda i: (0, 0))
    out = jax.ShapeDtypeStruct((64, 128), jnp.float32)
    return call(rows, x, out_shape=out, grid=(160 // 64,), in_specs=[block], out_specs=whole)

def test_fails():
    assert summed(jnp.ones((160, 128))).sum() == 160 * 128

def test_passes():
    summed(jnp.ones((160, 128)))
"""


@pytest.mark.slow
def test_hints_are_shown_below_a_failed_test(child: Child) -> None:
    result = child(HINTS, "--pallas-verify=v5e", "--tb=line", "-rN")
    result.assert_outcomes(passed=1, failed=1)
    text = result.stdout.str()
    hint, following = text.partition("- pallas-debug -")[2].splitlines()[1:3]
    assert following == "next: pallas-debug step -k rows test_it.py::test_fails"
    assert hint.endswith("(hint: unread input)")
    assert "x_ref" in hint
