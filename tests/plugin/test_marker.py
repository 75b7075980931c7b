"""`@pytest.mark.pallas` in real child runs: with and without options; invalid uses and messages."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
from marks import with_and_without_xdist
from pallas_debug_pytest import marks, options

from pallas_debug.store import open_dumps

Child = Callable[..., pytest.RunResult]

TESTS = """
@pytest.mark.pallas(check=True)
def test_checked():
    log(BAD)

@pytest.mark.pallas(check="index")
def test_checked_for_something_else():
    log(BAD)

@pytest.mark.pallas(interpret="machine")
def test_interpreted():
    rows(12)

@pytest.mark.pallas
def test_only_marked():
    log(BAD)
"""


@pytest.mark.slow
@with_and_without_xdist
def test_without_an_option_the_marker_turns_it_on_for_its_test(
    child: Child, workers: list[str]
) -> None:
    result = child(TESTS, "--tb=short", *workers)
    result.assert_outcomes(passed=1, failed=3)
    text = result.stdout.str()
    assert "E   ValueError: Only interpret mode is supported on CPU backend." in text
    assert "FAILED test_it.py::test_checked - Failed: NanProduced in kernel `log`" in text
    assert "FAILED test_it.py::test_interpreted - Failed: OutOfBoundsRead in kernel `rows`" in text
    assert "2 findings in 2 tests: " in text
    assert "pallas-debug 0" not in text  # no header: the run asked for nothing


@pytest.mark.slow
def test_the_marker_overrides_the_options_for_its_test(
    child: Child, pytester: pytest.Pytester
) -> None:
    result = child(
        """
        def mode():
            from jax._src import config
            value = config.pallas_tpu_interpret_mode_context_manager.value
            return "tpu" if isinstance(value, pltpu.InterpretParams) else "hlo"

        def test_option():
            assert mode() == "hlo"
            log(GOOD)

        @pytest.mark.pallas(interpret="tpu,detect_races")
        class TestMode:
            def test_of_the_class(self):
                assert mode() == "tpu"

            @pytest.mark.pallas(interpret="hlo")
            def test_the_closest_holds(self):
                assert mode() == "hlo"

        @pytest.mark.pallas(interpret="off")
        def test_off():
            with pytest.raises(ValueError, match="Only interpret mode"):
                rows(8)

        @pytest.mark.pallas(check=False)
        def test_not_checked():
            log(BAD)

        @pytest.mark.pallas(check=("nan", "inf"))
        def test_checked_though_jitted():
            log(BAD)

        def test_option_again():
            log(BAD)

        def test_option_still_checks(pallas):
            with pallas.expect("OutOfBoundsRead"):
                rows(12)

        @pytest.mark.pallas(targets="v6e")
        def test_for_another_chip():
            log(GOOD)
        """,
        "--pallas-check=index",
        "--pallas-dump",
        "--tb=line",
        "-rA",
    )
    result.assert_outcomes(passed=8, failed=1)
    assert "FAILED test_it.py::test_checked_though_jitted - Failed: NanPro" in result.stdout.str()
    result.stdout.fnmatch_lines(["2 kernels for v5e, v6e in dumps*"])
    compiled = {
        kernel.name.partition("-")[0]: [c.target for c in kernel.compilations]
        for kernel in open_dumps(pytester.path / "dumps").kernels()
    }
    assert compiled == {"log": ["v5e", "v6e"], "rows": ["v5e"]}


MISTAKES = {
    "intepret='hlo'": "got an unexpected keyword argument 'intepret'; write pallas(",
    "'hlo'": "too many positional arguments; write pallas(",
    "interpret='fast'": "'fast' is not an interpret mode; there are: auto, hlo, tpu, gpu, "
    "machine, off",
    "interpret=3": "interpret must be a string, not 3",
    "interpret='tpu,detect_race'": "has no parameter 'detect_race' (did you mean 'detect_races'?)",
    "check='nam'": "unknown check 'nam' (did you mean 'nan'?); there are user, nan, ",
    "check=3": "check must be a string, not 3",
    "targets='v99'": "unknown target 'v99'; the known ones are v4, v5e",
}


@pytest.mark.slow
@with_and_without_xdist
def test_an_invalid_one_is_an_error_of_its_test(child: Child, workers: list[str]) -> None:
    tests = [
        f"@pytest.mark.pallas({marker})\ndef test_{i}(): pass" for i, marker in enumerate(MISTAKES)
    ]
    result = child("\n".join([*tests, "def test_good(): pass"]), *workers)
    result.assert_outcomes(passed=1, errors=len(MISTAKES))
    for i, message in enumerate(MISTAKES.values()):
        line = next(x for x in result.stdout.lines if x.startswith(f"test_it.py:{2 * i + 2}: "))
        assert line.startswith(f"test_it.py:{2 * i + 2}: @pytest.mark.pallas: ")
        assert message in line


@pytest.mark.slow
def test_its_help_is_its_signature(child: Child) -> None:
    result = child("", "--markers", "--strict-markers")
    line = next(x for x in result.stdout.lines if x.startswith("@pytest.mark.pallas("))
    assert line.removeprefix("@pytest.mark.") == options.MARKER
    for name in inspect.signature(marks.Marks).parameters:
        assert f"{name}=None" in options.MARKER
        assert f" {name}: " in options.MARKER
