"""Dumps of the kernel `rows` by the real compiler, for both versions of libtpu."""

from __future__ import annotations

from pathlib import Path

import pytest

DATA = Path(__file__).parent / "data"
VERSIONS = ("0.0.42", "0.0.50")


@pytest.fixture(params=VERSIONS)
def dump(request: pytest.FixtureRequest) -> Path:
    """The kernel's folder; made by `make.py` in the same place."""
    (folder,) = (DATA / f"libtpu-{request.param}").glob("rows-*")
    return folder


@pytest.fixture
def passes(dump: Path) -> list[Path]:
    return sorted((dump / "v5e" / "passes").iterdir())
