"""Fixtures `pallas` and `pallas_target` in real child runs, with and without options."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from marks import with_and_without_xdist

Child = Callable[..., pytest.RunResult]
Sessions = Callable[..., list[pytest.RunResult]]
ChildFiles = Callable[[str], None]

TESTS = """
def test_kernels(pallas):
    assert pallas.kernels == ()
    log(GOOD)
    log(GOOD)
    rows(8)
    assert [kernel.name for kernel in pallas.kernels] == ["log", "rows"]
    assert pallas.findings == ()

def test_again(pallas):
    log(GOOD)
    assert [kernel.name for kernel in pallas.kernels] == ["log"]

@pytest.mark.pallas(check="nan,index")
def test_expect(pallas):
    with pallas.expect("NanProduced", kernel="log") as found:
        log(BAD)
    assert found[0].source.line == 20
    assert pallas.findings == tuple(found)

@pytest.mark.pallas(check="nan,index")
def test_expected_and_something_else(pallas):
    with pallas.expect("NanProduced"):
        log(BAD)
        rows(12)

@pytest.mark.pallas(check="nan,index")
def test_expected_once_and_found_again(pallas):
    with pallas.expect("NanProduced"):
        log(BAD)
    log(BAD)

@pytest.mark.pallas(check="nan,index")
def test_expected_and_not_found(pallas):
    with pallas.expect("NanProduced", kernel="rows"):
        log(BAD)

@pytest.mark.pallas(interpret="machine")
def test_the_program_is_stopped(pallas):
    with pallas.expect("OutOfBoundsRead"):
        rows(12)
        assert False, "not reached"
    with pytest.raises(RuntimeError, match="mine"), pallas.expect("OutOfBoundsRead"):
        raise RuntimeError("mine")
    assert rows(8)[0, 0] == 1

def test_interpret(pallas):
    from jax._src import config
    value = config.pallas_tpu_interpret_mode_context_manager
    with pallas.interpret("tpu,detect_races"):
        assert value.value.detect_races
        log(GOOD)
    with pallas.interpret("off"), pytest.raises(ValueError, match="Only interpret mode"):
        log(GOOD)

def test_without():
    from jax._src import config
    with pytest.raises(ValueError, match="Only interpret mode"):
        log(GOOD)

def test_asked_for_late(request):
    pallas = request.getfixturevalue("pallas")
    log(GOOD)
    assert [kernel.name for kernel in pallas.kernels] == ["log"]

def test_compile(pallas, tmp_path):
    assert pallas.dumps == ()
    (dump,) = pallas.compile(log, GOOD, targets="v5e,v6e")
    assert dump.ok and [c.target for c in dump.compilations] == ["v5e", "v6e"]
    assert pallas.dumps == (dump,)
    assert dump.folder.is_relative_to(tmp_path)
"""


@pytest.mark.slow
@with_and_without_xdist
def test_without_an_option(child: Child, workers: list[str]) -> None:
    result = child(TESTS, "--tb=short", *workers)
    result.assert_outcomes(passed=8, failed=3)
    text = result.stdout.str()
    for test, message in {
        "expected_and_something_else": "Failed: OutOfBoundsRead in kernel `rows`",
        "expected_once_and_found_again": "Failed: NanProduced in kernel `log`",
        "expected_and_not_found": "Failed: expected NanProduced in kernel `rows`; ",
    }.items():
        assert f"FAILED test_it.py::test_{test} - {message}"[:70].rstrip() in text
    assert "expected NanProduced in kernel `rows`; found NanProduced in `log`" in text


COMPARISONS = """
def twice(x):
    return 2 * jnp.log(x)

def test_right(pallas):
    log(GOOD)
    report = pallas.compare(log, jnp.log, GOOD)
    assert report.ok and report.kernels == ("log",) and report.notes == ()
    assert [kernel.name for kernel in pallas.kernels] == ["log"]

def test_wrong(pallas):
    report = pallas.compare(log, twice, GOOD * 3)
    assert not report.ok

def test_expected_in_its_mode(pallas):
    with pallas.expect("ValueMismatch", kernel="log"):
        pallas.compare(log, twice, GOOD * 3)
    with pallas.interpret("tpu"):
        assert pallas.compare(log, twice, GOOD * 3, rtol=1.0).ok

def test_nan_of_the_reference(pallas):
    pallas.compare(log, lambda x: jnp.log(-x), GOOD)

"""


@pytest.mark.slow
def test_compare(child: Child) -> None:
    result = child(COMPARISONS, "--tb=short")
    result.assert_outcomes(passed=2, failed=2)
    text = result.stdout.str()
    assert "ValueMismatch in kernel `log`" in text
    assert "1,024 of 1,024 elements differ" in text
    assert (
        "ValuesDiffer: not judged: output, float32[8, 128]: `<lambda>` is NaN at 1,024 of" in text
    )


@pytest.mark.slow
def test_while_dumping(child: Child, pytester: pytest.Pytester) -> None:
    result = child(
        """
        def test_dumps(pallas):
            log(GOOD)
            (dump,) = pallas.dumps
            assert dump.compilation("v6e").ok
            assert dump.folder.is_dir()

        @pytest.mark.pallas(targets="v5e")
        def test_compile(pallas):
            (dump,) = pallas.compile(rows, 8)
            assert [c.target for c in dump.compilations] == ["v5e"]
            assert dump.folder.parent.name == "dumps"
        """,
        "--pallas-dump",
        "--pallas-target=v6e",
    )
    result.assert_outcomes(passed=2)


TARGETS = """
def test_target(pallas_target):
    assert generation(GOOD)[0, 0] == int(pallas_target.name.strip("vtpu")[0])

def test_newer(pallas_target):
    if pallas_target.name != "v6e":
        pytest.skip("only on v6e")

@pytest.mark.parametrize("pallas_target", ["v4", "v6e:2x4"], indirect=True)
def test_own(pallas_target, pallas):
    assert generation(GOOD)[0, 0] == int(pallas_target.name[1])
    assert pallas.kernels[0].chip == pallas_target.device_kind

@pytest.mark.parametrize("pallas_target", ["v99"], indirect=True)
def test_unknown(pallas_target):
    pass
"""


@pytest.mark.slow
def test_the_target(sessions: Sessions, child_files: ChildFiles) -> None:
    child_files(TARGETS)
    cases = [
        ([], 3),
        (["--pallas-target=v6e,v5e"], 5),
        (["--pallas-target=v5e,v6e", "--pallas-interpret", "-n", "2"], 5),
    ]
    results = sessions(*((arguments, {}) for arguments, _ in cases))
    for result, (_, passed) in zip(results, cases, strict=True):
        result.assert_outcomes(passed=passed, skipped=1, errors=1)
        assert "unknown target 'v99'; the known ones are v4" in result.stdout.str()
