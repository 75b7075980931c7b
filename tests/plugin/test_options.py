"""Options in their three forms, and invalid values, in real child runs without kernels."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import pytest
from marks import with_and_without_xdist
from pallas_debug_pytest import options

from pallas_debug import defaults
from pallas_debug.bridge.interpret import params

Run = Callable[..., pytest.RunResult]
Sessions = Callable[..., list[pytest.RunResult]]


@pytest.fixture(autouse=True)
def files(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(test_nothing="def test_nothing(): pass")
    pytester.mkdir("tests").joinpath("test_a.py").touch()


def runs(
    sessions: Sessions,
    pytester: pytest.Pytester,
    cases: Sequence[tuple[list[str], Mapping[str, str], str]],
) -> list[pytest.RunResult]:
    """Run pytest once for each case: arguments, environment, and lines of the ini file."""
    wanted = []
    for number, (arguments, environment, ini) in enumerate(cases):
        file = pytester.path / f"{number}.ini"
        file.write_text(f"[pytest]\n{ini}\n")
        wanted.append(([f"--config-file={file}", "test_nothing.py", *arguments], environment))
    return sessions(*wanted)


MACHINE = "kernels run in interpret mode auto"
SANITIZED = "kernels run in interpret mode machine,sanitize; faults of every kind fail the test"
TPU = "tpu,detect_races,random_seed=2"
PRETENDS = f"{MACHINE}; jax's devices answer as v6e"

HEADERS: list[tuple[list[str], dict[str, str], str, str]] = [
    (["--pallas-dump=a"], {}, "", f"dumping to a for v5e; {MACHINE}"),
    ([], {"PALLAS_DUMP": "b", "PALLAS_INTERPRET": "hlo"}, "", "dumping to b for v5e; kernels run in"),
    ([], {}, "pallas_dump = c\npallas_target = v4,v6e", "dumping to c for v4, v6e; "),
    (["--pallas-dump=d"], {"PALLAS_TARGET": "v6e"}, "pallas_dump = c\npallas_target = v4",
     "dumping to d for v6e; "),
    (["--pallas-dump"], {"PALLAS_DUMP": ""}, "", "dumping to dumps for v5e; "),
    (["--pallas-interpret"], {}, "", "kernels run in interpret mode auto"),
    (["--pallas-interpret=hlo"], {}, "", "kernels run in interpret mode hlo"),
    ([], {"PALLAS_INTERPRET": TPU}, "",
     f"kernels run in interpret mode {TPU}"),
    ([], {}, "pallas_interpret = off", "kernels run in interpret mode off"),
    (["--pallas-check"], {}, "",
     "faults that fail the test: user, nan, index, div, hint, uninitialized"),
    ([], {"PALLAS_SANITIZE": "1"}, "", SANITIZED),
    ([], {}, "pallas_sanitize = true\npallas_interpret = auto", SANITIZED),
    (["--pallas-verify=v5e,v6e"], {}, "", "kernels run in interpret mode machine,sanitize; kernels verified for v5e, v6e"),
    (["--override-ini=pallas_pretend=v6e"], {}, "", PRETENDS),
    (["--pallas-target=v4"], {"PALLAS_PRETEND": "v6e"}, "", PRETENDS),
]  # fmt: skip


@pytest.mark.slow
def test_the_header_names_what_the_options_request(
    sessions: Sessions, pytester: pytest.Pytester
) -> None:
    results = runs(sessions, pytester, [case[:3] for case in HEADERS])
    for result, (*_, header) in zip(results, HEADERS, strict=True):
        result.assert_outcomes(passed=1)
        result.stdout.re_match_lines([rf"pallas-debug \S+: (.*; )?{re.escape(header)}"])


KNOWN = "unknown target 'v99'; the known ones are v4, v5e"
CHECK = "unknown check 'idnex' (did you mean 'index'?); there are user, nan, inf, index, div, "
MODE = "is not an interpret mode; there are: auto, hlo, tpu, gpu, machine, off"
CONTRADICTS = "contradicts --pallas-interpret=hlo: only the kernel machine observes what kernels do"

MISTAKES: list[tuple[list[str], dict[str, str], str, str]] = [
    (["--pallas-target=v99", "--pallas-dump"], {}, "", KNOWN),
    (["--pallas-target=v99"], {}, "", KNOWN),
    (["--override-ini=pallas_pretend=v99"], {}, "", KNOWN),
    (["--override-ini=pallas_pretend=v6e,v5e"], {}, "", "'v6e,v5e' is not a single target"),
    (["--pallas-target=v5e,,v6e"], {}, "", "--pallas-target: 'v5e,,v6e' is not a list of targets"),
    (["--pallas-interpret=fast"], {}, "", f"--pallas-interpret: 'fast' {MODE}"),
    ([], {}, "pallas_interpret = fast", f"the ini option pallas_interpret: 'fast' {MODE}"),
    (["--pallas-interpret=hlo,detect_races"], {}, "", "the interpret mode 'hlo' has no parameter 'detect_races'"),
    (["--pallas-interpret=tpu,detect_race"], {}, "",
     "has no parameter 'detect_race' (did you mean 'detect_races'?)"),
    (["--pallas-check=nan,idnex"], {}, "", CHECK),
    ([], {"PALLAS_CHECK": "nan,idnex"}, "", CHECK),
    (["--pallas-check", "--pallas-interpret=hlo"], {}, "", f"--pallas-check {CONTRADICTS}"),
    (["--pallas-timeout=soon", "--pallas-dump"], {}, "",
     "--pallas-timeout: 'soon' is not a number of seconds greater than 0"),
    (["--pallas-dump=test_nothing.py"], {}, "", "'test_nothing.py' is a file, not a value"),
    (["--pallas-dump", "test_nothing.py::test_nothing"], {}, "", "put tests before it, or write --pallas-dump=dumps"),
    (["--pallas-verify", "test_nothing.py"], {}, "", "put tests before it, or write --pallas-verify=on"),
    (["--pallas-dump", "tests"], {}, "", "'tests' is a directory with Python files; name another"),
    (["--pallas-dump=/proc/nowhere"], {}, "", "pallas-debug: cannot dump to /proc/nowhere"),
    (["--pallas-dump", "--pallas-switch=magic"], {}, "", "--pallas-switch: unknown switch 'magic'"),
    ([], {}, "pallas_sanitize = perhaps", "the ini option pallas_sanitize: 'perhaps' is neither"),
]  # fmt: skip


@pytest.mark.slow
def test_invalid_values_end_the_run_before_any_test(
    sessions: Sessions, pytester: pytest.Pytester
) -> None:
    results = runs(sessions, pytester, [case[:3] for case in MISTAKES])
    for result, (*_, message) in zip(results, MISTAKES, strict=True):
        assert result.ret == pytest.ExitCode.USAGE_ERROR, message
        assert message in " ".join(result.stderr.str().split())
        assert "Traceback" not in result.stderr.str()


@with_and_without_xdist
def test_an_invalid_value_without_importing_jax(
    pytester: pytest.Pytester, workers: list[str]
) -> None:
    pytester.makeconftest("import sys; assert 'jax' not in sys.modules")
    result = pytester.runpytest_subprocess("--pallas-check=nan,idnex", *workers, timeout=240)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert CHECK in result.stderr.str()
    assert "Traceback" not in result.stderr.str()


def test_help_names_every_option_in_its_three_forms(run_pytest: Run) -> None:
    text = " ".join(run_pytest("--help").stdout.str().split())
    for option in options.OPTIONS:
        assert option.flag in text
        assert option.is_setting or f"ini: {option.ini}" in text
        assert option.is_setting or option.environment in text


def test_values_in_the_help_are_those_of_the_package() -> None:
    assert ", ".join(defaults.CHECKS) == options.CHECKS
    assert ",".join(defaults.DEFAULT_CHECKS) == options.DEFAULT_CHECKS
    assert defaults.DIRECTORY == options.DUMPS
    assert params.KINDS == options.MODES
