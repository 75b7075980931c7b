"""`--pallas-flags` in real child runs: libtpu flags set early enough, or an error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tiers import with_and_without_xdist

from pallas_debug.store import open_dumps

Child = Callable[..., pytest.RunResult]
Sessions = Callable[..., list[pytest.RunResult]]


@pytest.mark.slow
@with_and_without_xdist
def test_they_are_set_before_any_conftest_and_reach_the_compiler(
    child: Child, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: list[str]
) -> None:
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_enable_log_recorder=false")
    flags = "--xla_tpu_scoped_vmem_limit_kib=20000"
    pytester.makeconftest(
        f"""
        import os
        assert os.environ["LIBTPU_INIT_ARGS"] == "--xla_tpu_enable_log_recorder=false {flags}"
        """
    )
    result = child("def test_it(): log(GOOD)", f"--pallas-flags={flags}", "--pallas-dump", *workers)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"pallas-debug *: dumping *; libtpu flags {flags}"])
    (kernel,) = open_dumps(pytester.path / "dumps").kernels()
    compilation = kernel.compilations[0].compilation
    assert compilation is not None
    assert compilation.ok
    assert compilation.flags[:2] == ("--xla_tpu_enable_log_recorder=false", flags)


@pytest.mark.slow
def test_by_themselves_they_are_all_that_is_done(child: Child, pytester: pytest.Pytester) -> None:
    result = child(
        """
        import os
        def test_it():
            assert os.environ["LIBTPU_INIT_ARGS"].startswith("--xla_a=1 --xla_b=2")
            with pytest.raises(ValueError, match="Only interpret mode"):
                log(GOOD)
        """,
        "--pallas-flags=--xla_a=1 --xla_b=2",
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["pallas-debug *: libtpu flags --xla_a=1 --xla_b=2"])


@pytest.mark.slow
def test_too_late_is_an_error_that_says_so(child: Child, pytester: pytest.Pytester) -> None:
    pytest.importorskip("libtpu")
    pytester.makepyfile(
        loads="import ctypes, libtpu; ctypes.CDLL(libtpu.get_library_path())",
    )
    pytester.syspathinsert()
    result = child("def test_nothing(): pass", "-p", "loads", "--pallas-flags=--xla_a=1")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    message = result.stderr.str()
    assert "--pallas-flags comes too late: libtpu is loaded in this process already" in message
    assert "Set LIBTPU_INIT_ARGS in the environment" in message
    assert "Traceback" not in message
    result = child("def test_nothing(): pass", "-p", "loads")
    result.assert_outcomes(passed=1)


REFUSED = {
    "xla_a": "--pallas-flags: 'xla_a' is not a list of flags; write it as '--xla_a=1 --xla_b=2'",
    "--xla_a='b c'": "contains quotes, which libtpu does not support",
    "--xla_mosaic_dump_to=x": "--xla_mosaic_dump_to is set by --pallas-dump",
}


@pytest.mark.slow
def test_what_libtpu_would_stumble_over_is_refused(sessions: Sessions) -> None:
    results = sessions(*(([f"--pallas-flags={value}"], {}) for value in REFUSED))
    for result, message in zip(results, REFUSED.values(), strict=True):
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert message in result.stderr.str()
