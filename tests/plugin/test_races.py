"""`--pallas-races` in real child runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pallas_debug_pytest.options import RACES

Child = Callable[..., pytest.RunResult]

TESTS = """
def test_raced():
    raced(X)

def test_good():
    assert rows(8)[0, 0] == 1
"""


@pytest.mark.parametrize("workers", [[], ["-n", "2"]])
def test_a_race_fails_its_test(child: Child, workers: list[str]) -> None:
    result = child(TESTS, "--pallas-races", "--tb=short", *workers)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "pallas-debug *: kernels run in TPU interpret mode "
            "(detect_races,num_cores_or_threads=2); races fail their test",
            "*DataRace in kernel `raced`, grid point *",
            "  kernels.py:40   out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)),",
            "1 finding in 1 test: 1 DataRace",
        ]
    )


@pytest.mark.parametrize("place", ["environment", "ini"])
def test_in_three_spellings(
    child: Child, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    if place == "environment":
        monkeypatch.setenv("PALLAS_DEBUG_RACES", "1")
        monkeypatch.setenv("PALLAS_DEBUG_INTERPRET", "tpu,num_cores=3,uninitialized_memory=zero")
    else:
        pytester.makeini("[pytest]\npallas_races = true\npallas_interpret = auto\n")
    result = child("def test_nothing(): pass")
    params = RACES.removeprefix("tpu,")
    if place == "environment":
        params = "num_cores=3,uninitialized_memory=zero,detect_races"
    result.stdout.fnmatch_lines(
        [f"pallas-debug *: kernels run in TPU interpret mode ({params}); *"]
    )


@pytest.mark.parametrize("mode", ["hlo", "off", "gpu", "tpu,detect_races=false"])
def test_modes_in_which_no_race_is_seen_are_refused(child: Child, mode: str) -> None:
    if mode == "gpu":
        pytest.importorskip("jax._src.pallas.mosaic_gpu.interpret")
    result = child("", "--pallas-races", f"--pallas-interpret={mode}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"--pallas-races contradicts --pallas-interpret={mode}" in result.stderr.str()
