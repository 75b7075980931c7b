"""`--pallas-races` in real child runs."""

from __future__ import annotations

import importlib.util
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
            "*DataRace in kernel `raced`, grid point *",
            "  kernels.py:40   out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)),",
            "1 finding in 1 test: 1 DataRace",
        ]
    )


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
