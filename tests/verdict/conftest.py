"""A fixture for all files here."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def compile_quickly(quick_to_compile: None) -> None:
    """Compile without optimisation, as the arrays are small."""
