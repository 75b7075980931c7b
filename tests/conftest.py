"""Fixtures for all rooms."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# Several devices for what runs under shard_map; read when jax's CPU backend starts.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run_python(tmp_path: Path) -> Run:
    """Runs `python -c CODE` (or `python ARGS`) in a child process in `tmp_path`."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run


@pytest.fixture
def command(tmp_path: Path) -> Run:
    """Runs the installed `pallas-debug` in `tmp_path`."""
    script = Path(sys.executable).with_name("pallas-debug")
    if not script.exists():
        pytest.fail(f"the command is not installed beside {sys.executable}")

    def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [script, *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run
