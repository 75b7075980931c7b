"""Early, one-sentence reasons why a machine cannot compile anything."""

from __future__ import annotations

import importlib.util
import platform
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from pallas_debug.compiler.child import user_flags
from pallas_debug.compiler.pool import Pool, PoolSettings, check_machine, default_jobs
from pallas_debug.errors import LibtpuError


@pytest.mark.parametrize("system, machine", [("linux", "aarch64"), ("darwin", "x86_64")])
def test_another_machine(monkeypatch: pytest.MonkeyPatch, system: str, machine: str) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(LibtpuError) as error:
        check_machine()
    assert str(error.value) == (
        f"libtpu runs on x86-64 Linux only and this is {machine} {system}. "
        "Kernels are still captured; compile them on a Linux machine, or in a container."
    )


def test_without_libtpu(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_libtpu(monkeypatch)
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    with pytest.raises(LibtpuError) as error:
        check_machine()
    assert str(error.value) == (
        "libtpu is not installed, so nothing can be compiled for a TPU. "
        "Install it with: pip install 'pallas-debug[tpu]'"
    )
    with (
        Pool(PoolSettings(jobs=1)) as pool,
        pytest.raises(LibtpuError, match="libtpu is not installed"),
        pool.compile(b"", topology="v5e:2x2"),
    ):
        pass
    assert pool.pids() == []


def test_a_libtpu_of_ones_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hide_libtpu(monkeypatch)
    library = tmp_path / "libtpu.so"
    monkeypatch.setenv("TPU_LIBRARY_PATH", str(library))
    with pytest.raises(LibtpuError):
        check_machine()
    library.touch()
    check_machine()


@pytest.mark.parametrize("cores, jobs", [(None, 1), (1, 1), (3, 3), (64, 4)])
def test_default_jobs(monkeypatch: pytest.MonkeyPatch, cores: int | None, jobs: int) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert default_jobs() == jobs


@pytest.mark.parametrize(
    "given, kept",
    [
        (None, []),
        ("", []),
        ("  ", []),
        ("--a=1", ["--a=1"]),
        ("--a=1   --b c\n--d", ["--a=1", "--b", "c", "--d"]),
        ("--xla_mosaic_dump_to=/mine", []),
        ("-xla_mosaic_dump_to=/mine --a=1", ["--a=1"]),
        ("--a=1 --xla_mosaic_dump_to /mine --b=2", ["--a=1", "--b=2"]),
        ("--xla_mosaic_dump_to", []),
        ("--xla_mosaic_dump_to_stdout=1", ["--xla_mosaic_dump_to_stdout=1"]),
    ],
)
def test_user_flags(monkeypatch: pytest.MonkeyPatch, given: str | None, kept: list[str]) -> None:
    if given is None:
        monkeypatch.delenv("LIBTPU_INIT_ARGS", raising=False)
    else:
        monkeypatch.setenv("LIBTPU_INIT_ARGS", given)
    assert user_flags() == kept


def hide_libtpu(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def find_all_but_libtpu(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "libtpu" else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_all_but_libtpu)
