"""Reports of the doctor on unhealthy machines, simulated with stand-ins."""

from __future__ import annotations

import platform
from importlib import metadata

import pytest

from pallas_debug._api import doctor
from pallas_debug.bridge import versions


def checks(name: str, monkeypatch: pytest.MonkeyPatch) -> list[doctor.Check]:
    """All checks of that name, without compiling anything."""
    monkeypatch.setattr(doctor, "_compiles", lambda: iter(()))
    return [check for check in doctor.examine() if check.name == name]


def test_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    (check,) = checks("machine", monkeypatch)
    assert check.state == "failed"
    assert "libtpu runs on x86-64 Linux only" in check.detail
    assert check.remedy == "dump on such a machine or in a container; any machine can read dumps"


def test_no_libtpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "installed", lambda: {"jax": "0.10.2"})
    (check,) = checks("libtpu", monkeypatch)
    assert check.state == "failed"
    assert check.detail == "not installed, so nothing can be compiled"
    assert check.remedy == "pip install 'pallas-debug[tpu]'"


def test_a_libtpu_of_another_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "installed", lambda: {"jax": "0.10.2", "libtpu": "0.0.1"})
    (check,) = checks("libtpu", monkeypatch)
    assert check.state == "warning"
    assert check.detail.startswith("0.0.1, but this jax was built for ==")
    assert check.remedy == f"pip install 'jax[tpu]=={metadata.version('jax')}'"


@pytest.mark.parametrize(
    "installed,wanted,fits",
    [
        ("0.0.42.1", "==0.0.42.*", True),
        ("0.0.42", "==0.0.42.*", True),
        ("0.0.420", "==0.0.42.*", False),
        ("0.0.41", "==0.0.42", False),
        ("0.0.42", "==0.0.42", True),
        ("0.0.9", ">=0.0.1", True),
    ],
)
def test_whether_a_version_fits(installed: str, wanted: str, fits: bool) -> None:
    assert doctor._fits(installed, wanted) == fits


def test_a_check_that_crashes_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash() -> dict[str, str]:
        raise RuntimeError("no metadata")

    monkeypatch.setattr(versions, "installed", crash)
    (check,) = checks("jax", monkeypatch)
    assert (check.state, check.detail) == ("failed", "RuntimeError: no metadata")
