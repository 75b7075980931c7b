"""Performance tests in real child runs: what kernels cost, and their baselines in files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Child = Callable[..., pytest.RunResult]
Run = Callable[..., pytest.RunResult]
ChildFiles = Callable[[str], None]

TESTS = """
from pallas_debug_kernels.ops.flash_attention import flash_attention

Q = jax.ShapeDtypeStruct((1, 1, 256, 128), jnp.bfloat16)
LARGE = jax.ShapeDtypeStruct((2048, 1536), jnp.float32)

def twice(x):
    def twice(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2
    return pl.pallas_call(twice, out_shape=x)(x)

def other(x):
    def log(x_ref, o_ref):
        o_ref[...] = jnp.log(x_ref[...]) * 3
    return call(log, x)

def test_stats(pallas):
    v5e, v6e = pallas.stats(log, GOOD, targets="v5e,v6e")
    assert (v5e.kernel, v5e.target, v6e.target) == ("log", "v5e", "v6e")
    assert v5e.bundles.value > 10 and v5e.cycles.total.value > 10
    assert [dump.name for dump in pallas.dumps]
    pallas.assert_no_spills()
    pallas.assert_fits("v4")

def test_spills(pallas):
    pallas.stats(flash_attention, Q, Q, Q)
    pallas.stats(log, GOOD)
    pallas.assert_no_spills()

def test_fits(pallas):
    pallas.stats(twice, GOOD)
    pallas.stats(twice, LARGE)

def test_fits_elsewhere(pallas):
    pallas.compile(log, GOOD)
    pallas.assert_fits("v5e")

def test_baseline(pallas):
    pallas.stats(log, GOOD)
    pallas.stats(other, GOOD)
    pallas.stats(log, GOOD)
    pallas.assert_cycles_within("log", 0.05)

def test_margin(pallas):
    pallas.stats(log, GOOD)
    pallas.assert_cycles_within("log", "5%")

def test_file(pallas):
    pallas.stats(log, GOOD)
    pallas.assert_cycles_within("own")
"""


def failure(result: pytest.RunResult, test: str) -> str:
    """What is said below the title of a failed test."""
    text = str(result.stdout.str())
    title = next(line for line in text.splitlines() if line.strip("_ ") == test)
    return text.partition(title)[2].partition("\n____")[0]


@pytest.mark.slow
def test_what_kernels_cost_is_asserted(child: Child, pytester: pytest.Pytester) -> None:
    result = child(TESTS, "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=6)
    spills = failure(result, "test_spills")
    assert "flash_attention on v5e: " in spills
    assert " spills and " in spills
    assert "most of them: " in spills
    assert "kernel.py:" in spills
    assert "need fewer registers" in spills
    assert "log on v5e" not in spills
    large = failure(result, "test_fits")
    assert "twice does not compile for v5e: " in large
    assert "vmem" in large.lower()
    assert "try: " in large
    assert "its files are in " in large
    assert "call `pallas.stats(function, *args)` first" in failure(result, "test_fits_elsewhere")
    missing = failure(result, "test_baseline")
    assert "baselines/log.json has no baseline for it" in missing
    assert (
        "record them with `pytest -o pallas_update_baselines=on`, and commit the file." in missing
    )
    assert "log#2 on v5e" in missing
    assert "a margin is a share such as 0.05, not '5%'" in failure(result, "test_margin")
    assert "next: " not in result.stdout.str()  # no kernel ran
    assert not (pytester.path / "baselines").exists()


@pytest.mark.slow
def test_baselines_are_recorded_and_compared_with(
    child_files: ChildFiles,
    run_pytest: Run,
    pytester: pytest.Pytester,
) -> None:
    child_files(TESTS)
    only = ("-k", "baseline or file", "-p", "no:cacheprovider")
    recorded = run_pytest("--override-ini=pallas_update_baselines=on", "-n", "2", *only)
    recorded.assert_outcomes(passed=2)
    folder = pytester.path / "baselines"
    file, own = folder / "log.json", folder / "own.json"
    assert sorted(path.name for path in folder.iterdir()) == ["log.json", "own.json"]
    document = json.loads(file.read_text())
    assert set(document) == {"log", "log#2"}
    ((libtpu, cycles),) = document["log"]["v5e"].items()
    assert json.loads(own.read_text())["log"]["v5e"][libtpu] == cycles
    assert cycles > 10

    document["log"]["v5e"][libtpu] = cycles // 2
    document["log#2"]["v5e"] = {"0.0.1": 7}
    file.write_text(json.dumps(document))
    compared = run_pytest("-n", "2", *only)
    compared.assert_outcomes(passed=1, failed=1)
    message = failure(compared, "test_baseline")
    assert f"more than its baseline of {cycles // 2:,}; 5.0 % is allowed" in message
    assert "log.json has no baseline for it but for other versions (0.0.1: 7)" in message

    Path(own).write_text("{")
    damaged = run_pytest("-k", "file", "-p", "no:cacheprovider")
    damaged.assert_outcomes(failed=1)
    assert "own.json is no baseline (" in damaged.stdout.str()
