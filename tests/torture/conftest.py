"""Torture tests: hostile input, killed processes, injected faults.

By default a sample runs; `pytest tests/torture --torture=full` runs everything.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def is_full(pytestconfig: pytest.Config) -> bool:
    """True if the whole of each torture test was requested, rather than a sample."""
    return bool(pytestconfig.getoption("--torture") == "full")


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where there is such a file system: thousands of files cost little."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)
