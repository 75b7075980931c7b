"""Torture tests: hostile input, killed processes, injected faults.

A run of the suite does a sample; `pytest tests/torture --torture=full` does all of it.
"""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def is_full(pytestconfig: pytest.Config) -> bool:
    """Whether the whole of each torture test was asked for, rather than a sample."""
    return bool(pytestconfig.getoption("--torture") == "full")
